"""Plain PyTorch in fp32, eager, in a bare loop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mixmark.suites.dlrm import Dlrm

SECONDS = 4
BATCH = 2048


@contextmanager
def dlrm(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """The samples per second, in batches of 2,048."""
    assert precision == "fp32"
    suite = Dlrm(tier, {})
    weights, module = suite.weights(), suite.graphs()["rank"].module().requires_grad_(False)
    state = module.state_dict()
    for name in state:
        state[name] = torch.empty([int(size) for size in weights.spec(name).shape])
        weights.read(name, state[name].numpy())
    module.load_state_dict(state, assign=True)
    feed = suite.feeds(BATCH, seed=1)
    feeds = itertools.cycle([[torch.from_numpy(array) for array in feed(nonce).values()] for nonce in range(4)])

    @torch.inference_mode()
    def rate() -> float:
        begin, done = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin) < SECONDS:
            module(*next(feeds))
            done += 1
        return done * BATCH / took_s

    yield rate
