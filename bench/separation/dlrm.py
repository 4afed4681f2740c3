"""DLRM-DCNv2: honest precisions, and cheats that do less work.

Each value is the metric of 256 samples: a feed of 256 samples, or the smallest audit, which has 256 feeds at batch 1.
Only looked-up rows stay in memory: the tables of edge take a third of a gigabyte, and reading them one after the other
takes 0.5 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bench.separation import GROUP, Row, integers, narrower, rounded, two_of_four
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.dlrm import CROSS_LAYERS, FIXED, HOTNESS, SCRAMBLE, SET_ASIDE, Dlrm
from mixmark.suites.dlrm.network import Rank
from mixmark.suites.weights import Synthetic

BATCH = 2048
TABLE = "model.sparse_arch.embedding_bag_collection.embedding_bags.t_cat_{}.weight"
CROSS = "model.inter_arch.crossnet.W_kernels.{}"
MLP = "model.over_arch.model.0._mlp.{}._linear.weight"
HEADS = np.cumsum((0, *HOTNESS))
BAGS = [slice(*ends) for ends in pairwise(HEADS)]
CRUDE = "fp8"
"""Ways in int8 that are as crude as fp8; the gate of int8 excludes them."""
MILDEST = 3
"""The number of embedding tables in the table of ways: the tables whose absence has the smallest effect."""
LARGEST = int(np.argmax(HOTNESS))

Change = Callable[[str, Tensor], Tensor]
"""(name, values) of a weight -> its new values."""


@dataclass(frozen=True)
class Target:
    """The inputs of an output: weights, dense features [samples, 13] and indices [samples, 214].

    Each table is reduced to the rows in use, followed by their average over all lookups, which is the best substitute
    for a missing lookup.
    """

    suite: Dlrm
    weights: Mapping[str, Tensor]
    dense: Tensor
    indices: Tensor

    def __call__(self, batch: int = BATCH, dtype: torch.dtype = torch.float32) -> Array:
        """The logits [samples], computed in `dtype`, `batch` samples at a time."""
        with torch.device("meta"):
            network = Rank(replace(self.suite.shape, rows=tuple(len(self.weights[TABLE.format(i)]) for i in range(26))))
        network.load_state_dict({name: weight.to(dtype) for name, weight in self.weights.items()}, assign=True)
        parts = zip(torch.split(self.dense.to(dtype), batch), torch.split(self.indices.t(), batch, dim=1), strict=True)
        with torch.inference_mode():
            logits = torch.cat([network(*part)[0] for part in parts])
        return np.asarray(logits.float().numpy())

    def changed(self, change: Change) -> Target:
        return replace(self, weights={name: change(name, weight) for name, weight in self.weights.items()})

    def without(self, layer: str) -> Target:
        """Skips a layer: a cross layer with W = 0, and an MLP layer with the identity as weight, return their input."""
        off = torch.eye if layer.startswith("model.over_arch") else torch.zeros
        return self.changed(lambda name, weight: off(*weight.shape) if name == layer else weight)

    def averaged(self, away: Mapping[int, Any]) -> Target:
        """Looks up the average instead of the lookups that `away` selects from a table's bag [samples, hotness]."""
        indices = self.indices.numpy().copy()
        for table, where in away.items():
            indices[:, BAGS[table]][where] = len(self.weights[TABLE.format(table)]) - 1
        return replace(self, indices=torch.from_numpy(indices))


