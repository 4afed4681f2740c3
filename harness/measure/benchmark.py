"""A whole run: measures the planned phases until the stages plan no further phase, and audits their outputs.

Outputs of the measurements that the mix is planned by are audited before, because no route that fails may be in it. The
outputs of all mixed phases are audited once, after the last of them and of what takes turns with them. With the preset
quick the plan is made of quick checks: the score comes first, and what each suite does alone afterwards.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Absent, Fact, Finding, Found, Metering, Phase, Record, Result
from mixmark.harness.measure import experiments
from mixmark.harness.measure.audit import Auditor, handed_at, pending
from mixmark.harness.measure.executor import Executor, PhaseEvent, PhaseFacts, PhaseRequest, WindowOpens
from mixmark.harness.measure.run_state import Outlook, RunState
from mixmark.harness.measure.stages import audits_wait, makes_up_for, next_steps, stage_of
from mixmark.harness.plan.presets import Preset
from mixmark.harness.record.store import Store


@dataclass(frozen=True)
class Planned:
    """Further phases are planned."""

    phases: Sequence[Phase]
    repeats: tuple[str, Finding] | None = None
    """The disturbed mixed phase that they repeat, and why it is disturbed."""


@dataclass(frozen=True)
class Recorded:
    record: Record


@dataclass(frozen=True)
class AuditStarted:
    record: Record


@dataclass(frozen=True)
class Audited:
    """An audit is over. The audit of an accelerator may be followed by one more of the same record, on the CPU."""

    record: Record


@dataclass(frozen=True)
class Scored:
    """The mix was run and audited, and the suites alone are to come."""

    result: Result


Event = Planned | PhaseEvent | Found | Recorded | AuditStarted | Audited | Scored
Observer = Callable[[Event], None]
"""Follows a run by its events."""


_later: list[int] = []
"""The signals that came after the one that ended the run."""


def _ends() -> list[signal.Signals]:
    """The signals that end a run. A signal that was ignored before stays ignored."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [end for end in known if signal.getsignal(end) is not signal.SIG_IGN]


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends the block early at Ctrl-C, a termination signal or the end of the terminal.

    A further signal waits for `interruptible`: limits are restored, processes ended and the result written first.
    """
    _later.clear()
    ends = _ends()

    def interrupt(*_: object) -> None:
        for end in ends:
            signal.signal(end, lambda number, frame: _later.append(number))
        raise KeyboardInterrupt

    for end in ends:
        signal.signal(end, interrupt)
    with suppress(KeyboardInterrupt):
        yield


def interruptible() -> None:
    """Lets a signal end this process again, once what a run must undo is undone. Raises KeyboardInterrupt if one came
    after the signal that ended the run."""
    for end in _ends():
        signal.signal(end, signal.default_int_handler)
    if _later:
        raise KeyboardInterrupt


class Benchmark:
    """A run. `result` holds everything so far, also after an interruption: a record is written to disk before it is
    added."""

    def __init__(
        self, header: Result, executor: Executor, auditor: Auditor, keeper: Store, preset: Preset, notify: Observer
    ) -> None:
        self.result = header
        self._executor, self._auditor, self._keeper = executor, auditor, keeper
        self._preset, self._notify = preset, notify

    def run(self) -> None:
        """Runs until nothing is left to do. Exceptions pass through."""
        if not self.result.records:
            self._measure_before()
        planned = True
        while planned:
            self._measure_planned()
            if not audits_wait(self._state()):
                self._audit()
                self._score()
            planned = self._plan()
        self._audit()
        self.result = self.result.model_copy(update={"finished": True})

    def _measure_before(self) -> None:
        """Measures what experiments measure before the first phase."""
        for experiment in experiments.of(self.result):
            for found in experiment.before(self.result, self._executor):
                if isinstance(found, Metering):
                    self._meter(found)
                else:
                    self._find(found, experiment.name)

    def _find(self, fact: Fact | Absent, experiment: str) -> None:
        """Keeps a fact that an experiment found out, or an absence."""
        if isinstance(fact, Absent):
            self._add("absent", fact)
            return
        found = Found(experiment=experiment, facts=fact.model_dump(mode="json"))
        self._add("found", found)
        self._notify(found)

    def _meter(self, metering: Metering) -> None:
        self._keeper.meter(metering)
        self._extend("meterings", metering)

    def _measure_planned(self) -> None:
        """Measures the phases without a record."""
        measured = {record.phase for record in self.result.records}
        for phases in self._executor.rounds([each for each in self.result.phases if each.name not in measured]):
            outlook = Outlook(self.result, self._preset)
            requests = [
                PhaseRequest(phase, stage_of(phase).idle_s(phase, outlook), self.result.mix, self.result.devices)
                for phase in phases
            ]
            for facts in self._executor.measure(requests, self._observe):
                for found in facts.found:
                    self._find(found, phases[0].experiment or "")
                self._add_all(facts)

    def _audit(self) -> None:
        """Draws and compares the outputs that were kept, while no plugin runs."""
        if any(pending(record) for record in self.result.records):
            self._executor.end_plugins()
            self._auditor.run(self.result.records, self._audited, lambda record: self._notify(AuditStarted(record)))

    def _observe(self, event: PhaseEvent) -> None:
        """Writes down that a phase begins before anything of it is known: a run that is ended because of what it shows
        has begun."""
        if isinstance(event, WindowOpens):
            self._add("begun", event.phase.name)
        else:
            self._notify(event)

    def _state(self) -> RunState:
        return RunState(self.result, self._preset, self._executor.pool_bytes(self.result.devices))

    def _score(self) -> None:
        """Shows the score if it comes first."""
        state = self._state()
        if state.score_first and state.mixed and not state.of("solo"):
            self._notify(Scored(self.result))

    def _plan(self) -> bool:
        """Plans the next phases. Returns whether there are any."""
        state = self._state()
        found = next_steps(state)
        phases = [step for step in found if isinstance(step, Phase)]
        self._extend("absent", *(step for step in found if isinstance(step, Absent)))  # found again by a resumed run
        if phases:
            self._add("phases", *phases)
            self._notify(Planned(phases, makes_up_for(state, phases[0])))
        return bool(phases)

    def _add_all(self, facts: PhaseFacts) -> None:
        """Keeps all records of a phase at once: a mixed phase without one of its parts would be taken for a whole
        one."""
        if facts.connections:
            self._add("connections", *facts.connections)
        self._keep(*facts.records)
        for record in facts.records:
            self._notify(Recorded(record))
        if facts.metering:
            self._meter(facts.metering)

    def _add(self, name: str, *facts: Fact | str) -> None:
        """Adds facts that have no raw files to a field of the result, on disk first."""
        self._keeper.add(name, *facts)
        self._extend(name, *facts)

    def _extend(self, name: str, *facts: Fact | str) -> None:
        self.result = self.result.model_copy(update={name: (*getattr(self.result, name), *facts)})

    def _audited(self, record: Record) -> None:
        self._keep(record)
        with suppress(OSError):  # no longer needed
            handed_at(self._keeper.path, record.key).unlink()
        self._notify(Audited(record))

    def _keep(self, *records: Record) -> None:
        """Keeps records. They replace earlier ones with the same keys."""
        self._keeper.append(*records)
        kept = {record.key: record for record in (*self.result.records, *records)}
        self.result = self.result.model_copy(update={"records": tuple(kept.values())})
