"""The pipeline, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.pipelines.figures import PipelineFigures, PipelineTurn, StageTimes
from mixmark.harness.contracts.schema import Result
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Facts, Heading, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN, duration, percent, significant

ABOUT = (
    "A pipeline counts if its last output arrived within the deadline, from when the pipeline began; a late one is no "
    "work, and its joules stay. Each stage is derived from the output of the stage before, so it cannot begin earlier. "
    "The critical path is the stages alone on their fastest devices, without any wait; λ* is the rate of devices that "
    "are never idle. Waiting is while a stage's device works on other pipelines; handing over is all other time "
    "between two stages. Carried is the part of a feed's time in which the output that the next stage continues was "
    "written, or read."
)

EXCEEDED = (
    "the stages did more in the pipeline than alone, so the machine was slow when they were measured alone, and the "
    "plan is by these rates: run it again on an idle machine"
)
TURN = (
    *("turn", "devices", "in flight", "ended", "in time", "per hour", "per kWh"),
    *("first output", "latency", "tail", "p90 at most"),
)
STAGE = ("stage", "feeds on", "alone", "feed", "carried", "waiting", "handing over", "part")


def lines(result: Result, found: PipelineFigures) -> Iterator[tuple[str, str]]:
    """What the pipeline did, in a few lines."""
    yield f"pipeline {figures.name(found.pipeline.name)}", "; ".join(_in_words(found))
    if found.exceeded:
        yield "beyond its bounds", EXCEEDED
    for turn in found.turns:
        for problem in turn.problems:
            yield f"in {turn.phase}", figures.void(problem, result)


def _in_words(found: PipelineFigures) -> Iterator[str]:
    deadline = duration(found.pipeline.deadline_ns)
    own = [turn for turn in found.turns if turn.by_plan]
    if found.per_hour is None:
        yield f"not known: {found.reason}"
        return
    kwh = f", {figures.number(found.per_kwh)} per kWh" if found.per_kwh else ""
    yield f"{figures.number(found.per_hour)} in time per hour{kwh} (deadline {deadline})"
    yield f"{sum(turn.in_time for turn in own)} of {figures.counted(sum(turn.ended for turn in own), 'pipeline')}"
    yield f"{figures.typical(own[0].latency)}, critical path {duration(found.critical_path_ns)}"
    if own[0].first:
        yield f"first output {figures.typical(own[0].first)}"
    if found.gain_over_whole and found.pipeline.whole:
        yield f"{figures.number(found.gain_over_whole)} × whole requests by {figures.name(found.pipeline.whole)}"
    for policy, gain in found.gain_over_policies.items():
        if gain:
            yield f"{figures.number(gain)} × the policy {figures.name(policy)}"
    if found.gain:
        device = next(turn.device for turn in found.turns if turn.device)
        yield f"{figures.number(found.gain)} × {figures.name(device)} alone"
    else:
        yield f"no gain is known: {found.reason}"


def section(found: PipelineFigures) -> Iterator[Block]:
    """Each turn, and where its time went."""
    yield Heading("The pipeline", "pipeline")
    yield Facts(list(_facts(found)))
    yield Table("", TURN, [_turn(turn) for turn in found.turns], text_columns=2)
    for turn in found.turns:
        rows = [_stage(stage, turn) for stage in turn.stages]
        yield Table(f"Where the time of {turn.phase} went, mean", STAGE, rows, text_columns=2)
    yield Paragraph(ABOUT, style="quiet")


def _facts(found: PipelineFigures) -> Iterator[tuple[str, str]]:
    stages = (f"{stage.samples} × {figures.name(stage.suite)}" for stage in found.pipeline.stages)
    yield "stages", ", ".join(stages)
    yield "deadline", duration(found.pipeline.deadline_ns)
    yield "critical path", duration(found.critical_path_ns)
    yield "λ*", UNKNOWN if found.bound_per_hour is None else f"{significant(found.bound_per_hour)} per hour"
    if found.pipeline.whole:
        whole = f"gain over whole {figures.name(found.pipeline.whole)}"
        yield whole, figures.number(found.gain_over_whole) + " ×" if found.gain_over_whole else UNKNOWN
    for policy, gain in found.gain_over_policies.items():
        yield f"gain over {figures.name(policy)}", figures.number(gain) + " ×" if gain else UNKNOWN
    yield "gain", figures.number(found.gain) + " ×" if found.gain else f"not known: {found.reason}"


def _turn(turn: PipelineTurn) -> tuple[str, ...]:
    return (
        turn.phase,
        figures.name(turn.device) if turn.device else _whose(turn),
        str(turn.in_flight),
        str(turn.ended),
        str(turn.in_time),
        "void" if turn.problems else significant(turn.per_hour),
        UNKNOWN if turn.per_kwh is None or turn.problems else significant(turn.per_kwh),
        figures.typical(turn.first) if turn.first else UNKNOWN,
        figures.typical(turn.latency),
        figures.tail(turn.latency),
        duration(turn.p90_at_most_ns),
    )


def _whose(turn: PipelineTurn) -> str:
    return "all, whole" if turn.whole else "all" if turn.by_plan else f"all, by {figures.name(turn.policy)}"


def _stage(stage: StageTimes, turn: PipelineTurn) -> tuple[str, ...]:
    """The part is that of the feed in the mean time of a whole pipeline."""
    feeds = (f"{count} {figures.name(device)}" for device, count in stage.feeds.items())
    whole_ns = sum(each.feed_ns + each.waiting_ns + each.handover_ns for each in turn.stages)
    times = (stage.alone_ns, stage.feed_ns, stage.carried_ns, stage.waiting_ns, stage.handover_ns)
    return figures.name(stage.suite), ", ".join(feeds), *map(duration, times), percent(stage.feed_ns / whole_ns)
