"""Computes an entry from its judged results: its figures, and its classes with their reasons.

Nothing here reads a file. Every figure comes from an assessment, and thus from raw timestamps and samples.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from mixmark.harness.contracts.schema import MIXES, Finding, Result, Route, WeightClass
from mixmark.harness.judge import score as scoring
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import in_full, words
from mixmark.harness.judge.references import retained
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo
from mixmark.harness.judge.statistics.timestamps import Floats, fingerprint
from mixmark.harness.judge.verdict import Verdict, VerdictWord
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry
from mixmark.submissions import versions
from mixmark.submissions.entry import RESULTS, Declaration, DisclosedMachine, Division, Entry, MixedRun, Signed, Tuning

ACCELERATOR = re.compile(
    r"(?i)\b(?:geforce|[rg]tx|tesla|quadro|radeon|instinct|mi[0-9]{3}x?|gaudi|tpu|npu|[abhv][1-3]00|g[bh][23]00|l40?s?|t4)\b"
)
"""Product lines of accelerators, in the name of a machine."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one result contributes to an entry, without timestamps and samples."""

    number: int
    """The number of the result's folder, from 1."""
    sha256: str
    """The hash of its SHA256SUMS."""
    header: Result
    """The result without its measurements."""
    routes: tuple[Route, ...]
    """The routes of the mixed runs, each once."""
    score: Score | None
    findings: tuple[Finding, ...]
    verdict: Verdict
    retained: tuple[float, ...]
    """Measured over planned mixes per hour of each mixed run that counts."""
    solos: tuple[Solo, ...]
    fingerprints: tuple[tuple[str, Floats], ...]
    """(name, steps) of the timestamps of each mixed record and of the samples of each mixed phase."""

    @property
    def home(self) -> str:
        """The result's folder, below the entry's."""
        return f"{RESULTS}/{self.number}"

    @property
    def suites(self) -> dict[str, str]:
        """The version of each suite of the mix, by its name."""
        return dict(sorted((route.suite, route.suite_version) for route in self.routes))


def contribution_of(number: int, assessment: Assessment, sha256: str) -> Contribution:
    """What a judged result contributes to an entry. sha256: the hash of its SHA256SUMS."""
    result = assessment.result
    runs = {phase.name for phase in scoring.mixed(result)}
    routes: list[Route] = []
    for record in result.records:
        if record.phase in runs and record.route not in routes:
            routes.append(record.route)
    return Contribution(
        number=number,
        sha256=sha256,
        header=result.model_copy(update={"records": (), "meterings": (), "connections": ()}),
        routes=tuple(routes),
        score=assessment.score,
        findings=assessment.findings,
        verdict=assessment.verdict,
        retained=retained(assessment.score, assessment.diagnoses),
        solos=tuple(solo for solo in assessment.solos if solo.stands),
        fingerprints=(*_timestamps(result), *_samples(result)),
    )


def entry(declaration: Declaration, results: Sequence[Contribution], signed: Signed) -> Entry:
    """Computes the entry from its results. Each result must have a score of the same mix."""
    score, first = whole(results), results[0]
    assert score.mixes_per_hour is not None  # its caller saw to it
    open_by, tuned_by = tuple(dict.fromkeys(_open_by(results))), tuple(dict.fromkeys(_tuned_by(results)))
    division: Division = "open" if open_by else "closed"
    tuning: Tuning = max((tuning for tuning, _ in tuned_by), key=get_args(Tuning).index, default="base")
    verdict = max((result.verdict.word for result in results), key=get_args(VerdictWord).index)
    told = [why for result in results if result.verdict.word == verdict for why in result.verdict.reasons]
    return Entry(
        declaration=declaration,
        mix=score.mix.name,
        tier=score.mix.tier,
        division=division,
        tuning=tuning,
        grade=score.grade,
        ranked=score.grade != "indicative",
        verdict=verdict,
        weight_class=cast(WeightClass, score.weight_class),
        boundary=score.boundary,
        reasons={
            "division": open_by,
            "tuning": tuple(why for _, why in tuned_by),
            "grade": tuple(dict.fromkeys(_lacks(score, verdict, told))),
            "verdict": tuple(dict.fromkeys(map(in_full, told))),
            "devices": tuple(_misnamed(declaration, first.header)),
            "weight_class": (f"the fewest bits of a weight in any part of the mix are {score.weight_class}",),
            "boundary": (_boundary(score, results),),
        },
        mixes_per_hour=score.mixes_per_hour,
        mixes_per_kwh=score.mixes_per_kwh,
        unmeasured=score.unmeasured or "",
        watts=score.watts,
        runs=tuple(run for result in results for run in _runs(result)),
        started=score.started,
        begun=sum(len(result.header.begun) for result in results),
        resumed=sum(len(result.header.resumed) for result in results),
        retained=tuple(fraction for result in results for fraction in result.retained),
        solos=tuple(solo for result in results for solo in result.solos),
        findings=tuple(_numbered(results)),
        machine=machine_of(first.header),
        mixmark=first.header.system.mixmark,
        suites=first.suites,
        began_utc=min(result.header.created_utc for result in results),
        ended_utc=max(result.header.created_utc for result in results),
        commands=tuple(result.header.command for result in results),
        results=tuple(result.sha256 for result in results),
        signed=signed,
    )


