"""The mix served at levels of load.

    response time      from when a request was due until its last unit, also if it waited long before it was begun
    MX of the ladder   Σ mixes per hour / Σ kW over the mixed runs, the levels and the ready idle: each for equal time
    goodput            the highest load at which every suite keeps its latency limits

The ladder stands beside the score and is never a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.capabilities.ladder.load import Levels, Load, due_ns, level_name
from mixmark.harness.capabilities.serving.responses import requests_ns
from mixmark.harness.contracts.figures import Estimate, figure
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Finding, LatencyLimits, Mix, Phase, Record, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.total import ready_watts
from mixmark.harness.judge.findings import declare, found, warning
from mixmark.harness.judge.mixed_run import ScoredRun, run_of
from mixmark.harness.judge.statistics.intervals import holds, percentile

LARGEST_DELAY = 0.01
"""The harness's own delay, p99, as a fraction of the shortest latency limit, above which a level does not count."""
OVERLOADED = 0.01
"""The fraction of a suite's requests that may be left when a level ends: a queue that settles leaves none."""


declare(
    "mix_complete",
    overloaded=warning(
        "overloaded: {left} of {arrived:counted request} of {suite} were not answered when the level ended"
    ),
    delayed=warning(
        "the harness took requests up {delay_ns:duration} late (p99), more than {limit:percent} of the shortest limit, "
        "{shortest_ns:duration}"
    ),
)


@dataclass(frozen=True)
class Responses:
    """What became of the requests of one suite at a level."""

    suite: str
    arrived: int
    """The number of requests that arrived."""
    answered: int
    """The requests with every unit finished, in time or not."""
    p50_ns: int | None
    """The median response time. As the other percentile, it is None if there are too few requests."""
    p90_ns: int | None
    limits: LatencyLimits | None
    """The suite's limits. None if it has none."""
    keeps_limits: bool | None
    """None if it has no limits, or too few requests tell."""


@dataclass(frozen=True)
class Level:
    """The mix served at one level of load."""

    target: float
    """The load: the share of the rate of the mixed runs that arrived."""
    actual: float
    """The completed mixes per hour over the rate of the mixed runs. The time after the last arrival counts."""
    run: ScoredRun
    """What was completed, and its energy."""
    responses: tuple[Responses, ...]
    delay_ns: int
    """The harness's own delay, p99: from when requests were due until it took them up."""
    problems: tuple[Finding, ...]
    """Why its figures do not count. Empty if they do."""

    @property
    @figure
    def keeps_limits(self) -> bool | None:
        """Whether every suite keeps its latency limits. None if too few requests of one tell."""
        kept = [each.keeps_limits for each in self.responses if each.limits is not None]
        if self.problems or False in kept:
            return False
        return None if None in kept else True


@dataclass(frozen=True)
class Ladder:
    """The mix at full load, at the levels, and at rest."""

    mixes_per_hour: Estimate
    """TX of the mixed runs: the full load."""
    watts: float | None
    """The mean power of the mixed runs. None, as for the other powers: not measured."""
    ready_watts: float | None
    """The power when everything is loaded and nothing is asked."""
    bare_watts: float | None
    """The power when no worker runs."""
    levels: tuple[Level, ...]
    """From the highest load to the lowest."""
    missing: Mapping[str, Reason]
    """Why levels were not served, by their names."""

    @property
    @figure
    def mixes_per_kwh(self) -> float | None:
        """MX of the ladder. None if a power is not known, or a level has a problem."""
        levels = self.levels
        watts = [self.watts, self.ready_watts, *(level.run.total.watts for level in levels)]
        known = [each for each in watts if each is not None]
        if not levels or len(known) < len(watts) or any(level.problems for level in levels) or not sum(known):
            return None
        rates = [self.mixes_per_hour.estimate, *(level.run.mixes_per_hour.estimate for level in levels)]
        return sum(rates) / (sum(known) / 1000)

    @property
    @figure
    def idle_over_full(self) -> float | None:
        """The ready idle over the power of the mixed runs."""
        return self.ready_watts / self.watts if self.ready_watts is not None and self.watts else None

    @property
    @figure
    def goodput(self) -> float | None:
        """The highest level at which every limit is kept. None if there is none, or too few requests tell."""
        return max((level.target for level in self.levels if level.keeps_limits), default=None)


