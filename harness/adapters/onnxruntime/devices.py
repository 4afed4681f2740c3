"""The devices of ONNX Runtime, each reached through an execution provider of its build or of a plug-in library."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mixmark.harness.adapters.devices import Place, cpu, gpu_id, nvidia_gpus, pci_address
from mixmark.harness.contracts.errors import PluginError, UsageError
from mixmark.harness.contracts.schema import HOST_POOL, HOST_PROCESSOR, Device, Precision
from mixmark.harness.plugins import install

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
WEBGPU = "WebGpuExecutionProvider"
OTHERS: dict[str, Literal["gpu", "npu"]] = {
    "MIGraphXExecutionProvider": "gpu",
    "ROCMExecutionProvider": "gpu",
    "DmlExecutionProvider": "gpu",
    "CoreMLExecutionProvider": "npu",
    "CANNExecutionProvider": "npu",
    "QNNExecutionProvider": "npu",
    "VitisAIExecutionProvider": "npu",
}
"""Providers with one default device each, without an identity that a meter could use."""
PLUGINS = ("onnxruntime_ep_webgpu",)
"""The packages of plug-in providers that need no configuration."""
MEMORIES = {CUDA: "cuda", WEBGPU: "webgpu"}
"""OrtValue's name of the memory of a provider's devices. Inputs and outputs of other providers are in host memory."""
HALF: tuple[Precision, ...] = ("fp16", "fp32")
ROUNDED: tuple[Precision, ...] = ("fp16",)
"""NPUs compute models in fp32 with 16 bits; QNN and CoreML do so silently."""
BY_COMPILER: dict[str, tuple[Precision, ...]] = {"VitisAIExecutionProvider": ("bf16",)}
"""Providers that take models in fp32 only. Their compilers round the models."""
LOW_BITS = ("llm", "probe")
"""The suites in int8 and int4 on providers with MatMulNBits."""
MATMUL_NBITS = (CPU, CUDA, WEBGPU, "DmlExecutionProvider")

OPENVINO = "OpenVINOExecutionProvider"
ENGINE_CACHES = {
    "CoreMLExecutionProvider": "ModelCacheDirectory",
    "MIGraphXExecutionProvider": "migraphx_model_cache_dir",
    "NvTensorRTRTXExecutionProvider": "nv_runtime_cache_path",
}
"""A provider's option for the folder of its compiled engines, since onnxruntime 1.23."""


@dataclass(frozen=True)
class ProviderDevice(Place):
    """A device and the execution provider that reaches it, its name."""

    plugin: Any = None
    """The plug-in provider's object for the device. None if the provider is part of the build."""

    @property
    def memory(self) -> str:
        """OrtValue's name of the memory for floats. Integers (tokens, steps and indices) stay in host memory, because
        providers leave their arithmetic to the CPU."""
        return MEMORIES.get(self.name, "cpu")

    @property
    def accelerated(self) -> bool:
        """Whether the device is not a CPU. A launch then costs more, so a converted model of few, large operators pays
        off."""
        return self.device.kind != "cpu"


def keeps_engines(provider: str) -> bool:
    """Whether the provider can keep its compiled engines in a folder."""
    major, minor = map(int, import_runtime().__version__.split(".")[:2])
    return (provider in ENGINE_CACHES or provider == OPENVINO) and (major, minor) >= (1, 23)


def provider_options(
    place: ProviderDevice, given: Mapping[str, str], half: bool, engines: Path | None = None
) -> dict[str, str]:
    """The options of a provider: fp32 is not computed in fewer bits, and engines are kept in a folder.

    given: the user's options, which have precedence. half: whether floats are fp16. engines: the folder; None if
    engines are not kept. Raises UsageError for settings that are not JSON.
    """
    if place.name == CUDA:
        return {"use_tf32": "0", **given}
    if place.name == OPENVINO and place.plugin is not None:
        # OpenVINO's provider takes settings only by device. By default a processor with bf16 rounds to bf16.
        device = place.plugin.ep_metadata["ov_device"].partition(".")[0]
        own = {"INFERENCE_PRECISION_HINT": "f16" if half else "f32"} | ({"CACHE_DIR": str(engines)} if engines else {})
        try:
            settings = json.loads(given.get("load_config", "{}"))
            settings[device] = own | settings.get(device, {})
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"adapter onnxruntime: provider.load_config is {given['load_config']!r}",
                'give the settings of each device in JSON, such as {"CPU": {"PERFORMANCE_HINT": "LATENCY"}}',
            ) from error
        return {**given, "load_config": json.dumps(settings)}
    name = ENGINE_CACHES.get(place.name)
    return {name: str(engines), **given} if name and engines else dict(given)


