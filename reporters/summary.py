"""The summary of a report in words. Each reporter lays it out in its own way.

It answers four questions in this order: can the figures be relied on, what does the machine do, where does that stand,
what next.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Literal, NamedTuple

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Finding, Mix, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge import references
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy import total as machine_energy
from mixmark.harness.judge.evidence import Measurement
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.mixed_run import HOUR_NS, KWH_J
from mixmark.harness.judge.references import ReferenceRate, ReferenceScore
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo, best, by_suite
from mixmark.harness.judge.verdict import Verdict, VerdictWord
from mixmark.harness.plan import mixes
from mixmark.harness.plan.presets import SECOND
from mixmark.reporters import experiments, figures, hosts
from mixmark.reporters.document import Bar
from mixmark.reporters.figures import UNKNOWN, significant

MOST_OTHERS = 2  # routes that a line compares with the best route
LONGEST_REASON, LONGEST_FAILURE = 240, 80  # letters
THIS, LIMIT = "this machine", "the limit of its hardware"
PROVEN: tuple[VerdictWord, ...] = ("solid", "fair", "rough")
"""The verdicts under which a comparison with another machine is a finding and not a guess."""
FAR = 0.5
"""A line names the hardware's limit if its route reaches less of it."""
NEAREST = 3
"""The published machines on either side that a report names."""
ADVICE: Mapping[VerdictWord, str] = {
    "solid": "You can rely on this",
    "fair": "Good for a first look",
    "rough": "Only a rough figure",
    "disturbed": "Don't rely on this yet",
    "partial": "Only a part was measured",
    "invalid": "Don't use this",
    "unfinished": "Not finished",
}
WORST = ("failed", "invalid", "not audited yet")
"""The states of a row that the line of a suite without a figure shows first."""


@dataclass(frozen=True)
class SuiteLine:
    """The best route of a suite, or a hosted service."""

    suite: str
    rate: str
    """The throughput with its interval, if that is known. Without a throughput: the status."""
    route: str
    others: str
    """The part of the hardware's limit if it is small, and its speed relative to the other routes. Empty if there is
    nothing to say."""


@dataclass(frozen=True)
class Summary:
    """The texts at the head of every report."""

    verdict: VerdictWord
    advice: str
    """What the verdict means for the reader."""
    reason: str
    system: str
    """What the machine is: Acme Quartz, 4 cores, 8 threads, 64.0 GiB, no accelerator."""
    sentence: str
    """The work of the machine in everyday words."""
    standing: tuple[tuple[str, ...], ...]
    """Other machines, this one, its hardware's limit and what experiments add: (name, bar, mixes per hour, mixes per
    kWh if the score has an efficiency, beside this machine). Empty if there is no score."""
    is_good: str
    """The same in a sentence: between whose limits, and how much of its own."""
    score: str
    """The score as it is ranked. Of a run without a mix, the speed of each suite."""
    suites: tuple[SuiteLine, ...]
    hosted: tuple[SuiteLine, ...]
    """The hosted services, which are not audited."""
    energy: str


def summary(assessment: Assessment) -> Summary:
    verdict = assessment.verdict
    if verdict.word == "disturbed":
        assessment = _without_intervals(assessment)
    standing = _standing(assessment)
    return Summary(
        verdict=verdict.word,
        advice=ADVICE[verdict.word],
        reason=_reason(verdict),
        system=_system(assessment.result),
        sentence=_sentence(assessment),
        standing=tuple(_drawn(standing, assessment.score is not None and assessment.score.mixes_per_kwh is not None)),
        is_good=_is_good(standing),
        score=_score(assessment),
        suites=tuple(_suites(assessment)),
        hosted=tuple(_hosted(assessment)),
        energy=_energy(assessment),
    )


def _without_intervals(assessment: Assessment) -> Assessment:
    """Leaves out the intervals of single windows: they follow from the blocks of a window, and say nothing about what
    slowed all of it down. Intervals over runs stay."""
    score = assessment.score
    if score is not None and len(score.counted()) == 1:
        score = replace(score, mixes_per_hour=_bare(score.mixes_per_hour), mixes_per_kwh=_bare(score.mixes_per_kwh))
    solos = (replace(row, units_per_s=_bare(row.units_per_s)) if row.runs == 1 else row for row in assessment.solos)
    return replace(assessment, score=score, solos=tuple(solos))


