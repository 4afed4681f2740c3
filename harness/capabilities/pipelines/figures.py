"""A pipeline: what ended in time, how long it took, and where the time went.

    in time          the pipelines whose last output arrived within the deadline, from when they began
    per hour         in time / the length of the window; per kWh: in time / its joules, those of late ones included
    feeds            from when a stage's turn came on its device until its output arrived, over the stages
    carried          of the feeds: reading the output that a stage continues, and writing its own for the next stage
    waiting          while the device of the next stage had other feeds in flight; the first stage's from the begin on
    handing over     the rest between two stages: the harness receives, plans, and makes and sends the next feed
    gain             per hour on all devices / per hour of the other turn, at most the ratio of their bounds: a worker
                     that is slow in the other turn alone raises no gain

A pipeline is known by the due time of its feeds; see `PipelineWork`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from mixmark.harness.capabilities.pipelines.facts import NAME, Pipeline, PipelineWork, asked
from mixmark.harness.capabilities.pipelines.plan import best_single
from mixmark.harness.capabilities.serving.gain import gain as gain_of
from mixmark.harness.contracts.figures import Estimate, figure
from mixmark.harness.contracts.numbers import counted, significant
from mixmark.harness.contracts.schema import Finding, Int64s, Phase, Placement, Record, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.mixed_run import HOUR_NS, HOUR_S, KWH_J, ScoredRun, run_of
from mixmark.harness.judge.statistics.intervals import over_runs
from mixmark.harness.judge.statistics.timestamps import Floats, flights_ns

SLOW = 0.05
"""A difference between turns that shows something, as a fraction."""


@dataclass(frozen=True)
class PipelineTurn:
    """One phase of the pipeline. Its figures count only if it has no problems. The times are means over the pipelines
    that ended, None if none did."""

    phase: str
    device: str | None
    """The only device of the phase, with its slices. None if all devices took part."""
    whole: bool
    """Whether the work of all stages was done in one feed."""
    ended: int
    """The pipelines that ended in the window."""
    in_time: int
    """Those that kept the deadline."""
    per_hour: float
    """The pipelines in time per hour."""
    bound_per_hour: float
    """The most pipelines per hour of the turn's devices, at the rates of the stages alone."""
    per_kwh: float | None
    """The pipelines in time per kilowatt-hour. None if the energy of the boundary is not known."""
    took_ns: float | None
    """The time of a pipeline, from its begin to its last output. It has three parts."""
    feeds_ns: float | None
    """The time of its stages' feeds."""
    carried_ns: float | None
    """The part of it in which outputs were read and written that one stage hands to the next."""
    waiting_ns: float | None
    """The time for which a stage's device worked on other feeds before it."""
    handover_ns: float | None
    """The rest of the time between stages, and before the first."""
    problems: tuple[Finding, ...]
    """Why the turn does not count. Empty if it does."""

    @property
    def on_all(self) -> bool:
        """Whether the pipeline ran on all devices. The other turns are compared with these."""
        return not (self.device or self.whole)


@dataclass(frozen=True)
class PipelineFigures:
    """The pipeline on all devices, beside the best single one."""

    gain_over_whole: Estimate | None
    """Per hour over the same work in one feed on all devices, over the pairs of turns. None if no suite does it, or a
    turn does not count."""
    gain: Estimate | None
    """Per hour on all devices over the best single device, over the pairs of turns."""
    held: tuple[str, ...]
    """The turns that were slower than their devices are, so that a gain is less than the ratio of the turns."""
    reason: Reason | None
    """Why there is no figure or no gain. None if there are both."""
    per_hour: Estimate | None
    """The pipelines in time per hour on all devices, over the runs."""
    per_kwh: Estimate | None
    """The same per kilowatt-hour."""
    pipeline: Pipeline
    turns: tuple[PipelineTurn, ...]
    """In the order of the run."""

    @property
    @figure
    def finding(self) -> str | None:
        """Whether it pays, in a sentence. None if no gain is known."""
        gain = self.gain_over_whole or self.gain
        if gain is None:
            return None
        own = [turn for turn in self.turns if turn.on_all]
        others = [turn for turn in self.turns if (turn.whole if self.gain_over_whole else turn.device)]
        times = significant(fmean(turn.per_hour for turn in own) / fmean(turn.per_hour for turn in others))
        if self.gain_over_whole:
            served = f"Splitting served {times} times as many requests"
        else:
            served = f"All devices served {times} times as many pipelines as {others[0].device} alone"
        at_one_speed = gain.estimate / fmean(_held(one, other) for one, other in zip(own, others, strict=False))
        if any(turn.phase in self.held for turn in others):
            served += f", and {significant(at_one_speed)} times had the devices been as fast in both turns"
        ends = sorted((gain.estimate, at_one_speed))
        low, high = gain.ends if gain.half_width else (ends[0] / (1 + SLOW), ends[1] * (1 + SLOW))
        pays = "it pays here" if low > 1 else "it does not pay here" if high < 1 else "no difference is shown"
        return f"{served}: {pays}."