def contradictions(result: Result) -> Iterator[str]:
    """The requests were due when their seed says."""
    for phase in (phase for phase in result.phases if phase.experiment == "ladder"):
        records = [record for record in result.records if record.phase == phase.name]
        if unknown := unknown_due(phase, records):
            yield f"{counted(unknown, 'feed')} of {phase.name} answered no request that arrived"


def ladder(judged: Assessment) -> Ladder | None:
    """None if the mixed runs have no rate."""
    result, score, doubts = judged.result, judged.score, judged.doubts
    if score is None or score.mixes_per_hour is None:
        return None
    full = score.mixes_per_hour
    served = [phase for phase in result.phases if phase.experiment == "ladder"]
    with_ready = [phase for phase in result.phases if phase.purpose == "mixed" or phase in served]
    levels = [level for phase in served if (level := _level(result, score.mix, phase, full, doubts)) is not None]
    runs = [*score.counted(), *(level.run for level in levels)]
    asked = Levels.model_validate(result.experiments["ladder"])
    names = {level_name(score.mix.name, level) for level in asked.levels}
    return Ladder(
        mixes_per_hour=full,
        watts=score.watts,
        ready_watts=_mean(ready_watts(result, phase.name) for phase in with_ready),
        bare_watts=_mean(watts for run in runs for watts in run.total.idle_watts),
        levels=tuple(sorted(levels, key=lambda level: -level.target)),
        missing={each.name: each.reason for each in result.absent if each.name in names},
    )


def _level(result: Result, mix: Mix, phase: Phase, full: Estimate, doubts: Sequence[Finding]) -> Level | None:
    """None if nothing of it was recorded."""
    run, load = run_of(result, mix, phase, doubts), phase.told(Load)
    if run is None:
        return None
    records = [record for record in result.records if record.phase == phase.name]
    responses = tuple(_responses(suite, load, records) for suite in mix.units)
    delay_ns = max((record.arrival_delay_ns or 0 for record in records), default=0)
    return Level(
        target=load.level,
        actual=run.mixes_per_hour.estimate / full.estimate,
        run=run,
        responses=responses,
        delay_ns=delay_ns,
        problems=(*run.problems, *_problems(responses, delay_ns)),
    )


def _responses(suite: str, load: Load, records: Sequence[Record]) -> Responses:
    """records: of the phase."""
    own = [record for record in records if record.route.suite == suite and record.completions is not None]
    limits = next((record.latency_limits for record in own if record.latency_limits), None)
    first, total, per_unit = requests_ns(own, load.request_units[suite])
    keeps = None
    if limits:
        pairs = ((total, limits.total_ns), (first, limits.first_ns), (per_unit, limits.per_unit_ns))
        keeps = holds(pairs, limits.percentile)
    return Responses(
        suite=suite,
        arrived=load.requests[suite],
        answered=len(total),
        p50_ns=percentile(total, 0.5),
        p90_ns=percentile(total, 0.9),
        limits=limits,
        keeps_limits=keeps,
    )


def _problems(responses: Sequence[Responses], delay_ns: int) -> Iterator[Finding]:
    for each in responses:
        left = each.arrived - each.answered
        if left > OVERLOADED * each.arrived:
            yield found("mix_complete.overloaded", suite=each.suite, left=left, arrived=each.arrived)
    known = [each.limits for each in responses if each.limits]
    limits = [ns for each in known for ns in (each.first_ns, each.per_unit_ns, each.total_ns) if ns]
    if limits and delay_ns > LARGEST_DELAY * min(limits):
        yield found("mix_complete.delayed", delay_ns=delay_ns, limit=LARGEST_DELAY, shortest_ns=min(limits))


def unknown_due(phase: Phase, records: Sequence[Record]) -> int:
    """The number of feeds whose due time the phase did not draw. records: of the phase."""
    drawn, unknown = due_ns(phase.told(Load)), 0
    for record in records:
        if record.completions is not None and record.parent_window_ns is not None:
            since = record.completions.due_ns - record.parent_window_ns[0]
            unknown += int((~np.isin(since, drawn.get(record.route.suite, np.zeros(0, np.int64)))).sum())
    return unknown


def _mean(values: Iterator[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None
