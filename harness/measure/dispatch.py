"""Chooses the suite that a device runs next in the mixed phase. This module is pure: its caller passes the time and the
events.

While the phase lasts, the caller calls `dispatcher.next(device, now_ns)` for each device that may hold another feed. If
it returns None, the caller tries again after the next `finished` or `lost` of any device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, isclose

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Placement
from mixmark.harness.plan.placement import Planner

REBALANCE_NS = 5_000_000_000
MEMORY_NS = 5_000_000_000  # half-life of an observation
PRIOR_S = 5.0  # weight of the solo rates, as seconds of observed work
SLOWEST = 1e-3  # smallest pace relative to the solo rate: a plan needs rates above 0
LEAD = 0.02  # largest lead of a stream, as a share of the mixes that every stream has finished
BETTER = 1.01  # factor by which other routes must be better: below it the plan would change back and forth by noise
STAY_S = 0.25  # of work on a suite before a device changes to another: each change of the worker takes 1 to 5 ms
EARLY = 0.05  # margin on the duration of the feed that the window's end cuts off: it may run slower than before
SAME = 0.01  # relative change of a pace below which the plan is kept

Pair = tuple[str, str]
"""Suite, device."""


@dataclass(frozen=True)
class Tally:
    """The sums that the dispatcher of a host reports to the coordinator of several (`measure.cluster.coordinator`)."""

    finished: Mapping[str, float]
    """The units of each suite that were finished since the phase began."""
    handed_out: Mapping[str, float]
    """The same, with the feeds that the host's devices hold."""
    paces: Mapping[Pair, float]
    """The observed rate of each pair over its solo rate; if it was not observed, that of its device."""


@dataclass(frozen=True)
class Grant:
    """The part of a mix that the coordinator of several hosts gives to the dispatcher of one."""

    units: Mapping[str, float]
    """The host's units of a mix, of the suites that it has a part in."""
    credit: Mapping[str, float]
    """The units of each suite that may be handed out since the phase began."""


@dataclass
class _Observed:
    """How fast a device works relative to its solo rates; older work counts less."""

    due_s: float
    """The time that the work would have taken at solo rates."""
    took_s: float
    at_ns: int

    def add(self, due_s: float, took_s: float, at_ns: int) -> None:
        fades = 0.5 ** (max(0, at_ns - self.at_ns) / MEMORY_NS)
        self.due_s, self.took_s = self.due_s * fades + due_s, self.took_s * fades + took_s
        self.at_ns = max(at_ns, self.at_ns)

    @property
    def pace(self) -> float:
        """The observed rate divided by the solo rate."""
        return self.due_s / self.took_s


