"""The pipeline, in words and tables."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.pipelines.figures import PipelineFigures, PipelineTurn, StageTimes
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.schema import Result
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Facts, Heading, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN, duration, percent, significant

ABOUT = (
    "A pipeline counts if its last output arrived within the deadline, from when the pipeline began; a late one is no "
    "work, and its joules stay. Each stage is derived from the output of the stage before, so it cannot begin earlier. "
    "The bounds follow from the stages alone: the critical path is their sum, each on its fastest device and without "
    "any wait; λ* is the rate of devices that are never idle. Waiting is while a stage's device works on other "
    "pipelines; handing over is all other time between two stages. Carried is what the next stage continues, and the "
    "part of a feed's time in which it was written or read."
)

EXCEEDED = "the turns did more than the stages alone allow, so the machine was slow then: run it again when it is idle"
TURN = ("turn", "devices", "in flight", "ended", "in time", "per hour", "λ*", "in its limits", "per kWh")
TIMES = ("turn", "first output", "time per unit", "latency", "tail", "p90 at most")
STAGE = ("stage", "feeds on", "alone", "feed", "carried", "waiting", "handing over", "part")


def lines(result: Result, found: PipelineFigures) -> Iterator[tuple[str, str]]:
    """What the pipeline did, in a few lines."""
    finding = f"{found.finding} " if found.finding else ""
    yield f"pipeline {figures.name(found.pipeline.name)}", finding + "; ".join(_in_words(found))
    if found.exceeded:
        yield "beyond its bounds", EXCEEDED
    if few := [turn for turn in found.turns if turn.in_flight < turn.in_flight_wanted]:
        counts = (f"{turn.in_flight} instead of {turn.in_flight_wanted} in {turn.phase}" for turn in few)
        yield "in flight", f"{', '.join(counts)}: the deadline leaves room for no more"
    for turn in found.turns:
        for problem in turn.problems:
            yield f"in {turn.phase}", figures.void(problem, result)
        if turn.phase in found.held:
            yield (
                f"in {turn.phase}",
                "its devices were slower than in the turn by the plan, so the gain leaves that out",
            )


def _in_words(found: PipelineFigures) -> Iterator[str]:
    own = [turn for turn in found.turns if turn.by_plan]
    if found.per_hour is None:
        yield f"not known: {found.reason}"
        return
    kwh = f", {figures.number(found.per_kwh)} per kWh" if found.per_kwh else ""
    yield f"{figures.number(found.per_hour)} in time per hour{kwh} (deadline {duration(found.pipeline.deadline_ns)})"
    yield f"{sum(turn.in_time for turn in own)} of {figures.counted(sum(turn.ended for turn in own), 'pipeline')}"
    yield f"{figures.typical(own[0].latency)}, critical path {duration(found.critical_path_ns)}"
    whole = next((turn for turn in found.turns if turn.whole), None)
    for what, latency, of_whole in (
        ("time to first output", own[0].first, whole and whole.first),
        (f"time per {figures.name(own[0].unit)}", own[0].per_unit, whole and whole.per_unit),
    ):
        if latency:
            yield f"{what} {figures.typical(latency)}" + (
                f", of whole requests {figures.typical(of_whole)}" if of_whole else ""
            )
    for policy, gain in found.gain_over_policies.items():
        if gain:
            yield f"{figures.number(gain)} × the policy {figures.name(policy)}"
    if found.gain is None:
        yield f"no gain over a single device is known: {found.reason}"
    elif found.gain_over_whole:
        device = next(turn.device for turn in found.turns if turn.device)
        yield f"{figures.number(found.gain)} × {figures.name(device)} alone"


def section(found: PipelineFigures) -> Iterator[Block]:
    """Each turn, and where its time went."""
    yield Heading("The pipeline", "pipeline")
    yield Facts(list(_facts(found)))
    yield Table("", TURN, [_turn(turn) for turn in found.turns], text_columns=2)
    yield Table("Times of a pipeline", TIMES, [_times(turn) for turn in found.turns], text_columns=1)
    for turn in found.turns:
        rows = [_stage(stage, turn) for stage in turn.stages]
        yield Table(f"Where the time of {turn.phase} went, mean", STAGE, rows, text_columns=2)
    yield Paragraph(ABOUT, style="quiet")


def _facts(found: PipelineFigures) -> Iterator[tuple[str, str]]:
    stages = (f"{stage.samples} × {figures.name(stage.suite)}" for stage in found.pipeline.stages)
    yield "stages", ", ".join(stages)
    yield "deadline", duration(found.pipeline.deadline_ns)
    path, feeds = duration(found.critical_path_ns), duration(found.feeds_ns)
    yield "critical path", f"{path} by the stages alone; {feeds} in the turns"
    rates = found.bound_per_hour, found.ended_per_hour
    bound, ended = (UNKNOWN if rate is None else significant(rate) for rate in rates)
    yield "λ*", f"{bound} per hour by the stages alone; {ended} ended per hour in the turns"


def _turn(turn: PipelineTurn) -> tuple[str, ...]:
    rates = (
        UNKNOWN if rate is None else "void" if turn.problems else significant(rate)
        for rate in (turn.per_hour, turn.bound_per_hour, turn.within_limits_per_hour, turn.per_kwh)
    )
    devices = figures.name(turn.device) if turn.device else _whose(turn)
    return turn.phase, devices, *map(str, (turn.in_flight, turn.ended, turn.in_time)), *rates


def _times(turn: PipelineTurn) -> tuple[str, ...]:
    several = (figures.typical(each) if each else UNKNOWN for each in (turn.first, turn.per_unit))
    own = turn.latency
    return turn.phase, *several, figures.typical(own), figures.tail(own), duration(turn.p90_at_most_ns)


def _whose(turn: PipelineTurn) -> str:
    return "all, whole" if turn.whole else "all" if turn.by_plan else f"all, by {figures.name(turn.policy)}"


def _stage(stage: StageTimes, turn: PipelineTurn) -> tuple[str, ...]:
    """The part is that of the feed in the mean time of a whole pipeline."""
    feeds = (f"{count} {figures.name(device)}" for device, count in stage.feeds.items())
    whole_ns = sum(each.feed_ns + each.waiting_ns + each.handover_ns for each in turn.stages)
    carried = UNKNOWN
    if stage.carried_bytes:
        rate = f", {significant(stage.carried_bytes / stage.carried_ns)} GB/s" if stage.carried_ns else ""
        carried = f"{filesize(stage.carried_bytes)} in {duration(stage.carried_ns)}{rate}"
    alone, feed, waiting, handover = map(duration, (stage.alone_ns, stage.feed_ns, stage.waiting_ns, stage.handover_ns))
    part = percent(stage.feed_ns / whole_ns)
    return figures.name(stage.suite), ", ".join(feeds), alone, feed, carried, waiting, handover, part
