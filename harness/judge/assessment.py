"""One assessment of a result, computed once, that the exit code, comparisons and all reporters read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.contracts.schema import Absent, Finding, Result, Tier
from mixmark.harness.judge import score, solo, solo_rates
from mixmark.harness.judge.diagnosis import Diagnosis, diagnoses
from mixmark.harness.judge.evidence import Evidence, Measurement, gather
from mixmark.harness.judge.findings import disturbs, is_much, voided, words
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.roofline import Ceiling
from mixmark.harness.judge.rules import interference, registered
from mixmark.harness.judge.rules.consistency import SuiteClaims
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Matrix, Solo
from mixmark.harness.judge.verdict import Verdict, VerdictWord, verdict
from mixmark.harness.plugins.experiments import facts, parts


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The result that figures are of, and its machine."""

    result_id: str
    """The first 16 hexadecimal digits of the SHA-256 of the result. It identifies the result in a database."""
    created_utc: str
    """When the run began."""
    mixmark: str
    """The version of Mixmark that measured."""
    git_commit: str | None
    """The commit of Mixmark's source, if it ran from a checkout."""
    tier: Tier
    preset: str
    verdict: VerdictWord
    """The verdict over the whole result: solid, fair, rough, disturbed, partial, invalid or unfinished."""
    cpu_model: str | None
    cpu_threads: int | None
    """Hardware threads, of all hosts together."""
    cpu_quota: float | None
    """The CPU time that control groups allow, in CPUs. None if there is no such quota."""
    memory_bytes: int | None
    """The memory of the machine, or of all hosts."""
    devices: str
    """The models of all devices but the processor, as `8 × Acme Topaz`."""
    operating_system: str | None
    kernel: str


@dataclass(frozen=True, eq=False)
class Assessment:
    """Everything that is concluded from a result."""

    evidence: Evidence = field(metadata=RAW)
    """The result, and the figures of its records that rules look at."""
    doubts: tuple[Finding, ...] = field(metadata=RAW)
    """The findings of the integrity rules, by which records count."""
    ceilings: tuple[Ceiling, ...]
    """What the probes reached on each device, by each adapter, at each precision."""
    runs: tuple[Solo, ...]
    """Every run of a suite alone, suites kept together."""
    solos: tuple[Solo, ...]
    """The solo measurements over their runs, without hosted services."""
    hosted: tuple[Solo, ...]
    """The solo measurements of hosted services, whose outputs cannot be audited."""
    matrix: Matrix | None
    """The devices compared. None if fewer than two were measured."""
    score: Score | None
    """None if no mix was asked for, or none was run yet."""
    diagnoses: Mapping[str, Diagnosis]
    """What explains each run of the score, by its phase."""
    hardware_limit_per_hour: Estimate | None
    """The mix by the rooflines of its routes: what the probed ceilings of the devices would allow. None if a suite of
    the mix has no roofline fraction."""
    findings: tuple[Finding, ...]
    verdict: Verdict
    """Whether the figures can be relied on, in one word with its reasons."""
    against: tuple[ReferenceScore, ...]
    """The scores of other machines to compare this one with, of the same mix."""
    exit_code: int
    """0: no finding is invalid. 1: one is, or nothing was measured. 130: the run was interrupted."""
    next: str = field(default="", metadata=RAW)
    """The command that makes the most of the result, as the command line knows it. Empty while the run goes on."""

    @property
    def result(self) -> Result:
        return self.evidence.result

    @property
    @figure
    def provenance(self) -> Provenance:
        """The result that the figures are of, and its machine."""
        result, machine = self.result, self.result.machine
        stored = result.model_dump_json(exclude_defaults=True).encode("utf-8", "surrogatepass")
        return Provenance(
            result_id=hashlib.sha256(stored).hexdigest()[:16],
            created_utc=result.created_utc,
            mixmark=machine.mixmark,
            git_commit=machine.git_commit,
            tier=result.tier,
            preset=result.preset,
            verdict=self.verdict.word,
            cpu_model=machine.cpu_model,
            cpu_threads=machine.cpu_threads,
            cpu_quota=machine.cpu_quota,
            memory_bytes=machine.memory_bytes,
            devices=", ".join(models(result)),
            operating_system=machine.operating_system,
            kernel=machine.kernel,
        )

    @property
    @figure
    def absent(self) -> tuple[Absent, ...]:
        """Everything that could not be used, with the reason: adapters, devices, meters, suites, the mix."""
        return self.result.absent

    @cached_property
    def _experiments(self) -> Mapping[str, object]:
        asked = self.result.experiments
        of = {name: each for name, each in parts("figures").items() if name in asked or name not in facts()}
        figures = {name: each(self) for name, each in of.items()}
        return {name: each for name, each in figures.items() if each is not None}

    @property
    @figure
    def experiments(self) -> Mapping[str, object]:
        """The figures of the experiments, which are in no score, by their names."""
        return self._experiments

    @cached_property
    def measured(self) -> Mapping[str, Measurement]:
        """The records with timestamps, by their keys: window, interval, energy, blocks of the watch."""
        return {measured.key: measured for measured in self.evidence.measured}

    @property
    def contradiction(self) -> str | None:
        """The first reason why the facts of the result cannot all be true. None if there is none, or nothing looked."""
        rules = registered.RULES
        return next((words(each) for each in self.findings if rules[each.rule].sees == "folder"), None)


