"""Conclusions from the raw stamps: throughput, latencies, percentiles and the share of the roofline.

All latencies here are *service times*: from issue to mark, as a closed loop sees them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from harness.schema import Completions, Int64s, Record

PROBE = "probe"
STAND_IN = "torch"  # the built-in adapter whose probe stands in where a device's own adapter has none
LOWEST_TAIL = 0.9
CeilingKey = tuple[str, str, str]
"""Device, adapter, precision."""


def units(completions: Completions) -> int:
    return int(completions.units.sum())


def in_flight_ns(completions: Completions) -> int:
    """How long at least one feed was in flight: feeds that overlap count once, making the next feed does not."""
    done = np.maximum.accumulate(completions.marks_ns[completions.ends - 1])
    gaps = completions.issued_ns[1:] - done[:-1]
    return int(done[-1] - completions.issued_ns[0] - gaps[gaps > 0].sum())


def throughput_per_s(completions: Completions) -> float | None:
    """Units per second in flight; None where the clock did not tick meanwhile."""
    in_flight = in_flight_ns(completions)
    return units(completions) * 1e9 / in_flight if in_flight else None


def service_times_ns(completions: Completions) -> Int64s:
    """[feeds], issue to last mark."""
    return completions.marks_ns[completions.ends - 1] - completions.issued_ns


def first_mark_ns(completions: Completions) -> Int64s:
    """[feeds], issue to first mark: an LLM's time to first token."""
    return completions.marks_ns[completions.starts] - completions.issued_ns


def time_per_unit_ns(completions: Completions) -> Int64s:
    """[feeds with at least two marks], first to last mark over the units behind the first mark, rounded down.

    An LLM's time per output token, as MLPerf Inference counts it. Empty where each feed has one mark.
    """
    first, last = completions.starts, completions.ends - 1
    total = np.add.reduceat(completions.units, first)
    several = last > first
    span = completions.marks_ns[last] - completions.marks_ns[first]
    behind_first = total - completions.units[first]
    return span[several] // behind_first[several]


def sample_needed(q: float) -> int:
    """The smallest sample that carries the percentile.

    Median: [min, max] holds it with 95 % confidence. Tail: MLPerf's early stopping with one value discarded,
    P(Binomial(n, 1 − q) ≤ 1) ≤ 1 %, which gives 64 for p90, 662 for p99 and 6,636 for p99.9.
    """
    if not 0.5 <= q < 1:
        raise ValueError(f"percentile {q} is not in [0.5, 1)")
    if q == 0.5:
        return 6  # 1 − 2 · 0.5⁶ = 96.9 %
    enough = math.ceil(20 / (1 - q))  # ≈ 6.64 / (1 − q) are needed
    return bisect_left(range(enough), True, lo=1, key=lambda n: q**n + n * (1 - q) * q ** (n - 1) <= 0.01)


def percentile(values: Int64s, q: float) -> int | None:
    """By nearest rank: the smallest value that at least q of the sample does not exceed. None where it carries none."""
    if len(values) < sample_needed(q):
        return None
    rank = math.ceil(round(q * len(values), 6))  # 0.9 · 70 is 63.00000000000001 in floating point
    return int(np.sort(values)[rank - 1])


@dataclass(frozen=True)
class Ceiling:
    """The best rates that a probe reached on a device, and the kernel that did; None where no kernel asks for it."""

    flops_per_s: float | None = None
    flops_kernel: str | None = None
    bytes_per_s: float | None = None
    bytes_kernel: str | None = None


@dataclass(frozen=True)
class Achieved:
    """The share of the roofline that was reached; `note` says why it is unknown, or whose ceiling stood in."""

    fraction: float | None
    note: str = ""


def ceilings(records: Iterable[Record]) -> dict[CeilingKey, Ceiling]:
    """Of every (device, adapter, precision) that was probed: the best over all its probe records."""
    best: dict[CeilingKey, Ceiling] = {}
    for record in records:
        for name, flops_per_s, bytes_per_s in _probed(record):
            key = (record.route.device, record.route.adapter, record.route.precision)
            top = best.get(key, Ceiling())
            if flops_per_s > (top.flops_per_s or 0):
                top = Ceiling(flops_per_s, name, top.bytes_per_s, top.bytes_kernel)
            if bytes_per_s > (top.bytes_per_s or 0):
                top = Ceiling(top.flops_per_s, top.flops_kernel, bytes_per_s, name)
            best[key] = top
    return best


def _probed(record: Record) -> Iterator[tuple[str, float, float]]:
    """(kernel, flop/s, byte/s) of the fastest run of each kernel of a probe record."""
    completions = record.completions
    if record.route.suite != PROBE or completions is None or _mismatch(record):
        return
    before = np.concatenate((np.zeros(1, np.int64), completions.marks_ns[:-1]))
    before[completions.starts] = completions.issued_ns
    steps = (completions.marks_ns - before).reshape(len(completions), -1)
    end = 0
    for cost in record.costs:
        start, end = end, end + cost.yields
        fastest_ns = int(steps[:, start:end].min())
        if fastest_ns > 0:
            yield cost.name, cost.flops * 1e9 / fastest_ns, cost.bytes * 1e9 / fastest_ns


def _mismatch(record: Record) -> str:
    """Why the record's costs do not describe its marks; empty where they do."""
    if record.completions is None:
        return "nothing was measured"
    if not record.costs:
        return "the suite has no cost model"
    modelled = sum(cost.yields for cost in record.costs)
    yielded = record.completions.ends - record.completions.starts
    if (yielded != modelled).any():
        return f"the cost model has {modelled} yields a feed, the record {yielded.min()} to {yielded.max()}"
    return ""


def achieved(record: Record, known: Mapping[CeilingKey, Ceiling]) -> Achieved:
    """Σ over yields of max(flops / F, bytes / B), over the time that feeds were in flight.

    F and B come from `ceilings`. Williams et al., Roofline, CACM 52(4), 2009.
    """
    if reason := _mismatch(record):
        return Achieved(None, reason)
    assert record.completions is not None  # _mismatch said so
    route = record.route
    ceiling, note = known.get((route.device, route.adapter, route.precision)), ""
    if ceiling is None:
        ceiling, note = known.get((route.device, STAND_IN, route.precision)), f"ceiling from adapter {STAND_IN}"
    if ceiling is None:
        return Achieved(None, f"{route.device} was not probed in {route.precision}")
    least_s = 0.0
    for cost in record.costs:
        if (cost.flops and not ceiling.flops_per_s) or (cost.bytes and not ceiling.bytes_per_s):
            return Achieved(None, f"the probe of {route.device} in {route.precision} lacks flop/s or byte/s")
        compute_s = cost.flops / ceiling.flops_per_s if ceiling.flops_per_s else 0.0
        memory_s = cost.bytes / ceiling.bytes_per_s if ceiling.bytes_per_s else 0.0
        least_s += cost.yields * max(compute_s, memory_s)
    in_flight = in_flight_ns(record.completions)
    if not in_flight:
        return Achieved(None, "the clock did not tick")
    return Achieved(least_s * len(record.completions) * 1e9 / in_flight, note)
