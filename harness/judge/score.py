"""The score: completed mixes per kilojoule (MX) and per second (TX) of the mixed runs, and how sure they are.

A figure of one run is a ratio of two totals; over several runs it is their geometric mean. All figures follow from raw
timestamps and samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mixmark.harness.contracts.schema import Boundary, Finding, Mix, Phase, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.energy import total as machine
from mixmark.harness.judge.grade import Grade, grade
from mixmark.harness.judge.mixed_run import Figure, ScoredRun, ScoreProblem, run_of
from mixmark.harness.judge.statistics.intervals import over_runs
from mixmark.harness.plan import mixes

NOT_MEASURED = "EFFICIENCY NOT MEASURED"


@dataclass(frozen=True)
class Score:
    """The score of a result with mixed runs."""

    mix: Mix
    runs: tuple[ScoredRun, ...]
    problems: tuple[ScoreProblem, ...]
    """Why there is no score; then both figures are None."""
    mixes_per_s: Figure | None
    """TX."""
    mixes_per_kj: Figure | None
    """MX: the score."""
    boundary: Boundary | None
    """`wall`, `node` or `devices`, the same in all runs."""
    unmeasured: Reason | None
    """Why there is TX and no MX. None: there is MX, or no score."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight in any part."""
    grade: Grade
    missing: tuple[str, ...]
    """What the next better grade asks for and is not there."""
    unranked: tuple[str, ...]
    """Why it has no place among others, whatever its grade."""

    @property
    def graded(self) -> str:
        """The grade, and why it is not the next better one."""
        if not self.missing:
            return self.grade
        better = "provisional" if self.grade == "indicative" else "official"
        return f"{self.grade}, not {better}: {', '.join(self.missing)}"

    @property
    def headline(self) -> str:
        """The score in words and numbers, as every report shows it."""
        if self.problems:
            return f"NO SCORE: {'; '.join(problem.text for problem in self.problems)}"
        about = f"{self.mix.name}, {self.grade}, {self.weight_class}-bit weights"
        if self.mixes_per_kj is None:
            return f"TX {_words(self.mixes_per_s)} mix/s ({about}). {NOT_MEASURED}: {self.unmeasured}"
        return f"MX {_words(self.mixes_per_kj)} mix/kJ, TX {_words(self.mixes_per_s)} mix/s ({about}, {self.boundary})"


def score(result: Result, doubts: Sequence[Finding]) -> Score | None:
    """None: no mix was asked for, or none was run yet.

    doubts: the findings of the integrity rules. A record that is invalid by them counts for nothing.
    """
    phases, mix = mixed(result), result.mix
    if mix is None:
        return None
    problems = [
        ScoreProblem(absence.reason) for absence in result.absent if (absence.kind, absence.name) == ("mix", mix.name)
    ]
    if not (phases or problems):
        return None
    problems += [ScoreProblem(message) for message in took_no_part(result)]
    runs = tuple(run for phase in phases if (run := run_of(result, mix, phase, doubts)) is not None)
    for run in runs:
        problems += [replace(problem, phase=run.phase if len(runs) > 1 else "") for problem in run.problems]
    if mix.frozen and mix != mixes.frozen().get(mix.name, mix):
        problems.append(ScoreProblem(f"this is not the mix that was published as {mix.name}"))
    reached = {run.phase for run in runs}
    problems += [ScoreProblem(f"{phase.name} was not run to its end") for phase in phases if phase.name not in reached]
    records = [record for record in result.records if record.phase in reached and record.completions]
    return _scored(
        mix,
        runs,
        problems,
        result.seed_given,
        weight_class=min((record.route.weight_class for record in records), default=16),
        unranked=tuple(_unranked(mix, result, doubts)),
    )


def took_no_part(result: Result) -> tuple[str, ...]:
    """The hosts that were asked for and took no part, each with its reason."""
    return tuple(
        f"{absence.name} took no part: {absence.reason}" for absence in result.absent if absence.kind == "host"
    )


def joined(scores: Sequence[Score], seed_given: bool) -> Score:
    """The score over all runs of several results of one machine, which are all of one mix and have scores.

    The phases get the number of their result: 2/mix1. seed_given: whether the seed of any result was given.
    """
    if len(scores) == 1:
        return scores[0]
    return _scored(
        scores[0].mix,
        tuple(replace(run, phase=f"{n}/{run.phase}") for n, score in enumerate(scores, 1) for run in score.runs),
        [problem for score in scores for problem in score.problems],
        seed_given,
        weight_class=min(score.weight_class for score in scores),
        unranked=tuple(dict.fromkeys(why for score in scores for why in score.unranked)),
    )


