from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mixmark.harness.capabilities.pipelines import blocks, figures, phases, plan
from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineWork
from mixmark.harness.capabilities.pipelines.figures import PipelineFigures
from mixmark.harness.capabilities.pipelines.queue import Chaining
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Phase, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.machine.setup import Suites
from mixmark.harness.measure.executor import LocalExecutor, PhaseRequest
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun, RunRequest
from mixmark.harness.measure.stages import Outlook, RunState, Steps
from mixmark.harness.plugins.experiments import Attendant, Experiment
from mixmark.reporters.document import Block, Table


class Pipelines(Experiment):
    name = "pipeline"
    facts = (Pipeline, PipelineWork)
    needs_mix = False
    bundles = "pipelines"

    def suites(self, request: RunRequest, suites: Suites, given: Mapping[str, Any]) -> Collection[str]:
        if request.machines:
            raise UsageError("--pipeline runs on this machine alone", hint="leave --pipeline away")
        return plan.load(given["pipeline"], request.tier, plan.stage_suites(suites)).samples

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Pipeline:
        pipeline = plan.load(given["pipeline"], header.tier, plan.stage_suites(run.suites))
        plan.refuse_unrunnable(pipeline, header.candidates or header.phases)
        return pipeline

    def solo(self, state: RunState) -> Steps:
        return phases.stages_alone(state)

    def next(self, state: RunState) -> Steps:
        return phases.turn(state)

    def rounds(self, run: Outlook) -> int:
        return phases.turns_expected(run.result) * run.preset.runs

    def label(self, phase: Phase) -> str:
        return f"the pipeline, on {phase.told(PipelineWork).device or 'all devices'}"

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> Attendant:
        return Chaining(request.phase.told(PipelineWork), request.phase.shares[0].route.tier)

    def contradictions(self, result: Result) -> Iterator[str]:
        yield from figures.contradictions(result)

    def figures(self, judged: Assessment) -> PipelineFigures:
        return figures.figures(judged.result, judged.doubts)

    def lines(self, judged: Assessment, figures: PipelineFigures) -> Iterator[tuple[str, str]]:
        yield from blocks.lines(judged.result, figures)

    def table(self, judged: Assessment, figures: PipelineFigures) -> Table | None:
        return blocks.table(figures) if figures.turns else None

    def section(self, judged: Assessment, figures: PipelineFigures) -> Iterator[Block]:
        yield from blocks.section(figures)