def opened(tier: str, weight_class: WeightClass, nonces: Sequence[int]) -> tuple[Target, Array, Target]:
    """The honest way, the ranks, and the way with each table hashed to a tenth of its rows.

    Both ways have FIXED samples and then the feeds. A rank is the popularity of an index, from 0.
    """
    suite = Dlrm(tier, {}, weight_class)
    samples = [suite.feeds(FIXED, seed=0)(0), *map(suite.feeds(BATCH, seed=1), nonces)]
    dense = torch.from_numpy(np.concatenate([each["dense"] for each in samples]))
    indices = np.concatenate([each["indices"].T for each in samples]).astype(np.int64)
    source, weights = suite.weights(), {}
    ranks, exact, hashed = (np.empty_like(indices) for _ in range(3))
    for table, (rows, bag) in enumerate(zip(suite.shape.rows, BAGS, strict=True)):
        ranks[:, bag] = indices[:, bag] * pow(SCRAMBLE, -1, rows) % rows
        both = np.stack((indices[:, bag], indices[:, bag] % max(1, rows // 10)))
        used, places = np.unique(both, return_inverse=True)
        exact[:, bag], hashed[:, bag] = places.reshape(both.shape)
        whole = np.empty((rows, suite.shape.dim), np.float32)
        source.read(TABLE.format(table), whole)
        average = whole[indices[:, bag]].mean((0, 1))[None]
        weights[TABLE.format(table)] = torch.from_numpy(np.concatenate((whole[used], average)))
    weights |= others(suite, seed=0)
    target = Target(suite, weights, dense, torch.from_numpy(exact))
    return target, ranks, replace(target, indices=torch.from_numpy(hashed))


def others(suite: Dlrm, seed: int) -> dict[str, Tensor]:
    """All weights except the tables, drawn with a seed; the suite's seed is 0."""
    specs = {name: suite.weights().spec(name) for name in suite.weights().names() if "t_cat" not in name}
    source, weights = Synthetic(suite.name, specs, suite.fill, suite.weight_class, seed), {}
    for name, spec in specs.items():
        weights[name] = torch.empty([int(size) for size in spec.shape])
        source.read(name, weights[name].numpy())
    return weights


class Rounded(TorchFunctionMode):
    """Within the context, the inputs of linear layers, and of cross layers, which are not modules, are rounded."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self._precision = precision

    def __torch_function__(
        self, call: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if call is F.linear:
            args = (rounded(args[0], self._precision), *args[1:])
        return call(*args, **(kwargs or {}))


def to(change: Callable[[Tensor], Tensor], part: str = "") -> Change:
    """Changes the weights whose names contain `part`."""
    return lambda name, weight: change(weight) if part in name else weight


def pruned(name: str, weight: Tensor) -> Tensor:
    """2:4 sparsity of the matrices but the tables; a sparse tensor core needs a width that is a multiple of 4."""
    return weight if "t_cat" in name or weight.dim() < 2 or weight.shape[-1] % 4 else two_of_four(weight)


def half_the_rank(name: str, weight: Tensor) -> Tensor:
    if name != CROSS.format(CROSS_LAYERS - 1):
        return weight
    rank = weight.shape[1]
    return weight * (torch.arange(rank) < rank // 2)


def audits(target: Target, output: Array, reference: Array) -> tuple[float, ...]:
    """The suite's quality for each 256 samples after the fixed ones, which determine the variance."""
    variance = reference[:FIXED].var(keepdims=True)
    parts = zip(*(each[FIXED:].reshape(-1, SET_ASIDE) for each in (output, reference)), strict=True)
    return tuple(target.suite.quality(part, np.append(truth, variance)) for part, truth in parts)


def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    target, ranks, hashed = opened(tier, weight_class, nonces)
    reference = target()

    def row(name: str, output: Callable[[], Array], declared: str = "", note: str = "") -> Iterator[Row]:
        if wanted(name):
            yield Row(name, declared, audits(target, output(), reference), note)

    declared = "16 bits" if weight_class == 16 else f"int{weight_class}"
    yield from row("fp32, batch 32", partial(target, batch=32), declared)
    if weight_class == 16:
        yield from row("bf16", partial(target, dtype=torch.bfloat16), declared)
        yield from row("fp16", partial(target, dtype=torch.float16), declared)
    else:
        narrow = target.changed(to(partial(integers, bits=weight_class, group=None if weight_class == 8 else GROUP)))
        yield from row(f"int{weight_class} weights and tables", narrow, declared)
        with Rounded("int8"):
            yield from row(f"int{weight_class} weights and tables, int8 activations", narrow, declared)
            yield from row("int8 activations, a scale a sample", target, declared)
    if weight_class == 8:
        for precision, said in (
            ("int8-tensor", "int8 activations, one scale a tensor"),
            ("uint8-tensor", "uint8 activations, scale and zero point a tensor"),
        ):
            with Rounded(precision):
                yield from row(said, target, CRUDE)
        with Rounded("fp8"):
            fp8 = target.changed(to(partial(rounded, precision="fp8")))
            yield from row("fp8 weights, tables and activations", fp8, "fp8")

    for name, change in narrower(weight_class):
        yield from row(f"{name}, tables too", target.changed(to(change)))
        for part, said in (("t_cat", "tables"), ("arch.model", "MLPs"), ("kernels", "cross layers")):
            yield from row(f"{name}, {said} only", target.changed(to(change, part)))
    yield from row("two of four weights pruned, tables whole", target.changed(pruned))
    for layer in range(CROSS_LAYERS):
        yield from row(f"cross layer {layer} skipped", target.without(CROSS.format(layer)))
    yield from row("half the rank of the last cross layer", target.changed(half_the_rank))
    yield from row("1024 × 1024 layer skipped", target.without(MLP.format(1)))
    yield from row("dense features ignored", replace(target, dense=torch.zeros_like(target.dense)))

    tables = range(len(HOTNESS))
    ignored = [each for table in tables for each in row(f"table {table} ignored", target.averaged({table: np.s_[:]}))]
    ignored.sort(key=lambda row: row.extreme)
    yield from ignored[:MILDEST]
    yield from row("tables hashed to a tenth of their rows", hashed)
    rows = zip(target.suite.shape.rows, BAGS, strict=True)
    tail = {table: ranks[:, bag] >= max(1, count // 10) for table, (count, bag) in enumerate(rows)}
    yield from row("only the popular tenth of each table", target.averaged(tail))
    first = target.averaged({table: np.s_[:, 1:] for table in tables})
    yield from row("first index of a bag only", first)
    half = {table: np.s_[:, -(-hot // 2) :] for table, hot in enumerate(HOTNESS)}
    yield from row("half of every bag", target.averaged(half))
    yield from row(f"half of the largest bag, {max(HOTNESS)} rows", target.averaged({LARGEST: half[LARGEST]}))

    yield from row(
        "other weights, tables kept", replace(target, weights={**target.weights, **others(target.suite, seed=1)})
    )
    yield from row("the previous output", lambda: np.roll(reference, 1))
    yield from row("a constant output", lambda: np.full_like(reference, reference[:FIXED].mean()))
    lazy = np.random.default_rng(0).random(len(reference)) < 0.1
    yield from row("the previous output for a random tenth", lambda: np.where(lazy, np.roll(reference, 1), reference))