@dataclass(frozen=True)
class StageFeed:
    """A feed of one pipeline."""

    stage: int
    device: str
    issued_ns: int
    ended_ns: int


def of_run(judged: Assessment) -> PipelineFigures:
    """The figures of a run that was asked for a pipeline."""
    return figures(judged.result, judged.doubts)


def figures(result: Result, doubts: Sequence[Finding]) -> PipelineFigures:
    """doubts: the findings of the integrity rules."""
    pipeline = asked(result)
    phases = [phase for phase in result.phases if phase.experiment == NAME]
    turns = tuple(_turn(result, pipeline, phase, doubts) for phase in phases)
    own = [each for each in turns if each.on_all]
    single, whole = [each for each in turns if each.device], [each for each in turns if each.whole]
    counts = bool(own) and not any(each.problems for each in own)
    kwh = [each.per_kwh for each in own if each.per_kwh is not None]
    gain = _gain(own, single)
    compared = [*_pairs(own, single), *_pairs(own, whole)]
    return PipelineFigures(
        gain_over_whole=_gain(own, whole),
        gain=gain,
        held=tuple(other.phase for one, other in compared if _held(one, other) > 1 + SLOW),
        reason=None if gain else _reason(result, pipeline, phases, single if counts else own),
        per_hour=_mean([each.per_hour for each in own]) if counts else None,
        per_kwh=_mean(kwh) if counts and len(kwh) == len(own) else None,
        pipeline=pipeline,
        turns=turns,
    )


Pair = tuple[PipelineTurn, PipelineTurn]


def _pairs(turns: Sequence[PipelineTurn], others: Sequence[PipelineTurn]) -> list[Pair]:
    """The turns with those that they are compared with, in pairs. Empty if a turn does not count or has no pipeline in
    time."""
    pairs = list(zip(turns, others, strict=False))
    compared = all(each.per_hour and not each.problems for each in (*turns, *others))
    return pairs if compared else []


def _gain(turns: Sequence[PipelineTurn], others: Sequence[PipelineTurn]) -> Estimate | None:
    """The rate of turns over that of others. None if there are no pairs."""
    pairs = _pairs(turns, others)
    ratios = [one.per_hour / other.per_hour for one, other in pairs]
    return gain_of(ratios, [_held(one, other) for one, other in pairs])


def _held(one: PipelineTurn, other: PipelineTurn) -> float:
    """How many times less of its bound the other turn reached than the first one; below 1, it reached more."""
    return (one.per_hour / one.bound_per_hour) / (other.per_hour / other.bound_per_hour)


def _planned(phase: Phase) -> tuple[PipelineWork, Placement]:
    assert phase.placement is not None  # every phase of an experiment has a plan
    return phase.told(PipelineWork), phase.placement


def _reason(result: Result, pipeline: Pipeline, phases: Sequence[Phase], wanting: Sequence[PipelineTurn]) -> Reason:
    """Why there is no gain. wanting: the turns that gave none; empty if none was run on a single device."""
    if not phases:
        name = f"pipeline {pipeline.name}"
        absent = (each.reason for each in result.absent if (each.kind, each.name) == ("experiment", name))
        return next(absent, "the run ended before it")
    if wanting:
        return "a turn does not count, or none of its pipelines was in time"
    work, plan = _planned(phases[0])
    why = best_single(work.mix_units, plan.rates, result.devices)[1]
    return why or "the run ended before its turn on a single device"


def _mean(values: Sequence[float]) -> Estimate | None:
    """Over the runs. A run without any pipeline in time has no logarithm."""
    return over_runs(values) if values and min(values) > 0 else Estimate(fmean(values)) if values else None


def _turn(result: Result, pipeline: Pipeline, phase: Phase, doubts: Sequence[Finding]) -> PipelineTurn:
    work, plan = _planned(phase)
    run = run_of(result, work.mix(result.tier), phase, doubts)
    records = [record for record in result.records if record.phase == phase.name]
    ended = [
        (due_ns, steps)
        for due_ns, steps in steps_of(work, records).items()
        if run and len(steps) == len(work.suites) and run.begin_ns < steps[-1].ended_ns <= run.end_ns
    ]
    in_time = sum(steps[-1].ended_ns - due_ns <= pipeline.deadline_ns for due_ns, steps in ended)
    feeds_ns, carried_ns, waiting_ns, handover_ns = _means_ns(work, records, ended) if ended else [None] * 4
    return PipelineTurn(
        phase=phase.name,
        device=work.device,
        whole=work.suites != pipeline.suites,
        ended=len(ended),
        in_time=in_time,
        per_hour=in_time * HOUR_NS / run.length_ns if run else 0.0,
        bound_per_hour=plan.bound_per_s * HOUR_S,
        per_kwh=in_time * KWH_J / run.total.joules if run and run.total.joules else None,
        took_ns=fmean(steps[-1].ended_ns - due_ns for due_ns, steps in ended) if ended else None,
        feeds_ns=feeds_ns,
        carried_ns=carried_ns,
        waiting_ns=waiting_ns,
        handover_ns=handover_ns,
        problems=_problems(phase, run),
    )


