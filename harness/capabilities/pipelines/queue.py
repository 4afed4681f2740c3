"""Hands out the stages of pipelines, in the order of their chain, by the plan.

A stage is a request that arrives when the stage before is finished. A fixed number of pipelines is under way: when one
ends, the next begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mixmark.harness.capabilities.pipelines.facts import PipelineWork
from mixmark.harness.capabilities.serving.contract import DeviceLoad, Request
from mixmark.harness.capabilities.serving.request_queue import RequestQueue, Table
from mixmark.harness.contracts.schema import Mix, Tier
from mixmark.harness.measure.dispatch import Handed, Loaded, Source
from mixmark.harness.measure.experiments import Attendant
from mixmark.harness.plan.placement import Planner


class Chaining(Attendant):
    """Hands out the stages of a phase."""

    def __init__(self, work: PipelineWork, tier: Tier) -> None:
        self.work, self.tier = work, tier

    def mix(self, mix: Mix | None) -> Mix:
        return self.work.mix(self.tier)

    def source(self, plan: Planner) -> Source:
        return partial(PipelineQueue, work=self.work)


class InProportion:
    """A request waits for the device that lags most behind its part of the plan. Other devices serve a suite only if
    all of the planned devices have failed."""

    def __init__(self, seconds: Table, plan: Table) -> None:
        self._per_s = {
            suite: {device: plan.get(suite, {}).get(device, 0.0) / s for device, s in own.items()}
            for suite, own in seconds.items()
        }
        self._given: Counter[tuple[str, str]] = Counter()
        self._chosen: dict[int, str] = {}
        """The device of each request that waits, by its number."""

    def choose(
        self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int
    ) -> tuple[Request, str] | None:
        room = {each.device: each.has_room for each in devices}
        for request in waiting:
            if self._chosen.get(request.number) not in room:
                self._chosen[request.number] = self._lagging(request.suite, room)
            if room[self._chosen[request.number]]:
                return request, self._chosen.pop(request.number)
        return None

    def _lagging(self, suite: str, alive: Mapping[str, bool]) -> str:
        able = {device: per_s for device, per_s in self._per_s[suite].items() if device in alive}
        parts = {device: per_s for device, per_s in able.items() if per_s} or dict.fromkeys(able, 1.0)
        device = min(parts, key=lambda each: ((self._given[suite, each] + 1) / parts[each], each))
        self._given[suite, device] += 1
        return device


@dataclass
class _UnderWay:
    """A pipeline that has begun and not ended."""

    number: int
    due_ns: int
    stage: int = 0


class PipelineQueue(RequestQueue):
    """The pipelines of a phase that have begun and not ended. A pipeline whose stage was with a device that failed is
    lost: it never ends."""

    def __init__(self, loaded: Loaded, work: PipelineWork) -> None:
        """Raises ValueError if the feed of a loaded pair is no stage."""
        if wrong := [pair for pair, units in loaded.quanta.items() if units != loaded.mix_units[pair[0]]]:
            raise ValueError(f"no feed of a stage: {', '.join(' on '.join(pair) for pair in wrong)}")
        super().__init__(loaded, InProportion, {})
        self._work = work
        self._under_way: dict[int, _UnderWay] = {}
        """The pipelines by their numbers."""
        self._ended = self._begun = 0
        self._last_due_ns = 0
        self._at_an_end = False

    def begin(self, begin_ns: int) -> None:
        self._last_due_ns = begin_ns - self._work.in_flight - 1

    @property
    def mixes(self) -> float:
        """The pipelines that ended."""
        return float(self._ended)

    @property
    def _able(self) -> bool:
        """Whether every stage has a device."""
        return all(self._seconds[suite] for suite in self._work.suites)

    def arrive(self, now_ns: int) -> None:
        """Begins pipelines until enough are under way. Several may begin at once, and each is due at a nanosecond of
        its own."""
        while self._able and len(self._under_way) < self._work.in_flight:
            self._last_due_ns = max(now_ns - self._work.in_flight, self._last_due_ns + 1)
            begun = self._under_way[self._begun] = _UnderWay(self._begun, self._last_due_ns)
            self._begun += 1
            self._wait_for_stage(begun)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        """Records that a stage is finished. Then the next stage of its pipeline arrives."""
        pipeline = self._under_way[handed.request]
        super().finished(device, replace(handed, request=self._number(pipeline)), begin_ns, end_ns, units)
        pipeline.stage += 1
        self._at_an_end = pipeline.stage == len(self._work.suites)
        if self._at_an_end:
            self._ended += 1
            del self._under_way[pipeline.number]
        elif self._able:
            self._wait_for_stage(pipeline)

    def lost(self, device: str, now_ns: int) -> None:
        """Records that the device has failed. The stages that it had not begun wait for another device."""
        super().lost(device, now_ns)
        left = self._waiting.keys() | self._given.keys()
        self._under_way = {n: each for n, each in self._under_way.items() if self._number(each) in left}

    def surplus(self, now_ns: int) -> float:
        """0 when a pipeline has just ended, so that the window holds whole pipelines, or if no more can end. Else 1."""
        return 0.0 if self._at_an_end or not self._able else 1.0

    def _handed(self, request: Request) -> Handed:
        number, stage = divmod(request.number, len(self._work.suites))
        carried, later = self._work.carried, self._work.suites[stage + 1 :]
        takes, gives = request.suite in carried, bool(later) and later[0] in carried
        chain = {"takes": takes, "gives": gives, "last": not later}
        return Handed(request.suite, request.due_ns, number, chained=True, **chain)

    def _number(self, pipeline: _UnderWay) -> int:
        """The number of the request for its stage."""
        return pipeline.number * len(self._work.suites) + pipeline.stage

    def _wait_for_stage(self, pipeline: _UnderWay) -> None:
        """Lets the pipeline's stage wait, before those of younger pipelines: their deadlines are later."""
        request = Request(
            number=self._number(pipeline),
            suite=self._work.suites[pipeline.stage],
            due_ns=pipeline.due_ns,
            limit_ns=self._work.deadline_ns,
        )
        self._waiting = dict(sorted({**self._waiting, request.number: request}.items()))