def _bare(figure: Estimate | None) -> Estimate | None:
    return figure if figure is None or figure.is_bracket else Estimate(figure.estimate)


def _reason(verdict: Verdict) -> str:
    """The reasons of the verdict, and what the reader can do about the most serious one."""
    reason, advice = figures.name(verdict.reason, LONGEST_REASON), figures.name(verdict.remedy)
    return f"{reason}. {advice[0].upper()}{advice[1:]}." if advice else reason


def _system(result: Result) -> str:
    whole = [device for device in result.devices if device.kind != "cpu" and device.slice_of is None]
    accelerators = {part: device.name or device.kind for device in whole for part in device.silicon}
    return figures.system(result.machine, accelerators.values())


def work(mix: Mix, unit_words: Mapping[str, str]) -> str:
    """The work of one mix: 50 LLM tokens, 5.5 images generated, 234,000 recommendations, 917 images classified.

    unit_words: the words for the units of each suite.
    """
    return ", ".join(
        f"{figures.bare(units, 3 if units >= 100 else 2)} {figures.name(unit_words.get(suite, f'units of {suite}'))}"
        for suite, units in mix.units.items()
    )


def does(mix: Mix, unit_words: Mapping[str, str], mixes_per_hour: Estimate, mixes_per_kwh: Estimate | None) -> str:
    """The predicate of the sentence: does one edge mix (50 LLM tokens, …) in 19.1 s (± 1.2 %)."""
    joules = f" and takes {figures.prefixed(KWH_J / mixes_per_kwh.estimate, 'J')} for it" if mixes_per_kwh else ""
    tier = f"{mix.tier} mix" if mix.frozen else f"mix {figures.name(mix.name)}"
    speed = figures.duration(HOUR_NS / mixes_per_hour.estimate)
    if half := figures.within(mixes_per_hour):
        speed += f" ({half} in this window)" if mixes_per_hour.kind == "window" else f" ({half})"
    if mixes_per_hour.is_bracket and mixes_per_hour.high is not None:
        speed = f"{figures.duration(HOUR_NS / mixes_per_hour.high)} to {speed}"
    return f"does one {tier} ({work(mix, unit_words)}) in {speed}{joules}"


def _sentence(assessment: Assessment) -> str:
    found, mix = assessment.score, assessment.result.mix
    subject = hosts.subject(assessment.result)
    unit_words = {suite.name: suite.unit_names.work for suite in assessment.result.suites}
    if mix is None:
        return _without_mix(assessment, subject, unit_words)
    if found is None or found.mixes_per_hour is None:
        return f"{subject} has no score for the mix {figures.name(mix.name)} ({work(mix, unit_words)})."
    return f"{subject} {does(mix, unit_words, found.mixes_per_hour, found.mixes_per_kwh)}."


def _without_mix(assessment: Assessment, subject: str, unit_words: Mapping[str, str]) -> str:
    """The work of each suite of a run without a mix, and what a score lacks."""
    alone, names = best(assessment.solos, by_suite), figures.device_names(assessment.result)
    several = len({solo.route.device for solo in assessment.solos if solo.counts}) > 1
    rates = [
        f"{significant(solo.speed)} {figures.name(unit_words.get(suite, f'units of {suite}'))}"
        + (f" ({names[solo.route.device]})" if several else "")
        for suite, solo in alone.items()
    ]
    name, lacking = mixes.lacking(assessment.result.tier, alone)
    asked_none = " --mix none" in " ".join(["", *assessment.result.command]).replace("=", " ")
    why = "no mix was asked for" if asked_none or not lacking else f"the mix {name} also needs {', '.join(lacking)}"
    by = ", by the fastest device for each:" if several else ""
    done = f"does{by} {', '.join(rates)} a second, each suite alone" if rates else "has finished no measurement"
    if not rates and any(row.feeds for row in (*assessment.solos, *assessment.hosted)):
        done = "has no rate that counts"
    return f"{subject} {done}. There is no score: {why}."


