"""Experiments: what is run beside the mix and is in no score.

An experiment is a capability. It says everything of itself: its options, its phases, who hands out the feeds in them,
its figures and their blocks in a report. What it does not say is as in the mixed phases.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from mixmark.harness.plugins.manifest import BUILT_IN, OPTIONS

if TYPE_CHECKING:
    import click

    from mixmark.harness.contracts.schema import Absent, Fact, Found, Metering, Mix, Phase, Record, Result
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.harness.machine.setup import Suites
    from mixmark.harness.measure.dispatch import Source
    from mixmark.harness.measure.executor import Executor, LocalExecutor, PhaseRequest
    from mixmark.harness.measure.request import MeasuredMachine, PreparedRun, RunRequest
    from mixmark.harness.measure.stages import Outlook, Procedure, RunState, Shares, Steps
    from mixmark.harness.plan.placement import Planner
    from mixmark.reporters.document import Block, Chart, Table


class Attendant:
    """What an experiment does while one of its phases is measured; by default nothing. It is made before the first
    worker of the phase starts."""

    def mix(self, mix: Mix | None) -> Mix | None:
        """The work of the phase. mix: of the run, which may have none."""
        return mix

    def source(self, plan: Planner) -> Source | None:
        """Who hands out the feeds. None: the plan, as in the mixed phases. plan: makes a plan from observed rates."""
        return None

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        """All workers are loaded and warm. stack: is closed when they have ended. pids: of processes whose CPU time
        counts as Mixmark's; more may be added."""

    def window(self) -> AbstractContextManager[object]:
        """Around the window. An error of its end makes the timestamps invalid."""
        return nullcontext()

    def found(self, records: Sequence[Record]) -> Iterable[Fact | Absent]:
        """What it found out, for `Result.found`; and what could not be. records: of the phase."""
        return ()


class Experiment:
    """What is run beside the mix. Its options are in the manifest."""

    name: ClassVar[str]
    """The name of its facts and figures."""
    facts: ClassVar[tuple[type[Fact], ...]]
    """The models of `Result.experiments`, of `Phase.facts`, and of `Result.found` if it finds anything. A result with
    other facts contradicts itself."""
    needs_mix: ClassVar[bool] = True
    """Whether it runs or serves the mix, on this machine alone, after the mixed phases."""
    of_any_result: ClassVar[bool] = False
    """Whether it has figures of every result, also of a run that was not asked for it. It then measures nothing."""
    first: ClassVar[str] = ""
    """What `before` measures, for the progress. Empty if it measures nothing."""
    takes_turns: ClassVar[bool] = False
    """Whether its phases take turns with the mixed ones, so that both have the same minutes."""
    bundles: ClassVar[str] = "mixes"
    """What its phases count, in the progress."""

    def suites(self, request: RunRequest, suites: Suites, given: Mapping[str, Any]) -> Collection[str]:
        """The suites that it measures, beside those of the mix. suites: all. given: the values of its options, by their
        names. Raises UsageError if a new run cannot have it."""
        return ()

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Any:
        """Checks a run before it waits for the machine, also one that is resumed. What it returns is kept for the run,
        under its name. given: as in `suites`; nothing if no option was given. Raises UsageError."""
        return None

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        """What the result of a new run keeps of it. header: the result without its experiments. Raises UsageError if
        the run cannot have it."""
        return self.facts[0].model_validate(given)

    def recover(self) -> Iterable[str]:
        """Undoes what a killed run left on the machine, and says what. Raises UsageError if it cannot."""
        return ()

    def solo(self, state: RunState) -> Steps:
        """The solo measurements that it lacks, before a plan is made of the others."""
        return ()

    def next(self, state: RunState) -> Steps:
        """Its next phases, and an absence for each that cannot be. Nothing if it is done."""
        return ()

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        """The shares of each phase that it will plan, for the expected time of the run. By default one phase of the
        mix."""
        yield from [run.mixed] * (not run.count(self.name))

    def label(self, phase: Phase) -> str:
        """What is measured in its phase, in the progress."""
        return "the mix, on all devices"

    def prefix(self, phase: Phase) -> str:
        """What stands before the route of a record of its phase: `in the drill`."""
        raise NotImplementedError

    def before(self, result: Result, executor: Executor) -> Iterator[Fact | Metering | Absent]:
        """Measures what it measures before the first phase, and is not in the result yet."""
        yield from ()

    def on_host(self) -> object | None:
        """What each host of a run over several does for it: an object whose public methods, with annotations as those
        of `worker.calls`, can be called by `Executor.hosts`. Ids in its own facts are those that `Fact.ids` names."""
        return None

    def idle_s(self, phase: Phase, result: Result, procedure: Procedure) -> float:
        """How long the meters read the idle machine around its phase at least."""
        return 0.0

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> Attendant:
        """What it does while its phase is measured on this machine. Raises MixmarkError if it cannot be."""
        return Attendant()

    def said(self, found: Found) -> str:
        """What it found out, in a line of the progress."""
        raise NotImplementedError

    def contradictions(self, result: Result) -> Iterator[str]:
        """One sentence for each contradiction in its facts, of a result whose facts have their shapes."""
        yield from ()

    def figures(self, judged: Assessment) -> object | None:
        """A dataclass of its figures. None if there are none. The annotation of what it returns is documented."""
        return None

    def lines(self, judged: Assessment, figures: Any) -> Iterable[tuple[str, str]]:
        """Names and short texts, for the brief report. Only called with figures, as the next methods."""
        return ()

    def table(self, judged: Assessment, figures: Any) -> Table | None:
        """A table of the brief report."""
        return None

    def charts(self, judged: Assessment, figures: Any) -> Iterable[Chart]:
        """Charts of the page, beside those of the mix."""
        return ()

    def section(self, judged: Assessment, figures: Any) -> Iterable[Block]:
        """Its section of the full report."""
        return ()


@cache
def options() -> Mapping[str, Sequence[click.Option]]:
    """The options of `mixmark run` that ask for an experiment, by its name."""
    return {name: _attribute(spec) for name, spec in OPTIONS.items()}


@cache
def installed() -> Mapping[str, Experiment]:
    """All experiments by their names, in the order in which their phases are run."""
    return {name: _attribute(spec)() for name, spec in BUILT_IN["experiments"].items()}


def of(result: Result) -> Iterator[Experiment]:
    """The installed experiments that the run was asked for."""
    yield from (each for name, each in installed().items() if name in result.experiments)


def fact(result: Result, experiment: str, name: str, default: Any) -> Any:
    """A fact of another experiment, which may not be installed. default: if the run was not asked for it."""
    return result.experiments.get(experiment, {}).get(name, default)


def _attribute(spec: str) -> Any:
    module, _, attribute = spec.partition(":")
    return getattr(importlib.import_module(module), attribute)
