"""The screening runs of a result: which routes of a suite on a device may be the fastest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from mixmark.harness.judge.evidence import Measurement
from mixmark.harness.plan.phases import RouteKey

CLOSE = 1.15
"""Two routes are close if the faster one's rate is less than this many times the other's."""
LEAD = 2
"""How many more turns a route must win than a close one, to count as faster."""


def rates_per_s(measured: Iterable[Measurement]) -> Mapping[RouteKey, Sequence[float]]:
    """The units per second of each screening run, by its route. 0: the clock did not tick."""
    found: dict[RouteKey, list[float]] = defaultdict(list)
    for each in measured:
        if each.record.screening:
            found[each.record.route.key].append(each.throughput_per_s or 0.0)
    return found


def contenders(rates_per_s: Mapping[RouteKey, Sequence[float]]) -> list[RouteKey]:
    """The routes that may be the fastest, the one with the highest median first.

    Another route may be as fast if it is close in the median, and if the first one does not lead by LEAD turns: runs
    that were made in one turn are compared with each other, so that a drift of the machine favours neither.

    rates_per_s: the screening runs of each route of one suite on one device, at least one route.
    """
    first, *others = sorted(rates_per_s, key=lambda route: median(rates_per_s[route]), reverse=True)
    best = rates_per_s[first]

    def may_win(other: RouteKey) -> bool:
        turns = zip(reversed(best), reversed(rates_per_s[other]), strict=False)
        lead = sum((ours > theirs) - (ours < theirs) for ours, theirs in turns)
        return lead < LEAD and median(best) < CLOSE * median(rates_per_s[other])

    return [first, *filter(may_win, others)]
