"""The probe: measures the ceilings of the roofline, bandwidth and FLOP/s, as a suite like all others.

A feed is one pass over all kernels. One streams matrices, as decoding does; the others multiply:

    gemv   a linear layer on one row, W · x, for each matrix W
    gemm   products of square matrices of one size

The matrices that gemv streams have together four times the bytes of the last-level cache, so that at most a quarter can
be cached. The harness sets the size of the cache (`cache_bytes`, 0 if memory is too small for the matrices: then
nothing is streamed) and the bits of a weight (`bits`). Each matrix gives a yield; a kernel's rate is computed over all
its yields. Weights of fewer than 16 bits are not streamed, because the bandwidth does not depend on the precision:
their probe only multiplies. The ceilings are the highest bytes and FLOP per second of a pass. A runtime that cannot run
one of the kernels fails the probe.

The results are audited like the outputs of every suite, because a probe that leaves work out would set a wrong ceiling.
Its weights need the bits of their class, as all synthetic weights do, so an engine that reads fewer bits than declared
has a known error. No part of a streamed matrix repeats, because a repeated part would come from a cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames, WeightClass
from mixmark.suites.limits import check_output
from mixmark.suites.tiered import Tiered
from mixmark.suites.weights import RMS, Draw, Fill

if TYPE_CHECKING:
    from torch import nn

COLUMNS = 4096
CHAIN = 4
VECTORS = 4  # vectors of a nonce; no two kernels multiply a matrix with the same vectors

METRIC = "squared error of the worst kernel's result, over its variance times the products in a row"
AT_MOST = {"16 bits": 0.0004, "fp8": 0.2, "int8": 0.2, "int4": 0.2}
"""Gates by the declared precision, from docs/separation.md."""


OUT_OF_CACHE = 4  # streamed bytes in last-level caches, as the finding below_ceiling needs


@dataclass(frozen=True)
class Sizes:
    """The matrices of a tier."""

    rows: int
    """The rows of each streamed matrix; 256 rows are 4 MiB in fp32."""
    most: int
    """The largest number of streamed matrices."""
    squares: tuple[int, ...]
    """The rows, and columns, of each multiplied matrix."""


TIERS = {
    "smoke": Sizes(256, 2, (256, 512)),  # never ranked, since the matrices fit into a cache
    "edge": Sizes(32_768, 64, (1024, 2048)),  # 512 MiB each in fp32
    "large": Sizes(131_072, 16, (2048, 4096)),  # at edge, of a GPU that smaller ones do not fill: 2 GiB each in fp32
    "server": Sizes(262_144, 16, (4096, 8192)),  # 4 GiB each in fp32
}


@dataclass(frozen=True)
class Kernel:
    """One graph: a kernel on one of its matrices."""

    kind: Literal["gemv", "gemm"]
    size: int
    """The rows of the matrix."""
    number: int = 0
    """The number of the streamed matrix, from 0."""

    @property
    def graph(self) -> str:
        return f"{self.kind}-{self.size}" + (f"-{self.number:02d}" if self.number else "")

    @property
    def weight(self) -> str:
        return f"square_{self.size}" if self.kind == "gemm" else f"matrix_{self.size}_{self.number:02d}"


class Probe(Tiered):
    """Ceilings of the roofline: GEMV and GEMM.

    options: `cache_bytes` and `bits`, see above. Without `cache_bytes`, one matrix is streamed. `size`: a key of
    `TIERS` in place of the tier.
    """

    name = "probe"
    version = "3"
    unit = "kernel"
    unit_names = UnitNames(short="kernel", work="kernels")
    scenarios: Sequence[str] = ("probe",)

    known = ("cache_bytes", "bits", "size")
    shapes, metric, gates = TIERS, METRIC, dict.fromkeys(TIERS, AT_MOST)
    shape: Sizes

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        super().__init__(tier, options, weight_class)
        sizes = self.shape
        self._matrices = _matrices(sizes, options)
        self._nonce = max(COLUMNS, sizes.rows, *sizes.squares)
        self._kernels = [Kernel("gemv", sizes.rows, number) for number in range(self._matrices)]
        self._kernels += [Kernel("gemm", size) for size in sizes.squares]

    @property
    def variant(self) -> str:
        return self.options.get("size", self.tier)

    @property
    def config(self) -> Mapping[str, Value]:
        """The sizes of the matrices."""
        return {
            "rows": self.shape.rows,
            "columns": COLUMNS,
            "matrices": self._matrices,
            "squares": self.shape.squares,
            "chain": CHAIN,
        }

    def specs(self) -> Mapping[str, Spec]:
        return {
            kernel.weight: Spec((kernel.size, kernel.size if kernel.kind == "gemm" else COLUMNS))
            for kernel in self._kernels
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        return Draw()

    def graphs(self) -> Mapping[str, Graph]:
        return {kernel.graph: self._graph(kernel) for kernel in self._kernels}

    def _graph(self, kernel: Kernel) -> Graph:
        """A kernel's graph. All matrices share the first matrix's graph, with another name of the weight."""
        first = replace(kernel, number=0)
        graph = self.graph(first.graph, {"nonce": Spec((VECTORS, self._nonce))}, {}, {"result": Spec((1,))})
        names = first.weight.encode(), kernel.weight.encode()  # equally long, so the message stays well-formed
        return replace(graph, module=self.module(kernel.graph), onnx=lambda: graph.onnx().replace(*names))

    def network(self, graph: str, module: Any) -> nn.Module:
        kernel = next(kernel for kernel in self._kernels if kernel.graph == graph)
        network: nn.Module
        network = module.Gemm(kernel.size) if kernel.kind == "gemm" else module.Gemv(kernel.size, kernel.number)
        return network

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """A row of normal numbers, rounded to bf16."""
        values = random.standard_normal((VECTORS, self._nonce), np.float32)
        values.view(np.uint32)[...] &= np.uint32(0xFFFF0000)
        return {"nonce": values}

    def units(self, batch: int) -> int:
        return len(self._kernels)

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Runs all matrices of a kernel before reading their results, so that a device never waits."""
        nonce = session.put(feed["nonce"])
        for _, kernels in itertools.groupby(self._kernels, lambda kernel: (kernel.kind, kernel.size)):
            for (result,) in [session.run(kernel.graph, nonce) for kernel in kernels]:
                yield session.get(result)

    def quality(self, output: Array, reference: Array) -> float:
        """The squared error of the worst result, over the variance of that kernel's results for random nonces.

        output, reference: [matrices] float32, kernel by kernel. Rounding adds up along the products of gemm, so their
        variance is multiplied by the number of roundings.
        """
        errors = check_output(output, reference.shape).astype(np.float64) - reference
        spread = [_spread(kernel.kind, kernel.size) for kernel in self._kernels]
        return float(np.square(errors / spread).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The costs of all kernels. Each measures one ceiling: gemm has no bytes, gemv no FLOPs."""
        sizes, count = self.shape, self._matrices
        size = sizes.rows * COLUMNS * BITS_PER_WEIGHT[precision] // 8
        name = f"gemv-{count * size >> 20}MiB"
        stream = Cost(name=name, flops=0, bytes=size, streamed_bytes=size, yields=max(1, count))
        products = [Cost(name=f"gemm-{n}", flops=CHAIN * 2 * n**3, bytes=0) for n in sizes.squares]
        return (stream, *products) if count else products


def _matrices(sizes: Sizes, options: Mapping[str, str]) -> int:
    """The number of streamed matrices. Raises UsageError for options that are not numbers."""
    try:
        cache_bytes, bits = (int(options[name]) if name in options else None for name in ("cache_bytes", "bits"))
    except ValueError as error:
        raise UsageError(f"the options of the suite probe are numbers: {error}") from error
    if bits is not None and bits < 16:
        return 0
    if cache_bytes is None:
        return 1
    matrix_bytes = sizes.rows * COLUMNS * (bits or 32) // 8
    return min(sizes.most, -(-OUT_OF_CACHE * cache_bytes // matrix_bytes))


def _spread(kind: str, size: int) -> float:
    """The standard deviation of a kernel's result over nonces; for gemm, times the root of its number of roundings.

    A bilinear form of normal vectors has the standard deviation of a value of its matrix, times the root of the number
    of values. In the chain of products the variance of a value grows by the square of the gain, and a ReLU keeps
    (1 − 1 / π) / 2 of the variance: the rows of the square sum to zero, so the mean after a ReLU is lost. The error of
    this estimate is below a third.
    """
    rms = RMS * Draw().scale((size, size if kind == "gemm" else COLUMNS), 4)  # of the values, in every class
    if kind != "gemm":
        return rms * math.sqrt(size * COLUMNS)
    gain = rms * math.sqrt(size)
    left = math.sqrt((1 - 1 / math.pi) / 2)
    return size * rms * gain**CHAIN * left ** (CHAIN - 1) / math.sqrt(2) * math.sqrt(CHAIN + 1)
