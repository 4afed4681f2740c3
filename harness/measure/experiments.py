"""Stages of a run, and what an experiment measures: its phases, their expected time, and who hands out feeds in them.

What an experiment does not say is as in the mixed phases. `plugins.experiments` names its other parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

from mixmark.harness.contracts.schema import Absent, Fact, Metering, Mix, Phase, Result
from mixmark.harness.machine.setup import Suites
from mixmark.harness.measure.dispatch import Source
from mixmark.harness.measure.executor import Executor, PhaseRequest
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun, RunRequest
from mixmark.harness.measure.run_state import Outlook, RunState, Shares, Steps
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plugins.experiments import facts, parts
from mixmark.harness.worker.messages import LoopChoice


class Attendant:
    """An experiment's part in the measurement of one of its phases; by default it has none. It is made before the first
    worker of the phase starts."""

    def mix(self, mix: Mix | None) -> Mix | None:
        """The work of the phase. mix: the run's. None if it has none."""
        return mix

    def source(self, plan: Planner) -> Source | None:
        """The source that hands out the feeds. None if the plan does, as in the mixed phases. plan: makes a plan from
        observed rates."""
        return None

    def loop(self) -> LoopChoice | None:
        """The loop that issues the feeds inside of the workers. None if the parent hands them out."""
        return None

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        """Is called when all workers are loaded and warm. stack: closed when they have ended. pids: the processes that
        serve the phase, to which it may add. Their CPU time is the run's own; that of all other plugins is foreign."""

    def window(self) -> AbstractContextManager[object]:
        """A context around the window. An error at its end makes the timestamps invalid."""
        return nullcontext()

    def found(self) -> Iterable[Fact]:
        """What it found out in the phase, once all workers have ended."""
        return ()


class Stage:
    """A part of a run. It says what it measures once, for the run itself, for the expected time and for the progress.
    The core's own stages are in `measure.stages`."""

    name: ClassVar[str]
    """The purpose of its phases, or the name of the experiment, of its facts and of its figures."""
    needs_mix: ClassVar[bool] = False
    """Whether it runs or serves the mix, on this machine alone, after the mixed phases."""
    takes_turns: ClassVar[bool] = False
    """Whether its phases take turns with the mixed ones, so that both have the same minutes."""
    bundles: ClassVar[str] = "mixes"
    """What its phases count, in the progress."""

    @property
    def follows_mix(self) -> bool:
        """Whether it has no phase before the first mixed phase."""
        return self.needs_mix or self.takes_turns

    def solo(self, state: RunState) -> Steps:
        """The solo measurements that it lacks, before a plan is made of the others."""
        return ()

    def next(self, state: RunState) -> Steps:
        """Its next phases, and an absence for each that cannot be. Nothing if it is done."""
        return ()

    def rounds(self, run: Outlook) -> int:
        """How many phases of the mix it has in all, for the expected time."""
        return 0

    def to_come(self, run: Outlook) -> Iterable[Shares]:
        """The shares of each phase that it will plan, for the expected time: as those of its last phase, or first those
        of the mix."""
        planned = run.of(self.name)
        shares = planned[-1].shares if planned else run.shares_of_mix
        return [shares] * (self.rounds(run) - len(planned))

    def idle_s(self, phase: Phase, run: Outlook) -> float:
        """How long the meters read the idle machine before its phase, and again after it."""
        return run.preset.idle_s

    def label(self, phase: Phase) -> str:
        """What is measured in its phase, in the progress."""
        share = phase.shares[0]
        return "the mix, on all devices" if phase.placement else f"{share.route.label}, {share.scenario}"

    def prefix(self, phase: Phase) -> str:
        """What stands before the route of a record of its phase: `in level 2`. Empty for a solo measurement."""
        return ""


class Experiment(Stage):
    """A stage that is run beside the mix and is in no score. Its facts are those of its name in the manifest."""

    needs_mix = True
    first: ClassVar[str] = ""
    """What `before` measures, for the progress. Empty if it measures nothing."""

    def suites(self, request: RunRequest, suites: Suites, given: Mapping[str, Any]) -> Collection[str]:
        """The suites that it measures beside the suites of the mix. suites: all suites. given: the values of its
        options, by their names. Raises UsageError if a new run cannot have it."""
        return ()

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Any:
        """Checks a new or a resumed run before it waits for the machine. The returned value is kept for the run, under
        its name. given: as in `suites`; empty if no option was given. Raises UsageError."""
        return None

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        """The fact about it that the result of a new run keeps. header: the result without its experiments. Raises
        UsageError if the run cannot have it."""
        return facts()[self.name].of_run.model_validate(given)

    def recover(self) -> Iterable[str]:
        """Undoes what a killed run left on the machine, with a sentence about each. Raises UsageError if it cannot."""
        return ()

    def rounds(self, run: Outlook) -> int:
        return int(run.result.mix is not None)

    def prefix(self, phase: Phase) -> str:
        return f"in the {self.name}"

    def before_s(self, result: Result, metered: bool) -> float:
        """The expected seconds of `before`. metered: whether meters are read."""
        return 0.0

    def before(self, result: Result, executor: Executor) -> Iterator[Fact | Metering | Absent]:
        """Measures, before the first phase, what the result does not have yet."""
        yield from ()

    def on_host(self) -> object | None:
        """The object that serves it on each host of a run over several. `Executor.hosts` can call its public methods,
        which have annotations as in `worker.calls`. The ids in its own facts are in the fields that `Fact.ids`
        names."""
        return None

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: Any) -> Attendant:
        """Its part in the measurement of a phase on this machine. asked: its fact in the result. prepared: what
        `prepare` returned. Raises MixmarkError if the phase cannot be measured."""
        return Attendant()


def installed() -> Mapping[str, Experiment]:
    """What each experiment measures, by its name, in the order in which their phases are run."""
    return parts("stages")


def of(result: Result) -> Iterator[Experiment]:
    """The installed experiments that a run was asked for."""
    yield from (each for name, each in installed().items() if name in result.experiments)
