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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.contracts import Array, Feed, Graph, Session, Spec, Suite, Value, Weights
from harness.errors import Unsupported
from harness.schema import BITS_PER_WEIGHT, Cost, Gate, LatencyLimits, UnitNames
from suites import exported
from suites.weights import Draw, Fill, drawn

if TYPE_CHECKING:
    from torch import nn

HOME = Path(__file__).parent

COLUMNS = 4096
CHAIN = 4


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
    unit_names = UnitNames(short="kernel")
    scenarios: Sequence[str] = ("probe",)

    def __init__(self, tier: str, options: Mapping[str, str]) -> None:
        if tier not in TIERS:
            raise Unsupported(f"probe has no tier {tier!r}", f"it has {', '.join(TIERS)}")
        if "weights" in options:
            raise Unsupported("probe takes no checkpoint: its matrices belong to no model")
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
        return drawn(self.name, exported.specs(HOME, self.tier, self.graphs), _rule)

    def graphs(self) -> Mapping[str, Graph]:
        return {f"{kind}-{size}": self._graph(kind, size) for kind, size in self._kernels}

    def _graph(self, kind: str, size: int) -> Graph:
        inputs = {"nonce": Spec((1, self._nonce))}
        state = {"copy": Spec((size, COLUMNS))} if kind == "copy" else {}
        module = partial(_module, kind, size)
        return exported.graph(HOME, self.tier, f"{kind}-{size}", inputs, state, {"result": Spec((1,))}, module)

    def feeds(self, batch: int, seed: int) -> Iterator[Feed]:
        """A feed is a new nonce; `batch` is 1: the probe takes one feed at a time."""
        random = np.random.Generator(np.random.Philox(key=[seed, *b"P"]))
        while True:
            yield {"nonce": random.standard_normal((1, self._nonce), np.float32)}

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
        return None  # its results are not audited: it measures the device

    def reference(self) -> Suite:
        return self

    def quality(self, answer: Array, reference: Array) -> float:
        raise Unsupported("the probe has no gate: it measures the device, and its results are not audited")

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
    return Cost(name=f"{kind}-{matrix >> 20}MiB", flops=0, bytes=2 * matrix if kind == "copy" else matrix)


def _module(kind: str, size: int) -> nn.Module:
    from suites.probe.kernels import kernel

    return kernel(kind, size)


def _rule(name: str, shape: tuple[int, ...]) -> Fill:
    return Draw()
