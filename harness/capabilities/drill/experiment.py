from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.drill import phase as phases
from mixmark.harness.capabilities.drill.outcome import DrillOutcome, in_words, outcome
from mixmark.harness.capabilities.drill.phase import Asked, Drill, Losing
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.measure.executor import LocalExecutor, PhaseRequest
from mixmark.harness.measure.stages import RunState, Steps
from mixmark.harness.plugins.experiments import Attendant, Experiment


class LoseDevice(Experiment):
    name = "drill"
    facts = (Asked, Drill)

    def next(self, state: RunState) -> Steps:
        return () if state.of(self.name) else phases.planned(state)

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> Attendant:
        return Losing(request.phase.told(Drill))

    def figures(self, judged: Assessment) -> DrillOutcome | None:
        return outcome(judged)

    def lines(self, judged: Assessment, figures: DrillOutcome) -> Iterator[tuple[str, str]]:
        yield "a device lost", in_words(figures)
