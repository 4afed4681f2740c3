"""PyTorch: runs graphs on the CPU and on every accelerator that the installed build of torch supports.

The modules run eagerly; in bf16 on the CPU they run as graphs for oneDNN (`fused.py`). CUDA, ROCm, XPU, MPS and out-of-
tree backends (torch_npu, torch_musa, torch_mlu, …) are all used through `torch.accelerator`; docs/vendors/coverage.md
describes how each is loaded. The authors have run only the CPU; the code for accelerators is written from the
documentation.
"""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mixmark.harness.adapters.devices import Place, cpu, multiplies_bf16, reached, threads_option
from mixmark.harness.contracts.errors import PluginError, refuse_options
from mixmark.harness.contracts.protocols import Array, Feed, Graph, GraphRunner, Runner, Suite, Use, Weights
from mixmark.harness.contracts.schema import HOST_POOL, Device, Precision
from mixmark.harness.plugins import install

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

NVIDIA_DRIVER = Path("/sys/module/nvidia/version")
GPUS = ("cuda", "xpu", "mps", "musa", "supa")
"""torch's device types for GPUs. ROCm uses `cuda`; `musa` is Moore Threads, `supa` is Biren."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""torch's names of the precisions. Products with weights of fewer bits are computed in the device's best precision."""
MAX_CONCURRENCY = 8
"""Concurrent feeds on the CPU, which share its threads: fewer threads for each feed wait less for each other."""
STREAMS = 2
"""Concurrent feeds on an accelerator: a feed is copied and launched while the previous feed runs."""


class Torch:
    """Graphs by PyTorch.

    options: `threads`, the size of the CPU's thread pool; by default torch chooses it. `backend`, a module that adds an
    accelerator and that torch does not import itself, e.g. torch_br.
    """

    name = "torch"
    known: tuple[str, ...] = ("threads", "backend")
    streams = True
    """Whether concurrent feeds of an offline suite run on streams of an accelerator."""

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_options(f"adapter {self.name}", options, self.known)
        self._threads = threads_option(self.name, {k: v for k, v in options.items() if k == "threads"})
        self._backend = options.get("backend", "")

    def discover(self) -> Iterable[Device]:
        return [place.device for place in self._devices()]

    def _devices(self) -> Iterator[Place]:
        _import()
        if self._backend:
            try:
                importlib.import_module(self._backend)
            except ImportError as error:
                raise PluginError(
                    f"{self._backend} does not load: {error}", "install it beside torch, or name it by python = …"
                ) from error
        yield from _devices()

    def disclose(self) -> Mapping[str, str]:
        """The versions of the accelerator's runtime and driver, from torch and the driver's files."""
        torch = _import()
        versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        if torch.backends.cudnn.is_available():
            versions["cuDNN"] = torch.backends.cudnn.version()
        if versions["CUDA"] and NVIDIA_DRIVER.exists():
            versions["NVIDIA driver"] = NVIDIA_DRIVER.read_text().strip()
        if torch.accelerator.is_available():
            kind = torch.accelerator.current_accelerator().type
            module = torch.get_device_module(kind)
            properties = module.get_device_properties(0) if hasattr(module, "get_device_properties") else None
            versions[f"{kind} driver"] = getattr(properties, "driver_version", None)  # XPU has one
        return {name: str(version) for name, version in versions.items() if version}

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        """Reads the weights one by one, directly into their final memory."""
        torch = _import()
        torch_name = reached(self._devices(), device, f"torch {torch.__version__}", suite, precision).name
        facts: dict[str, str] = {"torch": torch.__version__, "device": device.name, "dtype": precision}
        several = use.in_flight is None and suite.scenarios[0] == "offline"
        concurrency, threads, streams = 1, None, False
        if torch_name == "cpu":
            # Read once: concurrent feeds set torch's number of threads.
            threads = self._threads = self._threads or torch.get_num_threads()
            torch.set_num_threads(threads)
            concurrency = min(threads, MAX_CONCURRENCY) if several else 1
            facts |= {"threads": str(threads), "concurrency": str(concurrency)}
        elif several and self.streams and _has_streams(torch_name):
            concurrency, streams = STREAMS, True
            facts |= {"streams": str(concurrency)}
        if torch_name.startswith("cuda"):
            facts["tf32"] = _turn_off_tf32()
        computed = precision if precision in DTYPES else device.precisions[0]
        dtype = getattr(torch, DTYPES[computed])
        each = threads and threads // concurrency
        session = self._session(suite, torch.device(torch_name), dtype, each, facts, streams)
        runner = StreamRunner if streams else GraphRunner
        try:
            yield runner(suite, session, concurrency=concurrency, facts=facts)
        finally:
            session.close()

    def _session(self, *arguments: Any) -> TorchSession:
        return TorchSession(*arguments)


