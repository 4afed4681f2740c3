"""Plain PyTorch: the network of a suite of one graph, eager, in a bare loop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.contracts import Feed, Suite


def peer(suite: Suite, dtype: torch.dtype = torch.float32) -> Callable[[Feed], torch.Tensor]:
    """Gives a function that answers a feed. A suite's only graph takes what a feed holds, in its order."""
    (graph,) = suite.graphs().values()
    weights = suite.weights()
    module = graph.module().requires_grad_(False)
    state = module.state_dict()  # keeps the versions of layers
    for name in state:
        tensor = torch.empty([int(size) for size in weights.spec(name).shape])
        weights.read(name, tensor.numpy())
        state[name] = tensor.to(dtype)
    module.load_state_dict(state, assign=True)

    @torch.inference_mode()
    def answer(feed: Feed) -> torch.Tensor:
        given = (torch.from_numpy(array) for array in feed.values())
        (answered,) = module(*(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in given))
        out: torch.Tensor = answered
        return out

    return answer
