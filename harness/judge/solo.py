"""Solo measurements: one suite alone on one device, run by run and over their runs, and which of them is best.

Runs are grouped here, what counts is decided here, and everyone who wants the fastest route asks `best`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.judge.evidence import Evidence, Measurement, is_solo
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.judge.statistics.intervals import over_runs, percentile
from mixmark.harness.plan.bound import fastest

Void = Literal["invalid", "not audited yet"]
Status = Literal["ok", "not audited yet", "invalid", "failed", "refused", "unsupported", "screened", "unaudited"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Latency:
    """How long one span of a feed takes, over all feeds. A percentile is None if the sample is too small for it."""

    mean_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p99_ns: int | None = None
    p999_ns: int | None = None

    @property
    def tail(self) -> tuple[str, int] | None:
        """The highest percentile that the sample is large enough for, with its name."""
        for name, value in (("p99.9", self.p999_ns), ("p99", self.p99_ns), ("p90", self.p90_ns)):
            if value is not None:
                return name, value
        return None


@dataclass(frozen=True)
class Energy:
    """The energy of the whole machine in a record's window, idle power included."""

    boundary: schema.Boundary
    joules: float
    joules_per_unit: float
    watts: float
    idle_watts: tuple[float | None, ...]
    """The power before the work and after it. None if it is not known."""
    edge_uncertainty: float | None
    """How far the window's edges may put the joules off, as a fraction."""
    left_out: tuple[str, ...]
    """What lies outside of the boundary."""


@dataclass(frozen=True, kw_only=True)
class Solo:
    """One suite alone on one device, through one adapter: one run of it, or all of its runs.

    Over several runs the rate is over those that count; everything else is of the run with the median rate.
    """

    key: str
    """The key of the run's record."""
    route: schema.Route
    device_name: str
    """The model of the device. Empty if it is not known."""
    scenario: schema.ScenarioName
    run: int
    """The number of the run. Each run has a fresh process."""
    batch: int | None
    """The samples in a feed."""
    rate_per_s: float | None
    """The arrival rate of a server, in feeds per second."""
    is_highest_rate: bool
    """Whether a search found this arrival rate: the highest one within the limits."""
    limits: schema.LatencyLimits | None
    unit: str
    names: schema.UnitNames
    """The words for the unit."""
    status: Status
    """`not audited yet`: the run ended before its audit. `refused`, `unsupported`: it was not attempted. `screened`:
    a screening run showed that another route is faster. `unaudited`: no audit was due, since the service is hosted and
    has weights of its own, or the suite has no gate."""
    failure: schema.Failure | None
    """Why there is no figure."""
    load_ns: int | None
    peak_pss_bytes: int | None
    """The peak of the memory of the worker's processes, loading included."""
    feeds: int | None = None
    """The feeds that finished."""
    units: int | None = None
    """The units that finished."""
    units_per_s: Estimate | None = None
    """Units per second over the whole window; the interval is from the blocks of a steady window. Over several runs:
    their geometric mean, with the interval over the runs."""
    latency: Latency = Latency()
    """From when a feed was due to its last unit: the service time of a closed loop, the response time of a server."""
    first_unit: Latency = Latency()
    """From when a feed was due to its first unit, if feeds yield several times: an LLM's time to first token."""
    time_per_unit: Latency = Latency()
    """The mean time of a feed's further units, if feeds yield several times: an LLM's time per output token."""
    gap_p99: float | None = None
    """The 99th percentile of the time between neighbouring units of a feed, over its median: 1 is an even stream. None
    if feeds yield once, or for too few units."""
    gap_most: float | None = None
    """The longest such time over the median."""
    roofline_fraction: float | None = None
    """The fraction of the device's ceiling that was reached, whichever adapter's probe found the ceiling."""
    roofline_typical: float | None = None
    """The fraction of the median pass of the probe's kernels that set the ceiling."""
    energy: Energy | None = None
    """None if it was not measured, or only in part; the findings say why."""
    runs: int = 1
    """The runs that the rate is over."""
    batches: tuple[int, ...] = ()
    """The batches that several runs chose, if they differ."""
    planned: Annotated[Hashable, Field(exclude=True)] = field(default=None, metadata=RAW)
    """What tells its plan from the plan of another measurement of the route: a run that searches for its batch or its
    rate, one of a given batch or rate, a confirmation run. None if the result has no plan of it."""

    @property
    def has_rate(self) -> bool:
        """Whether it has a rate that no rule refutes and no audit is due for, also of a screening run or of a service
        that nobody can audit."""
        return self.speed > 0 and self.status not in ("invalid", "not audited yet")

    @property
    def stands(self) -> bool:
        """Whether it has a rate that is valid, audited and not of a screening run."""
        return self.status == "ok" and self.units_per_s is not None

    @property
    @figure
    def counts(self) -> bool:
        """Whether the rate may be called a speed of the machine: it is valid, audited and not screened out.

        The rate of a server is the arrival rate that it was offered, so it never counts.
        """
        return self.stands and self.scenario != "server"

    @property
    def speed(self) -> float:
        """Units per second. 0 if there is no rate."""
        return self.units_per_s.estimate if self.units_per_s else 0.0