class Dispatcher:
    """Keeps the streams of all suites in the proportion of the mix, while each device runs the suites of its plan.

    A stream is all work on one suite. Its progress is counted in mixes, as units / m_w, and a feed counts from when it
    is handed out. A device gets the planned suite that is least advanced, so wrong rates correct themselves; it stays
    with a suite for a quarter of a second of its work, since a change takes time. Every few seconds the plan is made
    again from the observed rates.

    A feed is not handed out if its stream would then lead the least advanced one by more than 2 %, or by more than one
    feed for each that the devices may hold: so much may be in flight elsewhere while the device of the least advanced
    stream is busy with another suite. A device to which the plan leaves idle time waits so in the end, when its streams
    lead by that much; if it waited earlier, a long feed of another device would cost it time that it does need, since
    rates wander and the plan leaves now this device and now another some idle time. If nothing is in flight, some
    device always has work: the one that is planned for the least advanced stream.
    """

    def __init__(
        self,
        mix_units: Mapping[str, float],
        placement: Placement,
        quanta: Mapping[Pair, int],
        concurrency: Mapping[str, int],
        plan: Planner,
        begin_ns: int,
    ) -> None:
        """quanta: the units of a feed for every pair (suite, device) that is loaded, planned or not.
        concurrency: the number of feeds that each device runs at a time; one more may wait behind them.
        Raises ValueError if the placement uses a pair that is not loaded."""
        self._mix_units = dict(mix_units)
        self._quanta, self._concurrency, self._plan = dict(quanta), dict(concurrency), plan
        solo = {(rate.suite, rate.device): rate for rate in placement.rates}
        self._solo = {pair: rate for pair, rate in solo.items() if pair in quanta}
        unready = {pair for pair in _used(placement) if pair not in quanta or pair[1] not in concurrency}
        if unready:
            raise ValueError(f"planned, but not loaded: {', '.join(' on '.join(pair) for pair in sorted(unready))}")
        self._finished: dict[str, float] = dict.fromkeys(mix_units, 0.0)
        self._in_flight: Counter[Pair] = Counter()
        self._held = dict.fromkeys(concurrency, 0)
        self._progress = dict.fromkeys(mix_units, 0.0)  # in mixes, what is in flight included
        self._of_pair: dict[Pair, _Observed] = {}
        self._of_device: dict[str, _Observed] = {}
        self._last: dict[str, str] = {}
        self._course: dict[Pair, tuple[list[int], list[int]]] = {}
        self._busy_since_ns = dict.fromkeys(concurrency, begin_ns)
        self._placement = placement
        self._begin_ns = self._checked_ns = begin_ns
        self._planned = dict.fromkeys(self._solo, 1.0)
        self._credit: Mapping[str, float] | None = None
        self._adopt(placement)

    @property
    def placement(self) -> Placement:
        """The plan as it is now."""
        return self._placement

    @property
    def units(self) -> Mapping[str, float]:
        """The finished units of each suite."""
        return self._finished

    @property
    def mixes(self) -> float:
        """The mixes that all streams with a device have finished."""
        return min((self._finished[suite] / count for suite, count in self._mix_units.items()), default=0.0)

    @property
    def abandoned(self) -> tuple[str, ...]:
        """The suites that no device can run any more; the other suites continue in proportion."""
        return tuple(suite for suite in self._finished if suite not in self._mix_units)

    def next(self, device: str, now_ns: int, end_ns: int | None) -> str | None:
        """Returns the suite of the feed that the device gets next, which then counts as handed out, or None to wait.

        end_ns: when the window ends. None: that is not known yet."""
        if now_ns - self._checked_ns >= REBALANCE_NS:
            self._rebalance(now_ns)
        if device not in self._concurrency or self._held[device] > self._concurrency[device]:
            return None
        progress = self._progress
        suites = sorted(self._suites_of.get(device, ()), key=lambda each: progress[each] - self._stays(each, device))
        if end_ns is not None:
            self._postpone(device, suites, now_ns, end_ns)
        for suite in suites:
            if self._credit is not None and self._handed_out(suite) >= self._credit.get(suite, 0.0):
                continue
            behind = min((at for other, at in progress.items() if other != suite), default=progress[suite])
            after = progress[suite] + self._quanta[suite, device] / self._mix_units[suite]
            ready = after - behind <= max(LEAD * behind, self._allowed)
            if ready:
                if not self._held[device]:
                    self._busy_since_ns[device] = now_ns
                self._in_flight[suite, device] += 1
                self._held[device] += 1
                progress[suite] = after
                self._last[device] = suite
                return suite
        return None

    def _postpone(self, device: str, suites: list[str], now_ns: int, end_ns: int) -> None:
        """Reorders suites near the end of the window: first those that still finish in time, then the one feed worth
        cutting off, then those that would delay it, last those already in surplus.

        Only one feed of a device can be cut off: the one that saves most time."""
        mixes = self._mixes_at(end_ns, now_ns)
        needed = {suite: (mixes - self._progress[suite]) * self._mix_units[suite] for suite in suites}
        spare = {suite for suite in suites if needed[suite] < self._worth(suite, device)}
        cut, most_ns, begins_ns = "", 0.0, float(end_ns)
        for suite in suites:
            if suite in spare or (suite, device) not in self._course or needed[suite] > self._quanta[suite, device]:
                continue
            offsets_ns, done = self._course[suite, device]
            takes_ns = offsets_ns[bisect_left(done, needed[suite])] * (1 + EARLY)
            if offsets_ns[-1] - takes_ns > most_ns:
                cut, most_ns, begins_ns = suite, offsets_ns[-1] - takes_ns, end_ns - takes_ns
        free_ns = self._free_ns(device, now_ns)

        def turn(suite: str) -> int:
            if suite in spare:
                return 3
            if suite == cut:
                return 1
            return 2 if cut and free_ns + self._due_ns(suite, device) > begins_ns else 0

        suites.sort(key=turn)

    def _worth(self, suite: str, device: str) -> float:
        """Break-even deficit, in units: a step pays off only if its suite lacks more units than the step's time costs
        the other suites, s·share/(1 + share): s are the units of the step, share is the suite's part of the device's
        time."""
        steps = self._course.get((suite, device), ([], [self._quanta[suite, device]]))[1]
        share = self._placement.fractions.get(suite, {}).get(device, 1.0)
        return steps[0] * share / (1 + share)

    def _mixes_at(self, end_ns: int, now_ns: int) -> float:
        """The mixes that will be finished at the end of the window, if none of the remaining time is wasted.

        The units that were handed out and the remaining time are valued by the dual prices of the plan: the mixes that
        a unit of a suite and a second of a device are worth."""
        plan = self._placement
        prices = [plan.suite_prices.get(suite, 0.0) * count for suite, count in self._mix_units.items()]
        handed_out = fsum(price * at for price, at in zip(prices, self._progress.values(), strict=True))
        left = fsum(
            plan.device_prices.get(device, 0.0) * (end_ns - self._free_ns(device, now_ns)) / 1e9
            for device in self._held
        )
        return handed_out + left * plan.mixes_per_s / plan.bound_per_s

    def _free_ns(self, device: str, now_ns: int) -> float:
        """When the device will have finished the feeds that it holds."""
        due_ns = fsum(
            count * self._due_ns(suite, holder)
            for (suite, holder), count in self._in_flight.items()
            if holder == device and count
        )
        return max(now_ns, self._busy_since_ns[device] + due_ns) if self._held[device] else now_ns

    def _due_ns(self, suite: str, device: str) -> float:
        """The time of the device that a feed takes."""
        pair = suite, device
        return self._quanta[pair] / self._solo[pair].units_per_s / self._pace(pair) * 1e9

    def _stays(self, suite: str, device: str) -> float:
        """The lead, in mixes, up to which a device stays with its suite before it changes to the least advanced one."""
        if self._last.get(device) != suite or (suite, device) not in self._solo:
            return 0.0
        return STAY_S * self._solo[suite, device].units_per_s / self._mix_units[suite]

    def finished(
        self, device: str, suite: str, begin_ns: int, stamps_ns: Sequence[int], units: Sequence[int], kept: bool
    ) -> None:
        """Records that a feed which was handed out is finished or failed.

        begin_ns: when the device began to work on it, without the time in the queue. stamps_ns, units: the timestamp
        and the units of each yield. kept: whether they count; not if the feed failed or exceeded its latency limit."""
        pair = suite, device
        if not self._in_flight[pair]:
            raise ValueError(f"{device} was given no feed of {suite}")
        self._in_flight[pair] -= 1
        self._held[device] -= 1
        count, end_ns = sum(units) if kept else 0, stamps_ns[-1]
        self._busy_since_ns[device] = end_ns
        self._finished[suite] += count
        if suite in self._progress:
            self._progress[suite] += (count - self._quanta[pair]) / self._mix_units[suite]
        if kept:
            self._course[pair] = [at_ns - begin_ns for at_ns in stamps_ns], list(accumulate(units))
        due_s = count / self._solo[pair].units_per_s
        took_s = (end_ns - begin_ns) / 1e9 / self._concurrency[device]
        for seen in (
            self._of_pair.setdefault(pair, _Observed(PRIOR_S, PRIOR_S, self._begin_ns)),
            self._of_device.setdefault(device, _Observed(PRIOR_S, PRIOR_S, self._begin_ns)),
        ):
            seen.add(due_s, took_s, end_ns)

    def tally(self) -> Tally:
        """The sums for the coordinator of several hosts."""
        paces = {pair: self._pace(pair) for pair in self._solo}
        return Tally(dict(self._finished), {suite: self._handed_out(suite) for suite in self._finished}, paces)

    def granted(self, grant: Grant, now_ns: int) -> None:
        """Takes over this host's part of a mix, and hands out no more than its credit. A suite that is new to the host
        begins where its least advanced one is."""
        self._credit = grant.credit
        able = {suite for suite, _ in self._solo}
        units = {suite: count for suite, count in grant.units.items() if suite in able}
        same = units.keys() == self._mix_units.keys() and all(
            isclose(units[suite], self._mix_units[suite], rel_tol=SAME) for suite in units
        )
        if same:
            return
        behind = min(self._progress.values(), default=0.0)
        self._progress = {suite: self._progress.get(suite, behind) for suite in units}
        self._finished = {**dict.fromkeys(units, 0.0), **self._finished}
        self._mix_units = units
        self._planned = {}  # so that a new plan is made
        self._rebalance(now_ns)

    def _handed_out(self, suite: str) -> float:
        """Returns the units of a suite that were finished or are in flight."""
        held = sum(count * self._quanta[pair] for pair, count in self._in_flight.items() if pair[0] == suite)
        return self._finished.get(suite, 0.0) + held

    def lost(self, device: str, now_ns: int) -> None:
        """Records that the device has failed, and with it the feeds that it held."""
        for (suite, holder), count in self._in_flight.items():
            if holder == device and suite in self._progress:
                self._progress[suite] -= count * self._quanta[suite, device] / self._mix_units[suite]
        del self._concurrency[device], self._held[device]
        for table in (self._quanta, self._solo, self._in_flight):
            for pair in [pair for pair in table if pair[1] == device]:
                del table[pair]
        able = {suite for suite, _ in self._solo}
        self._mix_units = {suite: count for suite, count in self._mix_units.items() if suite in able}
        self._progress = {suite: self._progress[suite] for suite in self._mix_units}
        self._rebalance(now_ns)

    def _rebalance(self, now_ns: int) -> None:
        """Makes the plan again. It changes routes only if others are better, and keeps the old plan if none is
        possible."""
        self._checked_ns = now_ns
        now = {pair: self._pace(pair) for pair in self._solo if pair[0] in self._mix_units}
        before = self._planned
        if now.keys() == before.keys() and all(isclose(now[pair], before[pair], rel_tol=SAME) for pair in now):
            return
        self._planned = now
        if not now:
            return
        rates = [
            self._solo[pair].model_copy(update={"units_per_s": self._solo[pair].units_per_s * pace})
            for pair, pace in now.items()
        ]
        used = _used(self._placement)
        plans = []
        for each in ([rate for rate in rates if (rate.suite, rate.device) in used], rates):
            with suppress(MixmarkError):
                plans.append(self._plan(self._mix_units, each))
        if plans:
            kept, best = plans[0], plans[-1]
            self._placement = best if _worth(best) > _worth(kept) * BETTER else kept
        self._adopt(self._placement)

    def _pace(self, pair: Pair) -> float:
        """Returns the observed pace of the pair, or the pace of its device if the pair was not observed."""
        seen = self._of_pair.get(pair) or self._of_device.get(pair[1])
        return max(SLOWEST, seen.pace) if seen else 1.0

    def _adopt(self, placement: Placement) -> None:
        pairs = {pair for pair in _used(placement) if pair in self._solo and pair[0] in self._mix_units}
        planned = {suite for suite, _ in pairs}
        pairs |= {pair for pair in self._solo if pair[0] in self._mix_units.keys() - planned}  # any is better than none
        self._placement = placement
        self._suites_of: dict[str, list[str]] = {device: [] for device in self._concurrency}
        for suite, device in sorted(pairs):
            self._suites_of[device].append(suite)
        self._allowed = sum(
            (self._concurrency[device] + 1)
            * max(self._quanta[suite, device] / self._mix_units[suite] for suite in suites)
            for device, suites in self._suites_of.items()
            if suites
        )


def _used(placement: Placement) -> set[Pair]:
    return {(suite, device) for suite, parts in placement.fractions.items() for device, part in parts.items() if part}


def _worth(placement: Placement) -> float:
    """Returns the figure that the objective maximises."""
    if placement.objective == "efficiency" and placement.watts:
        return placement.mixes_per_s / placement.watts
    return placement.mixes_per_s
