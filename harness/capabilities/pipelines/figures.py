"""A pipeline: what ended in time, how long it took, and where the time went.

    in time          the pipelines whose last output arrived within the deadline, from when they began
    per hour         in time / the length of the window; per kWh: in time / its joules, those of late ones included
    feed             from when a stage's turn came on its device until its output arrived
    waiting          while the device of the next stage had other feeds in flight; the first stage's from the begin on
    first output     from the begin of a pipeline until the first yield of its last stage arrived: TTFT after a prefill
    per unit         from that until its last output, over the units after the first yield: TPOT after a prefill
    within limits    in time, first output and time per unit within the latency limits of the suite that does the whole
    carried          of the feed's time: reading the output that it continues, and writing its own for the next stage
    handing over     the rest between two stages: the harness receives, plans, and makes and sends the next feed
    critical path    Σ over the stages of the time alone on the fastest device
    gain             per hour on all devices / per hour of the other turn, at most the ratio of their λ*: a worker that
                     is slow in the other turn alone raises no gain. For a turn by a policy see `mixed_run.slowdown`

The bounds, λ* and the critical path, follow from the stages alone. What the turns did stands beside them. If the turns
did more, the machine was slow when the stages were measured alone.

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
from mixmark.harness.capabilities.pipelines.plan import best_single, devices_used, fastest_s
from mixmark.harness.contracts.figures import Estimate, figure
from mixmark.harness.contracts.numbers import counted, significant
from mixmark.harness.contracts.schema import BY_PLAN, Finding, Int64s, Phase, Placement, Record, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.mixed_run import HOUR_NS, HOUR_S, KWH_J, ScoredRun, run_of, slowdown
from mixmark.harness.judge.solo import Latency, latency
from mixmark.harness.judge.statistics.intervals import early_stopping, over_runs
from mixmark.harness.judge.statistics.timestamps import Floats, flights_ns, is_in_time
from mixmark.harness.plugins.experiments import fact

SLOW = 0.05
"""A difference between turns, or between a turn and the stages alone, that shows something, as a fraction."""


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
    carried_bytes: float
    """The size of these outputs, as they were carried."""
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
    in_flight_wanted: int
    """The number that would have been, had the deadline left room for more: one for each device and one that waits."""
    length_ns: int
    """The length of the window. 0 if nothing was recorded."""
    ended: int
    """The pipelines that ended in the window."""
    in_time: int
    """Those that kept the deadline."""
    per_hour: float
    """The pipelines in time per hour."""
    bound_per_hour: float
    """λ*: the most pipelines per hour of the turn's devices, at the rates of the stages alone."""
    within_limits_per_hour: float | None
    """Goodput: the pipelines per hour that kept the deadline and the latency limits of the suite that does the whole
    work. None if no suite does, or it has no limits."""
    per_kwh: float | None
    """The pipelines in time per kilowatt-hour. None if the energy of the boundary is not known."""
    latency: Latency
    """From the begin of a pipeline to its last output. A percentile is None if the sample is too small for it."""
    first: Latency | None
    """From the begin of a pipeline to the first yield of its last stage. None if that stage has one yield."""
    unit: str
    """The unit of the last stage, such as token. Empty if nothing of it was recorded."""
    per_unit: Latency | None
    """From the first yield of the last stage to its last, over the units after the first: the time per token of an LLM.
    None as for `first`."""
    p90_at_most_ns: int | None
    """What the 90th percentile does not exceed with 99 % confidence. None if the sample is too small."""
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

    gain_over_whole: Estimate | None
    """Per hour over the same work in one feed on all devices, over the pairs of turns. None if no suite does it, or a
    turn does not count."""
    gain: Estimate | None
    """Per hour on all devices over the best single device, over the pairs of turns."""
    gain_over_policies: Mapping[str, Estimate | None]
    """Per hour by the plan over each other policy, over the pairs of turns."""
    held: tuple[str, ...]
    """The turns that were slower than their devices are, so that a gain is less than the ratio of the turns."""
    reason: Reason | None
    """Why there is no figure or no gain. None if there are both."""
    per_hour: Estimate | None
    """The pipelines in time per hour on all devices, over the runs."""
    per_kwh: Estimate | None
    """The same per kilowatt-hour."""
    bound_per_hour: float | None
    """λ*: the most pipelines per hour at the rates of the stages alone. None if no turn was planned."""
    ended_per_hour: float | None
    """The pipelines per hour that ended in the turns on all devices, in time or not. None if none ended."""
    critical_path_ns: float | None
    """The sum of the times of the stages alone, each on its fastest device. None if no turn was planned."""
    feeds_ns: float | None
    """The sum of the mean times of the stages' feeds in the turns on all devices. None if no pipeline ended."""
    pipeline: Pipeline
    turns: tuple[PipelineTurn, ...]
    """In the order of the run."""

    @property
    @figure
    def exceeded(self) -> bool:
        """Whether the turns on all devices did more than the bounds by SLOW: the stages were slow alone."""
        if not (self.bound_per_hour and self.ended_per_hour and self.critical_path_ns and self.feeds_ns):
            return False
        return max(self.ended_per_hour / self.bound_per_hour, self.critical_path_ns / self.feeds_ns) > 1 + SLOW

    @property
    @figure
    def finding(self) -> str | None:
        """Whether it pays, in a sentence. None if no gain is known."""
        gain = self.gain_over_whole or self.gain
        if gain is None:
            return None
        own = [turn for turn in self.turns if turn.by_plan]
        others = [turn for turn in self.turns if (turn.whole if self.gain_over_whole else turn.device)]
        times = significant(fmean(turn.per_hour for turn in own) / fmean(turn.per_hour for turn in others))
        if self.gain_over_whole:
            served = f"Splitting served {times} times as many requests"
        else:
            served = f"All devices served {times} times as many pipelines as {others[0].device} alone"
        if any(turn.phase in self.held for turn in others):
            served += f", and {significant(gain.estimate)} times had the devices been as fast in both turns"
        low, high = gain.ends if gain.half_width else (gain.estimate / (1 + SLOW), gain.estimate * (1 + SLOW))
        pays = "it pays here" if low > 1 else "it does not pay here" if high < 1 else "no difference is shown"
        return f"{served}: {pays}."


