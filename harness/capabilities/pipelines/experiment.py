from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mixmark.harness.capabilities.pipelines import phases, plan
from mixmark.harness.capabilities.pipelines.facts import NAME, Pipeline, PipelineWork
from mixmark.harness.capabilities.pipelines.queue import Chaining
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Phase, Result
from mixmark.harness.machine.setup import Suites
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant, Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun, RunRequest
from mixmark.harness.measure.run_state import Outlook, RunState, Steps


class Pipelines(Experiment):
    name = NAME
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

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: None) -> Attendant:
        return Chaining(request.phase.told(PipelineWork), request.phase.shares[0].route.tier)
