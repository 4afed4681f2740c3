"""DLRM-DCNv2 recommendation: the network of MLCommons' dlrm_v2 reference, with its tables capped by tier.

The weights have the names that torchrec gives them inside DLRMTrain (`model.sparse_arch.embedding_bag_collection.
embedding_bags.t_cat_0.weight`, …). The public checkpoint has tables of full size, so it needs the server tier with the
option `rows=full`; it must first be converted from torchsnapshot's sharded format into a file or folder that
`mixmark.suites.checkpoints.checkpoint` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Session, Spec, Suite, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames
from mixmark.suites.limits import MS, SECOND, check_output, mlperf_limits, own_limits, tier_limits
from mixmark.suites.tiered import FixedSamples, Tiered
from mixmark.suites.weights import Draw, Fill, generator

DENSE = 13
# MLPerf's multi-hot Criteo data: the rows of each table, and the number of rows that a sample looks up.
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
LOOKUPS = sum(HOTNESS)
BOTTOM = (DENSE, 512, 256)  # followed by the width of an embedding
TOP = (1024, 1024, 512, 256, 1)
CROSS_LAYERS = 3

POOL = 1 << 18  # row numbers of each table, and samples of dense features, drawn before the window
SCRAMBLE = 2_654_435_761  # a prime larger than every table: rank · prime mod rows is a permutation of the rows

SET_ASIDE = 256  # one sample in 256, the worst, is not judged; also the minimum number of samples per audit
MEAN = 12  # what the mean error over 256 samples counts: rounding errors have a tail, whose largest is 8 to 20 means
FIXED = 1024  # samples from which the variance of the logits over inputs is computed

AT_MOST = {"16 bits": 0.0045, "fp8": 0.7, "int8": 0.3, "int4": 0.2}
"""Gates by the declared precision, from docs/separation.md. The server tier's gates are unmeasured."""


@dataclass(frozen=True)
class DlrmShape:
    """A tier: the sizes of the network."""

    rows: tuple[int, ...]
    """The number of rows of each table."""
    dim: int
    """The width of an embedding."""
    rank: int
    """The rank of the cross network's weights."""

    @property
    def width(self) -> int:
        """The width of the cross network's input: the bottom MLP's output and one embedding a table, side by side."""
        return (1 + len(self.rows)) * self.dim


def _capped(rows: int, dim: int = 128, rank: int = 512) -> DlrmShape:
    return DlrmShape(tuple(min(rows, full) for full in ROWS), dim, rank)


SHAPES = {
    "smoke": _capped(1_000, dim=32, rank=64),
    "edge": _capped(1_000_000),
    "server": _capped(10_000_000),
    "server-full": _capped(max(ROWS)),
}

LATENCY = tier_limits(own_limits(total_ns=2 * SECOND), mlperf_limits(total_ns=60 * MS))
"""Limits of the server scenario; the server tier has MLPerf's limit for dlrm-v2, as of v5.1."""