def best(solos: Iterable[Solo], by: Callable[[Solo], Key]) -> dict[Key, Solo]:
    """The fastest solo measurement that counts, for each value of `by` (a suite, a device, a kind of work)."""
    return fastest((solo for solo in solos if solo.counts), by, lambda solo: solo.speed)


def by_suite(solo: Solo) -> str:
    return solo.route.suite


def grouped(runs: Iterable[Solo]) -> dict[Hashable, list[Solo]]:
    """The runs of each solo measurement, which have one route, one scenario and one plan."""
    found: dict[Hashable, list[Solo]] = defaultdict(list)
    for each in runs:
        found[each.route.key, each.scenario, each.planned].append(each)
    return found


def runs(evidence: Evidence, findings: Sequence[schema.Finding]) -> tuple[Solo, ...]:
    """Every run: each record but the probes' and the mix's, in the order of the result, suites kept together. The
    screening runs of a route that was measured afterwards are left out.

    findings: of all rules.
    """
    void: dict[str, Void] = {each.about: "not audited yet" for each in findings if each.severity == "pending"}
    void |= {each.about: "invalid" for each in findings if each.severity == "invalid"}
    measured = {each.key: each for each in evidence.measured}
    whole = {record.route.model_dump_json() for record in evidence.result.records if is_solo(record)}
    records = [
        record
        for record in evidence.result.records
        if is_solo(record) or (record.screening and record.route.model_dump_json() not in whole)
    ]
    suites = list(dict.fromkeys(record.route.suite for record in records))
    records.sort(key=lambda record: suites.index(record.route.suite))
    planned = {
        share.key: (phase.purpose, phase.purpose == "solo" and share.batch, share.rate_per_s)
        for phase in evidence.result.phases
        for share in phase.shares
    }
    facts = (_facts(evidence.result, record, void.get(record.key), planned.get(record.key)) for record in records)
    return tuple(_with_figures(solo, evidence, measured[solo.key]) if solo.key in measured else solo for solo in facts)


def _facts(result: schema.Result, record: schema.Record, void: Void | None, planned: Hashable) -> Solo:
    """What a record says of itself, without figures."""
    device = next((device for device in result.devices if device.id == record.route.device), None)
    return Solo(
        key=record.key,
        route=record.route,
        device_name=(device.name if device else None) or "",
        scenario=record.scenario,
        run=record.run,
        batch=record.batch,
        rate_per_s=record.rate_per_s,
        is_highest_rate=record.is_highest_rate,
        limits=record.latency_limits,
        unit=record.unit,
        names=unit_names(result, record),
        status=_status(record, void),
        failure=record.error,
        load_ns=record.load_ns,
        peak_pss_bytes=record.peak_pss_bytes,
        planned=planned,
    )


def _status(record: schema.Record, void: Void | None) -> Status:
    if (error := record.error) is not None:
        return error.kind if error.kind == "refused" or error.kind == "unsupported" else "failed"
    if void:
        return void
    return "screened" if record.screening else "ok" if record.audited else "unaudited"


