"""The rows that reports lay out: one for each record, one for each solo measurement over runs, a matrix of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mixmark.harness.contracts.schema import Boundary, Completions, Finding, Int64s, Record, Result, UnitNames
from mixmark.harness.judge.evidence import Evidence, Measurement, is_solo
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.judge.statistics.intervals import over_runs, percentile

Void = Literal["invalid", "not audited yet"]
Status = Literal["ok", "not audited yet", "invalid", "failed", "refused", "unsupported", "screened", "unaudited"]


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
        """The highest percentile that the sample carries, with its name."""
        for name, value in (("p99.9", self.p999_ns), ("p99", self.p99_ns), ("p90", self.p90_ns)):
            if value is not None:
                return name, value
        return None


@dataclass(frozen=True)
class Energy:
    """The energy of the whole machine in a record's window, idle power included."""

    boundary: Boundary
    joules: float
    joules_per_unit: float
    watts: float
    idle_watts: tuple[float | None, ...]
    """The power before the work and after it. None: not known."""
    edge_uncertainty: float | None
    left_out: tuple[str, ...]
    """What lies outside of the boundary."""


@dataclass(frozen=True)
class Row:
    """A record and what follows from it."""

    record: Record
    names: UnitNames
    feeds: int | None = None
    """The number of feeds that finished."""
    units: int | None = None
    """The number of units that finished."""
    throughput_per_s: float | None = None
    """Units per second over the whole window. Over several runs: the geometric mean; of screening runs the median."""
    half_width: float | None = None
    """Half the width of the throughput's 95 % confidence interval, as a fraction of the throughput: from the blocks of
    a steady window, or from several runs. None: not known."""
    latency: Latency = Latency()
    """The time from when a feed was due to its last unit: the service time of a closed loop, the response time of a
    server."""
    first_unit: Latency = Latency()
    """The time from when a feed was due to its first unit. Known only if feeds yield several times."""
    time_per_unit: Latency = Latency()
    """The mean time of a feed's further units. Known only if feeds yield several times."""
    gap_p99: float | None = None
    """The 99th percentile of the time between neighbouring units of a feed, over its median: 1 is an even stream. None:
    feeds yield once, or too few units tell."""
    gap_most: float | None = None
    """The longest such time over the median."""
    roofline_fraction: float | None = None
    """The fraction of the device's ceiling that was reached."""
    energy: Energy | None = None
    """None: not measured, or only in part; the findings say why."""
    void: Void | None = None
    """Why it counts for nothing: a rule found it invalid, for example for a wrong output, or the run ended before its
    audit. None: it counts."""
    runs: int = 1
    """The number of runs that the throughput is of; all else is of the run with the median throughput."""
    median_per_s: float | None = None
    """The median throughput of several runs."""
    batches: tuple[int, ...] = ()
    """The batches that several runs chose, if they differ. `record` has that of one run."""

    @property
    def key(self) -> str:
        """The key of the record."""
        return self.record.key

    @property
    def status(self) -> Status:
        """Not audited yet: the run ended before its audit. Refused, unsupported: it was not attempted. Screened:
        screening runs showed that another route is faster. Unaudited: a hosted service has weights of its own."""
        if (error := self.record.error) is not None:
            return error.kind if error.kind == "refused" or error.kind == "unsupported" else "failed"
        if self.void:
            return self.void
        return "screened" if self.record.screening else "unaudited" if self.record.route.hosted else "ok"