class Dlrm(Tiered):
    """Recommendation: DLRM-DCNv2, multi-hot, power-law indices."""

    name = "dlrm"
    version = "4"
    unit = "sample"
    unit_names = UnitNames(short="samples", work="recommendations")
    scenarios: Sequence[str] = ("offline", "single-stream", "server")

    known = ("rows", "weights")
    shapes, latencies, samples = SHAPES, LATENCY, SET_ASIDE
    metric = "squared error over the variance of logits: the worst sample's, one in 256 set aside, or 12 times the mean"
    gates = dict.fromkeys(LATENCY, AT_MOST)
    trained = 1.0
    """The gate of a checkpoint: unmeasured, and wider, since trained weights are not exact at four bits."""
    shape: DlrmShape

    @property
    def variant(self) -> str:
        return f"{self.tier}-full" if self.options.get("rows") == "full" else self.tier

    @property
    def config(self) -> Mapping[str, Value]:
        """As in the arguments of MLCommons' dlrm_v2 reference, whose checkpoint has no config.json."""
        dense, over = self._mlps()
        return {
            "interaction_type": "dcn",
            "dense_in_features": DENSE,
            "num_embeddings_per_feature": self.shape.rows,
            "multi_hot_sizes": HOTNESS,
            "embedding_dim": self.shape.dim,
            "dense_arch_layer_sizes": dense[1:],
            "over_arch_layer_sizes": over[1:],
            "dcn_num_layers": CROSS_LAYERS,
            "dcn_low_rank_dim": self.shape.rank,
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain of each tensor, chosen so that leaving out any one of the 26 tables is detected.

        The standard deviation of a pooled embedding over inputs is 0.6 to 1.2 for any number of pooled rows, as even as
        powers of two allow. Only the varying part counts: popular rows add the same amount to every bag. The dense
        features weigh about as much as one table: their distribution has long tails, and in int8 one large activation
        costs all other activations their resolution. The cross network has long tails too: at half its gain a missing
        table is less distinct from the rounding of fp8, at twice its gain the rounding has a longer tail.
        """
        if "bias" in name:
            return 0.0
        if "t_cat_" in name:
            table = int(name.split("t_cat_")[1].split(".")[0])
            return Draw(0.85 * math.sqrt(size[1] / (HOTNESS[table] * _changing(size[0]))))
        return Draw(0.7 if "kernels" in name else math.sqrt(2))

    def graphs(self) -> Mapping[str, Graph]:
        inputs = {"dense": Spec(("batch", DENSE)), "indices": Spec((LOOKUPS, "batch"), "int32")}
        return {"rank": self.graph("rank", inputs, {}, {"logits": Spec(("batch",))})}

    def feeds(self, batch: int, seed: int) -> Feeds:
        """Samples with log-uniform ranks: the k-th most popular row of a table is looked up 1/k as often as the first.

        `dense` [batch, 13] float32, `indices` [214, batch] int32. The pool has row numbers for each table. In each feed
        each of the 214 lookups reads consecutive row numbers from a separate start, one for each sample of the batch.
        Two lookups of a bag are at the same distance in the pool once in 2¹⁸ feeds, so no bag and no part of a bag
        repeats, and an engine cannot reuse a stored sum of rows. The dense features are the sums of two samples of
        normal numbers in the pool, read in the same way, so they repeat as seldom.
        """
        random = generator("dlrm/pool", seed)
        tables = (_popular(random, POOL, np.array([rows]))[:, 0] for rows in self.shape.rows)
        # The pool is followed by its first `batch` numbers, so a lookup is one copy and never wraps.
        pool = np.concatenate([np.resize(table, POOL + batch) for table in tables], dtype=np.int32)
        begins = np.repeat(np.arange(len(self.shape.rows)) * (POOL + batch), HOTNESS)
        windows = np.lib.stride_tricks.sliding_window_view(pool, batch)
        normal = random.standard_normal((POOL, DENSE), np.float32) / np.float32(math.sqrt(2))
        normal = np.resize(normal, (POOL + batch, DENSE))

        def feed(nonce: int) -> Feed:
            random = generator("dlrm/feed", seed, nonce)
            first, second = random.integers(POOL, size=2)
            dense = normal[first : first + batch] + normal[second : second + batch]
            return {"dense": dense, "indices": windows[begins + random.integers(POOL, size=LOOKUPS)]}

        return feed

    def units(self, batch: int) -> int:
        return batch

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        (logits,) = session.run("rank", session.put(feed["dense"]), session.put(feed["indices"]))
        yield session.get(logits)

    def reference(self) -> Suite:
        """Yields a feed's logits and then their variance over inputs."""
        return FixedSamples(self, FIXED, lambda logits: logits.var(keepdims=True))

    def quality(self, output: Array, reference: Array) -> float:
        """The larger of the worst squared error and 12 times the mean, over the variance of the logits.

        output: [samples] float32. reference: [samples + 1] float32, the last value being the variance of the logits
        over inputs.

        In batches above 256 samples, the worst sample in 256 is set aside first, because the largest of 8,192 rounding
        errors is twice the largest of 256, and one gate should fit all batches. The mean of 256 differs little from
        audit to audit, so it tells weights of eight bits from bf16; of fewer samples it counts proportionally less.
        """
        *_, variance = reference.astype(np.float64)
        logits = reference[:-1]
        errors = np.sort((check_output(output, logits.shape).astype(np.float64) - logits) ** 2)
        kept = errors[: len(errors) + 1 - math.ceil(len(errors) / SET_ASIDE)]
        return float(max(kept[-1], MEAN * kept.sum() / max(len(kept), SET_ASIDE)) / variance)

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The cost of one batch.

        FLOPs: matrix products and the additions of the pooling; ReLU, biases and the element-wise part of the cross
        network are not counted. Bytes: the dense weights once, each row that the batch is expected to touch once, the
        feed and the logits. Streamed bytes are the dense weights only, since popular rows may be cached even from
        large tables.
        """
        shape = self.shape
        dense = sum(a * b for widths in self._mlps() for a, b in pairwise(widths))
        dense += CROSS_LAYERS * 2 * shape.width * shape.rank
        touched = sum(rows_touched(rows, batch * hot) for rows, hot in zip(shape.rows, HOTNESS, strict=True))
        weights = dense + CROSS_LAYERS * shape.width + sum(sum(widths[1:]) for widths in self._mlps())
        pooling = (LOOKUPS - len(HOTNESS)) * shape.dim
        return (
            Cost(
                name="rank",
                flops=batch * (2 * dense + pooling),
                bytes=(weights + touched * shape.dim) * BITS_PER_WEIGHT[precision] / 8
                + batch * 4 * (DENSE + LOOKUPS + 1),
                streamed_bytes=weights * BITS_PER_WEIGHT[precision] / 8,
            ),
        )

    def _mlps(self) -> tuple[tuple[int, ...], ...]:
        return (*BOTTOM, self.shape.dim), (self.shape.width, *TOP)


def _popular(random: np.random.Generator, count: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Random row numbers, [count, tables] int64.

    Popular rows are scattered over a table, as hashed identifiers are: the row is rank · prime mod rows.
    """
    ranks = np.exp(random.random((count, len(rows)), np.float32) * np.log(rows + 1.0)).astype(np.int64) - 1
    return np.asarray(np.clip(ranks, 0, rows - 1) * SCRAMBLE % rows, np.int64)


def rows_touched(rows: int, lookups: int) -> float:
    """The expected number of different rows in n = `lookups`: Σₖ 1 − (1 − pₖ)ⁿ with pₖ ∝ ln(1 + 1/k)."""
    # The first 1,000 ranks are summed one by one, the tail is integrated on a logarithmic grid.
    edges = np.unique(np.concatenate((np.arange(1, min(rows, 1000) + 2), np.geomspace(1, rows + 1, 400).round())))
    width = np.diff(edges)
    probability = np.diff(np.log(edges)) / math.log(rows + 1) / width
    return float(np.sum(width * -np.expm1(lookups * np.log1p(-np.minimum(probability, 1 - 1e-12)))))


def _changing(rows: int) -> float:
    """The probability that two lookups of a table hit different rows: 1 − Σ pₖ², pₖ as in `rows_touched`."""
    ranks = np.arange(1, min(rows, 1000) + 1)  # two lookups hit the same one of the other rows once in 190,000 times
    return 1 - float(np.sum(np.log1p(1 / ranks) ** 2)) / math.log(rows + 1) ** 2