class StreamRunner(GraphRunner):
    """Runs the feeds of each issue thread on a separate stream, so that they overlap on the device."""

    session: TorchSession
    _own = threading.local()

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if not hasattr(self._own, "stream"):
            self._own.stream = self.session.new_stream()
        return super().__call__(feed)


class TorchSession:
    """The suite's modules on one device.

    threads: the number of CPU threads for one run; None on an accelerator.
    facts: receives `elsewhere` after the first run of a graph whose outputs are on another device.
    streams: whether concurrent feeds run on separate streams.
    """

    def __init__(
        self,
        suite: Suite,
        device: torch.device,
        dtype: torch.dtype,
        threads: int | None,
        facts: dict[str, str],
        streams: bool = False,
    ) -> None:
        import torch

        self._device, self._dtype, self._threads, self._facts = device, dtype, threads, facts
        self._streams = streams
        self._seen: set[str] = set()
        self._graphs: dict[str, Graph] = dict(suite.graphs())
        self._modules: dict[str, nn.Module] = {name: graph.module() for name, graph in self._graphs.items()}
        if device.type == "cpu" and dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            self._fuse()
        self._load(suite.weights())
        self._prepare()
        if streams:
            torch.get_device_module(device).synchronize()  # other streams do not wait for the stream that loaded

    def _prepare(self) -> None:
        """Prepares the loaded modules. Eager modules need nothing."""

    def _fuse(self) -> None:
        """Replaces modules by graphs for oneDNN. Modules in fp32 stay unchanged, since audits compare with them."""
        from mixmark.harness.adapters.torch import fused

        for name, graph in self._graphs.items():
            program = fused.fused(
                self._modules[name], [tensor.replace(".", "_") for tensor in (*graph.inputs, *graph.state)]
            )
            if program is not None:
                self._modules[name] = program
        eager = [name for name, module in self._modules.items() if not isinstance(module, fused.Program)]
        self._facts["fused by oneDNN"] = f"all graphs but {', '.join(eager)}" if eager else "all graphs"

    def _load(self, weights: Weights) -> None:
        """Replaces the modules' meta tensors by weights; modules that share a name share its tensor.

        The weights of convolutions, and thus their activations, are channels-last. Layers of oneDNN read their weights
        again, the largest first, so that little is in memory besides oneDNN's copies.
        """
        import torch

        from mixmark.harness.adapters.torch.fused import FusedLayer

        def read(name: str) -> Tensor:
            tensor = torch.empty([int(size) for size in weights.spec(name).shape])
            weights.read(name, tensor.numpy())
            return tensor

        names = {name: None for module in self._modules.values() for name in module.state_dict()}
        loaded: dict[str, Tensor] = {}
        for name in names:
            tensor = read(name)
            layout = torch.channels_last if tensor.dim() == 4 else torch.preserve_format
            loaded[name] = tensor.to(self._device, self._dtype, memory_format=layout)
        for module in self._modules.values():
            module.requires_grad_(False)
            filled = module.state_dict()  # keeps the version of each layer; without it a batch norm needs its counter
            filled.update({name: loaded[name] for name in filled})
            module.load_state_dict(filled, assign=True)
        layers = [
            part for module in self._modules.values() for part in module.modules() if isinstance(part, FusedLayer)
        ]
        for layer in sorted(layers, key=lambda layer: -prod(map(int, weights.spec(layer.weight).shape))):
            layer.load(read, self._dtype)

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        import torch

        self._modules.clear()
        gc.collect()
        if self._device.type != "cpu":
            torch.get_device_module(self._device).empty_cache()

    def new_stream(self) -> Any:
        """Makes a stream of the device the calling thread's current one, and returns it."""
        import torch

        module = torch.get_device_module(self._device)
        stream = module.Stream(self._device)
        module.set_stream(stream)
        return stream

    def put(self, array: Array) -> Tensor:
        import torch

        dtype = self._dtype if array.dtype.kind == "f" else None
        if not self._streams:
            return torch.tensor(array, dtype=dtype, device=self._device)
        # torch keeps pinned memory until the copy is over. A copy from pageable memory would wait for the device.
        return torch.tensor(array, dtype=dtype).pin_memory().to(self._device, non_blocking=True)

    def state(self, graph: str) -> Sequence[Tensor]:
        import torch

        return [
            torch.zeros(
                [int(size) for size in spec.shape],
                dtype=self._dtype if spec.dtype == "float" else getattr(torch, spec.dtype),
                device=self._device,
            )
            for spec in self._graphs[graph].state.values()
        ]

    def run(self, graph: str, *inputs: Tensor, state: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        import torch

        if self._threads and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)  # the setting is per thread, and each concurrent feed has a thread
        with torch.inference_mode():
            outputs: Sequence[Tensor] = self._modules[graph](*inputs, *(state or ()))
        if graph not in self._seen:
            self._seen.add(graph)
            if strays := {str(output.device) for output in outputs if output.device.type != self._device.type}:
                problem = f"the outputs of {graph} are on {', '.join(sorted(strays))}"
                self._facts["elsewhere"] = "; ".join(filter(None, (self._facts.get("elsewhere"), problem)))
        return outputs

    def get(self, tensor: Tensor) -> Array:
        import torch

        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        array: Array = tensor.to("cpu", dtype, copy=True).numpy()
        return array


