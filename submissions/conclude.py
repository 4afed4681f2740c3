"""Computes an entry from its judged results: its figures, its classes with their reasons, its claim.

Nothing here reads a file. Every figure comes from a judgement, and thus from raw timestamps and samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, cast

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.schema import MIXES, Domain, Finding, Result, System
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge import hosts
from mixmark.harness.judge import score as scoring
from mixmark.harness.judge.energy.coverage import rivals
from mixmark.harness.judge.energy.total import metered, twins
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.mixed_run import Figure, ScoredRun
from mixmark.harness.judge.rows import Row
from mixmark.harness.judge.score import Score
from mixmark.harness.measure.conformance.report import Report
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry
from mixmark.submissions.entry import (
    RESULTS,
    RULES_VERSION,
    Aspect,
    Claim,
    Declaration,
    DisclosedMachine,
    Division,
    Entry,
    EqualHosts,
    Estimate,
    Level,
    MixedRun,
    PriceItem,
    PriceTotal,
    Signed,
    Software,
    SoloMeasurement,
    Tuning,
)

SAME_STEPS = 16  # different steps of a counter or of power; two phases do not share so many by chance
ONCE_A_SECOND_NS = 1_000_000_000  # between samples of power, which levels 1 and 2 ask for
ACCURACY: tuple[tuple[Level, float], ...] = ((3, 0.01), (2, 0.02), (1, 0.05))
"""The accuracy that a meter must declare for each level of the point of measurement, the best first."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one result contributes to an entry, without its timestamps and samples."""

    number: int
    """The number of the result's folder, from 1."""
    sha256: str
    """The hash of its list of hashes."""
    created_utc: str
    command: tuple[str, ...]
    tier: str
    finished: bool
    seed_given: bool
    score: Score | None
    disturbed: str
    """`disturbed: …`. Empty: the figures were not disturbed."""
    machine: DisclosedMachine
    domains: tuple[Domain, ...]
    metered_twice: tuple[str, ...]
    """A sentence for each thing that is metered twice."""
    weights: frozenset[str]
    """The origins of the weights that are not synthetic."""
    suite_options: tuple[str, ...]
    """The suites that have options."""
    foreign: tuple[str, ...]
    """The adapters of mixed records that are not the built-in ones."""
    settings: tuple[str, ...]
    """The adapters and devices that do not have the same options for all suites of the mix."""
    suites: dict[str, str]
    solo_measurements: tuple[SoloMeasurement, ...]
    findings: tuple[Finding, ...]
    sources: dict[str, tuple[str, str]]
    """The SHA-256 of each adapter's code, and the version of Mixmark in its interpreter; of each host's that differs
    too, as `host2/torch`."""
    fingerprints: tuple[tuple[str, str], ...]
    """(digest, name) of the timestamps of each mixed record and of the samples of each mixed phase. A shift in time
    does not change a digest."""

    @property
    def home(self) -> str:
        """The result's folder below that of the entry."""
        return f"{RESULTS}/{self.number}"


def contribution_of(number: int, judgement: Judgement, sha256: str) -> Contribution:
    """What a judged result contributes to an entry. sha256: the hash of its SHA256SUMS."""
    result = judgement.result
    runs = {phase.name for phase in scoring.mixed(result)}
    mixed = [record.route for record in result.records if record.phase in runs]
    built_in = {spec: name for name, spec in registry.BUILT_IN["adapters"].items()}
    foreign = dict.fromkeys(
        route.adapter
        for route in mixed
        if (environment := hosts.environment(result, route)) is None
        or environment.origin != "built in"
        or built_in.get(environment.spec) != route.adapter
    )
    options: dict[tuple[str, str], set[str]] = {}
    for route in mixed:
        options.setdefault((route.adapter, route.device), set()).add(repr(sorted(route.options.items())))
    versions = {route.suite: route.suite_version for route in mixed}
    return Contribution(
        number=number,
        sha256=sha256,
        created_utc=result.created_utc,
        command=result.command,
        tier=result.tier,
        finished=result.finished,
        seed_given=result.seed_given,
        score=judgement.score,
        disturbed=str(judgement.verdict) if judgement.verdict.word == "disturbed" else "",
        machine=_machine(result),
        domains=result.domains,
        metered_twice=tuple(_metered_twice(judgement)),
        weights=frozenset(route.weights for route in mixed if route.weights != "synthetic"),
        suite_options=tuple(dict.fromkeys(route.suite for route in mixed if route.suite_options)),
        foreign=tuple(foreign),
        settings=tuple(
            f"{adapter} on {device}" for (adapter, device), different in options.items() if len(different) > 1
        ),
        suites={suite: versions[suite] for suite in sorted(versions)},
        solo_measurements=tuple(_solo_measurements(judgement)),
        findings=judgement.findings,
        sources={name: (environment.sha256, environment.mixmark) for name, environment in result.environments.items()},
        fingerprints=(*_stamps(result), *_samples(result)),
    )