def _with_figures(solo: Solo, evidence: Evidence, each: Measurement) -> Solo:
    """The run with the figures of its timestamps."""
    done, rate = each.completions, each.throughput_per_s
    half_width = each.interval.half_width if each.interval and not each.record.screening else None
    solo = replace(
        solo,
        feeds=len(done),
        units=timestamps.units(done),
        units_per_s=None if rate is None else Estimate.within(rate, half_width),
    )
    if each.record.screening:  # its feeds may lack units, so that nothing but its pace means anything
        return solo
    streams, reached = timestamps.time_per_unit_ns(done), evidence.achieved(each)
    gap_p99, gap_most = _jitter(done)
    return replace(
        solo,
        latency=latency(timestamps.latencies_ns(done)),
        first_unit=latency(timestamps.first_unit_ns(done)) if len(streams) else Latency(),
        time_per_unit=latency(streams),
        gap_p99=gap_p99,
        gap_most=gap_most,
        roofline_fraction=reached.fraction,
        roofline_typical=reached.typical,
        energy=_energy(each),
    )


def _jitter(done: schema.Completions) -> tuple[float | None, float | None]:
    """How far the times between the units of a feed scatter: see `Solo.gap_p99`."""
    gaps_ns = timestamps.gaps_ns(done)
    typical_ns = percentile(gaps_ns, 0.5)
    if not typical_ns:
        return None, None
    late_ns = percentile(gaps_ns, 0.99)
    return None if late_ns is None else late_ns / typical_ns, float(gaps_ns.max()) / typical_ns


def unit_names(result: schema.Result, record: schema.Record) -> schema.UnitNames:
    """The words that the result discloses for the record's suite. Where it discloses none, the unit's own name."""
    named = (each.unit_names for each in result.suites if each.name == record.route.suite)
    return next(named, schema.UnitNames(short=record.unit, work=f"{record.unit}s"))


def _energy(each: Measurement) -> Energy | None:
    found = each.energy
    if found is None or found.boundary is None or found.joules is None or found.watts is None:
        return None
    return Energy(
        boundary=found.boundary,
        joules=found.joules,
        joules_per_unit=found.joules / timestamps.units(each.completions),
        watts=found.watts,
        idle_watts=found.idle_watts,
        edge_uncertainty=found.edge_uncertainty,
        left_out=found.unmetered,
    )


def latency(values_ns: schema.Int64s) -> Latency:
    if not len(values_ns):
        return Latency()
    p50, p90, p99, p999 = (percentile(values_ns, q) for q in (0.5, 0.9, 0.99, 0.999))
    return Latency(round(float(values_ns.mean())), p50, p90, p99, p999)


def solos(all_runs: Iterable[Solo]) -> tuple[Solo, ...]:
    """The solo measurements, each over its runs."""
    return tuple(map(merged, grouped(all_runs).values()))


def merged(runs: Sequence[Solo]) -> Solo:
    """One solo measurement over the runs that have a rate; each other has its own finding."""
    counting = sorted((run.speed, index) for index, run in enumerate(runs) if run.has_rate)
    if len(counting) < 2:
        return runs[counting[0][1]] if counting else runs[0]
    rates = [rate for rate, _ in counting]
    typical = replace(runs[counting[(len(counting) - 1) // 2][1]], runs=len(rates))
    batches = sorted({batch for _, index in counting if (batch := runs[index].batch) is not None})
    return replace(typical, units_per_s=over_runs(rates), batches=tuple(batches) if len(batches) > 1 else ())


@dataclass(frozen=True)
class Relative:
    """The rate of a device, relative to the baseline's."""

    ratio: float | None
    """None if one of both is not known."""
    row: str
    """The key of the row of `Assessment.solos` that has the rate. Empty if there is none."""


@dataclass(frozen=True)
class Matrix:
    """Every device's best solo rate of every suite, relative to the baseline's."""

    baseline: str
    devices: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Relative]]]


def matrix(result: schema.Result, solos: Iterable[Solo]) -> Matrix | None:
    """The baseline is the first device of the result. None if fewer than two devices were measured."""
    found = best(solos, lambda solo: (solo.route.suite, solo.route.device))
    measured = {device for _, device in found}
    devices = [device.id for device in result.devices if device.id in measured]
    if len(devices) < 2:
        return None
    rows = []
    for suite in dict.fromkeys(suite for suite, _ in found):
        baseline = found.get((suite, devices[0]))
        own = [found.get((suite, device)) for device in devices]
        rows.append((suite, [_relative(solo, baseline) for solo in own]))
    return Matrix(devices[0], devices, rows)


def _relative(solo: Solo | None, baseline: Solo | None) -> Relative:
    return Relative(solo.speed / baseline.speed if solo and baseline else None, solo.key if solo else "")