def limits(assessment: Assessment) -> str:
    """What took most time, and how much of what is possible the mix reached. Empty if there is no score."""
    run = assessment.score.median_run() if assessment.score and assessment.score.mixes_per_hour else None
    if run is None:
        return ""
    diagnosis = assessment.diagnoses[run.phase]
    planned: dict[str, float] = defaultdict(float)
    whole = sum(part.planned for part in diagnosis.parts)
    if not whole:  # a plan that no record followed
        return ""
    for part in diagnosis.parts:
        planned[part.suite] += part.planned / whole
    suite = max(planned, key=lambda name: planned[name])
    routes = _best_routes([row for row in assessment.solos if row.route.suite == suite], {})
    fraction = routes[0][0].roofline_fraction if routes else None
    speed = f", at {figures.roofline(fraction)} of the hardware limit" if fraction else ""
    time, reached = figures.whole_percent(planned[suite]), figures.whole_percent(diagnosis.kappa.estimate)
    return (
        f"The largest part of its time goes into {figures.name(suite)} ({time}{speed}); with all suites at once it "
        f"reaches {reached} of what the speeds of the suites alone allow."
    )


class _Standing(NamedTuple):
    """A row of the picture that shows where a machine stands."""

    style: Literal["own", "measured", "bound"]
    per_hour: Estimate
    name: str
    per_kwh: str
    beside: str


def _standing(assessment: Assessment) -> list[_Standing]:
    """This machine, its hardware's limit and the nearest others, seven in all; what is a bound comes last, each the
    fastest first. Empty without a score."""
    found = assessment.score
    if found is None or found.mixes_per_hour is None:
        return []
    own, efficiency = found.mixes_per_hour, found.mixes_per_kwh
    alone, proven = references.rates(assessment.solos), assessment.verdict.word in PROVEN
    rows: list[_Standing] = [_Standing("own", own, THIS, figures.estimate(efficiency) if efficiency else "", "")]
    for other in _nearest(assessment, found, own.estimate):
        kwh = figures.estimate(other.mixes_per_kwh if found.boundary == other.boundary else None)
        beside = f"{_beside(own, other.mixes_per_hour, proven)} ({_which(found, other)}){_alone(alone, other)}"
        rows.append(_Standing("measured", other.mixes_per_hour, figures.name(other.name), kwh, beside))
    if (limit := assessment.hardware_limit_per_hour) is not None:
        reached = f"{figures.whole_percent(own.estimate / limit.estimate)} of it reached"
        if figures.within(own) and own.kind == "interval":
            low, high = own.ends[0] / limit.ends[1], own.ends[1] / limit.ends[0]
            reached += f" ({figures.whole_percent(low)} to {figures.whole_percent(high)})"
        rows.append(_Standing("bound", Estimate(limit.estimate), LIMIT, UNKNOWN, reached))
    for section, own_figures in experiments.shown(assessment):
        for most, name, beside in section.standing(assessment, own_figures):
            rows.append(_Standing("bound", Estimate(most), name, UNKNOWN, beside))
    rows.sort(key=lambda each: (each.name not in (THIS, LIMIT), abs(math.log(each.per_hour.estimate / own.estimate))))
    return sorted(rows[:7], key=lambda each: (each.style == "bound", -each.per_hour.estimate))


def _drawn(rows: Sequence[_Standing], efficiency: bool) -> Iterator[tuple[str, ...]]:
    """The rows with their bars, on a logarithmic scale. Nothing if there is nothing beside this machine."""
    ends = [end for row in rows for end in row.per_hour.ends]
    low, high = (math.log(end) for end in (min(ends, default=1.0) / 2, max(ends, default=1.0)))
    for row in rows if len(rows) > 1 else ():
        bar = Bar([(math.log(end) - low) / (high - low) for end in row.per_hour.ends], row.style)
        yield row.name, bar, figures.estimate(row.per_hour), *([row.per_kwh] if efficiency else []), row.beside


