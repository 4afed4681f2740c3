"""The score and what explains it, in words and tables that every reporter lays out in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Mix, Placement
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.score import NOT_MEASURED, Figure, Score, ScoredRun
from mixmark.reporters import figures, hosts
from mixmark.reporters.figures import UNKNOWN, significant

STEADINESS = {True: "steady", False: "not steady", None: "too short to tell whether it was steady"}


@dataclass(frozen=True)
class Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    """Those on the left; the others are numbers."""


@dataclass(frozen=True)
class Told:
    """The score of a result with mixed runs."""

    headline: str
    numbers: Sequence[tuple[str, str, str]]
    """(TX, 3.68 ± 1.2 %, mix/s): the headline in pieces, the score first."""
    conditions: Sequence[str]
    """Under which they hold: the mix, its grade, the weight class, the boundary."""
    trouble: str
    """What keeps the headline from being a score: NO SCORE or EFFICIENCY NOT MEASURED, and why."""
    runs: Sequence[ScoredRun]
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]


def told(judgement: Judgement) -> Told | None:
    """None where no mix was asked for. Figures of a single run are those of the run with the median throughput."""
    result, found = judgement.result, judgement.score
    if found is None:
        if result.mix is None:
            return None
        unreached = f"NO SCORE: the run ended before its mix, {result.mix.name}"
        return Told(unreached, (), (), unreached, (), (), ())
    names = figures.device_names(result)
    middle = sorted(found.runs, key=lambda run: run.mixes_per_s.estimate)[(len(found.runs) - 1) // 2 :][:1]
    facts, tables = [] if found.problems else [("grade", _grade(found))], []
    for run in middle:
        seen = judgement.diagnoses[run.phase]
        facts += [*_facts(run, seen), *hosts.facts(run), *hosts.lacking(judgement)]
        tables += [_streams(run, found.mix), _parts(seen, names)]
        tables += [Table("Hosts", hosts.TRAFFIC, hosts.traffic(run))] if run.traffic else []
        tables += [Table("Scaling", hosts.SCALING, hosts.scaling(judgement))] if judgement.scaling else []
    if len(found.runs) > 1:
        tables.append(_runs(judgement, found.runs))
    numbers = (("MX", found.mixes_per_kj, "mix/kJ"), ("TX", found.mixes_per_s, "mix/s"))
    conditions = (found.mix.name, found.grade, f"{found.weight_class}-bit weights", found.boundary)
    return Told(
        headline=found.headline,
        numbers=[(name, _half_width(figure), unit) for name, figure, unit in numbers if figure],
        conditions=[each for each in conditions if each and not found.problems],
        trouble=_trouble(found),
        runs=found.runs,
        facts=facts,
        tables=tables,
    )


def _half_width(figure: Figure) -> str:
    half = "" if figure.half_width is None else f" ± {figures.percent(figure.half_width)}"
    return f"{significant(figure.estimate)}{half}"


def _trouble(found: Score) -> str:
    if found.problems:
        return found.headline
    return f"{NOT_MEASURED}: {found.unmeasured}" if found.mixes_per_kj is None else ""


def _grade(found: Score) -> str:
    return f"{found.graded}{'; not ranked: ' if found.unranked else ''}{', '.join(found.unranked)}"


def _facts(run: ScoredRun, seen: Diagnosis) -> list[tuple[str, str]]:
    joules = UNKNOWN
    if run.total.joules is not None:
        watts = figures.prefixed(run.total.watts, "W")
        joules = (
            f"{figures.prefixed(run.total.joules, 'J')} of the {run.total.boundary}, {watts} on average, idle included"
        )
    bound = "estimate λ*, for a device ran several feeds at a time" if seen.bound_is_estimate else "bound λ*"
    proof = f"NOT PROVEN: {'; '.join(seen.unproven)}" if seen.unproven else "proven by its prices"
    if seen.faster and not seen.unproven:
        proof = f"with the rates in the mix of {', '.join(f'{each.suite} on {each.device}' for each in seen.faster)}"
    facts = [
        ("window", f"{run.phase}: {figures.duration(run.length_ns)}, {STEADINESS[run.steady]}"),
        ("completed", f"{significant(run.mixes)} mixes"),
        ("energy", joules),
        (bound, f"{significant(seen.bound_per_s)} mix/s, {proof}"),
        ("κ = λ/λ*", _interval(seen.kappa)),
        ("surplus", f"{figures.share(seen.surplus)} of the busy time, on units that no mix counts"),
        ("plan", _plan(seen.plan, run)),
    ]
    if seen.other_plan is not None:
        facts.append(("the other plan", _plan(seen.other_plan, run)))
    if seen.heterogeneity_gain is not None:
        facts.append(
            ("heterogeneity gain", f"{significant(seen.heterogeneity_gain)} × λ* of the {seen.best_kind} devices alone")
        )
    return facts


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return significant(figure.estimate)
    return f"{significant(figure.estimate)} ({significant(figure.low)} to {significant(figure.high)})"


def _plan(plan: Placement, run: ScoredRun) -> str:
    """A plan in words. Its predicted efficiency is left out where none was measured."""
    told = f"for {plan.objective}: {significant(plan.mixes_per_s)} mix/s"
    if not plan.watts or run.mixes_per_kj is None:
        return told
    efficiency = significant(1000 * plan.mixes_per_s / plan.watts)
    return f"{told}, {figures.prefixed(plan.watts, 'W')}, {efficiency} mix/kJ predicted"


def _streams(run: ScoredRun, mix: Mix) -> Table:
    rows = [
        (
            figures.name(stream.suite),
            significant(mix.units[stream.suite]),
            f"{stream.units:,}",
            significant(stream.mixes),
            f"{stream.feeds:,}",
            f"{stream.late:,}",
            f"{stream.audited:,}",
        )
        for stream in run.streams
    ]
    return Table("Streams", ("suite", "units a mix", "units", "mixes", "feeds", "late", "audited"), rows)


def _parts(seen: Diagnosis, names: dict[str, str]) -> Table:
    rows: list[tuple[str, ...]] = []
    for device, busy in seen.busy.items():
        own = [part for part in seen.parts if part.device == device]
        for at, part in enumerate(own):
            solo = UNKNOWN if part.solo_units_per_s is None else f"{significant(part.solo_units_per_s)}/s"
            rows.append(
                (
                    names[device] if at == 0 else "",
                    figures.name(part.suite),
                    figures.share(busy) if at == 0 else "",
                    figures.share(part.planned),
                    f"{significant(part.units_per_s)}/s",
                    solo,
                    figures.share(part.retained),
                )
            )
        if not own:
            rows.append((names[device], UNKNOWN, figures.share(busy), *[UNKNOWN] * 4))
    header = ("device", "suite", "busy", "planned", "in the mix", "solo", "retained")
    return Table("Devices", header, rows, text_columns=2)


def _runs(judgement: Judgement, runs: Sequence[ScoredRun]) -> Table:
    rows = []
    for run in runs:
        rows.append(
            (
                run.phase,
                figures.duration(run.length_ns),
                significant(run.mixes),
                significant(run.mixes_per_s.estimate),
                UNKNOWN if run.mixes_per_kj is None else significant(run.mixes_per_kj.estimate),
                significant(judgement.diagnoses[run.phase].kappa.estimate),
            )
        )
    return Table("Runs", ("run", "window", "mixes", "mix/s", "mix/kJ", "κ"), rows)