class Reporter(Protocol):
    """Writes an assessment as text; a pure function."""

    def __call__(self, assessment: Assessment) -> str: ...


def judge(result: Result, against: Sequence[ReferenceScore] = (), claims: SuiteClaims | None = None) -> Assessment:
    """Judges a result.

    against: the scores of other machines; scores of another mix are left out. claims: what the installed suites say of
    a result that was read from a folder; a folder that contradicts them or itself shows no figure. None if this process
    measured the result.
    """
    if claims is not None and (contradictions := registered.findings("folder", result, claims)):
        return _rejected(result, contradictions)
    evidence = gather(result, claims.unknown if claims else {})
    doubts = registered.findings("facts", evidence)
    evidence = _scored(evidence, doubts)
    seen = registered.findings("score", evidence)
    findings = registered.ordered((*doubts, *(finding for finding in seen if not is_much(finding))))
    if evidence.score:
        much = [each for each in registered.disturbances(evidence.counted, seen) if disturbs(each) != "explains"]
        much += (each for each in seen if disturbs(each) == "widens")
        costs = (*score.costs_of_rank(result, findings), *much)
        evidence = replace(evidence, score=score.graded(evidence.score, costs))
    findings = registered.ordered((*findings, *registered.findings("grade", evidence)))
    invalid = voided(findings)
    runs = solo.runs(evidence, findings)
    solos, hosted = (solo.solos(run for run in runs if run.route.hosted is own) for own in (False, True))
    exit_code = _exit_code(evidence, bool(invalid))
    return Assessment(
        evidence=evidence,
        doubts=tuple(doubts),
        ceilings=tuple(evidence.ceilings.values()),
        runs=runs,
        solos=solos,
        hosted=hosted,
        matrix=solo.matrix(result, solos),
        score=evidence.score,
        diagnoses=evidence.diagnoses,
        hardware_limit_per_hour=solo_rates.hardware_limit_per_hour(result, solos),
        findings=findings,
        verdict=verdict(
            evidence, findings, (*solos, *hosted), exit_code, registered.disturbances(evidence.figured, seen)
        ),
        against=tuple(other for other in against if result.mix and other.mix == result.mix.name),
        exit_code=exit_code,
    )


def _scored(evidence: Evidence, doubts: Sequence[Finding]) -> Evidence:
    """The evidence with the score and what explains it.

    doubts: the findings of the rules that see facts alone.
    """
    result = evidence.result
    runs = score.scored_runs(result, doubts, interference.disturbed_runs(evidence))
    if result.mix and runs:
        given = evidence, result.mix, voided(doubts)
        explained = diagnoses(result, result.mix, runs, solo_rates.planned(*given), solo_rates.alone(*given))
        evidence = replace(evidence, mixed_runs=runs, diagnoses=explained)
    unproven = [finding for diagnosis in evidence.diagnoses.values() for finding in diagnosis.unproven]
    return replace(evidence, score=score.score(result, runs, unproven))


def _rejected(result: Result, contradictions: tuple[Finding, ...]) -> Assessment:
    """The assessment of a result whose facts cannot all be true: it shows which run of which machine and
    devices this claims to be, and nothing else of it."""
    claimed = Result(
        created_utc=result.created_utc,
        tier=result.tier,
        preset=result.preset,
        system=result.system,
        hosts=result.hosts,
        devices=result.devices,
        records=(),
        finished=result.finished,
    )
    blank = judge(claimed)
    found = verdict(blank.evidence, contradictions, (), exit_code=1)
    return replace(blank, findings=contradictions, verdict=found, exit_code=1)


def _exit_code(evidence: Evidence, invalid: bool) -> int:
    if not evidence.result.finished:
        return 130
    measured = any(measured.record.scenario != "probe" for measured in evidence.measured)
    return 1 if invalid or not measured else 0


def models(result: Result) -> tuple[str, ...]:
    """The models of all devices but the host's processor: 2 × Acme Topaz."""
    counted = Counter(device.name or device.kind for device in result.devices if not device.on_host)
    return tuple(f"{count} × {name}" if count > 1 else name for name, count in counted.items())
