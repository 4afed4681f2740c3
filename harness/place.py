"""Which device gets how much of its time for which suite, and the proof that no plan gets more done.

With r[w,d] units of suite w a second on device d, m[w] of them in a mix and x[w,d] the part of its time that d gives:

    max λ   such that   Σ_d r[w,d] x[w,d] ≥ λ m[w] for each suite,   Σ_w x[w,d] ≤ 1 for each device,   x ≥ 0
    dual    min Σ_d u[d]   such that   u[d] ≥ r[w,d] v[w],   Σ_w m[w] v[w] = 1,   u, v ≥ 0

Any feasible (u, v) proves that no sharing of time gets beyond Σ u, so the prices are kept as a certificate. At the
optimum u[d] is what device d adds, v[w] what a unit is worth, a device runs only suites where r[w,d] v[w] is largest,
and at most |W| + |D| − 1 of the x are above 0. It bounds what is measured where devices run one feed at a time at no
more than their solo rates; a device that overlaps feeds may do better.

For mixes per joule, t = 1 / watts and y = x t make the ratio linear (Charnes & Cooper, Naval Research Logistics
Quarterly 9, 1962); with t = 1 the same program is the one above, so both are built by one function.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import MixmarkError, UsageError
from harness.schema import Device, Placement, Rate

Objective = Literal["throughput", "efficiency"]
Shares = dict[str, dict[str, float]]
"""x[suite][device]; what is 0 is left out."""
NOTHING = 1e-9  # a smaller part of a device's time is a solver's rounding
EXACT = 1e-6  # to which figures of a certificate agree: it went through decimal text


@dataclass(frozen=True)
class Power:
    """Of the boundary, beside the watts that each rate carries."""

    idle_watts: Mapping[str, float]
    """Of every device in the boundary, whether the plan may use it or not."""
    rest_watts: float = 0.0
    """Of what is no device: memory, fans, the power supply's loss."""


@dataclass(frozen=True)
class Bound:
    """The optimum of the plain program with both of its proofs: the shares reach it, the prices exclude more."""

    mixes_per_s: float
    shares: Shares
    suite_prices: Mapping[str, float]
    device_prices: Mapping[str, float]


def place(
    mix_units: Mapping[str, float],
    rates: Sequence[Rate],
    devices: Sequence[Device],
    objective: Objective = "throughput",
    *,
    pool_bytes: Mapping[str, int] | None = None,
    host_share: float = 0.0,
    power: Power | None = None,
) -> Placement:
    """The best plan. Its `rates` hold one route for each (suite, device): the one that the best plan uses, else the
    fastest.

    rates: any number of routes for each pair; suites outside the mix are ignored.
    pool_bytes: free memory of each pool that is limited. What is resident of a pool (a worker holds its own weights)
    must fit; a rate whose memory nobody knows counts nothing.
    host_share: the part of every CPU device's time that one accelerator's host threads take, where the plan uses it.
    power: needed for efficiency; else it adds the plan's predicted watts, where all rates have them.

    Raises UsageError where no device runs a suite, two devices share silicon, or efficiency is asked for without
    power; MixmarkError where the mix does not fit into memory.
    """
    raise NotImplementedError


def bound(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Bound:
    """λ*: with every route resident and no host threads, the fastest route of each pair. Raises UsageError where no
    device runs a suite."""
    raise NotImplementedError


def best_kind(mix_units: Mapping[str, float], rates: Sequence[Rate], devices: Iterable[Device]) -> tuple[str, float]:
    """The kind of device whose devices get most mixes per second done without the others, and λ* of them.

    All of a kind count together, equal or not and slices of a part like the part, so that no machine gains by how it
    is divided. ("", 0.0) where no kind runs every suite.
    """
    raise NotImplementedError


def verify(placement: Placement, mix_units: Mapping[str, float]) -> tuple[str, ...]:
    """What is wrong with the plan or its bound, by arithmetic alone: empty where both are proven."""
    raise NotImplementedError
