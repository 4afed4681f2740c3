"""transformers' network and torch.optim's AdamW in fp32, eager, in a bare loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from mixmark.harness.capabilities.train import ADAMW, Train

SECONDS = 4


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
