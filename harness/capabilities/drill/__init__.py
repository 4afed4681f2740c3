"""The drill: the mix once more, while its busiest device that others can replace is taken away and given back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from mixmark.harness.plugins.experiments import Attendant, Experiment

if TYPE_CHECKING:
    from mixmark.harness.capabilities.drill.outcome import DrillOutcome
    from mixmark.harness.contracts.schema import Fact, Phase
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.harness.measure.executor import LocalExecutor
    from mixmark.harness.measure.stages import RunState, Steps


class LoseDevice(Experiment):
    name = "drill"
    options = (
        click.Option(
            ["--drill"],
            type=click.Choice(["lose-device"]),
            help="Also run the mix while the busiest device that others can replace is taken away and given back.",
        ),
    )

    def facts(self) -> tuple[type[Fact], type[Fact]]:
        from mixmark.harness.capabilities.drill.phase import Asked, Drill

        return Asked, Drill

    def next(self, state: RunState) -> Steps:
        from mixmark.harness.capabilities.drill import phase

        return () if state.of(self.name) else phase.planned(state)

    def prefix(self, phase: Phase) -> str:
        return "in the drill"

    def attendant(self, phase: Phase, executor: LocalExecutor) -> Attendant:
        from mixmark.harness.capabilities.drill.phase import Drill, Losing

        return Losing(phase.told(Drill))

    def figures(self, judged: Assessment) -> DrillOutcome | None:
        from mixmark.harness.capabilities.drill import outcome

        return outcome.outcome(judged)

    def lines(self, judged: Assessment, figures: DrillOutcome) -> Iterator[tuple[str, str]]:
        from mixmark.harness.capabilities.drill import outcome

        yield "a device lost", outcome.in_words(figures)
