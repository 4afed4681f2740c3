"""The score: completed mixes per kilowatt-hour (MX) and per hour (TX) of the mixed runs, and how sure they are.

A figure of one run is a ratio of two totals; over several runs it is their geometric mean. All figures follow from raw
timestamps and samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.contracts.schema import Boundary, Finding, Mix, Phase, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.energy import total as machine
from mixmark.harness.judge.grade import Grade, grade
from mixmark.harness.judge.mixed_run import LARGEST_SURPLUS, ScoredRun, ScoreProblem, run_of
from mixmark.harness.judge.statistics.intervals import over_runs
from mixmark.harness.plan import mixes

NOT_MEASURED = "EFFICIENCY NOT MEASURED"


@dataclass(frozen=True)
class Score:
    """The score of a result with mixed runs."""

    mix: Mix
    runs: tuple[ScoredRun, ...]
    """All of them, also those that are left out."""
    problems: tuple[ScoreProblem, ...]
    """Why there is no score; then both figures are None."""
    mixes_per_hour: Estimate | None
    """TX."""
    mixes_per_kwh: Estimate | None
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
    """What keeps it from a rank, whatever its runs are."""

    def counted(self) -> tuple[ScoredRun, ...]:
        """The runs that the figures are of: those that nothing disturbed, or all if there is none."""
        return _counted(self.runs)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The phases of the disturbed runs that no figure counts."""
        counted = {run.phase for run in self.counted()}
        return tuple(run.phase for run in self.runs if run.phase not in counted)

    @property
    def watts(self) -> float | None:
        """The mean power of the runs that count. None: there is no MX."""
        watts = [run.total.watts for run in self.counted() if run.total.watts is not None]
        return sum(watts) / len(watts) if watts and self.mixes_per_kwh else None

    def median_run(self) -> ScoredRun | None:
        """The run with the median TX, of which reports show the figures of one run. None: there is no run."""
        ranked = sorted(self.counted(), key=lambda run: run.mixes_per_hour.estimate)
        return ranked[(len(ranked) - 1) // 2] if ranked else None

    @property
    def graded(self) -> str:
        """The grade, and why it is not the next better one."""
        if not self.missing:
            return self.grade
        better = "ranked" if self.grade == "indicative" else "official"
        return f"{self.grade}, not {better}: {', '.join(self.missing)}"

    @property
    def headline(self) -> str:
        """The score in words and numbers, as every report shows it."""
        if self.problems:
            return f"NO SCORE: {'; '.join(problem.text for problem in self.problems)}"
        about = f"{self.mix.name}, {self.grade}, {self.weight_class}-bit weights"
        if self.mixes_per_kwh is None:
            return f"TX {_words(self.mixes_per_hour, 'hour')} ({about}). {NOT_MEASURED}: {self.unmeasured}"
        efficiency = _words(self.mixes_per_kwh, "kWh")
        return f"MX {efficiency}, TX {_words(self.mixes_per_hour, 'hour')} ({about}, {self.boundary})"


def score(result: Result, doubts: Sequence[Finding], disturbed: Mapping[str, Reason]) -> Score | None:
    """None: no mix was asked for, or none was run yet.

    doubts: the findings of the integrity rules. A record that is invalid by them counts for nothing. disturbed: see
    `disturbance.mixed_runs`.
    """
    phases, mix = mixed(result), result.mix
    if mix is None:
        return None
    problems = [ScoreProblem(reason, harmless=True)] if (reason := _no_score(result)) else []
    if not (phases or problems):
        return None
    problems += [ScoreProblem(message) for message in took_no_part(result)]
    found = (run_of(result, mix, phase, doubts) for phase in phases)
    runs = tuple(replace(run, disturbed=disturbed.get(run.phase)) for run in found if run is not None)
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
        weight_class=min((record.route.weight_class for record in records), default=16),
        unranked=tuple(_unranked(mix, result, doubts)),
    )


def _no_score(result: Result) -> Reason | None:
    """Why there is no score though nothing is wrong: the mix was not run after the solo measurements, for example
    because no device runs one of its suites, or a simulated device took part. None: neither, or no mix was asked for.
    """
    wanted = ("mix", result.mix.name if result.mix else "")
    not_run = next((absence.reason for absence in result.absent if (absence.kind, absence.name) == wanted), None)
    phases = {phase.name for phase in mixed(result)}
    in_mix = {record.route.device for record in result.records if record.phase in phases}
    simulated = sorted(each.id for each in result.devices if each.kind == "simulated" and each.id in in_mix)
    return not_run or (
        f"{', '.join(simulated)} took part and is no silicon: a driver simulates it" if simulated else None
    )