def _is_good(rows: Sequence[_Standing]) -> str:
    """Where the machine stands in a sentence: between whose limits, and how much of its own it reached."""
    own = next((row.per_hour.estimate for row in rows if row.style == "own"), 0.0)
    others = sorted((row for row in rows if row.name not in (THIS, LIMIT)), key=lambda row: row.per_hour.estimate)
    names = ["the datasheet limit of " * (row.style == "bound") + row.name for row in others]
    at = sum(row.per_hour.estimate <= own for row in others)
    parts = [f"above {name}" for name in names[max(0, at - 1) : at]] + [f"below {name}" for name in names[at : at + 1]]
    reached = [row.beside.replace("of it reached", "of what this hardware allows") for row in rows if row.name == LIMIT]
    return "; ".join(filter(None, [", ".join(parts), *reached]))


def _nearest(assessment: Assessment, found: Score, mixes_per_hour: float) -> list[ReferenceScore]:
    """The nearest published machines on either side."""
    published = [each for each in assessment.against if each.created_utc != assessment.result.created_utc]
    alike = [each for each in published if each.weight_class == found.weight_class] or published
    alike.sort(key=lambda each: each.mixes_per_hour.estimate)
    slower = [each for each in alike if each.mixes_per_hour.estimate <= mixes_per_hour]
    return [*slower[-NEAREST:], *alike[len(slower) : len(slower) + NEAREST]]


def _beside(own: Estimate, other: Estimate, proven: bool) -> str:
    """How this machine's mixes per hour stand to another's. proven: whether nothing disturbed them."""
    ratio = significant(own.estimate / other.estimate)
    if not proven or None in (own.half_width, other.half_width) or own.kind == "window":
        return f"this one does about {ratio} ×"
    if own.ends[0] > other.ends[1] or own.ends[1] < other.ends[0]:
        return f"this one is {'faster' if own.ends[0] > other.ends[1] else 'slower'}: {ratio} ×"
    return f"as fast, as far as the intervals tell: {ratio} ×"


def _which(found: Score, other: ReferenceScore) -> str:
    bits = "" if other.weight_class == found.weight_class else f", {other.weight_class}-bit weights"
    return f"{other.grade}, {figures.name(other.created_utc[:10])}{bits}"


def _alone(own: Mapping[str, ReferenceRate], reference: ReferenceScore) -> str:
    """How much faster each suite is alone; suites of another version are left out."""
    shared = [
        suite for suite in own if suite in reference.alone and own[suite].version == reference.alone[suite].version
    ]
    times = {suite: own[suite].units_per_s / reference.alone[suite].units_per_s for suite in shared}
    return (
        "; alone " + ", ".join(f"{figures.name(suite)} {significant(times[suite])} ×" for suite in shared)
        if shared
        else ""
    )


def _score(assessment: Assessment) -> str:
    if assessment.score is not None:
        return assessment.score.headline
    if (mix := assessment.result.mix) is None:
        unaudited = (row for row in assessment.solos if row.status == "unaudited")
        rows = [*best(assessment.solos, by_suite).values(), *unaudited]
        several, names = Counter(row.route.suite for row in rows), figures.device_names(assessment.result)
        routes = (f" by {_route(row, names)}" if several[row.route.suite] > 1 else "" for row in rows)
        return "; ".join(map(_headline, rows, routes))
    return f"No score: the run ended before its mix, {figures.name(mix.name)}"


def _headline(row: Solo, by: str) -> str:
    """llm 17.2 tok/s ± 1.2 % (prompt 380 tok/s, first after 338 ms, 0.9 J a token), or Qwen3: pp512 310 tok/s, tg128
    24 tok/s (unaudited). by: the route, if there are several of the suite."""
    title = f"{figures.name(row.route.suite)}{by}"
    parts, names, first_ns, next_ns = list[str](), row.names, row.first_unit.mean_ns, row.time_per_unit.mean_ns
    if row.route.precision == "as-file" and names.taken_in and first_ns and next_ns:  # as llama-bench has it
        per_s = {names.first_unit: names.taken_in * SECOND / first_ns, names.per_unit: SECOND / next_ns}
        shown = ", ".join(f"{each} {figures.rate(Estimate(rate), names.short)}" for each, rate in per_s.items())
        return f"{title}: {figures.name(shown)} ({figures.status(row)})"
    if first_ns:
        if names.taken_in:
            parts.append(f"prompt {figures.rate(Estimate(names.taken_in * SECOND / first_ns), names.short)}")
        parts.append(f"first after {figures.duration(first_ns)}")
        if row.energy:
            parts.append(f"{figures.spent(row.energy)[0]} a {row.unit}")
    aside = f" ({', '.join(parts)})" if parts else ""
    return f"{title} {' '.join(figures.throughput(row))}{aside}"


