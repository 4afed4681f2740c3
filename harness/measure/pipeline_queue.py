"""Hands out the stages of pipelines, in the order of their chain. This module is pure, as `dispatch` is.

A fixed number of pipelines is under way: when one ends, the next begins. A stage is handed out once the stage before
is finished. Its device is the one that lags most behind its part of the plan; a device takes its oldest pipeline first,
which is the one with the nearest deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mixmark.harness.contracts.schema import PipelineWork, Placement
from mixmark.harness.measure.dispatch import Handed, Pair, Tally, most_at_once


class PipelineQueue:
    """The pipelines of a phase that have begun and not ended. A pipeline whose stage was with a device that failed is
    lost: it never ends."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        placement: Placement,
        quanta: Mapping[Pair, int],
        concurrency: Mapping[Pair, int],
        work: PipelineWork,
    ) -> None:
        """quanta: the units of a feed of every pair that is loaded. concurrency: the number of feeds that each of them
        runs at a time. A device may hold one more than the most. Raises ValueError if the feed of a loaded pair is no
        stage."""
        rates = {(rate.suite, rate.device): rate.units_per_s for rate in placement.rates}
        parts = {
            (suite, device): part * rates[suite, device]
            for suite, by_device in placement.fractions.items()
            for device, part in by_device.items()
            if part and (suite, device) in quanta
        }
        if wrong := [pair for pair in parts if quanta[pair] != mix_units[pair[0]]]:
            raise ValueError(f"no feed of a stage: {', '.join(' on '.join(pair) for pair in wrong)}")
        self._work, self._parts = work, parts
        self._most = {device: most_at_once(concurrency, device) + 1 for _, device in quanta}
        self._waiting: dict[str, set[int]] = {device: set() for device in self._most}
        """The pipelines whose next stage each device runs, by their numbers."""
        self._held: dict[str, set[int]] = {device: set() for device in self._most}
        self._stage: dict[int, int] = {}
        """The stage of each pipeline that is under way."""
        self._due_ns: dict[int, int] = {}
        self._given: Counter[Pair] = Counter()
        self._finished: dict[str, float] = dict.fromkeys(mix_units, 0.0)
        self._ended = self._begun = 0
        self.begin(0)
        self._at_an_end = False

    def begin(self, begin_ns: int) -> None:
        """Begins the phase."""
        self._last_due_ns = begin_ns - self._work.in_flight - 1

    @property
    def mixes(self) -> float:
        """The pipelines that ended."""
        return float(self._ended)

    @property
    def _able(self) -> bool:
        """Whether every stage has a device."""
        return {suite for suite, _ in self._parts} >= set(self._work.suites)

    def next(self, device: str, now_ns: int) -> Handed | None:
        """The next stage of a device, or None to wait."""
        while self._able and len(self._stage) < self._work.in_flight:
            self._begin(now_ns)
        waiting = self._waiting.get(device)
        if not waiting or len(self._held[device]) >= self._most[device]:
            return None
        number = min(waiting)
        waiting.remove(number)
        self._held[device].add(number)
        stage, carried = self._stage[number], self._work.carried
        suite, *later = self._work.suites[stage:]
        gives = bool(later) and later[0] in carried
        return Handed(suite, self._due_ns[number], number, chained=True, takes=suite in carried, gives=gives)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        """Records that a stage is finished. Then the next stage of its pipeline waits for a device."""
        number = handed.request
        self._held[device].remove(number)
        self._finished[handed.suite] += units
        self._stage[number] += 1
        self._at_an_end = self._stage[number] == len(self._work.suites)
        if self._at_an_end:
            self._ended += 1
            self._forget(number)
        else:
            self._assign(number)

    def lost(self, device: str, now_ns: int) -> None:
        """Records that the device has failed. The stages that waited for it wait for another device."""
        self._parts = {pair: part for pair, part in self._parts.items() if pair[1] != device}
        for number in self._held.pop(device):
            self._forget(number)
        for number in self._waiting.pop(device):
            self._assign(number)

    def surplus(self, now_ns: int) -> float:
        """0 when a pipeline has just ended, so that the window holds whole pipelines, or if no more can end. Else 1."""
        return 0.0 if self._at_an_end or not self._able else 1.0

    def tally(self, now_ns: int) -> Tally:
        """The sums, for the display."""
        return Tally(finished=dict(self._finished), handed_out={}, paces={}, unfinished_s={})

    def _begin(self, now_ns: int) -> None:
        """Begins a pipeline. Several may begin at once, and each is due at a nanosecond of its own."""
        number, self._begun = self._begun, self._begun + 1
        self._last_due_ns = max(now_ns - self._work.in_flight, self._last_due_ns + 1)
        self._stage[number], self._due_ns[number] = 0, self._last_due_ns
        self._assign(number)

    def _assign(self, number: int) -> None:
        """Lets the next stage of a pipeline wait for the device that lags most behind its part of the plan. A pipeline
        without such a device is lost."""
        suite = self._work.suites[self._stage[number]]
        own = {pair: part for pair, part in self._parts.items() if pair[0] == suite}
        if not own:
            self._forget(number)
            return
        pair = min(own, key=lambda pair: ((self._given[pair] + 1) / own[pair], pair))
        self._given[pair] += 1
        self._waiting[pair[1]].add(number)

    def _forget(self, number: int) -> None:
        del self._stage[number], self._due_ns[number]
