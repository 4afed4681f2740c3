"""Pipelines: a chain of suites with a deadline, several at a time, on all devices and on the best single one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli import complete
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.plugins.experiments import Attendant, Experiment

if TYPE_CHECKING:
    from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineWork
    from mixmark.harness.capabilities.pipelines.figures import PipelineFigures
    from mixmark.harness.contracts.schema import Phase, Result
    from mixmark.harness.discover.setup import Suites
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.harness.measure.executor import LocalExecutor
    from mixmark.harness.measure.request import PreparedRun, RunRequest
    from mixmark.harness.measure.stages import Outlook, RunState, Shares, Steps
    from mixmark.reporters.document import Block


def _published() -> Iterable[str]:
    from mixmark.harness.capabilities.pipelines import plan

    return plan.published()


class Pipelines(Experiment):
    name = "pipeline"
    options = (
        click.Option(
            ["--pipeline"],
            metavar="NAME|FILE",
            shell_complete=complete.names(_published, or_file=True),
            help="Also run a chain of suites with a deadline, several at a time: on all devices, and in turns with "
            "that on the best single device. NAME is a published pipeline, such as assistant.",
        ),
    )
    needs_mix = False
    by_policies = True
    bundles = "pipelines"

    def facts(self) -> tuple[type[Pipeline], type[PipelineWork]]:
        from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineWork

        return Pipeline, PipelineWork

    def suites(self, request: RunRequest, suites: Suites, given: Mapping[str, Any]) -> Collection[str]:
        from mixmark.harness.capabilities.pipelines import plan

        if request.on_hosts:
            raise UsageError("--pipeline runs on this machine alone", hint="leave --pipeline away")
        return plan.load(given["pipeline"], request.tier, plan.stage_suites(suites)).samples

    def asked(self, run: PreparedRun, header: Result, given: Mapping[str, Any]) -> Pipeline:
        from mixmark.harness.capabilities.pipelines import plan

        pipeline = plan.load(given["pipeline"], header.tier, plan.stage_suites(run.suites))
        plan.refuse_unrunnable(pipeline, header.candidates or header.phases)
        return pipeline

    def solo(self, state: RunState) -> Steps:
        from mixmark.harness.capabilities.pipelines import phases

        return phases.stages_alone(state)

    def next(self, state: RunState) -> Steps:
        from mixmark.harness.capabilities.pipelines import phases

        return phases.turn(state)

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        from mixmark.harness.capabilities.pipelines import phases

        yield from [run.mixed] * (phases.turns_expected(run.header) * run.procedure.mixes - run.count(self.name))

    def label(self, phase: Phase) -> str:
        work = self._work(phase)
        return f"the pipeline, on {work.device or 'all devices'}{work.by}"

    def prefix(self, phase: Phase) -> str:
        return f"in the pipeline{self._work(phase).by}"

    def _work(self, phase: Phase) -> PipelineWork:
        return phase.told(self.facts()[1])

    def attendant(self, phase: Phase, executor: LocalExecutor) -> Attendant:
        from mixmark.harness.capabilities.pipelines.queue import Chaining

        return Chaining(self._work(phase), phase.shares[0].route.tier, executor)

    def contradictions(self, result: Result) -> Iterator[str]:
        from mixmark.harness.capabilities.pipelines import figures

        yield from figures.contradictions(result)

    def figures(self, judged: Assessment) -> PipelineFigures:
        from mixmark.harness.capabilities.pipelines import figures

        return figures.figures(judged.result, judged.doubts)

    def lines(self, judged: Assessment, figures: PipelineFigures) -> Iterator[tuple[str, str]]:
        from mixmark.harness.capabilities.pipelines import blocks

        yield from blocks.lines(judged.result, figures)

    def section(self, judged: Assessment, figures: PipelineFigures) -> Iterator[Block]:
        from mixmark.harness.capabilities.pipelines import blocks

        yield from blocks.section(figures)
