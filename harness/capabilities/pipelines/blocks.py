"""The pipeline, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.pipelines.figures import PipelineFigures, PipelineTurn
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Heading, Paragraph, Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN, duration, significant

ABOUT = (
    "A pipeline counts if its last output arrived within the deadline, from when the pipeline began; a late one is no "
    "work, and its joules stay. Each stage is derived from the output of the stage before, so it cannot begin earlier. "
    "The mean time of a pipeline is that of its stages' feeds, of waiting while a stage's device works on other "
    "pipelines, and of handing over, which is all other time. Carried is the part of the feeds in which the output "
    "that the next stage continues is written and read."
)
TURN = ("turn", "devices", "in time", "per hour", "per kWh", "time", "feeds", "carried", "waiting", "handing over")


class PipelineSection(Section):
    def lines(self, judged: Assessment, found: PipelineFigures) -> Iterator[tuple[str, str]]:
        """What the pipeline did, in a line, and why a turn does not count."""
        yield f"pipeline {figures.name(found.pipeline.name)}", " ".join(filter(None, (found.finding, _in_words(found))))
        for turn in found.turns:
            for problem in turn.problems:
                yield f"in {turn.phase}", figures.void(problem, judged.result)

    def table(self, judged: Assessment, found: PipelineFigures) -> Table | None:
        """The turns, and where the mean time of a pipeline went."""
        turns = [_turn(turn) for turn in found.turns]
        return Table("The pipeline", TURN, turns, text_columns=2) if turns else None

    def section(self, judged: Assessment, found: PipelineFigures) -> Iterator[Block]:
        yield Heading("The pipeline", "pipeline")
        stages = ", then ".join(f"{stage.samples} × {figures.name(stage.suite)}" for stage in found.pipeline.stages)
        yield Paragraph(f"{stages}; the deadline is {duration(found.pipeline.deadline_ns)}.")
        yield Paragraph(ABOUT, style="quiet")


def _in_words(found: PipelineFigures) -> str:
    if found.per_hour is None:
        return f"not known: {found.reason}"
    own = [turn for turn in found.turns if turn.on_all]
    in_time, ended = sum(turn.in_time for turn in own), sum(turn.ended for turn in own)
    kwh = f", {figures.number(found.per_kwh)} per kWh" if found.per_kwh else ""
    took = f"{in_time} of {ended} took at most {duration(found.pipeline.deadline_ns)}"
    why = f"; no gain over a single device is known: {found.reason}" if found.reason else ""
    return f"{figures.number(found.per_hour)} per hour{kwh}; {took}{why}"


def _turn(turn: PipelineTurn) -> tuple[str, ...]:
    devices = figures.name(turn.device) if turn.device else "all, whole requests" if turn.whole else "all"
    rates = (
        UNKNOWN if rate is None else "void" if turn.problems else significant(rate)
        for rate in (turn.per_hour, turn.per_kwh)
    )
    times = map(duration, (turn.took_ns, turn.feeds_ns, turn.carried_ns or None, turn.waiting_ns, turn.handover_ns))
    return turn.phase, devices, f"{turn.in_time} of {turn.ended}", *rates, *times
