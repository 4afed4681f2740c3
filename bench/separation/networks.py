"""A suite's networks in eager torch, and changes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mixmark.harness.adapters.torch.counted import EagerSession
from mixmark.harness.contracts.protocols import Array, Feed, Suite


class Network(EagerSession):
    """The suite's graphs in eager torch on the CPU."""

    def __init__(self, suite: Suite, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(suite, torch.device("cpu"), dtype, torch.get_num_threads(), {})
        self.suite, self.modules = suite, self._modules

    def __call__(self, feed: Feed) -> Array:
        """The joined yields of a feed."""
        return np.concatenate(list(self.suite.infer(self, feed)))

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights, which the graphs share."""
        return {name: tensor for module in self.modules.values() for name, tensor in module.state_dict().items()}


@contextmanager
def patched(modules: Sequence[nn.Module], method: str, call: Callable[..., Tensor]) -> Iterator[None]:
    """call: has the module's own method as its first argument."""
    for module in modules:
        setattr(module, method, partial(call, getattr(module, method)))
    try:
        yield
    finally:
        for module in modules:
            delattr(module, method)


@contextmanager
def cast(network: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Weights, activations and states in 16 bits, in which the weights are exact."""
    network.to(dtype)
    yield
    network.float()
