"""The result as it is stored, and beside it every number that follows from it. docs/json.md lists all fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from mixmark.harness.contracts.schema import Boundary, Finding, Placement, Result
from mixmark.harness.contracts.text import escaped
from mixmark.harness.judge.diagnosis import Diagnosis, RouteInMix
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.hosts import Traffic
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.rows import Energy, Latency, Matrix, Row
from mixmark.harness.judge.scaling import ScalingStep
from mixmark.harness.judge.score import Figure, Grade, ScoredRun, ScoreProblem, SuiteProgress
from mixmark.harness.judge.verdict import Verdict


@dataclass(frozen=True)
class Report:
    """What `mixmark report --json` and `mixmark run --json` print."""

    result: Result
    """The facts, as they are stored in result.json."""
    derived: Mapping[str, Derived]
    """The figures of each record but those of the probes and of the mix, by the record's key."""
    ceilings: tuple[CeilingOf, ...]
    """What the probes reached on each device, by each adapter, at each precision."""
    score: ScoreOf | None
    """The score of the mix. None: no mix was asked for, or none was run yet."""
    scaling: tuple[ScalingStep, ...]
    """How the rate of the mix grows with the hosts, from one to all. Empty: it was run on all hosts only."""
    matrix: Matrix | None
    """The devices of the result compared. None: fewer than two were measured."""
    verdict: Verdict
    """Whether the figures are good for anything."""
    against: tuple[ReferenceScore, ...]
    """The scores of other machines that this one may be held against, of the same mix."""
    findings: tuple[Finding, ...]
    """What the rules found, the most serious first."""


@dataclass(frozen=True)
class Derived:
    """The figures of one record."""

    status: str
    """`ok`, `invalid`, `failed`, `refused` or `unsupported`."""
    feeds: int | None
    """The number of feeds that finished."""
    units: int | None
    """The number of units that were finished."""
    throughput_per_s: float | None
    """Units per second over the whole window."""
    half_width: float | None
    """Half the width of the 95 % confidence interval of the throughput, as a share of it. None: not known."""
    latency: Latency
    """The time from when a feed was due to its last mark."""
    first_mark: Latency
    """The time from when a feed was due to its first mark. Known only where feeds have several marks."""
    time_per_unit: Latency
    """The mean time of a feed's further units. Known only where feeds have several marks."""
    roofline_fraction: float | None
    """The share of the device's ceiling that was reached."""
    energy: Energy | None
    """None: not measured, or only in part; the findings say why."""


@dataclass(frozen=True)
class CeilingOf:
    """The best rates that a probe reached."""

    device: str
    adapter: str
    precision: str
    flops_per_s: float | None
    """Floating-point operations per second."""
    flops_kernel: str | None
    """The kernel of the probe that reached them."""
    bytes_per_s: float | None
    """Bytes read from memory per second."""
    bytes_kernel: str | None
    """The kernel of the probe that reached them."""


@dataclass(frozen=True)
class ScoreOf:
    """The score of a result with mixed runs."""

    headline: str
    """The score in words and numbers."""
    mix: str
    """The name of the mix; `result.mix` has its numbers."""
    mixes_per_s: Figure | None
    """TX. None: there is no score."""
    mixes_per_kj: Figure | None
    """MX, in mixes per kilojoule. None: there is no score, or no efficiency."""
    boundary: str | None
    """The energy boundary of MX: `wall`, `node` or `devices`."""
    grade: Grade
    missing: tuple[str, ...]
    """What the next better grade asks for and is not there."""
    unranked: tuple[str, ...]
    """Why the score has no place among others, whatever its grade."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight in any part."""
    problems: tuple[ScoreProblem, ...]
    """Why there is no score."""
    unmeasured: str
    """Why there is no MX though there is TX; empty where there is."""
    runs: tuple[RunOf, ...]


@dataclass(frozen=True)
class RunOf:
    """One run of the mix."""

    phase: str
    """The name of the phase."""
    window_ns: tuple[int, int]
    """The begin and end of the window, which is common to all suites."""
    steady: bool | None
    """Whether the pace held. None: too few blocks to tell."""
    mixes: float
    """B: the completed mixes."""
    mixes_per_s: Figure
    mixes_per_kj: Figure | None
    """None: the energy of the boundary is not known."""
    clock_bound_ns: int
    """How far a stamp of a host may be off: by so much the window is counted longer at both ends. 0 on one machine."""
    traffic: tuple[TrafficOf, ...]
    """What the network of each host carried. Empty on one machine."""
    streams: tuple[SuiteProgress, ...]
    energy: EnergyOf
    problems: tuple[ScoreProblem, ...]
    """Why this run has no score."""
    diagnosis: DiagnosisOf


@dataclass(frozen=True)
class TrafficOf:
    """What the network of a host carried in a run, on all interfaces but the loopback."""

    host: str
    """The name of the host."""
    seconds: float
    """How long it was watched. 0: it was not, or its system does not say."""
    network_bytes: int
    """What it sent and received."""
    agent_bytes: int
    """What the stream between the host's agent and the leading host carried."""
    outside_bytes: int
    """What is not the agent's own."""
    self_contained: bool | None
    """Whether it had no more traffic with the outside than a machine at rest has. None: not known."""


@dataclass(frozen=True)
class EnergyOf:
    """The energy of the whole machine in the window of a run, as far as it is known."""

    boundary: Boundary | None
    """None: some device is not metered, or not validly, or only modelled; then there are no joules either."""
    joules: float | None
    watts: float | None
    """The mean power."""
    domains: tuple[str, ...]
    """The domains that were added, or would be: no two overlap."""
    unmetered: tuple[str, ...]
    """What has no meter: devices where `boundary` is null, else what lies outside of the boundary."""
    reasons: tuple[str, ...]
    """Why there is no boundary."""
    edge_uncertainty: float | None
    """How far the window's edges may put the joules of the worst domain off, as a share."""
    idle_watts: tuple[float | None, ...]
    """The power of the domains that were added, before and after the phase. None: not known."""