@dataclass(frozen=True)
class StageFeed:
    """A feed of one pipeline."""

    stage: int
    device: str
    issued_ns: int
    first_ns: int
    """When the first yield arrived."""
    ended_ns: int
    behind: int
    """The units after the first yield."""


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
    counts = bool(own) and not any(each.problems for each in own)
    kwh = [each.per_kwh for each in own if each.per_kwh is not None]
    ended = [each for each in own if each.ended]
    gain = _gain(result, own, single)
    compared = [(one, other) for against in (single, whole, *others.values()) for one, other in _pairs(own, against)]
    return PipelineFigures(
        gain_over_whole=_gain(result, own, whole),
        gain=gain,
        gain_over_policies={policy: _gain(result, own, its_turns) for policy, its_turns in others.items()},
        held=tuple(other.phase for one, other in compared if _held(result, one, other) > 1 + SLOW),
        reason=None if gain else _reason(result, pipeline, phases, single if counts else own),
        per_hour=_mean([each.per_hour for each in own]) if counts else None,
        per_kwh=_mean(kwh) if counts and len(kwh) == len(own) else None,
        bound_per_hour=own[0].bound_per_hour if own else None,
        ended_per_hour=fmean(each.ended * HOUR_NS / each.length_ns for each in ended) if ended else None,
        critical_path_ns=_critical_path_ns(phases[0]) if phases else None,
        feeds_ns=fmean(sum(stage.feed_ns for stage in each.stages) for each in ended) if ended else None,
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


def _gain(result: Result, turns: Sequence[PipelineTurn], others: Sequence[PipelineTurn]) -> Estimate | None:
    """The rate of turns over that of others. None if there are no pairs."""
    pairs = _pairs(turns, others)
    ratios = [one.per_hour / other.per_hour / _held(result, one, other) for one, other in pairs]
    return over_runs(ratios) if ratios else None


def _held(result: Result, one: PipelineTurn, other: PipelineTurn) -> float:
    """How many times slower the other turn was than it counts, at least 1. It counts at least as the same fraction of
    its λ* that the first turn reached; a turn by another policy at the speed that the devices had in the first turn."""
    if one.policy != other.policy:
        return slowdown(result, one.phase, other.phase)
    return max(1.0, (one.per_hour / one.bound_per_hour) / (other.per_hour / other.bound_per_hour))


def _critical_path_ns(phase: Phase) -> float:
    work, plan = _planned(phase)
    return 1e9 * sum(fastest_s(work.mix_units, plan.rates).values())


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
    behind = np.array([steps[-1].behind for _, steps in ended], np.int64)
    kept = took_ns <= pipeline.deadline_ns
    of_whole = (each.latency_limits for each in result.records if each.route.suite == pipeline.whole)
    limits = next(filter(None, of_whole), None)
    within = kept & is_in_time(limits, first_ns, took_ns, behind) if limits else None
    several = behind.any()
    return PipelineTurn(
        phase=phase.name,
        device=work.device,
        whole=work.suites != pipeline.suites,
        policy=work.policy,
        in_flight=work.in_flight,
        in_flight_wanted=devices_used(plan) + 1,
        length_ns=run.length_ns if run else 0,
        ended=len(ended),
        in_time=int(kept.sum()),
        per_hour=kept.sum() * HOUR_NS / run.length_ns if run else 0.0,
        bound_per_hour=plan.bound_per_s * HOUR_S,
        within_limits_per_hour=within.sum() * HOUR_NS / run.length_ns if run and within is not None else None,
        per_kwh=kept.sum() * KWH_J / run.total.joules if run and run.total.joules else None,
        latency=latency(took_ns),
        first=latency(first_ns) if several else None,
        unit=next((record.unit for record in records if record.route.suite == work.suites[-1]), ""),
        per_unit=latency((took_ns - first_ns) // np.maximum(behind, 1)) if several else None,
        p90_at_most_ns=early_stopping(took_ns, 0.9),
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
            behind = np.add.reduceat(done.units, done.starts) - done.units[done.starts]
            for due, *times in zip(*(each.tolist() for each in (*times_ns, behind)), strict=True):
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
    of_pair = {(record.route.suite, record.route.device): record for record in records}
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
        ran = [of_pair[suite, steps[at].device] for _, steps in ended]
        carried = {name: fmean(getattr(each, name) or 0 for each in ran) for name in ("carried_ns", "carried_bytes")}
        times = {"feed_ns": fmean(feed_ns), "waiting_ns": waited_ns, "handover_ns": fmean(between_ns) - waited_ns}
        found.append(StageTimes(suite=suite, feeds=dict(feeds), alone_ns=alone_s[suite] * 1e9, **carried, **times))
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
