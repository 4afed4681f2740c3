"""llm-prefill: honest ways to compute a KV cache and cheats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.separation import Row, narrower
from bench.separation.llm import load
from bench.separation.networks import cast, patched
from mixmark.harness.capabilities.pipelines.llm_parts import Prefill
from mixmark.harness.capabilities.pipelines.llm_parts import network as networks
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.llm.network import LlamaAttention
from mixmark.suites.weights import Synthetic

Change = Callable[[Any], AbstractContextManager[object]]


def skipped(layer: int) -> Change:
    return lambda network: patched([network.model.layers[layer]], "forward", lambda own, x, *rest: x)


def attentions(network: nn.Module) -> list[nn.Module]:
    return [each for each in network.modules() if isinstance(each, LlamaAttention)]


def without_attention(layer: int) -> Change:
    return lambda network: patched([attentions(network)[layer]], "forward", lambda own, x, *rest: torch.zeros_like(x))


def ways(layers: int) -> Iterator[tuple[str, str, Change]]:
    """Ways with the weights as they are, the right one first: name, declared precision, what changes the network."""
    yield "fp32", "16 bits", nullcontext
    yield "bf16, torch's own", "16 bits", partial(cast, dtype=torch.bfloat16)
    yield "fp16, torch's own", "16 bits", partial(cast, dtype=torch.float16)
    for name, layer in (("first", 0), ("middle", layers // 2), ("last but one", layers - 2)):
        yield f"{name} layer skipped", "", skipped(layer)
    yield "attention of the last but one layer skipped", "", without_attention(layers - 2)


@torch.inference_mode()
def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = Prefill(tier, {}, weight_class)
    weights = suite.weights()
    assert isinstance(weights, Synthetic)
    prompts = [torch.from_numpy(feed["ids"]) for feed in map(suite.feeds(1, 0), nonces)]
    network = suite.graphs()["prefill"].module().to_empty(device="cpu")
    assert isinstance(network, networks.Prefill)

    def computed() -> list[Array]:
        return [network(ids)[0].float().numpy() for ids in prompts]

    def row(name: str, declared: str, outputs: Sequence[Array]) -> Row:
        return Row(name, declared, tuple(map(suite.quality, outputs, right)))

    load(network, weights)
    right = computed()
    for name, declared, change in filter(lambda way: wanted(way[0]), ways(suite.shape.layers)):
        with change(network):
            outputs = computed()
        yield row(name, declared, outputs)
    last = [each.copy() for each in right]
    for cache in last:
        cache[-1] = cache[-2]
    yield row("the last token's keys and values are those of the token before", "", last)
    yield row("the previous feed's output", "", right[1:] + right[:1])
    for name, narrow in filter(lambda way: wanted(way[0]), narrower(weight_class)):
        load(network, weights, narrow)
        yield row(name, "", computed())
    if wanted("wrong weights"):
        load(network, replace(weights, seed=1))
        yield row("wrong weights", "", computed())
