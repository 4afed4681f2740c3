"""The probe: measures the ceilings of the roofline, bandwidth and FLOP/s, through the contract of every suite.

A feed is one pass over all kernels, and each yield is the result of one kernel. Three kernels stream a matrix that is
larger than the caches, since device and runtime decide which of them comes closest to the bandwidth; one multiplies:

    read   a weighted sum of rows                 x[1, rows] · W
    gemv   a linear layer on one row              W · x[columns]
    copy   reads a matrix and writes another one  STREAM's scale, into state
    gemm   products of square matrices

The ceilings are the highest bytes per second among the largest sizes (a smaller matrix may fit into a cache) and the
highest FLOP per second. The first yield, `prepare`, has a cost of zero and is not a measurement: it writes the state
once, so that the operating system allocates its memory. A runtime that cannot run one of the kernels fails the probe.

The results are audited like every suite's, since a probe that leaves work out would set a ceiling under which anything
passes. The values of the matrices that are streamed have eight bits of mantissa and four exponents: bf16 and fp16 hold
them exactly, fewer bits do not, so who reads fewer than were declared is off by a known share. A copy shows one of its
values only, so its `streamed_bytes` are 0: it proves no stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.contracts import Array, Feed, Feeds, Graph, Session, Spec, Suite, Value, Weights
from harness.errors import Unsupported, refuse_options
from harness.schema import BITS_PER_WEIGHT, Cost, Gate, LatencyLimits, UnitNames
from suites import exported
from suites.answers import bound, checked
from suites.keys import generator, key
from suites.weights import RMS, Draw, Fill, drawn

if TYPE_CHECKING:
    from torch import nn

HOME = Path(__file__).parent

COLUMNS = 4096
CHAIN = 4
VECTORS = 4  # of a nonce: no two kernels share what they multiply a matrix with

METRIC = "squared error of the worst kernel's result, over its variance times the products in a row"
AT_MOST = {"16 bits": 0.0004, "fp8": 0.2, "int8": 0.2, "int4": 0.2}
"""Gates by the declared precision, from docs/separation/probe.md."""


@dataclass(frozen=True)
class Sizes:
    """The matrices of a tier."""

    rows: tuple[int, ...]
    """The rows of each matrix that is streamed; 256 rows are 4 MiB in fp32."""
    squares: tuple[int, ...]
    """The rows, and columns, of each matrix that is multiplied."""


TIERS = {
    "smoke": Sizes((256,), (256, 512)),
    "edge": Sizes((4096, 32_768), (1024, 2048)),  # 64 and 512 MiB in fp32
    "server": Sizes((65_536, 262_144), (4096, 8192)),  # 1 and 4 GiB in fp32
}


class Probe:
    """Ceilings of the roofline: read, copy, GEMV, GEMM."""

    name = "probe"
    version = "1"
    unit = "kernel"
    unit_names = UnitNames(short="kernel", work="kernels")
    scenarios: Sequence[str] = ("probe",)

    def __init__(self, tier: str, options: Mapping[str, str]) -> None:
        if tier not in TIERS:
            raise Unsupported(f"probe has no tier {tier!r}", f"it has {', '.join(TIERS)}")
        if "weights" in options:
            raise Unsupported("probe takes no checkpoint: its matrices belong to no model")
        refuse_options("the suite probe", options)
        self.options = options
        self.tier = tier
        self.latency: LatencyLimits | None = None
        self._nonce = max(COLUMNS, *TIERS[tier].rows, *TIERS[tier].squares)
        self._kernels = [(kind, size) for kind in ("read", "gemv", "copy") for size in TIERS[tier].rows]
        self._kernels += [("gemm", size) for size in TIERS[tier].squares]

    @property
    def config(self) -> Mapping[str, Value]:
        """The sizes of the matrices, under names of its own: there is no public checkpoint."""
        sizes = TIERS[self.tier]
        return {"rows": sizes.rows, "columns": COLUMNS, "squares": sizes.squares, "chain": CHAIN}

    def weights(self) -> Weights:
        return Fine(drawn(self.name, exported.specs(HOME, self.tier, self.graphs), _rule))

    def graphs(self) -> Mapping[str, Graph]:
        return {f"{kind}-{size}": self._graph(kind, size) for kind, size in self._kernels}

    def _graph(self, kind: str, size: int) -> Graph:
        inputs = {"nonce": Spec((VECTORS, self._nonce))}
        state = {"copy": Spec((size, COLUMNS))} if kind == "copy" else {}
        module = partial(_module, kind, size)
        return exported.graph(HOME, self.tier, f"{kind}-{size}", inputs, state, {"result": Spec((1,))}, module)

    def feeds(self, batch: int, seed: int) -> Feeds:
        """A feed is a row of random numbers: normal, rounded to bf16. `batch` is 1: the probe takes one at a time."""

        def feed(nonce: int) -> Feed:
            values = generator("probe", seed, nonce).standard_normal((VECTORS, self._nonce), np.float32)
            values.view(np.uint32)[...] &= np.uint32(0xFFFF0000)
            return {"nonce": values}

        return feed

    def units(self, batch: int) -> int:
        return 1 + len(self._kernels)

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        nonce = session.put(feed["nonce"])
        states = {}
        for kind, size in self._kernels:
            if kind == "copy":
                states[size] = session.state(f"copy-{size}")
                (result,) = session.run(f"copy-{size}", nonce, state=states[size])
        yield session.get(result)
        for kind, size in self._kernels:
            (result,) = session.run(f"{kind}-{size}", nonce, state=states[size] if kind == "copy" else None)
            yield session.get(result)

    def gate(self, precision: str) -> Gate | None:
        return Gate(metric=METRIC, at_most=bound(AT_MOST, precision))

    def reference(self) -> Suite:
        return self

    def quality(self, answer: Array, reference: Array) -> float:
        """The squared error of the worst result, over the variance of that kernel's results for random nonces.

        answer, reference: [1 + kernels] float32. A copy's result is one value of it: its own square takes the place of
        the variance, and at least the mean square of the matrix. Rounding adds up along the products of gemm, so their
        variance is multiplied by the number of roundings.
        """
        off = checked(answer, reference.shape).astype(np.float64) - reference
        kinds = [("copy", 0), *self._kernels]
        spread = [
            max(abs(float(truth)), FINE_RMS) if kind == "copy" else _spread(kind, size)
            for (kind, size), truth in zip(kinds, reference, strict=True)
        ]
        return float(np.square(off / spread).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The costs of all kernels. Each measures one ceiling: gemm has no bytes, the others no FLOPs. A copy reads and
        writes."""
        bits = BITS_PER_WEIGHT[precision]
        prepare = Cost(name="prepare", flops=0, bytes=0)
        return (prepare, *(_cost(kind, size, bits) for kind, size in self._kernels))