def _import() -> Any:
    try:
        import torch
    except ImportError as error:
        raise PluginError("torch is not installed", install.command("torch")) from error
    return torch


def _devices() -> Iterator[Place]:
    """Each device with torch's name, e.g. `cuda:0`."""
    torch = _import()
    yield Place(cpu(("bf16", "fp32") if multiplies_bf16() else ("fp32",)), "cpu")
    if not torch.accelerator.is_available():
        return
    kind = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(kind)
    for index in range(torch.accelerator.device_count()):
        properties = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
        uuid = getattr(properties, "uuid", None)
        silicon: Literal["gpu", "npu"] = "gpu" if kind in GPUS else "npu"
        # GPU-… is the id in NVML, which the device's meter uses.
        id = f"gpu:GPU-{uuid}" if uuid and silicon == "gpu" else f"{silicon}:{kind}{index}"
        device = Device(
            id=id,
            kind=silicon,
            name=getattr(properties, "name", kind),
            memory_pool=HOST_POOL if kind == "mps" else id,
            memory_bytes=getattr(properties, "total_memory", None),
            precisions=_precisions(module, index),
        )
        yield Place(device, f"{kind}:{index}")


def _has_streams(torch_name: str) -> bool:
    """Whether this build of torch has streams and pinned memory for the device."""
    import torch

    module = torch.get_device_module(torch_name)
    try:
        torch.zeros(1).pin_memory()
    except RuntimeError:  # torch has no pinned memory for this kind of device
        return False
    return hasattr(module, "Stream") and hasattr(module, "set_stream")


def _precisions(module: Any, index: int) -> tuple[Precision, ...]:
    """The precisions of a device. bf16 only if the hardware has it, because CUDA also emulates it."""
    if module.__name__ == "torch.cuda":
        with module.device(index):
            bf16 = module.is_bf16_supported(including_emulation=False)
    else:
        bf16 = hasattr(module, "is_bf16_supported") and module.is_bf16_supported()
    return ("bf16", "fp16", "fp32") if bf16 else ("fp16", "fp32")


def _turn_off_tf32() -> str:
    """Turns off TF32, torch's default for convolutions, which has 10 bits of mantissa instead of 23."""
    import torch

    if hasattr(torch.backends.cudnn, "conv"):  # since torch 2.9, where the older switch is deprecated
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return "off"
