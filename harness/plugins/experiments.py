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

from mixmark.harness.plugins.manifest import BUILT_IN

if TYPE_CHECKING:
    import click

    from mixmark.harness.contracts.schema import Absent, Fact, Found, Metering, Mix, Phase, Record, Result
    from mixmark.harness.discover.setup import Suites
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.harness.measure.dispatch import Source
    from mixmark.harness.measure.executor import Executor, LocalExecutor
    from mixmark.harness.measure.request import PreparedRun, RunRequest
    from mixmark.harness.measure.stages import Outlook, RunState, Shares, Steps
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
    """Its module imports nothing heavy, since `mixmark run --help` shows its options; its methods may."""

    name: ClassVar[str]
    """The name of its facts and figures, and of its option unless `options` says otherwise."""
    options: ClassVar[Sequence[click.Option]] = ()
    """Its options of `mixmark run`. It is asked for if one of them is given."""
    needs_mix: ClassVar[bool] = True
    """Whether it runs or serves the mix, on this machine alone, after the mixed phases."""
    takes_turns: ClassVar[bool] = False
    """Whether its phases take turns with the mixed ones, so that both have the same minutes."""

    by_policies: ClassVar[bool] = False
    """Whether its phases are also run by each policy that the run names."""
    bundles: ClassVar[str] = "mixes"
    """What its phases count, in the progress."""

    def facts(self) -> tuple[type[Fact], type[Fact]]:
        """The facts of a run with it, and of its phases. A result with others contradicts itself."""
        raise NotImplementedError

    def suites(self, request: RunRequest, suites: Suites, given: Mapping[str, Any]) -> Collection[str]:
        """The suites that it measures, beside those of the mix. suites: all. given: the values of its options, by their
        names. Raises UsageError if the run cannot have it."""
        return ()

    def asked(self, run: PreparedRun, header: Result, given: Mapping[str, Any]) -> Fact:
        """What the result of a new run keeps of it. header: the result without its experiments. Raises UsageError if
        the run cannot have it."""
        return self.facts()[0].model_validate(given)

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

    def attendant(self, phase: Phase, executor: LocalExecutor) -> Attendant:
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
def installed() -> Mapping[str, Experiment]:
    """All experiments by their names, in the order in which their phases are run."""
    found: dict[str, Experiment] = {}
    for name, spec in BUILT_IN["experiments"].items():
        module, _, attribute = spec.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)()
    return found


def of(result: Result) -> Iterator[Experiment]:
    """The installed experiments that the run was asked for."""
    yield from (each for name, each in installed().items() if name in result.experiments)