def _cost(kind: str, size: int, bits: int) -> Cost:
    if kind == "gemm":
        return Cost(name=f"gemm-{size}", flops=CHAIN * 2 * size**3, bytes=0)
    matrix = size * COLUMNS * bits // 8
    if kind == "copy":
        return Cost(name=f"copy-{matrix >> 20}MiB", flops=0, bytes=2 * matrix)
    return Cost(name=f"{kind}-{matrix >> 20}MiB", flops=0, bytes=matrix, streamed_bytes=matrix)


def _spread(kind: str, size: int) -> float:
    """The standard deviation of a kernel's result over nonces; of gemm times the root of its roundings.

    A bilinear form of normal vectors has that of a value of its matrix, times the root of their number. In the chain of
    products the variance of a value grows by the square of the gain, and a ReLU leaves (1 − 1 / π) / 2 of it, since the
    rows of the square sum to zero, so that the mean behind a ReLU is lost. That is off by less than a third.
    """
    if kind != "gemm":
        return FINE_RMS * math.sqrt(size * COLUMNS)
    rms = RMS * Draw().scale((size, size))
    gain = rms * math.sqrt(size)
    left = math.sqrt((1 - 1 / math.pi) / 2)
    return size * rms * gain**CHAIN * left ** (CHAIN - 1) / math.sqrt(2) * math.sqrt(CHAIN + 1)


def _module(kind: str, size: int) -> nn.Module:
    from suites.probe.kernels import kernel

    return kernel(kind, size)


def _rule(name: str, shape: tuple[int, ...]) -> Fill:
    return Draw()


EXPONENTS = range(3, 7)
FINE_RMS = math.sqrt(sum(4.0**-each for each in EXPONENTS) / len(EXPONENTS) * 7 / 3)
"""The root mean square of ± m · 2^-e, m evenly from 1 to 2, e from 3 to 6."""
_CHUNK = 1 << 22  # values drawn at a time


@dataclass(frozen=True)
class Fine:
    """Weights in which the matrices that are streamed have values that need all bits of bf16's mantissa.

    A value is ± m · 2^-e with m = 1, 1 + 1/128, …, 2 − 1/128 and e = 3 … 6: ten random bits, of which no format with
    fewer can hold more than its own. They are so small that no result of the largest matrix leaves fp16's range.
    """

    drawn: Weights

    def names(self) -> Sequence[str]:
        return self.drawn.names()

    def spec(self, name: str) -> Spec:
        return self.drawn.spec(name)

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        if not name.startswith("matrix"):
            self.drawn.read(name, into)
            return
        bits = into.view(np.uint32).reshape(-1)
        source = np.random.Philox(key=key(f"probe/{name}"))
        for start in range(0, len(bits), _CHUNK):
            part = bits[start : start + _CHUNK]
            word = np.asarray(source.random_raw(len(part) // 4), "<u8").view("<u2").astype(np.uint32)
            exponent = 127 - EXPONENTS[0] - (word >> 7) % len(EXPONENTS)
            part[...] = ((word & 0x8000) << 16) | (exponent << 23) | ((word & 0x7F) << 16)