def entry(
    declaration: Declaration, results: Sequence[Contribution], signed: Signed, kits: Iterable[Report] = ()
) -> Entry:
    """Computes the entry from its results. Each result must have a score of the same mix.

    kits: the reports of the conformance kit that the entry holds.
    """
    score = whole(results)
    organisation, system = declaration.folders
    division, open_by = _division(results)
    tuning, peak_by = _tuning(results)
    unranked = tuple(_unranked(score, results))
    aspects = tuple(_aspects(score, results)) if score.mixes_per_kj else ()
    assert score.mixes_per_s is not None  # its caller saw to it
    claim = Claim(
        rules_version=RULES_VERSION,
        mixmark=VERSION,
        mix=score.mix.name,
        tier=score.mix.tier,
        division=division,
        tuning=tuning,
        grade=score.grade,
        ranked=not unranked,
        weight_class=cast(Literal[16, 8, 4], score.weight_class),
        boundary=score.runs[0].total.boundary if score.mixes_per_kj else None,
        level=min((aspect.level for aspect in aspects), default=None),
        runs=len(score.runs),
        mixes_per_s=_estimate(score.mixes_per_s),
        mixes_per_kj=_estimate(score.mixes_per_kj) if score.mixes_per_kj else None,
        watts=_watts(score),
        price=total(declaration.price),
        results=tuple(result.sha256 for result in results),
    )
    return Entry(
        organisation=organisation,
        system=system,
        mix=score.mix.name,
        declaration=declaration,
        claim=claim,
        reasons={
            "division": open_by,
            "tuning": peak_by,
            "grade": score.missing,
            "ranked": unranked,
            "weight_class": (f"the fewest bits of a weight in any part of the mix are {score.weight_class}",),
            "boundary": _boundary(score),
        },
        aspects=aspects,
        unmeasured=score.unmeasured or "",
        machine=results[0].machine,
        suites=results[0].suites,
        began_utc=min(result.created_utc for result in results),
        ended_utc=max(result.created_utc for result in results),
        commands=tuple(result.command for result in results),
        runs=tuple(_run(result, run) for result in results for run in (result.score.runs if result.score else ())),
        solo_measurements=tuple(cell for result in results for cell in result.solo_measurements),
        findings=tuple(_numbered(results)),
        signed=signed,
        kits={report.name: report.passed for report in kits},
    )


def unlike(report: Report, contribution: Contribution) -> Reason | None:
    """Why a report of the conformance kit is not about the code of an adapter that a result ran."""
    name = f"result {contribution.number}"
    sources = [source for adapter, source in contribution.sources.items() if local(adapter) == report.name]
    if report.kind != "adapter" or not sources:
        return f"{name} has no {report.kind} {report.name}"
    for sha256, version in sources:
        if not sha256 or sha256 != report.sha256:
            return f"{name} ran another code of {report.name} than the kit checked"
        if version != report.mixmark:
            return f"{name} was measured by Mixmark {version}, and the kit was that of {report.mixmark}"
    return None


def whole(results: Sequence[Contribution]) -> Score:
    """The score over the runs of all results."""
    return scoring.joined(
        [result.score for result in results if result.score], any(result.seed_given for result in results)
    )


def total(price: Iterable[PriceItem]) -> PriceTotal | None:
    """The sum of line items of one currency. None: there are no items, or their currencies differ."""
    items = list(price)
    if len({item.currency for item in items}) != 1:
        return None
    amount = sum((item.price for item in items), Decimal(0))
    return PriceTotal(amount=f"{amount:f}", currency=items[0].currency)


