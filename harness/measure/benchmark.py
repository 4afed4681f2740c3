"""A whole run: the planned phases, their audits, and for a mix the plan that follows from them and its mixed phases.

The next phases depend only on the result so far, so an interrupted run can be resumed from it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mixmark.harness.contracts.errors import MixmarkError, ResultError
from mixmark.harness.contracts.schema import Absent, Connection, Limits, Phase, Record, Result, Share, Tier
from mixmark.harness.contracts.text import Reason
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.measure import audit, next_phases
from mixmark.harness.measure.audit import Auditor
from mixmark.harness.measure.executor import Executor, PhaseRequest
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.plan import presets
from mixmark.harness.record.store import Store

MOST_REPEATS = 2  # a machine that is always busy must not keep a run going


@dataclass(frozen=True)
class Observer:
    """Callbacks that report the progress of a run, in order. A default does nothing."""

    planned: Callable[[Sequence[Phase]], None] = field(default=lambda phases: None)
    repeating: Callable[[str, Reason], None] = field(default=lambda phase, why: None)
    """A mixed run is planned in addition, because the one of this phase was disturbed."""
    started: Callable[[Share], None] = field(default=lambda share: None)
    stage: Callable[[Share, str], None] = field(default=lambda share, stage: None)
    recorded: Callable[[Record], None] = field(default=lambda record: None)
    auditing: Callable[[Record], None] = field(default=lambda record: None)
    audited: Callable[[Record], None] = field(default=lambda record: None)
    mixing: Callable[[MixSnapshot], None] = field(default=lambda snapshot: None)


@dataclass(frozen=True)
class Procedure:
    """The steps of a run after the phases of its header."""

    mix_limits: Limits
    """The limits of each mixed phase."""
    mixes: int = 1
    """The number of mixed phases, each with fresh workers."""
    repeats: int = 0
    """How many disturbed mixed phases are repeated at most."""
    confirm: bool = False
    """Whether the routes of the plan have a confirmation run before the first mixed phase."""
    idle_s: float = 0.0
    """How long the meters read the idle machine before and after each phase, but not around probes and screening
    runs."""


def procedure(header: Result) -> Procedure:
    """Returns the procedure of the header's preset. The smoke tier, which is never ranked, shortens it and repeats
    nothing."""
    preset = presets.PRESETS.get(header.preset, presets.SELFTEST)
    if header.tier == "smoke":
        return Procedure(mix_limits=presets.SMOKE_MIX, mixes=preset.runs)
    return Procedure(preset.mix, preset.runs, MOST_REPEATS, preset.confirm, preset.idle_s)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends the block early at Ctrl-C, a termination signal or the end of the terminal.

    After the first signal all further ones are ignored, also after the block, so that the result is written and shown
    before the process ends. A signal that was ignored before stays ignored.
    """
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    ends = [
        end for name in names if (end := getattr(signal, name, None)) and signal.getsignal(end) is not signal.SIG_IGN
    ]

    def interrupt(*_: object) -> None:
        for end in ends:
            signal.signal(end, signal.SIG_IGN)
        raise KeyboardInterrupt

    for end in ends:
        signal.signal(end, interrupt)
    with suppress(KeyboardInterrupt):
        yield


