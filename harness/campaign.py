"""A whole run: the cells one by one, the audits, and where there is a mix, the plan that follows from them and the
mixed phases. What is planned next depends on nothing but the result so far, so an interrupted run goes on from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import mixed, plan
from harness.errors import MixmarkError
from harness.metering import Meters
from harness.mixed import Snapshot
from harness.run import RESERVE, Equipment, measure
from harness.schema import Absent, Device, Limits, Phase, Record, Result, Share
from harness.store import Store
from harness.watch import memory


@dataclass(frozen=True)
class Observer:
    """Told what happens, in order. All do nothing unless given."""

    planned: Callable[[Sequence[Phase]], None] = field(default=lambda phases: None)
    started: Callable[[Share], None] = field(default=lambda share: None)
    stage: Callable[[Share, str], None] = field(default=lambda share, stage: None)
    recorded: Callable[[Record], None] = field(default=lambda record: None)
    auditing: Callable[[Record], None] = field(default=lambda record: None)
    mixing: Callable[[Snapshot], None] = field(default=lambda snapshot: None)


@dataclass(frozen=True)
class Conduct:
    """How a run goes beyond its cells."""

    limits: Limits
    """Of the mixed phases."""
    runs: int = 1
    again: bool = False
    """Whether the chosen routes are measured once more before."""
    idle_s: float = 0.0
    """For which the meters read a machine that does nothing, before and after each phase but the probe's."""


class Campaign:
    """`result` is what there is so far, also where the run is interrupted: a record is first on disk, then there."""

    def __init__(
        self,
        header: Result,
        equipment: Equipment,
        folder: Path,
        keeper: Store,
        meters: Meters,
        conduct: Conduct,
        observer: Observer,
    ) -> None:
        self.result = header
        self._equipment, self._folder, self._keeper, self._meters = equipment, folder, keeper, meters
        self._conduct, self._observer = conduct, observer
        self._auditor = equipment.auditor(folder, header.tier)

    def run(self) -> None:
        """Until nothing is left to do; what interrupts it passes through."""
        while True:
            for phase in self.result.phases:
                if self._left(phase):
                    self._metered(phase)
            self._auditor.run(self.result.records, self._keep, self._observer.auditing)
            if not (phases := self._later()):
                break
            for phase in phases:
                self._keeper.plan(phase)
            self.result = self.result.model_copy(update={"phases": (*self.result.phases, *phases)})
            self._observer.planned(phases)
        self.result = self.result.model_copy(update={"finished": True})

    def _later(self) -> tuple[Phase, ...]:
        how = self._conduct
        try:
            return plan.later(
                self.result, how.limits, how.runs, how.again, self.result.objective, pools(self.result.devices)
            )
        except MixmarkError as error:
            assert self.result.mix is not None  # else nothing was planned
            absent = Absent(kind="mix", name=self.result.mix.name, reason=f"{error}; {error.hint}".removesuffix("; "))
            self.result = self.result.model_copy(update={"absent": (*self.result.absent, absent)})
            return ()

    def _left(self, phase: Phase) -> list[Share]:
        """The shares that have no record yet. A mixed phase is done as a whole: not every share of it gets a turn."""
        shares = [share for task in phase.tasks for share in task.shares]
        if phase.placement and any(record.phase == phase.name for record in self.result.records):
            return []
        done = {record.key for record in self.result.records}
        return [share for share in shares if share.key not in done]

    def _metered(self, phase: Phase) -> None:
        idle_s = 0.0 if phase.purpose == "probe" else self._conduct.idle_s
        self._meters.begin()
        self._meters.rest(idle_s)
        self._perform(phase)
        self._meters.rest(idle_s)
        if metering := self._meters.drain(phase.name):
            self._keeper.meter(metering)
            self.result = self.result.model_copy(update={"meterings": (*self.result.meterings, metering)})

    def _perform(self, phase: Phase) -> None:
        shares, observer = self._left(phase), self._observer
        if phase.placement is None:
            for share in shares:
                observer.started(share)
                on_stage = functools.partial(observer.stage, share)
                self._recorded([measure(phase, share, self._equipment, self._folder, on_stage)])
            return
        assert self.result.mix is not None  # a placement is of a mix
        planner = plan.planner(self.result, self.result.objective)
        observer.started(shares[0])
        mix = self.result.mix
        self._recorded(
            mixed.perform(phase, mix, planner, self._equipment, self._folder, observer.mixing, observer.stage)
        )

    def _recorded(self, records: Sequence[Record]) -> None:
        """Together: a mixed phase of which a part is missing would be taken for a whole one."""
        self._keep(*records)
        for record in records:
            self._observer.recorded(record)

    def _keep(self, *records: Record) -> None:
        """In the place of what was there of their keys."""
        self._keeper.append(*records)
        kept = {record.key: record for record in (*self.result.records, *records)}
        self.result = self.result.model_copy(update={"records": tuple(kept.values())})


def pools(devices: Sequence[Device]) -> Mapping[str, int]:
    """Bytes that may be filled of each memory pool whose size is known."""
    sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
    if "host" in sizes:
        sizes["host"] = memory.available_bytes()
    return {pool: int(size * RESERVE) for pool, size in sizes.items()}