def took_no_part(result: Result) -> tuple[str, ...]:
    """The hosts that were asked for and took no part, each with its reason."""
    return tuple(
        f"{absence.name} took no part: {absence.reason}" for absence in result.absent if absence.kind == "host"
    )


def joined(scores: Sequence[Score]) -> Score:
    """The score over all runs of several results of one machine, which are all of one mix and have scores.

    The phases get the number of their result: 2/mix1.
    """
    if len(scores) == 1:
        return scores[0]
    return _scored(
        scores[0].mix,
        tuple(replace(run, phase=f"{n}/{run.phase}") for n, score in enumerate(scores, 1) for run in score.runs),
        [problem for score in scores for problem in score.problems],
        weight_class=min(score.weight_class for score in scores),
        unranked=tuple(dict.fromkeys(why for score in scores for why in score.unranked)),
    )


def _scored(
    mix: Mix,
    runs: tuple[ScoredRun, ...],
    problems: Sequence[ScoreProblem],
    weight_class: int,
    unranked: tuple[str, ...],
) -> Score:
    counted = _counted(runs)
    unmeasured = machine.unmeasured({run.phase: run.total for run in counted})
    tx = None if problems else _over_runs(counted, [run.mixes_per_hour for run in counted])
    mx = None
    if not problems and not unmeasured:
        mx = _over_runs(counted, [run.mixes_per_kwh for run in counted if run.mixes_per_kwh])
    reached, missing = grade(mix, counted, mx or tx, unranked)
    return Score(
        mix=mix,
        runs=runs,
        problems=tuple(problems),
        mixes_per_hour=tx,
        mixes_per_kwh=mx,
        boundary=counted[0].total.boundary if mx else None,
        unmeasured=None if problems else unmeasured,
        weight_class=weight_class,
        grade=reached,
        missing=missing,
        unranked=unranked,
    )


def _counted(runs: tuple[ScoredRun, ...]) -> tuple[ScoredRun, ...]:
    return tuple(run for run in runs if not run.disturbed) or runs


def proven(score: Score, unproven: Mapping[str, Sequence[str]]) -> Score:
    """The score, or a problem if the proof of a run's λ* fails: then the plan, or the rates behind it, were changed.

    unproven: what is wrong with the proof, by the phase of the run; empty: it holds.
    """
    failed = [
        ScoreProblem(f"λ* is not proven: {'; '.join(why)}", phase=phase) for phase, why in unproven.items() if why
    ]
    if score.problems or not failed:
        return score
    return replace(
        score, problems=tuple(failed), mixes_per_hour=None, mixes_per_kwh=None, boundary=None, unmeasured=None
    )


def unranked_for(score: Score, disturbances: Sequence[str]) -> Score:
    """The score without a rank. disturbances: why the result is disturbed; empty: the score stays as it is."""
    unranked = (*score.unranked, *disturbances)
    reached, missing = grade(score.mix, score.counted(), score.mixes_per_kwh or score.mixes_per_hour, unranked)
    return replace(score, unranked=unranked, grade=reached, missing=missing)


def _unranked(mix: Mix, result: Result, doubts: Sequence[Finding]) -> Iterator[str]:
    if result.seed_given:
        yield "its seed was given"
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


def _over_runs(runs: Sequence[ScoredRun], figures: Sequence[Estimate]) -> Estimate | None:
    """The geometric mean of the runs with its interval. If a window ended with too much work that no mix counts, the
    bounds of what longer windows would give. figures: one for each run, or none."""
    over = over_runs([figure.estimate for figure in figures])
    if over is None:
        return None
    if all(run.surplus <= LARGEST_SURPLUS for run in runs):
        return over
    most = [f.estimate * run.most_per_hour / run.mixes_per_hour.estimate for f, run in zip(figures, runs, strict=True)]
    low = min(figure.estimate for figure in figures)
    return Estimate(low, low, max(most), kind="bracket")


def _words(figure: Estimate | None, per: str) -> str:
    """35.1 mixes per hour ± 1.2 %."""
    if figure is None:
        return f"unknown mixes per {per}"
    ends = (figure.low or 0.0, figure.high or 0.0) if figure.is_bracket else (figure.estimate,)
    number = " to ".join(map(significant, ends))
    half_width = figure.half_width
    return f"{number} mixes per {per}" + ("" if half_width is None else f" ± {percent(half_width)}")