def _division(results: Sequence[Contribution]) -> tuple[Division, tuple[str, ...]]:
    """The division, and why it is open. It is closed if the work is that of every closed entry: a published mix, the
    suites as they are defined, synthetic weights, and inputs that were unknown before the run."""
    why: list[str] = []
    for result in results:
        assert result.score is not None
        mix = result.score.mix
        if mixes.frozen().get(mix.name) != mix:
            why.append(f"{mix.name} is none of the published mixes")
        why += [f"its weights are {name}" for name in sorted(result.weights)]
        why += [f"the suite {name} has options" for name in result.suite_options]
        if result.seed_given:
            why.append("its seed was given")
        why += [text for text in result.score.unranked if "was not compared with the code of its suite" in text]
    return ("open" if why else "closed"), tuple(dict.fromkeys(why))


def _tuning(results: Sequence[Contribution]) -> tuple[Tuning, tuple[str, ...]]:
    """The tuning, and why it is peak. It is base if built-in adapters ran the mix with one setting for all suites."""
    why = [f"the adapter {name} is not a built-in one" for result in results for name in result.foreign]
    why += [f"{name} has other options for some suites" for result in results for name in result.settings]
    why += [f"the suite {name} has options" for result in results for name in result.suite_options]
    return ("peak" if why else "base"), tuple(dict.fromkeys(why))


def _unranked(score: Score, results: Sequence[Contribution]) -> Iterator[str]:
    if score.grade == "indicative":
        yield "an indicative score has no place among others"
    yield from score.unranked
    for result in results:
        if result.disturbed:
            yield f"result {result.number} is {result.disturbed}"


def _watts(score: Score) -> float | None:
    """The mean power of the mixed runs. None: there is no MX."""
    watts = [run.total.watts for run in score.runs if run.total.watts is not None]
    return sum(watts) / len(watts) if score.mixes_per_kj else None


def _boundary(score: Score) -> tuple[str, ...]:
    if not score.mixes_per_kj:
        return (score.unmeasured or "",)
    found = score.runs[0].total
    left_out = f"it leaves out: {', '.join(found.unmetered)}" if found.unmetered else "it leaves nothing out"
    return (f"the sum of {', '.join(found.domains)}; {left_out}",)


def _aspects(score: Score, results: Sequence[Contribution]) -> Iterator[Aspect]:
    """The four aspects of the energy measurement of the mixed runs. The worst run counts."""
    domains = {domain.id: domain for result in results for domain in result.domains}
    totals = [run.total for run in score.runs]
    added = [domains[id] for id in totals[0].domains]
    gaps = [total.readings[domain.id].longest_gap_ns for total in totals for domain in added]
    if all(domain.quantity == "energy" for domain in added):
        yield Aspect(name="granularity", level=3, reason="energy is counted without a gap by the sources themselves")
    elif all(gap is not None and gap <= ONCE_A_SECOND_NS for gap in gaps):
        yield Aspect(name="granularity", level=2, reason="power is read at least once a second in the whole window")
    else:
        yield Aspect(name="granularity", level=0, reason="power is read less than once a second")
    yield Aspect(name="fraction", level=3, reason="every device of the machine is metered; nothing is extrapolated")
    boundary = totals[0].boundary
    if boundary == "devices":
        yield Aspect(name="subsystems", level=1, reason="only devices are metered, and memory where it has a meter")
        yield Aspect(name="point", level=0, reason="inside the machine: losses of power supplies are not measured")
        return
    yield Aspect(name="subsystems", level=3, reason=f"the boundary {boundary} holds everything that works")
    if boundary == "node":
        yield Aspect(name="point", level=0, reason="behind the power supply, whose losses are not measured")
        return
    worst = max((domain.accuracy or 1.0 for domain in added), default=1.0)
    level: Level = next((level for level, accuracy in ACCURACY if worst <= accuracy), 0)
    accuracy = "the meter declares no accuracy" if worst == 1.0 else f"the meter declares ±{worst * 100:g} %"
    yield Aspect(name="point", level=level, reason=f"at the wall; {accuracy}")


def _estimate(figure: Figure) -> Estimate:
    return Estimate(value=figure.estimate, low=figure.low, high=figure.high)