def rows(evidence: Evidence, findings: Sequence[Finding]) -> tuple[Row, ...]:
    """A row for each record but the probes' and the mix's, in the order of the run, suites kept together. The
    screening runs of a route that was measured afterwards have none.

    findings: those of all rules.
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
    return tuple(
        _row(evidence, measured[record.key], void.get(record.key))
        if record.key in measured
        else Row(record, unit_names(evidence.result, record), void=void.get(record.key))
        for record in records
    )


def _row(evidence: Evidence, each: Measurement, void: Void | None) -> Row:
    done = each.completions
    if each.record.screening:  # its feeds may lack units, so that nothing but its pace means anything
        return Row(
            each.record,
            unit_names(each.result, each.record),
            feeds=len(done),
            units=timestamps.units(done),
            throughput_per_s=each.throughput_per_s,
            void=void,
        )
    interval = each.interval
    streams = timestamps.time_per_unit_ns(done)
    gap_p99, gap_most = _jitter(done)
    return Row(
        record=each.record,
        names=unit_names(each.result, each.record),
        feeds=len(done),
        units=timestamps.units(done),
        throughput_per_s=each.throughput_per_s,
        half_width=interval.half_width if interval else None,
        latency=latency(timestamps.latencies_ns(done)),
        first_unit=latency(timestamps.first_unit_ns(done)) if len(streams) else Latency(),
        time_per_unit=latency(streams),
        gap_p99=gap_p99,
        gap_most=gap_most,
        roofline_fraction=evidence.achieved(each).fraction,
        energy=_energy(each),
        void=void,
    )


def _jitter(done: Completions) -> tuple[float | None, float | None]:
    """How far the times between the units of a feed scatter: see `Row.gap_p99` and `Row.gap_most`."""
    gaps_ns = timestamps.gaps_ns(done)
    typical_ns = percentile(gaps_ns, 0.5)
    if not typical_ns:
        return None, None
    late_ns = percentile(gaps_ns, 0.99)
    return None if late_ns is None else late_ns / typical_ns, float(gaps_ns.max()) / typical_ns


def unit_names(result: Result, record: Record) -> UnitNames:
    """The words that the result discloses for the record's suite. Where it discloses none, the unit's own name."""
    named = (each.unit_names for each in result.suites if each.name == record.route.suite)
    return next(named, UnitNames(short=record.unit, work=f"{record.unit}s"))


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


def latency(values_ns: Int64s) -> Latency:
    if not len(values_ns):
        return Latency()
    p50, p90, p99, p999 = (percentile(values_ns, q) for q in (0.5, 0.9, 0.99, 0.999))
    return Latency(round(float(values_ns.mean())), p50, p90, p99, p999)


def merge_runs(rows: Sequence[Row]) -> tuple[Row, ...]:
    """A row for each solo measurement: rows that differ only in the run become one."""
    found: dict[Hashable, list[Row]] = defaultdict(list)
    seen: dict[Hashable, int] = defaultdict(int)
    for row in rows:
        record = row.record
        rate = "max" if record.rate_trials else record.rate_per_s
        measurement = (record.route.model_dump_json(), record.scenario, rate)
        found[measurement, seen[measurement, record.run]].append(row)
        seen[measurement, record.run] += 1  # the same one again in one run is another phase of the plan
    return tuple(map(_over_runs, found.values()))


def _over_runs(runs: list[Row]) -> Row:
    """The row over several runs. Failed and invalid runs do not count; each has its own finding."""
    measured = sorted(
        (run.throughput_per_s, index) for index, run in enumerate(runs) if run.throughput_per_s and not run.void
    )
    if len(measured) < 2:
        return runs[measured[0][1]] if measured else runs[0]
    over = over_runs([value for value, _ in measured])
    assert over is not None  # there are at least two
    median_run = runs[measured[(len(measured) - 1) // 2][1]]
    if median_run.record.screening:  # they rank by it, and have no interval
        return replace(median_run, throughput_per_s=over.median, runs=over.runs)
    batches = sorted({batch for _, index in measured if (batch := runs[index].record.batch) is not None})
    return replace(
        median_run,
        throughput_per_s=over.geometric_mean,
        half_width=None if over.low is None or over.high is None else (over.high - over.low) / 2 / over.geometric_mean,
        runs=over.runs,
        median_per_s=over.median,
        batches=tuple(batches) if len(batches) > 1 else (),
    )


@dataclass(frozen=True)
class Relative:
    """The throughput of a device, relative to that of the baseline."""

    ratio: float | None
    """None: one of both is not known."""
    per_s: float | None
    unit: str


@dataclass(frozen=True)
class Matrix:
    """Every device's best solo throughput of every suite, relative to the baseline's."""

    baseline: str
    devices: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Relative]]]


def matrix(evidence: Evidence, rows: Sequence[Row]) -> Matrix | None:
    """The baseline is the first device of the result. None: fewer than two devices were measured."""
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        route, speed = row.record.route, row.throughput_per_s
        known, _ = best.get((route.suite, route.device), (0.0, ""))
        if row.status == "ok" and row.record.scenario != "server" and speed and speed > known:
            best[route.suite, route.device] = speed, row.record.unit
    devices = [device.id for device in evidence.result.devices if any(device.id == each for _, each in best)]
    if len(devices) < 2:
        return None
    baseline = devices[0]
    ratios = {
        (suite, device): speed / best[suite, baseline][0]
        for (suite, device), (speed, _) in best.items()
        if (suite, baseline) in best
    }
    found = []
    for suite in dict.fromkeys(suite for suite, _ in best):
        relatives = []
        for device in devices:
            ratio = ratios.get((suite, device))
            per_s, unit = best.get((suite, device), (None, ""))
            relatives.append(Relative(ratio, per_s, unit))
        found.append((suite, relatives))
    return Matrix(baseline, devices, found)