def _scored(
    mix: Mix,
    runs: tuple[ScoredRun, ...],
    problems: Sequence[ScoreProblem],
    seed_given: bool,
    weight_class: int,
    unranked: tuple[str, ...],
) -> Score:
    unmeasured = machine.unmeasured({run.phase: run.total for run in runs})
    tx = None if problems else _over_runs([run.mixes_per_s for run in runs])
    mx = None if problems or unmeasured else _over_runs([run.mixes_per_kj for run in runs if run.mixes_per_kj])
    reached, missing = grade(mix, runs, mx or tx, seed_given)
    if reached == "provisional":
        coarseness = max((run.coarseness for run in runs), default=1.0)
        tx, mx = _widened(tx, coarseness), _widened(mx, coarseness)
    elif reached == "indicative":
        tx, mx = tx and Figure(tx.estimate), mx and Figure(mx.estimate)
    return Score(
        mix=mix,
        runs=runs,
        problems=tuple(problems),
        mixes_per_s=tx,
        mixes_per_kj=mx,
        boundary=runs[0].total.boundary if mx else None,
        unmeasured=None if problems else unmeasured,
        weight_class=weight_class,
        grade=reached,
        missing=missing,
        unranked=unranked,
    )


def proven(score: Score, unproven: Mapping[str, Sequence[str]]) -> Score:
    """The score, or a problem if the proof of a run's λ* fails: then the plan, or the rates behind it, were changed.

    unproven: what is wrong with the proof, by the phase of the run; empty: it holds.
    """
    failed = [
        ScoreProblem(f"λ* is not proven: {'; '.join(why)}", phase=phase) for phase, why in unproven.items() if why
    ]
    if score.problems or not failed:
        return score
    return replace(score, problems=tuple(failed), mixes_per_s=None, mixes_per_kj=None, boundary=None, unmeasured=None)


def _unranked(mix: Mix, result: Result, doubts: Sequence[Finding]) -> Iterator[str]:
    if not mix.frozen:
        yield f"{mix.name} is a mix of one's own"
    elif mix.name not in mixes.frozen():
        yield f"{mix.name} is none of the mixes that this version knows"
    elif mix.tier == "smoke":
        yield "the smoke tier shows that everything works"
    about = {rule: {each.about for each in doubts if each.rule == rule} for rule in UNRANKED_BY}
    for record in result.records:
        if record.key in about["below_ceiling"]:
            yield f"{record.route.label}, {record.scenario}, exceeds the ceiling of its probe without an explanation"
        if record.key in about["suites_verified"]:
            yield f"{record.route.label}, {record.scenario}, was not compared with the code of its suite"
    phases = {phase.name for phase in mixed(result)}
    routes = [record.route for record in result.records if record.phase in phases and record.key in about["probed"]]
    for device, precision in dict.fromkeys((route.device, route.precision) for route in routes):
        yield f"no probe of {device} in {precision} passed its audit, so nothing tells what is too fast"


UNRANKED_BY = ("below_ceiling", "suites_verified", "probed")
"""The integrity rules whose findings cost the rank."""


def mixed(result: Result) -> tuple[Phase, ...]:
    """The mixed phases, one a run."""
    return tuple(phase for phase in result.phases if phase.purpose == "mixed")


def _over_runs(figures: Sequence[Figure]) -> Figure | None:
    """The figure of a single run as it is; of several runs the geometric mean, and the interval over the runs."""
    if len(figures) < 2:
        return figures[0] if figures else None
    over = over_runs([figure.estimate for figure in figures])
    return Figure(over.geometric_mean, over.low, over.high) if over else None


def _widened(figure: Figure | None, coarseness: float) -> Figure | None:
    if figure is None or figure.low is None or figure.high is None:
        return figure
    by = coarseness * figure.estimate
    return Figure(figure.estimate, max(0.0, figure.low - by), figure.high + by)


def _words(figure: Figure | None) -> str:
    if figure is None:
        return "unknown"
    half_width = figure.half_width
    return f"{figure.estimate:.3g}" + ("" if half_width is None else f" ± {half_width * 100:.2g} %")