def _suites(assessment: Assessment) -> Iterator[SuiteLine]:
    names = figures.device_names(assessment.result)
    models = {device.id: device.name for device in assessment.result.devices if device.name and not device.on_host}
    disturbed = {key for key, each in assessment.measured.items() if each.record.screening and each.disturbed}
    for suite in dict.fromkeys(row.route.suite for row in assessment.solos):
        own = [row for row in assessment.solos if row.route.suite == suite]
        routes = _best_routes(own, models)
        undisturbed = [row for row in own if row.key not in disturbed]
        findings = assessment.findings
        yield _best_line(undisturbed, routes, names, assessment) if routes else _failed_line(own, names, findings)


def _failed_line(own: Sequence[Solo], names: dict[str, str], findings: Sequence[Finding]) -> SuiteLine:
    failed = min(own, key=lambda row: WORST.index(row.status) if row.status in WORST else len(WORST))
    of_it = (each for each in findings if each.about == failed.key and (each.voids or each.code == "audited.unasked"))
    why = failed.failure.message if failed.failure else next(map(words, of_it), "only a quick check of seconds")
    suite, reason = figures.name(failed.route.suite), figures.name(why, LONGEST_FAILURE)
    return SuiteLine(suite, figures.status(failed), _route(failed, names), reason)


def _best_line(
    own: Sequence[Solo], routes: list[list[Solo]], names: dict[str, str], assessment: Assessment
) -> SuiteLine:
    (first, *alike), *others = routes
    rate = figures.rate(first.units_per_s, first.names.short)
    if first.units_per_s and (half := figures.within(first.units_per_s)):
        rate += f" {half}"
    if first.scenario == "server" and not first.is_highest_rate:
        others = []  # the rate is the requested one on every route
    parts = [f"{significant(first.speed / row.speed)} × {_route(row, names)}" for row, *_ in others]
    parts += _tried(first, own, names, assessment.measured.values())
    left_out = len(parts) - MOST_OTHERS
    parts = parts[:MOST_OTHERS]
    if alike:
        times = significant(first.speed / alike[-1].speed)
        parts.insert(0, f"the fastest of {len(alike) + 1} equal devices, {times} × the slowest")
    if left_out > 0:
        parts.append(f"{left_out} more")
    parts = [*_doubtful(first, own, names, assessment.findings), *parts]
    if first.roofline_fraction is not None and first.roofline_fraction < FAR:
        parts.insert(0, f"{figures.roofline(first.roofline_fraction)} of the hardware limit")
    return SuiteLine(figures.name(first.route.suite), rate, _route(first, names), ", ".join(parts))


def _doubtful(first: Solo, own: Sequence[Solo], names: dict[str, str], findings: Sequence[Finding]) -> Iterator[str]:
    """How fast each other route was whose outputs are wrong or were not compared, and why it does not count."""
    of_audits = {each.about: each for each in findings if each.code in ("audited.wrong", "audited.unasked")}
    for row in own:
        if (finding := of_audits.get(row.key)) and row.speed and row.scenario == first.scenario:
            error = "wrong: error {worst:.2g}, at most {at_most:.2g}"
            why = words(finding) if "why" in finding.values else error.format(**finding.values)
            times = significant(row.speed / first.speed)
            yield figures.name(f"{times} × as fast by {_route(row, names)}, but {why}", LONGEST_REASON)