def _run(contribution: Contribution, run: ScoredRun) -> MixedRun:
    return MixedRun(
        result=contribution.number,
        phase=run.phase,
        seconds=run.length_ns / 1e9,
        mixes_per_s=_estimate(run.mixes_per_s),
        mixes_per_kj=_estimate(run.mixes_per_kj) if run.mixes_per_kj else None,
        watts=run.total.watts,
    )


def _machine(result: Result) -> DisclosedMachine:
    system: System = result.system
    names = ("cpu_model", "cpu_cores", "cpu_threads", "memory_bytes", "operating_system", "kernel", "virtualization")
    return DisclosedMachine(
        hosts=tuple(
            EqualHosts.model_validate({"names": group.names, **{name: getattr(group.system, name) for name in names}})
            for group in result.hosts
        ),
        cpu_model=hosts.processors(result),
        cpu_cores=hosts.sum_of(result, "cpu_cores"),
        cpu_threads=hosts.sum_of(result, "cpu_threads"),
        memory_bytes=hosts.sum_of(result, "memory_bytes"),
        operating_system=system.operating_system,
        kernel=system.kernel,
        virtualization=system.virtualization,
        devices=result.devices,
        software=tuple(
            Software(
                adapter=name,
                origin=environment.origin,
                python=environment.python,
                packages=environment.packages,
                vendor=environment.vendor,
            )
            for name, environment in result.environments.items()
        ),
    )


def _solo_measurements(judgement: Judgement) -> Iterator[SoloMeasurement]:
    for row in judgement.solo_rows:
        if row.throughput_per_s is not None and row.status == "ok":
            yield _solo_measurement(row)


def _solo_measurement(row: Row) -> SoloMeasurement:
    route, value, half = row.record.route, row.throughput_per_s or 0.0, row.half_width
    return SoloMeasurement(
        suite=route.suite,
        suite_version=route.suite_version,
        unit=row.record.unit,
        short_unit=row.names.short,
        device=route.device,
        adapter=route.adapter,
        precision=route.precision,
        scenario=row.record.scenario,
        batch=row.record.batch,
        units_per_s=Estimate(
            value=value,
            low=None if half is None else value * (1 - half),
            high=None if half is None else value * (1 + half),
        ),
        joules_per_unit=row.energy.joules_per_unit if row.energy else None,
    )


def _numbered(results: Sequence[Contribution]) -> Iterator[Finding]:
    for result in results:
        for finding in result.findings:
            about = f"{result.number}/{finding.about}" if len(results) > 1 else finding.about
            yield finding.model_copy(update={"about": about})


def _metered_twice(judgement: Judgement) -> Iterator[str]:
    """A sentence for each pair of energy sources that meter the same thing."""
    result = judgement.result
    for first, second in rivals(domain for domain in result.domains if domain.method != "modelled"):
        yield f"{first.id} and {second.id} claim to meter the same thing"
    for run in judgement.score.runs if judgement.score else ():
        metering = metered(result, run.phase)
        for one_id, other_id in twins(run.total.domains, metering) if metering else ():
            yield f"{one_id} and {other_id} show one and the same reading in {run.phase}"


def _stamps(result: Result) -> Iterator[tuple[str, str]]:
    for record in result.records:
        if record.scenario == "mixed" and record.completions is not None:
            steps = np.diff(record.completions.yielded_ns)
            if len(np.unique(steps[: 64 * SAME_STEPS])) >= SAME_STEPS:
                yield hashlib.sha256(steps.tobytes()).hexdigest(), f"the timestamps of {record.key}"


def _samples(result: Result) -> Iterator[tuple[str, str]]:
    """The digests of samples of mixed phases. Samples of other phases enter no score, and the weight classes of one run
    share them."""
    mixed = {phase.name for phase in result.phases if phase.purpose in MIXES}
    for metering in (metering for metering in result.meterings if metering.phase in mixed):
        for id, samples in metering.samples.items():
            steps = np.diff(samples.values).round(6)  # joules or watts: a counter that is moved rounds otherwise
            if len(np.unique(steps[: 64 * SAME_STEPS])) >= SAME_STEPS:
                yield hashlib.sha256(steps.tobytes()).hexdigest(), f"the samples of {id} in {metering.phase}"
