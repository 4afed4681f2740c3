"""PyTorch as the conformance kit of a suite runs it: eager on the CPU, in every type of torch, and counted on request.

It is no adapter of a run: many CPUs emulate products in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from mixmark.harness.adapters.torch import DTYPES, Torch, TorchSession
from mixmark.harness.contracts.protocols import GraphRunner, Runner, Suite, Use
from mixmark.harness.contracts.schema import Device

LOOKUPS = ("embedding", "index", "gather")
"""Parts of the names of operations that read some rows of a weight."""


class Counted(Torch):
    """options: `count`, so that the facts of a runner hold `flops`, those of products and convolutions so far, and
    `weights`, the number of the values of all tensors that were read as a whole."""

    name = "counted"
    known = ("count",)

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._class = CountedSession if "count" in options else EagerSession

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        facts: dict[str, str] = {}
        dtype = getattr(torch, DTYPES[precision])
        session = self._class(suite, torch.device("cpu"), dtype, torch.get_num_threads(), facts)
        try:
            yield GraphRunner(suite, session, concurrency=1, facts=facts)
        finally:
            session.close()


class EagerSession(TorchSession):
    def _fuse(self) -> None:
        """A CPU that computes in bf16 rounds as all others do."""


class CountedSession(EagerSession):
    _flops = 0

    def _prepare(self) -> None:
        tensors = [tensor for module in self._modules.values() for tensor in module.state_dict().values()]
        self._reads = WeightReads({tensor.untyped_storage().data_ptr(): tensor.numel() for tensor in tensors})

    def run(self, graph: str, *inputs: Tensor, state: Sequence[Tensor] | None = None) -> Sequence[Tensor]:
        # torch counts no product of its attention for the CPU
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, self._reads:
            outputs = super().run(graph, *inputs, state=state)
        self._flops += counter.get_total_flops()
        self._facts |= {"flops": str(self._flops), "weights": str(sum(self._reads.read.values()))}
        return outputs


class WeightReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its mode no types
    """Notes which weights are read as a whole. weights: the number of values by the address."""

    def __init__(self, weights: Mapping[int, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives its mode no types
        self._weights = weights
        self.read: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(part in func.__name__ for part in LOOKUPS):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            found = {tensor.untyped_storage().data_ptr() for tensor in tensors}
            self.read |= {address: self._weights[address] for address in found & self._weights.keys()}
        return func(*args, **kwargs or {})
