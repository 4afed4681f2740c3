"""A pipeline: what ended in time, how long it took, and where the time went.

    in time          the pipelines whose last output arrived within the deadline, from when they began
    per hour         in time / the length of the window; per kWh: in time / its joules, those of late ones included
    feed             from when a stage's turn came on its device until its output arrived
    waiting          while the device of the next stage had other feeds in flight; the first stage's from the begin on
    first output     from the begin of a pipeline until the first yield of its last stage arrived: TTFT after a prefill
    carried          of the feed's time: reading the output that it continues, and writing its own for the next stage
    handing over     the rest between two stages: the harness receives, plans, and makes and sends the next feed
    critical path    Σ over the stages of the time alone on the fastest device, or of the mean feed if that is shorter

A device can do alone what it did beside others. If a turn did more than λ*, or a feed took less than alone, the machine
was slow when the stages were measured alone, and what the turn did counts as the bound.

A pipeline is known by the due time of its feeds; see `PipelineWork`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineWork
from mixmark.harness.capabilities.pipelines.phases import NAME, asked
from mixmark.harness.capabilities.pipelines.plan import best_single, fastest_s
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import BY_PLAN, Finding, Int64s, Phase, Placement, Record, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.mixed_run import HOUR_NS, HOUR_S, KWH_J, ScoredRun, run_of
from mixmark.harness.judge.solo import Latency, latency
from mixmark.harness.judge.statistics.intervals import early_stopping, over_runs
from mixmark.harness.judge.statistics.timestamps import Floats, flights_ns
from mixmark.harness.plugins.experiments import fact

SLOW = 0.05
"""How much faster than alone, as a fraction, a turn must be to show that the times alone are too long."""


@dataclass(frozen=True)
class StageTimes:
    """A stage of the pipelines that ended in a window: mean times."""

    suite: str
    feeds: Mapping[str, int]
    """The number of feeds by device."""
    alone_ns: float
    """The time of a feed alone on the fastest device."""
    feed_ns: float
    """The time of a feed beside the others."""
    carried_ns: float
    """The part of it in which outputs were read and written that one stage hands to the next."""
    waiting_ns: float
    """The time for which its device worked on other feeds before it."""
    handover_ns: float
    """The rest of the time since the stage before."""


@dataclass(frozen=True)
class PipelineTurn:
    """One phase of the pipeline. Its figures count only if it has no problems."""

    phase: str
    device: str | None
    """The only device of the phase, with its slices. None if all devices took part."""
    whole: bool
    """Whether the work of all stages was done in one feed."""
    policy: str
    """What chose the device of each stage: the plan, or another policy."""
    in_flight: int
    """The number of pipelines that were under way at once."""
    length_ns: int
    """The length of the window. 0 if nothing was recorded."""
    ended: int
    """The pipelines that ended in the window."""
    in_time: int
    """Those that kept the deadline."""
    per_hour: float
    """The pipelines in time per hour."""
    per_kwh: float | None
    """The pipelines in time per kilowatt-hour. None if the energy of the boundary is not known."""
    latency: Latency
    """From the begin of a pipeline to its last output. A percentile is None if the sample is too small for it."""
    first: Latency | None
    """From the begin of a pipeline to the first yield of its last stage. None if that stage has one yield."""
    p90_at_most_ns: int | None
    """What the 90th percentile does not exceed with 99 % confidence. None if the sample is too small."""
    p99_at_most_ns: int | None
    """What the 99th percentile does not exceed with 99 % confidence. None if the sample is too small."""
    stages: tuple[StageTimes, ...]
    """Empty if no pipeline ended."""
    problems: tuple[Finding, ...]
    """Why the turn does not count. Empty if it does."""

    @property
    def by_plan(self) -> bool:
        """Whether the pipeline ran on all devices by the plan. The other turns are compared with these."""
        return self.policy == BY_PLAN and not self.device and not self.whole


@dataclass(frozen=True)
class PipelineFigures:
    """The pipeline on all devices, beside the best single one."""

    pipeline: Pipeline
    turns: tuple[PipelineTurn, ...]
    """In the order of the run."""
    critical_path_ns: float | None
    """The sum of the times of the stages alone, each on its fastest device. None if no turn was planned."""
    bound_per_hour: float | None
    """λ*: the most pipelines per hour at the rates of the stages alone. None if no turn was planned."""
    exceeded: bool
    """Whether a turn on all devices was faster than the times alone allow; what it did then stands for both bounds."""
    per_hour: Estimate | None
    """The pipelines in time per hour on all devices, over the runs."""
    per_kwh: Estimate | None
    """The same per kilowatt-hour."""
    gain: Estimate | None
    """Per hour on all devices over the best single device, over the pairs of turns."""
    gain_over_whole: Estimate | None
    """Per hour over the same work in one feed on all devices, over the pairs of turns. None if no suite does it, or a
    turn does not count."""
    gain_over_policies: Mapping[str, Estimate | None]
    """Per hour by the plan over each other policy, over the pairs of turns."""
    reason: Reason | None
    """Why there is no figure or no gain. None if there are both."""


@dataclass(frozen=True)
class StageFeed:
    """A feed of one pipeline."""

    stage: int
    device: str
    issued_ns: int
    first_ns: int
    """When the first yield arrived."""
    ended_ns: int


def figures(result: Result, doubts: Sequence[Finding]) -> PipelineFigures:
    """The figures of a run that was asked for a pipeline. doubts: the findings of the integrity rules."""
    pipeline = asked(result)
    phases = [phase for phase in result.phases if phase.experiment == NAME]
    turns = tuple(_turn(result, pipeline, phase, doubts) for phase in phases)
    own = [each for each in turns if each.by_plan]
    others = {
        each: [turn for turn in turns if turn.policy == each] for each in fact(result, "policies", "policies", ())
    }
    single, whole = [each for each in turns if each.device], [each for each in turns if each.whole]
    path_ns, bound_per_hour, exceeded = _bounds(phases[0], own) if phases else (None, None, False)
    counts = bool(own) and not any(each.problems for each in own)
    kwh = [each.per_kwh for each in own if each.per_kwh is not None]
    gain = _gain(own, single)
    return PipelineFigures(
        pipeline=pipeline,
        turns=turns,
        critical_path_ns=path_ns,
        bound_per_hour=bound_per_hour,
        exceeded=exceeded,
        per_hour=_mean([each.per_hour for each in own]) if counts else None,
        per_kwh=_mean(kwh) if counts and len(kwh) == len(own) else None,
        gain=gain,
        gain_over_whole=_gain(own, whole),
        gain_over_policies={policy: _gain(own, its_turns) for policy, its_turns in others.items()},
        reason=None if gain else _reason(result, pipeline, phases, single if counts else own),
    )


def _gain(turns: Sequence[PipelineTurn], others: Sequence[PipelineTurn]) -> Estimate | None:
    """The rate of turns over that of others, in pairs. None if there is no pair, or a turn does not count or has no
    pipeline in time."""
    pairs = [(one.per_hour, other.per_hour) for one, other in zip(turns, others, strict=False)]
    compared = not any(each.problems for each in (*turns, *others)) and all(all(pair) for pair in pairs)
    return over_runs([one / other for one, other in pairs]) if pairs and compared else None


def _bounds(phase: Phase, turns: Sequence[PipelineTurn]) -> tuple[float, float, bool]:
    """The critical path, λ* per hour, and whether a turn was faster than the times alone allow. turns: those on all
    devices."""
    work, plan = _planned(phase)
    alone_ns = {suite: each * 1e9 for suite, each in fastest_s(work.mix_units, plan.rates).items()}
    least_ns = dict(alone_ns)
    for stage in (stage for turn in turns for stage in turn.stages):
        least_ns[stage.suite] = min(least_ns[stage.suite], stage.feed_ns)
    alone_per_hour = plan.bound_per_s * HOUR_S
    per_hour = max([alone_per_hour, *(each.ended * HOUR_NS / each.length_ns for each in turns if each.length_ns)])
    path_ns, alone_path_ns = sum(least_ns.values()), sum(alone_ns.values())
    return path_ns, per_hour, max(per_hour / alone_per_hour, alone_path_ns / path_ns) > 1 + SLOW


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
    took_ns = np.array([steps[-1].ended_ns - due_ns for due_ns, steps in ended], np.int64)
    first_ns = np.array([steps[-1].first_ns - due_ns for due_ns, steps in ended], np.int64)
    in_time = int((took_ns <= pipeline.deadline_ns).sum())
    return PipelineTurn(
        phase=phase.name,
        device=work.device,
        whole=work.suites != pipeline.suites,
        policy=work.policy,
        in_flight=work.in_flight,
        length_ns=run.length_ns if run else 0,
        ended=len(ended),
        in_time=in_time,
        per_hour=in_time * HOUR_NS / run.length_ns if run else 0.0,
        per_kwh=in_time * KWH_J / run.total.joules if run and run.total.joules else None,
        latency=latency(took_ns),
        first=latency(first_ns) if (first_ns < took_ns).any() else None,
        p90_at_most_ns=early_stopping(took_ns, 0.9),
        p99_at_most_ns=early_stopping(took_ns, 0.99),
        stages=_stages(work, plan, records, ended) if ended else (),
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
            times_ns = done.due_ns, done.issued_ns, done.yielded_ns[done.starts], done.yielded_ns[done.ends - 1]
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


def _stages(
    work: PipelineWork, plan: Placement, records: Sequence[Record], ended: Sequence[tuple[int, Sequence[StageFeed]]]
) -> tuple[StageTimes, ...]:
    """ended: when each pipeline began, and all of its steps."""
    alone_s = fastest_s(work.mix_units, plan.rates)
    busy = _busy(records)
    carried = {(record.route.suite, record.route.device): record.carried_ns or 0 for record in records}
    found = []
    for at, suite in enumerate(work.suites):
        feeds: dict[str, int] = defaultdict(int)
        feed_ns, waiting_ns, between_ns = [], [], []
        for due_ns, steps in ended:
            step, since_ns = steps[at], steps[at - 1].ended_ns if at else due_ns
            feeds[step.device] += 1
            feed_ns.append(step.ended_ns - step.issued_ns)
            between_ns.append(step.issued_ns - since_ns)
            waiting_ns.append(_busy_ns(busy[step.device], since_ns, step.issued_ns))
        waited_ns = fmean(waiting_ns)
        carried_ns = fmean(carried[suite, steps[at].device] for _, steps in ended)
        times = {"feed_ns": fmean(feed_ns), "waiting_ns": waited_ns, "handover_ns": fmean(between_ns) - waited_ns}
        found.append(
            StageTimes(suite=suite, feeds=dict(feeds), alone_ns=alone_s[suite] * 1e9, carried_ns=carried_ns, **times)
        )
    return tuple(found)


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
