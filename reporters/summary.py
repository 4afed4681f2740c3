"""What a reader learns in ten seconds, in words that every reporter lays out in its own way.

Three questions are answered: is this number good for anything, what does the machine do, how does it compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Mix
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.rows import Row
from mixmark.harness.judge.score import Figure, Score
from mixmark.harness.judge.verdict import VerdictWord
from mixmark.reporters import figures
from mixmark.reporters.figures import significant

MOST_OTHERS = 2  # routes that a line compares the best one with
LONGEST_REASON, LONGEST_FAILURE = 240, 80  # letters


@dataclass(frozen=True)
class Line:
    """The best route of a suite."""

    suite: str
    rate: str
    """With its interval where that is known; why there is none where nothing was measured."""
    route: str
    others: str
    """How fast it is relative to the other routes; empty where there is none."""


@dataclass(frozen=True)
class Summary:
    """What stands first in every report."""

    verdict: VerdictWord
    reason: str
    sentence: str
    """What the machine does, for a reader who has never heard of κ."""
    scale: tuple[str, ...]
    """How that compares with other machines."""
    score: str
    """The score as it is ranked; empty where no mix was asked for."""
    suites: tuple[Line, ...]
    hosted: tuple[Line, ...]
    """The hosted services, which are not audited."""
    energy: str
    better: str
    """What would make the result better; empty where nothing is known."""


def summary(judgement: Judgement) -> Summary:
    verdict = judgement.verdict
    remedies = dict.fromkeys(each.remedy for each in verdict.reasons if each.remedy)
    return Summary(
        verdict=verdict.word,
        reason=figures.name(verdict.reason, LONGEST_REASON),
        sentence=_sentence(judgement),
        scale=tuple(_scale(judgement)),
        score=_score(judgement),
        suites=tuple(_suites(judgement)),
        hosted=tuple(_hosted(judgement)),
        energy=_energy(judgement),
        better="; ".join(list(remedies)[:2]),
    )


def work(mix: Mix, called: Mapping[str, str]) -> str:
    """The work of one mix: 50 LLM tokens, 5.5 images drawn, 234,000 recommendations, 917 pictures classified.

    called: what the units of each suite are called in a sentence.
    """
    return ", ".join(
        f"{figures.bare(units, 3 if units >= 100 else 2)} {figures.name(called.get(suite, f'units of {suite}'))}"
        for suite, units in mix.units.items()
    )


def does(mix: Mix, called: Mapping[str, str], mixes_per_s: Figure, mixes_per_kj: Figure | None) -> str:
    """What a machine does, without its name: does one edge mix (50 LLM tokens, …) in 19.1 s (± 1.2 %)."""
    joules = f" and takes {figures.prefixed(1000 / mixes_per_kj.estimate, 'J')} for it" if mixes_per_kj else ""
    tier = f"{mix.tier} mix" if mix.frozen else f"mix {figures.name(mix.name)}"
    speed = f"{figures.duration(1e9 / mixes_per_s.estimate)}{_within(mixes_per_s)}"
    return f"does one {tier} ({work(mix, called)}) in {speed}{joules}"


def _sentence(judgement: Judgement) -> str:
    found, mix = judgement.score, judgement.result.mix
    if mix is None:
        return "This run has no mix, and so no score: each suite was measured alone."
    called = {each.name: each.unit_names.work for each in judgement.result.suites}
    if found is None or found.mixes_per_s is None:
        return f"{_machine(judgement)} has no score for the mix {figures.name(mix.name)} ({work(mix, called)})."
    return f"{_machine(judgement)} {does(mix, called, found.mixes_per_s, found.mixes_per_kj)}."


def _machine(judgement: Judgement) -> str:
    count = sum(len(each.names) for each in judgement.result.hosts)
    return f"This cluster of {count} hosts" if count > 1 else "This machine"


def _within(figure: Figure) -> str:
    return "" if figure.half_width is None else f" (± {figures.percent(figure.half_width)})"


def _scale(judgement: Judgement) -> Iterator[str]:
    found = judgement.score
    if found is None or found.mixes_per_s is None:
        return
    for each in judgement.against:
        yield _against(found, found.mixes_per_s, each)
    flops, bytes_per_s = found.mix.nominal_flops_per_s, found.mix.nominal_bytes_per_s
    if flops and bytes_per_s and found.mix.frozen:
        share = found.mixes_per_s.estimate * 100
        nominal = f"{figures.prefixed(flops, 'FLOP/s')} and {figures.prefixed(bytes_per_s, 'B/s')}"
        yield f"{significant(share, 2)} % of the speed of the mix's nominal device ({nominal} all the time)"


def _against(found: Score, mixes_per_s: Figure, other: ReferenceScore) -> str:
    faster = f"{significant(mixes_per_s.estimate / other.mixes_per_s)} × the speed"
    if found.mixes_per_kj is not None and other.mixes_per_kj is not None and found.boundary == other.boundary:
        faster += f" and {significant(found.mixes_per_kj.estimate / other.mixes_per_kj)} × the mixes per kilojoule"
    bits = "" if other.weight_class == found.weight_class else f", with {other.weight_class}-bit weights"
    return f"{faster} of {figures.name(other.name)} ({other.grade}, {figures.name(other.created_utc[:10])}{bits})"


def _score(judgement: Judgement) -> str:
    if judgement.score is not None:
        return judgement.score.headline
    mix = judgement.result.mix
    return "" if mix is None else f"NO SCORE: the run ended before its mix, {figures.name(mix.name)}"


def _suites(judgement: Judgement) -> Iterator[Line]:
    names = figures.device_names(judgement.result)
    models = {each.id: each.name for each in judgement.result.devices if each.name and not each.on_host}
    for suite in dict.fromkeys(row.record.route.suite for row in judgement.cells):
        own = [row for row in judgement.cells if row.record.route.suite == suite]
        best = _best(own, models)
        if not best:
            failed = next((row for row in own if row.status in ("failed", "invalid")), own[0])
            why = failed.record.error.message if failed.record.error else "an audit or a rule found it invalid"
            told = figures.name(why, LONGEST_FAILURE)
            yield Line(figures.name(suite), failed.status, _route(failed, names), told)
            continue
        (first, *alike), *others = best
        rate = figures.rate(first.throughput_per_s, first.names.short)
        if first.half_width is not None:
            rate += f" ±{figures.percent(first.half_width)}"
        if first.record.scenario == "server" and not first.record.rate_trials:
            others = []  # the rate is the one that was asked for, on every route
        screened = [row for row in own if row.status == "screened" and row.throughput_per_s]
        screened = [row for row in screened if row.record.scenario == first.record.scenario]
        slower = sorted((*(each for each, *_ in others), *screened), key=_rate, reverse=True)
        beside = [f"{significant(_rate(first) / _rate(each))} × {_route(each, names)}" for each in slower[:MOST_OTHERS]]
        if alike:
            times = significant(_rate(first) / _rate(alike[-1]))
            beside.insert(0, f"the fastest of {len(alike) + 1} alike, {times} × the slowest")
        if len(slower) > MOST_OTHERS:
            beside.append(f"{len(slower) - MOST_OTHERS} more")
        yield Line(figures.name(suite), rate, _route(first, names), ", ".join(beside))


def _hosted(judgement: Judgement) -> Iterator[Line]:
    names = figures.device_names(judgement.result)
    for row in judgement.hosted:
        rate = ", ".join(figures.throughput(row)[:2])
        yield Line(
            figures.name(row.record.route.suite), rate, _route(row, names), figures.name(row.record.route.weights)
        )


def _best(own: Sequence[Row], models: Mapping[str, str]) -> list[list[Row]]:
    """The fastest row of each route of a suite, the fastest route first. What is invalid or failed is left out.

    The routes that differ in nothing but which device of a model they are on stand together. models: the model of each
    device, where it has one; the host's processor and its slices have none.

    All are of the scenario of the fastest one, since rates of two scenarios do not compare. A server's rate is one of
    arrivals, so it is taken only where there is no other.
    """
    measured = [row for row in own if row.status == "ok" and row.throughput_per_s is not None]
    measured = [row for row in measured if row.record.scenario != "server"] or measured
    scenario = max(measured, key=_rate).record.scenario if measured else ""
    fastest: dict[tuple[str, str, str], Row] = {}
    for row in (each for each in measured if each.record.scenario == scenario):
        route = row.record.route
        key = route.device, route.adapter, route.precision
        if key not in fastest or _rate(row) > _rate(fastest[key]):
            fastest[key] = row
    alike: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in sorted(fastest.values(), key=_rate, reverse=True):
        route = row.record.route
        alike[models.get(route.device, route.device), route.adapter, route.precision].append(row)
    return list(alike.values())


def _rate(row: Row) -> float:
    return row.throughput_per_s or 0.0


def _route(row: Row, names: dict[str, str]) -> str:
    """torch bf16; with its device where the machine has several, with the arrivals of a server, and with a word where
    only a screening run ran."""
    route = row.record.route
    device = f"{names[route.device]} " if len(names) > 1 else ""
    arrivals = f", {figures.work(row.record)}" if row.record.scenario == "server" else ""
    screening = " screened" if row.status == "screened" else ""
    return f"{device}{figures.name(route.adapter)} {route.precision}{arrivals}{screening}"


def _energy(judgement: Judgement) -> str:
    found = judgement.score
    if found is not None and found.mixes_per_kj is not None:
        watts = [run.total.watts for run in found.runs if run.total.watts is not None]
        power = f", {figures.prefixed(sum(watts) / len(watts), 'W')} on average" if watts else ""
        return f"of the {found.boundary}, idle included{power}"
    if told := figures.scope(judgement.rows):
        return told.removeprefix("energy ")
    why = found.unmeasured if found is not None else ""
    if not why:
        why = "no meter covers the whole machine" if judgement.result.domains else "no meter was read"
    return f"not measured: {why}; mixmark meters says what is needed"
