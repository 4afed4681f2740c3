"""llm-decode: honest ways to continue a given KV cache and cheats. Each output is judged by an fp32 teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.capabilities.pipelines.llm_prefill import Change, skipped, without_attention
from bench.separation import Row, narrower
from bench.separation.llm import load, uncomputed
from bench.separation.networks import cast, patched
from mixmark.harness.capabilities.pipelines.llm_parts import Decode
from mixmark.harness.capabilities.pipelines.llm_parts import network as networks
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.weights import Synthetic

Given = Callable[[Array], Array]
"""What a way makes of the cache that it is given."""


def ways(layers: int) -> Iterator[tuple[str, str, Change, Given]]:
    """Ways with the weights as they are: name, declared precision, what changes the network, and what changes the
    cache. The right one first."""

    def same(cache: Array) -> Array:
        return cache

    def rows(kept: float) -> Given:
        return lambda cache: cache * (np.arange(len(cache)) >= (1 - kept) * len(cache))[:, None, None, None, None]

    yield "fp32", "16 bits", nullcontext, same
    yield "bf16, torch's own", "16 bits", partial(cast, dtype=torch.bfloat16), same
    yield "fp16, torch's own", "16 bits", partial(cast, dtype=torch.float16), same
    for name, layer in (("first", 0), ("middle", layers // 2), ("last", layers - 1)):
        yield f"{name} layer skipped", "", skipped(layer), same
    yield "attention of the last layer skipped", "", without_attention(layers - 1), same
    yield "the cache not read", "", nullcontext, np.zeros_like
    yield "first half of the cache not read", "", nullcontext, rows(0.5)
    yield "half of the vocabulary looked at", "", half_vocabulary, same


def half_vocabulary(network: networks.Resume) -> AbstractContextManager[None]:
    def call(own: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        logits = own(*inputs)
        return logits[:, : logits.shape[-1] // 2]

    return patched([network], "logits", call)


@torch.inference_mode()
def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = Decode(tier, {}, weight_class)
    weights = suite.weights()
    assert isinstance(weights, Synthetic)
    feeds = list(map(suite.feeds(1, 0), nonces))
    network = suite.graphs()["resume"].module().to_empty(device="cpu")
    teacher = networks.Teach(suite.shape).to_empty(device="cpu").eval()
    assert isinstance(network, networks.Resume)
    shape = (suite.shape.kv_heads, suite.shape.context, suite.shape.head_dim)

    def state(dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(shape, dtype=dtype) for _ in range(2 * suite.shape.layers)]

    def decoded(feed: Feed, given: Given = lambda cache: cache) -> Array:
        """[tokens_out, 1 + width]."""
        dtype = network.model.norm.weight.dtype
        held, cache = state(dtype), torch.from_numpy(given(feed["cache"])).to(dtype)
        ids, position = torch.from_numpy(feed["ids"]), torch.tensor([len(cache)])
        rows = []
        for _ in range(suite.shape.tokens_out):
            ids, position, hidden = network(ids, position, cache, *held)
            rows.append(torch.cat((ids[:, None], hidden.float()), 1))
            cache = cache[:1]
        return torch.cat(rows).numpy()

    def row(name: str, declared: str, outputs: Iterable[Array]) -> Row:
        judged = []
        for feed, output in zip(feeds, outputs, strict=True):
            ids = torch.from_numpy(np.concatenate((feed["ids"], suite.parts(output)[0][:-1])))
            logits, hidden = teacher(ids, torch.from_numpy(feed["cache"]), *state(torch.float32))
            judged.append(suite.quality(output, torch.cat((hidden, logits), 1).numpy()))
        return Row(name, declared, tuple(judged))

    load(network, weights)
    load(teacher, weights)
    right = [decoded(feed) for feed in feeds]
    for name, declared, change, given in filter(lambda way: wanted(way[0]), ways(suite.shape.layers)):
        with change(network):
            outputs = [decoded(feed, given) for feed in feeds]
        yield row(name, declared, outputs)
    for name, made in uncomputed(np.array([feed["ids"] for feed in feeds]), np.stack(right)):
        yield row(name, "", made)
    for name, narrow in filter(lambda way: wanted(way[0]), narrower(weight_class)):
        load(network, weights, narrow)
        yield row(name, "", [decoded(feed) for feed in feeds])
    if wanted("wrong weights"):
        load(network, replace(weights, seed=1))
        yield row("wrong weights", "", [decoded(feed) for feed in feeds])