class Benchmark:
    """A run. `result` holds everything so far, also after an interruption: a record is written to disk before it is
    added."""

    def __init__(
        self,
        header: Result,
        executor: Executor,
        auditor: Auditor,
        keeper: Store,
        procedure: Procedure,
        observer: Observer,
    ) -> None:
        self.result = header
        self._executor, self._auditor, self._keeper = executor, auditor, keeper
        self._procedure, self._observer = procedure, observer

    def run(self) -> None:
        """Runs until nothing is left to do. Exceptions pass through."""
        while True:
            for phase in self.result.phases:
                if not any(record.phase == phase.name for record in self.result.records):
                    self._measure(phase)
            self._auditor.run(self.result.records, self._audited, self._observer.auditing)
            if not (phases := self._next_phases()):
                break
            for phase in phases:
                self._keeper.plan(phase)
            self.result = self.result.model_copy(update={"phases": (*self.result.phases, *phases)})
            self._observer.planned(phases)
        self.result = self.result.model_copy(update={"finished": True})

    def _next_phases(self) -> tuple[Phase, ...]:
        procedure, result = self._procedure, self.result
        repeated = next_phases.repeated(result, procedure.repeats)
        runs = procedure.mixes + len(repeated)
        try:
            pool_bytes = self._executor.pool_bytes(result.devices)
            phases = next_phases.next_phases(
                result, procedure.mix_limits, runs, procedure.confirm, result.objective, pool_bytes
            )
        except next_phases.LevelImpossible as error:
            self.result = result.model_copy(update={"absent": (*result.absent, error.absent)})
            return self._next_phases()
        except MixmarkError as error:
            assert result.mix is not None  # without a mix nothing is planned
            reason = f"{error}; {error.hint}".removesuffix("; ")
            absent = Absent(kind="mix", name=result.mix.name, reason=reason)
            self.result = result.model_copy(update={"absent": (*result.absent, absent)})
            return ()
        run = sum(phase.purpose == "mixed" for phase in result.phases)
        if procedure.mixes <= run < runs:
            self._observer.repeating(*repeated[run - procedure.mixes])
        return phases

    def _measure(self, phase: Phase) -> None:
        order = PhaseRequest(
            phase=phase,
            idle_s=self._idle_s(phase),
            mix=self.result.mix,
            planner=lambda: next_phases.planner(self.result, self.result.objective),
            started=lambda: self._observer.started(phase.shares[0]),
            stage=self._observer.stage,
            mixing=self._observer.mixing,
            keep=self._measured,
        )
        if metering := self._executor.measure(order):
            self._keeper.meter(metering)
            self.result = self.result.model_copy(update={"meterings": (*self.result.meterings, metering)})

    def _idle_s(self, phase: Phase) -> float:
        """How long the meters read the idle machine around a phase. Around the first level of load as long as a level
        lasts at least: the idle machine is a level of the ladder."""
        if phase.purpose in ("probe", "screening"):
            return 0.0
        levels = [each.name for each in self.result.phases if each.load]
        shortest_s = self._procedure.mix_limits.min_ns / presets.SECOND if phase.name in levels[:1] else 0.0
        return max(self._procedure.idle_s, shortest_s)

    def _measured(self, records: Sequence[Record], connections: Sequence[Connection]) -> None:
        """Keeps all records of a phase at once: a mixed phase without one of its parts would be taken for a whole
        one."""
        if connections:
            self._keeper.connect(*connections)
            self.result = self.result.model_copy(update={"connections": (*self.result.connections, *connections)})
        self._keep(*records)
        for record in records:
            self._observer.recorded(record)

    def _audited(self, record: Record) -> None:
        self._keep(record)
        self._observer.audited(record)

    def _keep(self, *records: Record) -> None:
        """Keeps records. They replace earlier ones with the same keys."""
        self._keeper.append(*records)
        kept = {record.key: record for record in (*self.result.records, *records)}
        self.result = self.result.model_copy(update={"records": tuple(kept.values())})


Observed = Callable[[Result, Procedure, Executor], AbstractContextManager[Observer]]
"""Opens the observer of a run that begins, such as a progress display."""


def perform(header: Result, executor: Executor, equipment: Equipment, keeper: Store, observed: Observed) -> Result:
    """Measures the planned phases that have no records yet, and writes the result. An interruption leaves the result
    unfinished. Raises ResultError if the folder cannot be written."""
    steps = procedure(header)
    with observed(header, steps, executor) as observer:
        benchmark = Benchmark(header, executor, auditor(equipment, keeper.path, header.tier), keeper, steps, observer)
        try:
            with until_interrupted():
                benchmark.run()
        except ResultError as error:
            raise ResultError(str(error), f"{error.hint}; continue with: mixmark run --resume {keeper.path}") from error
    keeper.finish(benchmark.result)
    return benchmark.result


def auditor(equipment: Equipment, folder: Path, tier: Tier, logs: Path | None = None) -> Auditor:
    """The auditor of a run. Its reference runs on the CPU; at the server tier on the largest accelerator that its
    adapter reaches. logs: see `Auditor`."""
    device = audit.CPU
    if tier == "server":
        reached = [found for (_, adapter), found in equipment.devices.items() if adapter == audit.REFERENCE]
        fit = [found for found in reached if found.kind != "cpu" and "fp32" in found.precisions]
        device = max(fit, key=lambda found: found.memory_bytes or 0, default=device)
    return Auditor(folder, lambda record: equipment.choice(record.route), device, equipment.timeout_s, logs)
