"""PyTorch's compiler Inductor: each graph of a suite is compiled for fixed shapes; on CUDA it is one launch, a CUDA
graph.

A step of an eager decoder launches hundreds of kernels, and an accelerator waits for the host between them. Compiled
and eager graphs are separate routes; screening runs choose between them. The recipe follows gpt-fast. With the extra
`torchao` it also runs llm with weights of 8 bits. The authors have run it on the CPU only.
"""

from __future__ import annotations

import importlib.util
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mixmark.harness.adapters.devices import Place
from mixmark.harness.adapters.torch import Torch, TorchSession
from mixmark.harness.contracts.errors import PluginError, Unsupported, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_SHAPES = 64
"""Compiled versions of one graph: a batch search tries some twenty batches, and each is another shape."""


class Inductor(Torch):
    """Graphs by PyTorch's compiler, on accelerators.

    options: the options of the adapter torch, and `cpu`: `yes` compiles for the CPU too, which needs a C++ compiler and
    a minute for each graph.
    """

    name = "inductor"
    known = (*Torch.known, "cpu")
    streams = False  # a CUDA graph writes to fixed addresses

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        on_cpu = options.get("cpu", "no")
        if on_cpu not in ("yes", "no"):
            raise UsageError(f"adapter inductor: cpu is {on_cpu!r}", "give yes or no")
        self._on_cpu = on_cpu == "yes"

    def _devices(self) -> Iterator[Place]:
        places = [place for place in super()._devices() if place.name != "cpu" or self._on_cpu]
        if not places:
            raise PluginError("it compiles for accelerators, and torch finds none", 'cpu = "yes" takes the processor')
        for place in places:
            narrow = {"precisions_by_suite": {"llm": (*place.device.precisions, "int8")}} if has_torchao() else {}
            yield Place(place.device.model_copy(update=narrow), place.name)

    def _session(self, *arguments: Any) -> TorchSession:
        return CompiledSession(*arguments)


def has_torchao() -> bool:
    """Whether the extra `torchao` is installed."""
    return importlib.util.find_spec("torchao") is not None


def _in_eight_bits(modules: Iterable[nn.Module]) -> str:
    """Turns the weights of linear layers into int8 with a scale for each row, by torchao. Returns a description."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao warns of each kernel that this build of torch cannot load
        import torchao
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    for module in modules:
        quantize_(module, Int8WeightOnlyConfig())
    return f"weights by torchao {torchao.__version__}, with a scale for each row"


class State(list["Tensor"]):
    """The state of a graph; unlike a list, it can be referred to weakly."""


class CompiledSession(TorchSession):
    """The suite's modules, compiled at the first call with each shape, which is during preparation."""

    def _fuse(self) -> None:
        """Leaves the modules as they are: Inductor fuses them."""

    def _prepare(self) -> None:
        if self._facts.get("dtype") == "int8":
            self._facts["int8"] = _in_eight_bits(self._modules.values())
        # On CUDA, `reduce-overhead` records a CUDA graph for each shape and replays it in one launch.
        mode = "reduce-overhead" if self._device.type == "cuda" else None
        for name, module in self._modules.items():
            module.compile(fullgraph=True, dynamic=False, mode=mode)
            self._facts[f"compiled {name}"] = f"one graph of fixed shapes, mode {mode or 'default'}"
        self._states: dict[str, tuple[list[Tensor], weakref.ref[State]]] = {}

    def state(self, graph: str) -> Sequence[Tensor]:
        """The state at the addresses of the last state, if it was dropped: a CUDA graph writes to fixed addresses."""
        import torch

        kept, used = self._states.get(graph, (None, None))
        if kept is None or used is None or used() is not None:
            kept = list(super().state(graph))
            for tensor in kept:
                torch._dynamo.mark_static_address(tensor, guard=False)
        else:
            for tensor in kept:
                tensor.zero_()
        handle = State(kept)
        self._states[graph] = kept, weakref.ref(handle)
        return handle

    def run(self, graph: str, *inputs: Tensor, state: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        """Copies the outputs on the device, because a CUDA graph reuses the addresses of its outputs."""
        import torch

        if torch._dynamo.config.cache_size_limit < MOST_SHAPES:  # the setting is per thread
            torch._dynamo.config.cache_size_limit = MOST_SHAPES
        if self._device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch gives it no types
        try:
            outputs = super().run(graph, *inputs, state=state)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise Unsupported(f"torch.compile cannot compile {graph}: {why[:300]}", "use the adapter torch") from error
        with torch.inference_mode():
            return [output.clone() for output in outputs] if self._device.type == "cuda" else outputs
