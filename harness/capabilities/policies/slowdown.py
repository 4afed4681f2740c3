"""How much slower the devices of one phase were than those of another."""

from __future__ import annotations

from collections import defaultdict

from mixmark.harness.contracts.schema import Completions, Result
from mixmark.harness.judge.statistics.timestamps import in_flight_ns


def slowdown(result: Result, phase: str, other: str) -> float:
    """How many times slower the devices worked in another mixed phase, of the device that was slowed most; 1 if none
    was. A device that the first phase did not use is compared with the fastest that it used.

    What is compared is the time that the work of a device takes alone over the time that the device took for it. So a
    policy that chooses badly is not slow here, and a worker that is slow in the phases of a policy is.
    """
    own, theirs = _speeds(result, phase), _speeds(result, other)
    fastest = max(own.values(), default=0.0)
    return max((1.0, *(own.get(device, fastest) / speed for device, speed in theirs.items())))


def _speeds(result: Result, phase: str) -> dict[str, float]:
    """For each device of a phase the time that its work takes alone, by the plan, over the time with any in flight."""
    placements = [each.placement for each in result.phases if each.name == phase and each.placement]
    alone_s = {(rate.suite, rate.device): 1 / rate.units_per_s for each in placements for rate in each.rates}
    work_s: dict[str, float] = defaultdict(float)
    done: dict[str, list[Completions]] = defaultdict(list)
    for record in result.records:
        pair = record.route.suite, record.route.device
        if record.phase == phase and record.completions is not None and pair in alone_s:
            work_s[record.route.device] += int(record.completions.units.sum()) * alone_s[pair]
            done[record.route.device].append(record.completions)
    return {device: 1e9 * work_s[device] / max(1, in_flight_ns(*several)) for device, several in done.items()}
