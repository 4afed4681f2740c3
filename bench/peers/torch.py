"""Plain PyTorch in fp32, eager, in a bare loop: dlrm's network, and for train transformers' and torch.optim's AdamW."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from mixmark.suites.dlrm import Dlrm
from mixmark.suites.train import ADAMW, Train

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


def public_llama(suite: Train) -> Any:
    """The network of train by transformers, with the suite's weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    numbers = {name[6:]: value for name, value in suite.config.items() if name.startswith("model.")}
    scaling = {name[13:]: value for name, value in numbers.items() if name.startswith("rope_scaling.")}
    plain: dict[str, Any] = {name: value for name, value in numbers.items() if "." not in name}
    plain |= {"rope_scaling": {"rope_theta": numbers["rope_theta"], **scaling}, "use_cache": False}
    network = LlamaForCausalLM(LlamaConfig(**plain))
    for name in (weights := suite.weights()).names():
        weights.read(name, network.get_parameter(name).detach().numpy())
    return network


@contextmanager
def train(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """The tokens per second, as a trainer works: each step continues from the one before."""
    assert precision == "fp32"
    suite = Train(tier, {})
    network, feed = public_llama(suite), suite.feeds(1, seed=1)
    ids = [torch.from_numpy(feed(nonce)["ids"]) for nonce in range(4)]
    betas = ADAMW["beta1"], ADAMW["beta2"]
    optimizer = torch.optim.AdamW(
        network.parameters(), 1e-4, betas, ADAMW["eps"], weight_decay=ADAMW["weight_decay"], fused=True
    )

    def rate() -> float:
        begin, done = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin) < SECONDS:
            batch = ids[done % len(ids)]
            loss = F.cross_entropy(network(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        return done * suite.units(1) / took_s

    yield rate