def _problems(phase: Phase, run: ScoredRun | None) -> tuple[Finding, ...]:
    """The last stage has units in the window if and only if a pipeline ended there."""
    return run.problems if run else (found("mix_complete.unfinished", phase=phase.name),)


def steps_of(work: PipelineWork, records: Sequence[Record]) -> Mapping[int, Sequence[StageFeed]]:
    """The feeds of each pipeline in the order of its stages, by when it began. A pipeline that did not end has fewer
    than its stages."""
    steps: dict[int, list[StageFeed]] = defaultdict(list)
    for record in records:
        done, suite = record.completions, record.route.suite
        if done is not None and suite in work.suites:
            stage = work.suites.index(suite)
            times_ns = done.due_ns, done.issued_ns, done.yielded_ns[done.ends - 1]
            for due, *times in zip(*(each.tolist() for each in times_ns), strict=True):
                steps[due].append(StageFeed(stage, record.route.device, *times))
    return {due_ns: sorted(each, key=lambda step: step.stage) for due_ns, each in steps.items()}


def out_of_turn(work: PipelineWork, records: Sequence[Record]) -> int:
    """The number of pipelines with a stage that began before the output of the stage before had arrived, or without
    it."""
    wrong = 0
    for due_ns, steps in steps_of(work, records).items():
        arrived_ns = [due_ns, *(step.ended_ns for step in steps)]
        in_order = all(step.stage == at and step.issued_ns >= arrived_ns[at] for at, step in enumerate(steps))
        wrong += not in_order
    return wrong


def contradictions(result: Result) -> Iterator[str]:
    """The phases run the stages of the pipeline on known devices, and each stage began after the stage before."""
    pipeline, devices = asked(result), {device.id for device in result.devices}
    for phase in (phase for phase in result.phases if phase.experiment == NAME):
        work, plan = _planned(phase)
        suites, on = {rate.suite for rate in plan.rates}, {rate.device for rate in plan.rates}
        if work.suites not in (pipeline.suites, (pipeline.whole,)) or suites != set(work.suites) or on - devices:
            yield f"{phase.name} runs other stages than the pipeline of the run"
        if wrong := out_of_turn(work, [record for record in result.records if record.phase == phase.name]):
            yield f"{counted(wrong, 'pipeline')} of {phase.name} began a stage before the stage before was finished"


def _means_ns(
    work: PipelineWork, records: Sequence[Record], ended: Sequence[tuple[int, Sequence[StageFeed]]]
) -> list[float]:
    """The mean times of a pipeline's feeds, of what they carried, of waiting and of handing over. ended: when each
    pipeline began, and all of its steps."""
    busy = _busy(records)
    carried = {(record.route.suite, record.route.device): record.carried_ns or 0 for record in records}
    feeds_ns = carried_ns = waiting_ns = between_ns = 0.0
    for due_ns, steps in ended:
        since_ns = due_ns
        for suite, step in zip(work.suites, steps, strict=True):
            feeds_ns += step.ended_ns - step.issued_ns
            carried_ns += carried[suite, step.device]
            between_ns += step.issued_ns - since_ns
            waiting_ns += _busy_ns(busy[step.device], since_ns, step.issued_ns)
            since_ns = step.ended_ns
    return [ns / len(ended) for ns in (feeds_ns, carried_ns, waiting_ns, between_ns - waiting_ns)]


def _busy(records: Sequence[Record]) -> Mapping[str, tuple[Int64s, Floats]]:
    """For each device the moments when it began to work or was idle again, and how long it had worked by then."""
    of_device = defaultdict(list)
    for record in records:
        if record.completions is not None:
            of_device[record.route.device].append(record.completions)
    found = {}
    for device, done in of_device.items():
        begin_ns, end_ns = flights_ns(*done)
        worked_ns = np.cumsum(end_ns - begin_ns)
        edges_ns = np.stack((begin_ns, end_ns), axis=1).ravel()
        found[device] = edges_ns, np.stack((worked_ns - (end_ns - begin_ns), worked_ns), axis=1).ravel().astype(float)
    return found


def _busy_ns(busy: tuple[Int64s, Floats], begin_ns: int, end_ns: int) -> float:
    """For how long a device had a feed in flight between two moments."""
    edges_ns, worked_ns = busy
    before, after = np.interp(np.array((begin_ns, end_ns)) - edges_ns[0], edges_ns - edges_ns[0], worked_ns)
    return float(after - before)
