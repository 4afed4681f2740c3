"""ONNX Runtime: runs graphs on the CPU and by the execution providers of the installed build.

The authors have run only the CPU provider, and a plug-in provider on the CPU; the others are written from the
documentation. docs/vendors/coverage.md says how each one loads.

Weights reach a session on one of three paths, none of which copies them:

    fp32: decoders, the probe, tables      initialisers become inputs, which are bound once to the one copy in memory
    fp32: all other weights                a file in TMPDIR while loading, so that batch norms are folded into the
                                           convolutions, and layers choose the layout of their weights
    int8 and int4, on the CPU              a converted model in the cache (see convert.py), mapped while loading

A decoder, whose graph keeps state, multiplies few rows: when its layers chose their layout, llm at edge took 14 s
longer to load and was no faster. The probe's matrices may have gigabytes, which would first be written to a disk.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mixmark.harness.adapters.cpu import cores, cpu, threads_option
from mixmark.harness.adapters.onnx_weights import lift, read_weight
from mixmark.harness.adapters.onnxruntime import convert
from mixmark.harness.contracts.errors import MixmarkError, PluginError, Unsupported, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Array, Graph, GraphRunner, Runner, Suite, Use, Weights
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, HOST_PROCESSOR, Device, Precision
from mixmark.harness.plugins import install
from mixmark.harness.plugins.model_cache import converted

if TYPE_CHECKING:
    from onnx import ModelProto

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
COMPUTES = re.compile("Conv|MatMul|Gemm|Attention|Einsum|Normalization|Softmax")  # also within names of fused operators
OTHERS: dict[str, Literal["gpu", "npu"]] = {
    "MIGraphXExecutionProvider": "gpu",
    "ROCMExecutionProvider": "gpu",
    "DmlExecutionProvider": "gpu",
    "CoreMLExecutionProvider": "npu",
    "CANNExecutionProvider": "npu",
    "QNNExecutionProvider": "npu",
    "VitisAIExecutionProvider": "npu",
}
"""Providers with one device each, their default: they report no identity by which a meter could find the device."""


@dataclass(frozen=True)
class ProviderDevice:
    """A device and the execution provider that reaches it."""

    device: Device
    provider: str
    memory: str
    """OrtValue's name of the memory in which inputs and outputs are bound."""
    plugin: Any = None
    """The plug-in provider's own object for the device; None: the provider is part of the build."""


BOUND = "inputs, bound once"
LEVELS = ("0", "1", "2", "3", "4")
BY_SUITE: dict[str, tuple[Precision, ...]] = {
    "llm": ("fp32", "int8", "int4"),
    "probe": ("fp32", "int8", "int4"),
}
"""The CPU's precisions for suites that it computes in more than fp32."""


class OnnxRuntime:
    """Graphs by ONNX Runtime.

    options: `threads`, the size of the CPU's thread pool; by default one thread a core. `accuracy_level`, how linear
    layers in int8 and int4 take their inputs (see convert.py); by default 4, which is the fastest. `library`, a plug-in
    provider: its Python package, e.g. onnxruntime_ep_openvino, or the path of its library. `provider.NAME`, an option
    NAME of the provider, e.g. `provider.backend_path`.

    The adapter always sets the number of threads: by default ONNX Runtime pins a thread to every core of the machine,
    including cores that taskset or a cpuset excludes.
    """

    name = "onnxruntime"

    def __init__(self, options: Mapping[str, str]) -> None:
        own = {name: value for name, value in options.items() if not name.startswith("provider.")}
        refuse_options("adapter onnxruntime", own, ["threads", "accuracy_level", "library", "provider.NAME"])
        self._library = options.get("library", "")
        self._provider = {name.removeprefix("provider."): options[name] for name in options.keys() - own.keys()}
        self._threads = threads_option("onnxruntime", {k: v for k, v in options.items() if k == "threads"}) or cores()
        level = options.get("accuracy_level", "4")
        if level not in LEVELS:
            raise UsageError(f"adapter onnxruntime: accuracy_level is {level!r}", f"give one of {', '.join(LEVELS)}")
        self._level = int(level)

    def discover(self) -> Iterable[Device]:
        return [place.device for place in _devices(self._library)]

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        """Raises Unsupported for a precision that the device does not offer."""
        runtime = _import()
        place = next((place for place in _devices(self._library) if place.device.id == device.id), None)
        if place is None:
            raise Unsupported(f"onnxruntime {runtime.__version__} does not reach {device.id}")
        offered = place.device.offers(suite.name)
        if precision not in offered:
            raise Unsupported(
                f"onnxruntime computes {suite.name} on {device.id} in {', '.join(offered)}, not {precision}"
            )
        if place.provider == CUDA:
            # by UUID, because CUDA orders devices differently from NVML
            os.environ["CUDA_VISIBLE_DEVICES"] = device.id.removeprefix("gpu:")
        facts = {"onnxruntime": runtime.__version__, "device": device.name, "dtype": precision}
        with ExitStack() as stack:
            folder = None
            if precision != "fp32":
                bits = BITS_PER_WEIGHT[precision]
                facts["accuracy level"] = str(self._level)
                folder = stack.enter_context(
                    converted(
                        suite,
                        precision,
                        f"onnxruntime-{runtime.__version__}-level{self._level}",
                        convert.size_bytes(suite, bits),
                        convert.writer(suite, bits, self._level),
                    )
                )
            session = _OnnxSession(suite, place, self._threads, folder, self._provider)
            stack.callback(session.close)
            yield GraphRunner(suite, session, concurrency=1, facts=facts | session.facts)


