"""The score: completed mixes per kilowatt-hour (MX) and per hour (TX) of the mixed runs, with interval and grade.

A figure of one run is a ratio of two totals; over several runs it is their geometric mean. All figures follow from raw
timestamps and samples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mixmark.harness.contracts.figures import Estimate, figure
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.contracts.schema import Boundary, Finding, Mix, Phase, Result, Route
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.energy import total as machine
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS
from mixmark.harness.judge.findings import AGAIN, case_of, declare, found, in_full, invalid, note, warning, words
from mixmark.harness.judge.mixed_run import LARGEST_SURPLUS, ScoredRun, run_of
from mixmark.harness.judge.statistics.intervals import over_runs
from mixmark.harness.plan import mixes

Grade = Literal["official", "ranked", "indicative"]

NOT_MEASURED = "energy not measured"
SHORTEST_NS = 120_000_000_000
RANKED_RUNS = 3
RANKED_HALF_WIDTH = 0.05
OFFICIAL_RUNS = 5
OFFICIAL_HALF_WIDTH = 0.02
OFFICIAL_AUDITS = 30


declare(
    "mix_complete",
    absent=warning("{why}"),
    simulated=warning("{devices} took part and is no silicon: a driver simulates it"),
    other_mix=invalid("this is not the mix that was published as {mix}"),
    unfinished=invalid("{phase} was not run to its end"),
)
declare(
    "score_graded",
    runs=note("{runs} of {needed} runs"),
    window=note("a window of {window_s:.4g} s of {needed_s:.0f} s"),
    surplus=note("{surplus:percent} of the work of a window was in no whole mix (limit {limit_pct:g} %)"),
    apart=note("its runs are too far apart for an interval", AGAIN),
    half_width=note("an interval of ±{reached_pct:.1f} % (limit ±{wanted_pct:g} %)"),
    audits=note("{suite} had {audits:counted feed} audited of {needed}"),
    edges=note("the slowest meter had {periods:.4g} periods of {needed}"),
    own_mix=note("{mix} is a mix of one's own"),
    unknown_mix=note("{mix} is none of the mixes that this version knows"),
    smoke=note("the smoke tier only shows that everything works", "--tier edge measures"),
    beside=note("{mix} is published beside the ranked mix of its tier"),
)


@dataclass(frozen=True)
class Score:
    """The score of a result with mixed runs."""

    mix: Mix
    runs: tuple[ScoredRun, ...]
    """All of them, also those that are left out."""
    problems: tuple[Finding, ...]
    """Why there is no score; then both figures are None."""
    mixes_per_hour: Estimate | None
    """TX."""
    mixes_per_kwh: Estimate | None
    """MX: the score."""
    boundary: Boundary | None
    """`wall`, `node` or `devices`, the same in all runs."""
    unmeasured: Reason | None
    """Why there is TX and no MX. None if there is MX, or no score."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight in any part."""
    grade: Grade
    missing: tuple[Finding, ...]
    """What the next better grade asks for and is not there."""
    unranked: tuple[Finding, ...]
    """What keeps it from a rank, whatever its runs are."""
    started: int
    """How many mixed runs were begun, also those that were ended before they had a record."""

    def counted(self) -> tuple[ScoredRun, ...]:
        """The runs that the figures are of."""
        return counted(self.runs)

    @property
    @figure
    def left_out(self) -> tuple[str, ...]:
        """The phases of the disturbed runs that no figure counts."""
        counted = {run.phase for run in self.counted()}
        return tuple(run.phase for run in self.runs if run.phase not in counted)

    @property
    @figure
    def watts(self) -> float | None:
        """The mean power of the runs that count. None if there is no MX."""
        watts = [run.total.watts for run in self.counted() if run.total.watts is not None]
        return sum(watts) / len(watts) if watts and self.mixes_per_kwh else None

    def median_run(self) -> ScoredRun | None:
        """The run with the median TX. Reports take figures of a single run from it. None if there is no run."""
        ranked = sorted(self.counted(), key=lambda run: run.mixes_per_hour.estimate)
        return ranked[(len(ranked) - 1) // 2] if ranked else None

    @property
    def better_grade(self) -> Grade:
        """The next better grade than an indicative or ranked score has."""
        return "ranked" if self.grade == "indicative" else "official"

    @property
    def graded(self) -> str:
        """The grade, and why it is not the next better one."""
        missing = ", ".join(map(words, self.missing))
        return f"{self.grade}, not {self.better_grade}: {missing}" if missing else self.grade

    @property
    def headline(self) -> str:
        """The score in words and numbers, as every report shows it."""
        if self.problems:
            return f"No score: {'; '.join(map(in_full, self.problems))}"
        grade = "indicative, not ranked" if self.grade == "indicative" else self.grade
        about = f"mix {self.mix.name} with {self.weight_class}-bit weights"
        if self.mixes_per_kwh is None:
            return f"Speed (TX) {_words(self.mixes_per_hour, 'hour')} ({about}; {grade}), {NOT_MEASURED}"
        efficiency = _words(self.mixes_per_kwh, "kWh")
        speed = _words(self.mixes_per_hour, "hour")
        return f"Efficiency (MX) {efficiency}, speed (TX) {speed} ({about}, boundary {self.boundary}; {grade})"


def counted(runs: Sequence[ScoredRun]) -> tuple[ScoredRun, ...]:
    """The runs that nothing disturbed, and those that were slower than what disturbed them explains: a load that begins
    when a run goes badly replaces no run. All if there is no undisturbed run."""
    slowest = min((run.mixes_per_hour.estimate for run in runs if not run.disturbed), default=math.inf)
    return tuple(
        run for run in runs if not run.disturbed or run.mixes_per_hour.estimate < slowest * _left(run.disturbed)
    )


def _left(disturbed: Finding) -> float:
    """The fraction of the machine's CPU time that was left to a disturbed run."""
    (lost_pct,) = (each for name, each in disturbed.values.items() if name.endswith("_pct") and isinstance(each, float))
    return 1 - lost_pct / 100


def mixed(result: Result) -> tuple[Phase, ...]:
    """The mixed phases, one a run."""
    return tuple(phase for phase in result.phases if phase.purpose == "mixed")


def scored_runs(result: Result, doubts: Sequence[Finding], disturbed: Mapping[str, Finding]) -> tuple[ScoredRun, ...]:
    """The mixed runs that went to their end.

    doubts: the findings of the integrity rules. A record that is invalid by them counts for nothing. disturbed: see
    `rules.interference.disturbed_runs`.
    """
    if result.mix is None:
        return ()
    runs = (run_of(result, result.mix, phase, doubts) for phase in mixed(result))
    return tuple(replace(run, disturbed=disturbed.get(run.phase)) for run in runs if run is not None)


def score(result: Result, runs: tuple[ScoredRun, ...], unproven: Sequence[Finding]) -> Score | None:
    """None if no mix was asked for, or none was run yet. `graded` completes it.

    runs: see `scored_runs`. unproven: what is wrong with the plans and the proofs of λ*.
    """
    if result.mix is None or not (mixed(result) or _no_score(result)):
        return None
    problems = tuple(_problems(result, result.mix, runs)) or tuple(unproven)
    phases = {run.phase for run in runs}
    records = [record for record in result.records if record.phase in phases and record.completions]
    weight_class = min((record.route.weight_class for record in records), default=16)
    started = sum(result.begun.count(phase.name) for phase in mixed(result))
    return _scored(result.mix, runs, problems, weight_class, tuple(_own_mix(result.mix)), started)


def graded(score: Score, costs: Sequence[Finding]) -> Score:
    """The score with what else costs its rank."""
    own, unranked = counted(score.runs), (*score.unranked, *costs)
    grade, missing = _grade(score.mix, own, score.mixes_per_kwh or score.mixes_per_hour, unranked)
    return replace(score, unranked=unranked, grade=grade, missing=missing)


def costs_of_rank(result: Result, findings: Sequence[Finding]) -> list[Finding]:
    """What costs the rank of a score, whatever its runs are: the findings of rules with the case `unranked`."""
    phases = {phase.name for phase in mixed(result)}
    records = {record.key: record for record in result.records}
    costs: list[Finding] = []
    parts: dict[str, list[Route]] = defaultdict(list)
    for finding in findings:
        record, remark = records.get(finding.about), finding.severity == "note"
        if record and not remark:
            parts[finding.rule].append(record.route)
        elif record and record.phase not in phases:
            continue  # a note about a device that no mix used costs nothing
        elif (cost := case_of(finding.rule, "unranked", **finding.values)) and words(cost) not in map(words, costs):
            costs.append(cost)
    for rule, routes in parts.items():
        named = {"parts": [route.label for route in routes], "suites": [route.suite for route in routes]}
        values = {name: tuple(dict.fromkeys(each)) for name, each in named.items()}
        costs += filter(None, [case_of(rule, "unranked", **values)])
    return costs


def joined(scores: Sequence[Score]) -> Score:
    """The score over all runs of several results of one machine, which are all of one mix and have scores.

    The phases get the number of their result: 2/mix1.
    """
    if len(scores) == 1:
        return scores[0]
    unranked: list[Finding] = []
    for score in scores:
        unranked += [why for why in score.unranked if why not in unranked]
    return _scored(
        scores[0].mix,
        tuple(replace(run, phase=f"{n}/{run.phase}") for n, score in enumerate(scores, 1) for run in score.runs),
        tuple(_of_result(n, problem) for n, score in enumerate(scores, 1) for problem in score.problems),
        min(score.weight_class for score in scores),
        tuple(unranked),
        sum(score.started for score in scores),
    )


def _of_result(number: int, problem: Finding) -> Finding:
    """The problem with the number of its result before the name of the phase or the record."""
    about = problem.about if problem.about == "run" else f"{number}/{problem.about}"
    phase = {"phase": f"{number}/{problem.values['phase']}"} if "phase" in problem.values else {}
    return problem.model_copy(update={"about": about, "values": {**problem.values, **phase}})


def figures(runs: Sequence[ScoredRun]) -> tuple[Estimate | None, Estimate | None, Reason | None]:
    """TX, MX, and why there is no MX, over the runs that count."""
    unmeasured = machine.unmeasured({run.phase: run.total for run in runs})
    tx = _over_runs(runs, [run.mixes_per_hour for run in runs], [(1.0, run.most) for run in runs])
    by = [(low, high * run.most) for run in runs for low, high in (run.total.of_edges,)]
    mx = None if unmeasured else _over_runs(runs, [run.mixes_per_kwh for run in runs if run.mixes_per_kwh], by)
    return tx, mx, unmeasured


def widest(tx: Estimate | None, mx: Estimate | None) -> float | None:
    """The half-width of the less certain of MX and TX, since a reader relies on both. None if one is not known."""
    widths = [figure.half_width for figure in (mx, tx) if figure is not None]
    known = [width for width in widths if width is not None]
    return max(known) if known and len(known) == len(widths) else None


def _scored(
    mix: Mix,
    runs: tuple[ScoredRun, ...],
    problems: tuple[Finding, ...],
    weight_class: int,
    unranked: tuple[Finding, ...],
    started: int,
) -> Score:
    own = counted(runs)
    tx, mx, unmeasured = (None, None, None) if problems else figures(own)
    grade, missing = _grade(mix, own, mx or tx, unranked)
    return Score(
        mix=mix,
        runs=runs,
        problems=problems,
        mixes_per_hour=tx,
        mixes_per_kwh=mx,
        boundary=own[0].total.boundary if mx else None,
        unmeasured=unmeasured,
        weight_class=weight_class,
        grade=grade,
        missing=missing,
        unranked=unranked,
        started=max(started, len(runs)),
    )


def _problems(result: Result, mix: Mix, runs: Sequence[ScoredRun]) -> Iterator[Finding]:
    if why := _no_score(result):
        yield why
    for run in runs:
        yield from run.problems
    if mix.frozen and mix != mixes.frozen().get(mix.name, mix):
        yield found("mix_complete.other_mix", mix=mix.name)
    reached = {run.phase for run in runs}
    for phase in mixed(result):
        if phase.name not in reached:
            yield found("mix_complete.unfinished", phase=phase.name)


def _no_score(result: Result) -> Finding | None:
    """Why there is no score though nothing is wrong: the mix was not run after the solo measurements, for example
    because no device runs one of its suites, or a simulated device took part. None if neither is so, or no mix was
    asked for.
    """
    wanted = ("mix", result.mix.name if result.mix else "")
    not_run = next((absence.reason for absence in result.absent if (absence.kind, absence.name) == wanted), None)
    if not_run:
        return found("mix_complete.absent", why=not_run)
    phases = {phase.name for phase in mixed(result)}
    in_mix = {record.route.device for record in result.records if record.phase in phases}
    simulated = sorted(each.id for each in result.devices if each.kind == "simulated" and each.id in in_mix)
    return found("mix_complete.simulated", devices=tuple(simulated)) if simulated else None


def _own_mix(mix: Mix) -> Iterator[Finding]:
    """Why a score of this mix has no rank."""
    if not mix.frozen:
        yield found("score_graded.own_mix", mix=mix.name)
    elif mix.name not in mixes.frozen():
        yield found("score_graded.unknown_mix", mix=mix.name)
    elif mix.tier == "smoke":
        yield found("score_graded.smoke")
    elif mix.name in mixes.without_rank():
        yield found("score_graded.beside", mix=mix.name)


def _grade(
    mix: Mix, runs: Sequence[ScoredRun], figure: Estimate | None, unranked: Sequence[Finding]
) -> tuple[Grade, tuple[Finding, ...]]:
    """The grade, and what the next better one lacks.

    figure: MX or, if it is not known, TX over all runs.
    """
    if lacks := (*unranked, *_lacks(runs, figure, RANKED_RUNS, RANKED_HALF_WIDTH)):
        return "indicative", lacks
    if lacks := (*_lacks(runs, figure, OFFICIAL_RUNS, OFFICIAL_HALF_WIDTH), *_evidence_lacks(mix, runs)):
        return "ranked", lacks
    return "official", ()


def _lacks(runs: Sequence[ScoredRun], figure: Estimate | None, enough: int, half_width: float) -> Iterator[Finding]:
    if len(runs) < enough:
        yield found("score_graded.runs", runs=len(runs), needed=enough)
    shortest_ns = min((run.length_ns for run in runs), default=SHORTEST_NS)
    if shortest_ns < SHORTEST_NS:
        yield found("score_graded.window", window_s=shortest_ns / 1e9, needed_s=SHORTEST_NS / 1e9)
    surplus = max((run.surplus for run in runs), default=0.0)
    if surplus > LARGEST_SURPLUS:
        yield found("score_graded.surplus", surplus=surplus, limit_pct=LARGEST_SURPLUS * 100)
    elif len(runs) >= enough and figure is not None:
        if (reached := figure.half_width) is None:
            yield found("score_graded.apart")
        elif reached > half_width:
            yield found("score_graded.half_width", reached_pct=reached * 100, wanted_pct=half_width * 100)


def _evidence_lacks(mix: Mix, runs: Sequence[ScoredRun]) -> Iterator[Finding]:
    """runs: at least one."""
    for suite in mix.units:
        audits = [(own.audited, min(OFFICIAL_AUDITS, own.feeds)) for own in (run.of_suite(suite) for run in runs)]
        if lacking := [(audited, needed) for audited, needed in audits if audited < needed]:
            audited, needed = min(lacking)
            yield found("score_graded.audits", suite=suite, audits=audited, needed=needed)
    edges = max(run.total.edge_uncertainty or 0 for run in runs)
    if edges > 2 / ENOUGH_PERIODS:
        yield found("score_graded.edges", periods=2 / edges, needed=ENOUGH_PERIODS)


def _over_runs(runs: Sequence[ScoredRun], figures: list[Estimate], by: list[tuple[float, float]]) -> Estimate | None:
    """The geometric mean of the runs with its interval, whose high end adds the surplus of each window: all windows end
    with about the same, so their scatter does not show it. One run has the interval of its window. If a window ended
    with too much work that no mix counts, the bounds of what longer windows would give. figures: one for each run, or
    none. by: the factors by which the figure of each run may be too high and too low."""
    if not figures or min(figure.estimate for figure in figures) <= 0:  # a run without any mix has no logarithm
        return None
    if any(run.surplus > LARGEST_SURPLUS for run in runs):
        beside = zip(figures, runs, strict=True)
        most = [each.estimate * run.most_per_hour / run.mixes_per_hour.estimate for each, run in beside]
        low = min(figure.estimate for figure in figures)
        return Estimate(low, low, max(most), kind="bracket")
    if len(runs) == 1:
        return figures[0]
    over = over_runs([figure.estimate for figure in figures])
    pairs = list(zip((each.estimate for each in figures), by, strict=True))
    below, above = (over_runs([figure * factors[at] for figure, factors in pairs]) for at in (0, 1))
    if over is None or below is None or above is None or below.low is None or above.high is None:
        return over and Estimate(over.estimate)
    return replace(over, low=below.low, high=above.high)


def _words(figure: Estimate | None, per: str) -> str:
    """35.1 mixes per hour ± 1.2 %."""
    if figure is None:
        return f"unknown mixes per {per}"
    ends = (figure.low or 0.0, figure.high or 0.0) if figure.is_bracket else (figure.estimate,)
    number = " to ".join(map(significant, ends))
    half_width = figure.half_width
    return f"{number} mixes per {per}" + ("" if half_width is None else f" ± {percent(half_width)}")
