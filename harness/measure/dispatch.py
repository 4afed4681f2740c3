"""Chooses the suite that a device runs next in the mixed phase. This module is pure: its caller passes the time and the
events.

While the phase lasts, the caller calls `dispatcher.next(device, now_ns)` for each device that may hold another feed. If
it returns None, the caller tries again after the next `finished` or `lost` of any device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import fsum, isclose

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Placement
from mixmark.harness.plan.placement import Planner

REBALANCE_NS = 5_000_000_000
MEMORY_NS = 5_000_000_000  # half-life of an observation
PRIOR_S = 5.0  # weight of the solo rates, as seconds of observed work
SLOWEST = 1e-3  # smallest pace relative to the solo rate: a plan needs rates above 0
LEAD = 0.02  # largest lead of a stream, as a share of the mixes that every stream has finished
BETTER = 1.01  # other routes must be 1 % better, or noise would make the plan flip
STAY_S = 0.25  # of work on a suite before a device changes to another: each change of the worker takes 1 to 5 ms
SAME = 0.01  # relative change of a pace below which the plan is kept

Pair = tuple[str, str]
"""Suite, device."""


@dataclass(frozen=True)
class Handed:
    """A feed that was handed out."""

    suite: str
    due_ns: int | None = None
    """When its request was due. None if requests do not arrive by time."""
    request: int = -1
    """The number of its request. -1: feeds are handed out one by one."""
    chained: bool = False
    """Whether the feed is derived from the output of the request's feed before."""
    takes: bool = False
    """Whether the feed continues that output."""
    gives: bool = False
    """Whether the next feed of the request continues this one's output."""
    last: bool = False
    """Whether no feed of the request follows."""


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


@dataclass(frozen=True)
class Loaded:
    """What a phase has loaded, for the source of its feeds."""

    mix_units: Mapping[str, float]
    """The units of a mix."""
    placement: Placement
    quanta: Mapping[Pair, int]
    """The units of a feed of each pair (suite, device) that is loaded, planned or not."""
    concurrency: Mapping[Pair, int]
    """The number of feeds that each of them runs at a time. A device may hold one more than the most."""


class WorkSource(ABC):
    """Hands out the feeds of a phase: by the plan, or as requests that a policy assigns. What a source does not say has
    no part in its phases."""

    def __init__(self, loaded: Loaded) -> None:
        self._placement, self._quanta = loaded.placement, dict(loaded.quanta)
        self._mix_units = dict(loaded.mix_units)
        self._finished: dict[str, float] = dict.fromkeys(loaded.mix_units, 0.0)

    @property
    def units(self) -> Mapping[str, float]:
        """The finished units of each suite."""
        return self._finished

    @property
    def mixes(self) -> float:
        """The mixes that all suites with a device have finished."""
        return min((self._finished[suite] / count for suite, count in self._mix_units.items()), default=0.0)

    @abstractmethod
    def begin(self, begin_ns: int) -> None:
        """Begins the phase."""

    @abstractmethod
    def next(self, device: str, now_ns: int) -> Handed | None:
        """The feed that the device gets next, which then counts as handed out, or None to wait. Raises MixmarkError if
        no work can be handed out."""

    def committed(self, handed: Handed, digest: str) -> None:
        """Is called before `finished`, with the digest of the feed's output in hexadecimal digits."""
        return None

    @abstractmethod
    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        """Records that a feed which was handed out is finished or failed.

        begin_ns: when the device began to work on it, without the time in the queue. units: those that count; 0 if the
        feed failed or exceeded its latency limit."""

    @abstractmethod
    def lost(self, device: str, now_ns: int) -> None:
        """Records that the device is gone, and with it the feeds that it held."""

    @abstractmethod
    def _unfinished_s(self, now_ns: int) -> dict[str, float]:
        """The work of each device on feeds that are not finished."""

    def surplus(self, now_ns: int) -> float:
        """The fraction of all work that no mix counts yet. The phase may end when it is small. See the function
        `surplus`."""
        return surplus(self._placement, self._mix_units, self._finished, self._unfinished_s(now_ns))

    def next_arrival_ns(self) -> int | None:
        """When the next request is due. None if no more will arrive, or requests do not arrive by time."""
        return None

    def arrive(self, now_ns: int) -> None:
        """Takes up the requests that are due."""
        return None

    def arrival_delay_ns(self) -> int | None:
        """The 99th percentile of the time from when a request was due until it was taken up. None if none arrived."""
        return None


Source = Callable[[Loaded], WorkSource]
"""Makes the source of a phase. Raises ValueError or MixmarkError."""