class _OnnxSession:
    """The suite's graphs on one device. folder: where the converted models are; None in fp32. provider: its options."""

    def __init__(
        self, suite: Suite, place: ProviderDevice, threads: int, folder: Path | None, provider: Mapping[str, str]
    ) -> None:
        runtime = _import()
        self._value = runtime.OrtValue
        self._place = place
        self._options = session_options(threads)
        self._providers: Sequence[Any] | None = [(place.provider, dict(provider)), CPU]
        if place.provider == CPU:
            self._providers = [CPU]
        if place.plugin is not None:
            self._options.add_provider_for_devices([place.plugin], dict(provider))
            self._providers = None
        self._graphs: dict[str, Graph] = dict(suite.graphs())
        self._sessions: dict[str, Any] = {}
        self._bindings: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self.facts: dict[str, str] = {"threads": str(threads)}
        weights = suite.weights()
        for name, graph in self._graphs.items():
            self._load(name, graph, weights, folder)

    def _load(self, name: str, graph: Graph, weights: Weights, folder: Path | None) -> None:
        import onnx

        providers = self._providers
        names: list[str] = []
        if folder is not None:
            try:
                session = _import().InferenceSession(folder / f"{name}.onnx", self._options, providers)
            except Exception as error:  # its errors have no class in common
                raise MixmarkError(
                    f"onnxruntime could not load {folder / name}.onnx: {str(error)[:300]}",
                    "mixmark cache --clear, if the file is damaged: it is then written again",
                ) from error
            exactness = session.get_modelmeta().custom_metadata_map["weights"]
            self.facts[f"weights of {name}"] = f"{exactness}, in a converted model"
        else:
            model = onnx.load_from_string(graph.onnx())
            inputs_only = bool(graph.state) or not any(node.op_type in ("Conv", "Gather") for node in model.graph.node)
            names = lift(model, tables_only=not inputs_only)
            if inputs_only:
                self.facts[f"weights of {name}"] = BOUND
                session = _import().InferenceSession(model.SerializeToString(), self._options, providers)
            else:
                self.facts[f"weights of {name}"] = "file, mapped while loading"
                if names:
                    self.facts[f"tables of {name}"] = BOUND
                session = from_file(model, weights, self._options, providers)
        binding = session.io_binding()
        for weight in names:
            if weight not in self._bound:
                self._bound[weight] = self.put(read_weight(weights, weight))
            binding.bind_ortvalue_input(weight, self._bound[weight])
        self._sessions[name], self._bindings[name] = session, binding
        self.facts[f"nodes of {name}"] = _placement(session)
        if nodes := elsewhere(_parts(session), self._place.provider):
            self.facts["elsewhere"] = "; ".join(filter(None, (self.facts.get("elsewhere"), f"{name}: {nodes}")))

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._bindings.clear()
        self._sessions.clear()
        self._bound.clear()

    def put(self, array: Array) -> Any:
        """Copies the array to the device. On the CPU the handle is the array itself, without a copy."""
        return self._value.ortvalue_from_numpy(np.ascontiguousarray(array), self._place.memory, 0)

    def state(self, graph: str) -> Sequence[Any]:
        """Zeros in the shapes of the loaded model, which may have one more first axis than the suite's graph."""
        shapes = {value.name: value.shape for value in self._sessions[graph].get_inputs()}
        return [
            self.put(np.zeros(shapes[name], np.float32 if spec.dtype == "float" else spec.dtype))
            for name, spec in self._graphs[graph].state.items()
        ]

    def run(self, graph: str, *inputs: Any, state: Sequence[Any] | None = None) -> Sequence[Any]:
        """Runs a graph. Each state tensor is bound as input and as output to one buffer, so it is written in place."""
        spec, binding = self._graphs[graph], self._bindings[graph]
        for name, value in zip(spec.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in spec.outputs:
            # a new buffer each time, because the suite may still hold the last one
            binding.bind_output(name, self._place.memory, 0)
        for name, value in zip(spec.state, state or (), strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}.out", value)
        self._sessions[graph].run_with_iobinding(binding)
        outputs: Sequence[Any] = binding.get_outputs()[: len(spec.outputs)]
        return outputs

    def get(self, tensor: Any) -> Array:
        array: Array = tensor.numpy().copy()  # numpy() may be a view of the tensor's memory
        return array


def session_options(threads: int) -> Any:
    """Options of a session whose threads spin only during a run: as fast as always spinning, without load at rest."""
    options = _import().SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only; warnings report nodes left on the CPU, which `facts` counts
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def from_file(model: ModelProto, weights: Weights, options: Any, providers: Sequence[Any] | None) -> Any:
    """A session over the model and its weights, which are on disk only until the session is built."""
    from onnx import TensorProto

    with tempfile.TemporaryDirectory(prefix="mixmark-", ignore_cleanup_errors=True) as folder:
        with (Path(folder) / "weights.bin").open("wb") as file:
            for tensor in model.graph.initializer:
                if tensor.data_location == TensorProto.EXTERNAL:
                    file.seek(next(int(entry.value) for entry in tensor.external_data if entry.key == "offset"))
                    file.write(read_weight(weights, tensor.name).data)
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return _import().InferenceSession(path, options, providers)


def _parts(session: Any) -> Sequence[Any] | None:
    """The parts of a graph, each with its `ep_name` and nodes; None if this version lists none."""
    assignment = getattr(session, "get_provider_graph_assignment_info", None)  # since 1.24
    return None if assignment is None else list(assignment())


def _placement(session: Any) -> str:
    """The number of nodes that each provider runs; this discloses nodes that fell back to the CPU silently."""
    if (parts := _parts(session)) is None:
        return f"unknown, offered to {', '.join(session.get_providers())}"
    count: Counter[str] = Counter()
    for part in parts:
        count[part.ep_name] += len(part.get_nodes())
    return ", ".join(f"{provider} {nodes}" for provider, nodes in count.items())


def elsewhere(parts: Sequence[Any] | None, provider: str) -> str:
    """The compute nodes that run on another provider, e.g. `2 Conv by CPUExecutionProvider`.

    Other nodes are not reported: every provider leaves the arithmetic of shapes to the CPU.
    """
    count: Counter[str] = Counter()
    for part in parts or ():
        if part.ep_name != provider:
            kinds = (node.op_type for node in part.get_nodes())
            count.update(f"{kind} by {part.ep_name}" for kind in kinds if COMPUTES.search(kind))
    return ", ".join(f"{nodes} {what}" for what, nodes in count.items())


def _import() -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it writes a database and sends it to its makers
    try:
        importlib.import_module("onnx")  # edits the graphs; reported here if missing, and not in the middle of a run
        import onnxruntime
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", install.command("onnxruntime")) from error
    return onnxruntime


def _devices(library: str = "") -> Iterator[ProviderDevice]:
    """All devices. A plug-in provider that computes on the CPU replaces the runtime's own CPU provider."""
    runtime = _import()
    plugged = list(_plugin_devices(runtime, library)) if library else []
    available = runtime.get_available_providers()
    if not any(place.device.id == HOST_PROCESSOR for place in plugged):
        yield ProviderDevice(cpu(("fp32",)).model_copy(update={"precisions_by_suite": BY_SUITE}), CPU, "cpu")
    yield from plugged
    reached = {place.provider for place in plugged}
    if CUDA in available:
        yield from (ProviderDevice(device, CUDA, "cuda") for device in _cuda_devices())
    for provider, kind in OTHERS.items():
        if provider in available and provider not in reached:
            id = f"{kind}:{provider.removesuffix('ExecutionProvider').lower()}"
            yield ProviderDevice(Device(id=id, kind=kind, memory_pool=id, precisions=("fp32",)), provider, "cpu")


def _plugin_devices(runtime: Any, library: str) -> Iterator[ProviderDevice]:
    """The devices of a plug-in library. If several of its providers list one device, the first one is taken.

    Raises PluginError if the library does not load.
    """
    try:
        path = library if Path(library).is_file() else importlib.import_module(library).get_library_path()
        if library not in _registered:
            _registered[library] = [found.ep_name for found in runtime.get_ep_devices()]
            runtime.register_execution_provider_library(library, str(path))
    except Exception as error:  # its errors have no class in common
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
        if kind == "cpu":
            yield ProviderDevice(cpu(("fp32",)), found.ep_name, "cpu", found)
            continue
        id = f"{kind}:{found.ep_name.removesuffix('ExecutionProvider').lower()}{count[kind]}"
        count[kind] += 1
        name = found.ep_metadata.get("FULL_DEVICE_NAME") or f"{found.device.vendor} {kind.upper()}"
        yield ProviderDevice(
            Device(id=id, kind=kind, name=name, memory_pool=id, precisions=("fp32",)), found.ep_name, "cpu", found
        )


_registered: dict[str, list[str]] = {}
"""The providers that the process had before each plug-in was registered: a library registers once a process."""


def _cuda_devices() -> Iterator[Device]:
    """The CUDA devices, listed through NVML, which takes no memory on them."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return  # a build for CUDA on a machine without the driver
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if visible == [""] or str(index) in visible or uuid in visible:
            yield Device(
                id=f"gpu:{uuid}",
                kind="gpu",
                name=pynvml.nvmlDeviceGetName(handle),
                memory_pool=f"gpu:{uuid}",
                memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                precisions=("fp32",),
            )
    pynvml.nvmlShutdown()
