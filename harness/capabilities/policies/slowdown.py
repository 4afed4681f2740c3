"""How much slower the devices of one phase were than those of another."""

from __future__ import annotations

from collections import defaultdict

from mixmark.harness.contracts.schema import Completions, Result
from mixmark.harness.judge.statistics.timestamps import in_flight_ns


def slowdown(result: Result, phase: str, other: str) -> float:
    """How many times slower the whole machine was in another mixed phase; below 1, it was faster.

    What is compared is the time that the work takes alone, by the plan, over the time in which the devices had work
    assigned. So a policy that chooses badly is not slow here, and a machine that is slow in its phases is.
    """
    return _speed(result, phase) / _speed(result, other)


def _speed(result: Result, phase: str) -> float:
    """The time that the work of a phase takes alone, by the plan, over the time with any in flight, of all devices."""
    placements = [each.placement for each in result.phases if each.name == phase and each.placement]
    alone_s = {(rate.suite, rate.device): 1 / rate.units_per_s for each in placements for rate in each.rates}
    work_s = 0.0
    done: dict[str, list[Completions]] = defaultdict(list)
    for record in result.records:
        pair = record.route.suite, record.route.device
        if record.phase == phase and record.completions is not None and pair in alone_s:
            work_s += int(record.completions.units.sum()) * alone_s[pair]
            done[record.route.device].append(record.completions)
    return 1e9 * work_s / max(1, sum(in_flight_ns(*several) for several in done.values())) or 1.0