def provider_devices(library: str = "") -> Iterator[ProviderDevice]:
    """All devices, each with one provider. The build's CUDA provider has precedence over plug-ins, and a plug-in for
    the CPU has precedence over the build's CPU provider.

    library: a plug-in provider in addition to PLUGINS. Raises PluginError if it does not load. A provider of PLUGINS
    that does not load is left out, with the reason on standard error.
    """
    runtime = import_runtime()
    plugged: list[ProviderDevice] = []
    for package in PLUGINS:
        if package != library and importlib.util.find_spec(package):
            try:
                plugged += _plugin_devices(runtime, package)
            except PluginError as error:
                print(error, file=sys.stderr)
    plugged += _plugin_devices(runtime, library) if library else ()
    if not any(place.device.id == HOST_PROCESSOR for place in plugged):
        yield ProviderDevice(_with_low_bits(cpu(("fp32",)), CPU), CPU)
    available, reached = runtime.get_available_providers(), {place.name for place in plugged}
    by_cuda = list(nvidia_gpus(HALF)) if CUDA in available else []
    yield from (ProviderDevice(_with_low_bits(device, CUDA), CUDA) for device in by_cuda)
    yield from (place for place in plugged if place.device.id not in {device.id for device in by_cuda})
    for provider, kind in OTHERS.items():
        if provider in available and provider not in reached:
            id = f"{kind}:{provider.removesuffix('ExecutionProvider').lower()}"
            precisions = BY_COMPILER.get(provider, ROUNDED if kind == "npu" else HALF)
            device = Device(id=id, kind=kind, memory_pool=id, precisions=precisions)
            yield ProviderDevice(_with_low_bits(device, provider), provider)


def _with_low_bits(device: Device, provider: str) -> Device:
    if provider not in MATMUL_NBITS or device.kind == "simulated":
        return device
    precisions: tuple[Precision, ...] = (*device.precisions, "int8", "int4")
    return device.model_copy(update={"precisions_by_suite": dict.fromkeys(LOW_BITS, precisions)})


def _plugin_devices(runtime: Any, library: str) -> Iterator[ProviderDevice]:
    """The devices of a plug-in library. If several of its providers list one device, the first provider is used.

    A provider with separate memory and no silicon but the CPU runs on a software driver: its device is simulated.
    Raises PluginError if the library does not load.
    """
    try:
        path = library if Path(library).is_file() else importlib.import_module(library).get_library_path()
        if library not in _registered:
            _registered[library] = [found.ep_name for found in runtime.get_ep_devices()]
            runtime.register_execution_provider_library(library, str(path))
    except Exception as error:  # onnxruntime's errors have no common class
        raise PluginError(
            f"the plug-in provider {library} does not load: {str(error)[:300]}",
            "library is a package with get_library_path(), or the path of a library, for onnxruntime 1.23 or later",
        ) from error
    count: Counter[str] = Counter()
    seen: dict[tuple[object, ...], str] = {}
    for found in runtime.get_ep_devices():
        if found.ep_name in _registered[library]:
            continue
        kind = found.device.type.name.lower()
        if seen.setdefault((kind, found.device.vendor_id, found.device.device_id), found.ep_name) != found.ep_name:
            continue
        if kind == "cpu" and found.ep_name not in MEMORIES:
            yield ProviderDevice(cpu(("fp32",)), found.ep_name, found)
            continue
        name = found.ep_metadata.get("FULL_DEVICE_NAME") or f"{found.device.vendor} {kind.upper()}"
        if kind == "cpu":
            kind, name = "simulated", f"software driver of {found.ep_name.removesuffix('ExecutionProvider')}"
        id = f"{kind}:{found.ep_name.removesuffix('ExecutionProvider').lower()}{count[kind]}"
        count[kind] += 1
        if kind == "gpu" and (address := _pci_address(found.device.metadata)):
            id = gpu_id(address, id)
        shared = kind == "gpu" and found.device.metadata.get("Discrete") == "0"
        precisions = BY_COMPILER.get(found.ep_name, ROUNDED if kind == "npu" else HALF)
        if found.ep_name == WEBGPU and not _adds_in_fp16(runtime, found):
            precisions = ("fp32",)
        pool = HOST_POOL if shared else id
        device = Device(id=id, kind=kind, name=name, memory_pool=pool, precisions=precisions)
        yield ProviderDevice(_with_low_bits(device, found.ep_name), found.ep_name, found)


def _pci_address(metadata: Mapping[str, str]) -> str:
    """The PCI address in a device's metadata, which onnxruntime fills on Linux; empty if it is missing."""
    return metadata.get("pci_bus_id") or (pci_address(f"card{card}") if (card := metadata.get("card_idx")) else "")


_registered: dict[str, list[str]] = {}
"""The providers before each plug-in was registered, by library. A library can be registered once a process."""


def _adds_in_fp16(runtime: Any, found: Any) -> bool:
    """Whether the device adds two numbers in fp16. WebGPU's provider does not list the features of its devices."""
    import numpy as np
    from onnx import TensorProto, helper

    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2]) for name in "abc")
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "sum", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # a device without fp16 is not an error
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices([found], {})
    one = np.ones(2, np.float16)
    try:
        (total,) = runtime.InferenceSession(model.SerializeToString(), options).run(None, {"a": one, "b": one})
    except Exception:  # onnxruntime's errors have no common class
        return False
    return bool((total == 2).all())


def import_runtime() -> Any:
    """The module onnxruntime. Raises PluginError if it, or onnx, is not installed."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise it sends usage data to its makers
    try:
        importlib.import_module("onnx")  # reports a missing package here instead of in the middle of a run
        import onnxruntime
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", install.command("onnxruntime")) from error
    return onnxruntime