def _tried(first: Solo, own: Sequence[Solo], names: dict[str, str], measured: Iterable[Measurement]) -> Iterator[str]:
    """How much faster the first route was than each route that was only screened, by the screening runs of both if
    there are any: the machine may have changed its speed since."""
    known = [row for row in own if row.status == "screened" and row.scenario == first.scenario and row.speed]
    lead, same = "by quick checks of seconds: ", (True, first.route, first.scenario)
    checks = (each for each in measured if (each.record.screening, each.record.route, each.record.scenario) == same)
    speeds = [each.throughput_per_s or 0.0 for each in checks if not each.disturbed]
    speed = geometric_mean([*filter(None, speeds)] or [first.speed])
    for row in sorted(known, key=lambda row: row.speed, reverse=True):
        yield f"{lead}{significant(speed / row.speed)} × {_route(row, names)}"
        lead = ""


def _hosted(assessment: Assessment) -> Iterator[SuiteLine]:
    names = figures.device_names(assessment.result)
    for row in assessment.hosted:
        suite, weights = figures.name(row.route.suite), figures.name(row.route.weights)
        yield SuiteLine(suite, ", ".join(figures.throughput(row)[:2]), _route(row, names), weights)


def _best_routes(own: Sequence[Solo], models: Mapping[str, str]) -> list[list[Solo]]:
    """The fastest row of each route of a suite, the fastest route first. Invalid and failed rows are left out.

    Routes that differ only in the device, between devices of one model, form one group. models: the model of each
    device; the host's processor and its slices have none.

    All are of the scenario of the fastest one, since rates of two scenarios do not compare. A server's rate is its
    arrival rate, so servers are listed only if there is no other scenario.
    """
    known = [row for row in own if row.counts] or [row for row in own if row.stands]
    scenario = max(known, key=lambda row: row.speed).scenario if known else ""
    fastest = {}
    for row in sorted((row for row in known if row.scenario == scenario), key=lambda row: row.speed):
        fastest[row.route.key] = row
    alike: dict[tuple[str, str, str], list[Solo]] = defaultdict(list)
    for row in sorted(fastest.values(), key=lambda row: row.speed, reverse=True):
        route = row.route
        alike[models.get(route.device, route.device), route.adapter, route.precision].append(row)
    return list(alike.values())


def _route(row: Solo, names: dict[str, str]) -> str:
    """torch bf16; with the device if the machine has several, and the arrivals of a server."""
    route = row.route
    device = f"{names[route.device]} " if len(names) > 1 else ""
    arrivals = f", {figures.scenario(row)}" if row.scenario == "server" else ""
    return f"{device}{figures.name(route.adapter)} {route.precision}{arrivals}"


def _energy(assessment: Assessment) -> str:
    found = assessment.score
    if found is not None and found.mixes_per_kwh is not None:
        power = f", {figures.prefixed(found.watts, 'W')} on average" if found.watts is not None else ""
        run = found.median_run()
        known = [domain.accuracy for domain in assessment.result.domains if run and domain.id in run.total.domains]
        declared = [each for each in known if each is not None]
        accuracy = f", ± {figures.percent(max(declared))} as declared" if declared and None not in known else ""
        return f"of the {found.boundary}, idle included{power}{accuracy}"
    if scope := figures.scope(assessment.runs):
        return scope
    energies = {run.phase: run.total for run in assessment.evidence.runs} or {
        measured.key: measured.energy for measured in assessment.evidence.solo if measured.energy is not None
    }
    why = machine_energy.unmeasured(energies)
    if energies and why is None:  # of a mix without a score
        return f"of the {next(iter(energies.values())).boundary}, idle included"
    return f"not measured: {figures.name(_unmeasured(assessment, why), LONGEST_REASON)}"


def _unmeasured(assessment: Assessment, why: Reason | None) -> str:
    """Why no window has the joules of the whole machine, and what the user can do about it. why: of the windows. None
    if there is none."""
    result = assessment.result
    if why is None and result.domains:
        why = "no window of a suite or of the mix was measured to its end"
    why = why or "; ".join(machine_energy.total(result, "", 0, 1).reasons)
    codes = {finding.code: finding for finding in reversed(assessment.findings)}
    if {code.partition(".")[0] for code in codes} & {"energy_measured", "energy_complete"}:
        return f"{why}; mixmark meters says what is needed"
    short = codes.get("energy_valid.too_short")
    return f"{why}; {short.values['longer']}" if short else why