def whole(results: Sequence[Contribution]) -> Score:
    """The score over the runs of all results."""
    return scoring.joined([result.score for result in results if result.score])


def _open_by(results: Sequence[Contribution]) -> Iterator[str]:
    """Why the division is open. It is closed if the work is the same as in every closed entry: a published mix, the
    suites as they are defined, synthetic weights, and inputs that were unknown before the run."""
    for result in results:
        assert result.score is not None
        mix = result.score.mix
        if mixes.frozen().get(mix.name) != mix:
            yield f"{mix.name} is none of the published mixes"
        for weights in sorted({route.weights for route in result.routes} - {"synthetic"}):
            yield f"its weights are {weights}"
        yield from _with_options(result)
        if result.header.seed_given:
            yield "its seed was given"
        yield from (words(cost) for cost in result.score.unranked if cost.rule == "suites_verified")


def _tuned_by(results: Sequence[Contribution]) -> Iterator[tuple[Tuning, str]]:
    """Each tuning other than base, and why. It is base if built-in adapters of a known version ran the mix with one
    setting for all suites."""
    built_in = {spec: name for name, spec in registry.BUILT_IN["adapters"].items()}
    for result in results:
        if found := versions.changed(result.header):
            yield found
        settings: dict[tuple[str, str], dict[str, str]] = {}
        for route in result.routes:
            environment = result.header.environment_of(route)
            own = result.header.ran_built_in(route) and environment and built_in.get(environment.spec)
            if own != route.adapter or not (environment and versions.lists(result.header.code, environment.spec)):
                yield "peak", f"the adapter {route.adapter} is not a built-in one"
            if settings.setdefault((route.adapter, route.device), route.options) != route.options:
                yield "peak", f"{route.adapter} on {route.device} has other options for some suites"
        yield from (("peak", why) for why in _with_options(result))


def _with_options(result: Contribution) -> Iterator[str]:
    return (f"the suite {route.suite} has options" for route in result.routes if route.suite_options)


def _lacks(score: Score, verdict: VerdictWord, told: Container[Finding]) -> Iterator[str]:
    """What a better grade needs. The reasons of the verdict are not repeated."""
    yield from (words(lack) for lack in score.missing if lack not in told)
    if verdict == "disturbed":
        yield "its verdict is disturbed"


def _misnamed(declaration: Declaration, header: Result) -> Iterator[str]:
    """The words for an accelerator in the names of a machine whose processors did all the work."""
    if all(device.kind == "cpu" for device in header.devices):
        for what, name in (("system", declaration.system), ("processor", header.machine.cpu_model or "")):
            if named := ACCELERATOR.search(name):
                yield f"the name of its {what} says {named[0]}, and no accelerator took part"


def _boundary(score: Score, results: Sequence[Contribution]) -> str:
    """What was added for the energy, and how well its meters know it, by their own word."""
    if not score.mixes_per_kwh:
        return score.unmeasured or ""
    total = score.counted()[0].total
    left_out = f"it leaves out: {', '.join(total.unmetered)}" if total.unmetered else "it leaves nothing out"
    known = {domain.id: domain.accuracy for result in results for domain in result.header.domains}
    declared = [known[id] for id in total.domains]
    accuracies = [accuracy for accuracy in declared if accuracy is not None]
    accuracy = "not every meter declares its accuracy"
    if len(accuracies) == len(declared):
        accuracy = f"meters of ±{max(accuracies) * 100:g} %, as declared"
    return f"the sum of {', '.join(total.domains)}; {left_out}; {accuracy}"


def _runs(result: Contribution) -> Iterator[MixedRun]:
    for run in result.score.counted() if result.score else ():
        yield MixedRun(
            result=result.number,
            phase=run.phase,
            seconds=run.length_ns / 1e9,
            mixes_per_hour=run.mixes_per_hour,
            mixes_per_kwh=run.mixes_per_kwh,
            watts=run.total.watts,
        )


def machine_of(result: Result) -> DisclosedMachine:
    """The machine as a result discloses it."""
    return DisclosedMachine(
        hosts=result.groups, whole=result.machine, devices=result.devices, environments=result.environments
    )


def _numbered(results: Sequence[Contribution]) -> Iterator[Finding]:
    for result in results:
        for finding in result.findings:
            about = f"{result.number}/{finding.about}" if len(results) > 1 else finding.about
            yield finding.model_copy(update={"about": about})


def _timestamps(result: Result) -> Iterator[tuple[str, Floats]]:
    for record in result.records:
        done = record.completions if record.scenario == "mixed" else None
        if done is not None and (steps := fingerprint(done.yielded_ns)) is not None:
            yield f"the timestamps of {record.key}", steps


def _samples(result: Result) -> Iterator[tuple[str, Floats]]:
    """The steps of samples of mixed phases. Samples of other phases enter no score, and the weight classes of one run
    share them."""
    mixed = {phase.name for phase in result.phases if phase.purpose in MIXES}
    for metering in (metering for metering in result.meterings if metering.phase in mixed):
        for id, samples in metering.samples.items():
            if (steps := fingerprint(samples.values)) is not None:
                yield f"the samples of {id} in {metering.phase}", steps