@dataclass(frozen=True)
class PartOf:
    """The work of one device on one suite in a mixed run."""

    suite: str
    device: str
    planned: float
    """The share of the device's time that the plan gives to the suite."""
    units_per_s: float
    """The rate while the device worked on this suite."""
    solo_units_per_s: float | None
    """The rate that was planned with. None: the plan had no such route."""
    retained: float | None
    """The rate in the mix as a share of the solo rate: 1 means that the other devices do not disturb it."""


@dataclass(frozen=True)
class DiagnosisOf:
    """What explains a run of the mix. None of it is ranked."""

    bound_per_s: float
    """λ*, in mixes per second."""
    bound_is_estimate: bool
    """Whether λ* is no bound, because a device ran more than one feed at a time."""
    unproven: tuple[str, ...]
    """What is wrong with λ* or the plan; empty: the stored prices prove them."""
    kappa: Figure
    """κ = λ / λ*."""
    busy: Mapping[str, float]
    """The share of the window in which each device had a feed in flight."""
    surplus: float
    """The share of the busy time that went into units which no mix counts."""
    parts: tuple[PartOf, ...]
    best_kind: str
    """The kind of device whose devices alone would get most done. Empty: no kind runs every suite."""
    heterogeneity_gain: float | None
    """The measured λ over the λ* of that kind."""
    other_plan: Placement | None
    """The plan for the other objective, from the same rates. None: not all power was known."""


def report(judgement: Judgement) -> str:
    """Keys sorted, unknown is null."""
    return written(_report(judgement))


def written(value: object) -> str:
    """The JSON of dataclasses and facts, keys sorted, safe on a terminal."""
    return escaped(json.dumps(told(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)) + "\n"


def told(value: object) -> Any:
    """Dataclasses and facts as JSON has them: objects, arrays and plain values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        return {field.name: told(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [told(each) for each in value]
    return value


def _report(judgement: Judgement) -> Report:
    return Report(
        result=judgement.result,
        derived={row.record.key: _derived(row) for row in judgement.rows},
        ceilings=tuple(CeilingOf(*key, **vars(ceiling)) for key, ceiling in judgement.ceilings.items()),
        score=_score(judgement),
        scaling=judgement.scaling,
        matrix=judgement.matrix,
        verdict=judgement.verdict,
        against=judgement.against,
        findings=judgement.findings,
    )


def _derived(row: Row) -> Derived:
    return Derived(
        status=row.status,
        feeds=row.feeds,
        units=row.units,
        throughput_per_s=row.throughput_per_s,
        half_width=row.half_width,
        latency=row.latency,
        first_mark=row.first_mark,
        time_per_unit=row.time_per_unit,
        roofline_fraction=row.roofline,
        energy=row.energy,
    )


def _score(judgement: Judgement) -> ScoreOf | None:
    """The score without the single readings of the meters and without the plans, which are in the phases."""
    found = judgement.score
    if found is None:
        return None
    return ScoreOf(
        headline=found.headline,
        mix=found.mix.name,
        mixes_per_s=found.mixes_per_s,
        mixes_per_kj=found.mixes_per_kj,
        boundary=found.boundary,
        grade=found.grade,
        missing=found.missing,
        unranked=found.unranked,
        weight_class=found.weight_class,
        problems=found.problems,
        unmeasured=found.unmeasured,
        runs=tuple(_run(run, judgement.diagnoses[run.phase]) for run in found.runs),
    )


def _run(run: ScoredRun, seen: Diagnosis) -> RunOf:
    return RunOf(
        phase=run.phase,
        window_ns=(run.begin_ns, run.end_ns),
        steady=run.steady,
        mixes=run.mixes,
        mixes_per_s=run.mixes_per_s,
        mixes_per_kj=run.mixes_per_kj,
        clock_bound_ns=run.clock_bound_ns,
        traffic=tuple(map(_traffic, run.traffic)),
        streams=run.streams,
        energy=_energy(run.total),
        problems=run.problems,
        diagnosis=_diagnosis(seen),
    )


def _traffic(each: Traffic) -> TrafficOf:
    return TrafficOf(
        host=each.host,
        seconds=each.seconds,
        network_bytes=each.network_bytes,
        agent_bytes=each.agent_bytes,
        outside_bytes=each.outside_bytes,
        self_contained=each.self_contained,
    )


def _energy(total: MachineEnergy) -> EnergyOf:
    return EnergyOf(
        boundary=total.boundary,
        joules=total.joules,
        watts=total.watts,
        domains=total.domains,
        unmetered=total.unmetered,
        reasons=total.reasons,
        edge_uncertainty=total.edge_uncertainty,
        idle_watts=total.idle_watts,
    )


def _diagnosis(seen: Diagnosis) -> DiagnosisOf:
    return DiagnosisOf(
        bound_per_s=seen.bound_per_s,
        bound_is_estimate=seen.estimate,
        unproven=seen.unproven,
        kappa=seen.kappa,
        busy=seen.busy,
        surplus=seen.surplus,
        parts=tuple(map(_part, seen.parts)),
        best_kind=seen.best_kind,
        heterogeneity_gain=seen.gain,
        other_plan=seen.other,
    )


def _part(part: RouteInMix) -> PartOf:
    return PartOf(**vars(part), retained=part.retained)