class Dispatcher(WorkSource):
    """Keeps the streams of all suites in the proportion of the mix, while each device runs the suites of its plan.

    A stream is all work on one suite. Its progress is counted in mixes, as units / m_w, and a feed counts from when it
    is handed out. A device gets the planned suite that is least advanced, so wrong rates correct themselves; it stays
    with a suite for a quarter of a second of its work, since a change takes time. Every few seconds the plan is made
    again from the observed rates.

    A feed is not handed out if its stream would then lead the least advanced one by more than 2 %, or by more than one
    feed for each that the devices may hold: so much may be in flight elsewhere while the device of the least advanced
    stream is busy with another suite. Planned idle time is used last: a device works until its streams lead by that
    limit. Waiting earlier would waste time that it may need, because rates change. If nothing is in flight, the device
    that is planned for the least advanced stream always has work.
    """

    def __init__(self, loaded: Loaded, plan: Planner) -> None:
        """Raises ValueError if the placement uses a pair that is not loaded."""
        super().__init__(loaded)
        placement, quanta, concurrency = loaded.placement, loaded.quanta, loaded.concurrency
        self._concurrency_of, self._plan = dict(concurrency), plan
        self._concurrency = {device: most_at_once(concurrency, device) for _, device in quanta}
        rates = {(rate.suite, rate.device): rate for rate in placement.rates}
        self._solo = {pair: rate for pair, rate in rates.items() if pair in quanta}  # without those of lost devices
        unready = {pair for pair in _used(placement) if pair not in quanta}
        if unready:
            raise ValueError(f"planned, but not loaded: {', '.join(' on '.join(pair) for pair in sorted(unready))}")
        self._in_flight: Counter[Pair] = Counter()
        self._held = dict.fromkeys(self._concurrency, 0)
        self._progress = dict.fromkeys(loaded.mix_units, 0.0)  # in mixes, what is in flight included
        self._of_pair: dict[Pair, _Observed] = {}
        self._of_device: dict[str, _Observed] = {}
        self._last: dict[str, str] = {}
        self.begin(0)
        self._planned = dict.fromkeys(self._solo, 1.0)
        self._adopt(placement)

    @property
    def placement(self) -> Placement:
        """The plan as it is now."""
        return self._placement

    def begin(self, begin_ns: int) -> None:
        self._begin_ns = self._checked_ns = begin_ns
        self._busy_since_ns = dict.fromkeys(self._concurrency, begin_ns)

    def next(self, device: str, now_ns: int) -> Handed | None:
        if now_ns - self._checked_ns >= REBALANCE_NS:
            self._rebalance(now_ns)
        if device not in self._concurrency or self._held[device] > self._concurrency[device]:
            return None
        progress = self._progress
        suites = sorted(self._suites_of.get(device, ()), key=lambda each: progress[each] - self._stays(each, device))
        for suite in suites:
            if not self._may_hand_out(suite):
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
                return Handed(suite)
        return None

    def _may_hand_out(self, suite: str) -> bool:
        """Whether a feed of the suite may be handed out, if its stream does not lead too far."""
        return True

    def _stays(self, suite: str, device: str) -> float:
        """The lead, in mixes, up to which a device stays with its suite before it changes to the least advanced one."""
        if self._last.get(device) != suite or (suite, device) not in self._solo:
            return 0.0
        return STAY_S * self._solo[suite, device].units_per_s / self._mix_units[suite]

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        suite = handed.suite
        pair = suite, device
        self._in_flight[pair] -= 1
        self._held[device] -= 1
        self._busy_since_ns[device] = end_ns
        self._finished[suite] += units
        if suite in self._progress:
            self._progress[suite] += (units - self._quanta[pair]) / self._mix_units[suite]
        due_s = units / self._solo[pair].units_per_s
        took_s = (end_ns - begin_ns) / 1e9 / self._concurrency_of[pair]
        for seen in (
            self._of_pair.setdefault(pair, _Observed(PRIOR_S, PRIOR_S, self._begin_ns)),
            self._of_device.setdefault(device, _Observed(PRIOR_S, PRIOR_S, self._begin_ns)),
        ):
            seen.add(due_s, took_s, end_ns)

    def _unfinished_s(self, now_ns: int) -> dict[str, float]:
        return {id: max(0, now_ns - self._busy_since_ns[id]) / 1e9 for id, held in self._held.items() if held}

    def lost(self, device: str, now_ns: int) -> None:
        for (suite, holder), count in self._in_flight.items():
            if holder == device and suite in self._progress:
                self._progress[suite] -= count * self._quanta[suite, device] / self._mix_units[suite]
        del self._concurrency[device]
        for table in (self._solo, self._in_flight):
            for pair in [pair for pair in table if pair[1] == device]:
                del table[pair]
        able = {suite for suite, _ in self._solo}
        self._mix_units = {suite: count for suite, count in self._mix_units.items() if suite in able}
        self._progress = {suite: self._progress[suite] for suite in self._mix_units}
        del self._held[device]
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


def most_at_once(concurrency: Mapping[Pair, int], device: str) -> int:
    """The largest number of feeds of one suite that a device runs at a time."""
    return max(count for (_, on), count in concurrency.items() if on == device)


def surplus(
    plan: Placement, mix_units: Mapping[str, float], finished: Mapping[str, float], unfinished_s: Mapping[str, float]
) -> float:
    """The fraction of all work that no mix counts yet: work of suites that lead the least advanced one, and work on
    unfinished feeds. 1: some suite has finished nothing.

    Work is valued by the dual values of the plan: the mixes that a unit of a suite and a second of a device are worth.
    """
    mixes = min((finished[suite] / count for suite, count in mix_units.items()), default=0.0)
    worth = fsum(plan.suite_prices.get(suite, 0.0) * finished[suite] for suite in mix_units)
    worth += fsum(plan.device_prices.get(device, 0.0) * seconds for device, seconds in unfinished_s.items())
    return 1 - mixes / worth if mixes and worth else 1.0


def _used(placement: Placement) -> set[Pair]:
    return {(suite, device) for suite, parts in placement.fractions.items() for device, part in parts.items() if part}


def _worth(placement: Placement) -> float:
    """Returns the figure that the objective maximises."""
    if placement.objective == "efficiency" and placement.watts:
        return placement.mixes_per_s / placement.watts
    return placement.mixes_per_s
