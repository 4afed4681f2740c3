"""The figures of a result, derived once for all reporters, and how a figure is written for a reader.

Unknown is None in a `Row` and "–" in text; ms and SI prefixes appear only here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from harness.judge import energy, stats, validate
from harness.judge.steady import window
from harness.schema import Boundary, Finding, Int64s, Record, Result, UnitNames
from harness.text import plain

UNKNOWN = "–"
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6))
NUMBER = re.compile(r"(?<![\w.,:/×-])(?>\d+(?:,\d{3})*(?:\.\d+)?)(?!\w|\.\d)")  # in a message; no part of a name
FEW_LETTERS = 48  # that the names of what a message is about may take
LONGEST_UNIT, LONGEST_NAME, LONGEST = 16, 60, 2000  # letters of a unit, a name, a message with its hint


@dataclass(frozen=True)
class Latency:
    """Of one span over the feeds; percentiles only where the sample carries them."""

    mean_ns: int | None
    p50_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    p999_ns: int | None

    @property
    def tail(self) -> tuple[str, int] | None:
        """The highest percentile that the sample carries, named."""
        for name, value in (("p99.9", self.p999_ns), ("p99", self.p99_ns), ("p90", self.p90_ns)):
            if value is not None:
                return name, value
        return None


@dataclass(frozen=True)
class Energy:
    """Of the whole machine in a record's window, idle included."""

    boundary: Boundary
    joules: float
    joules_per_unit: float
    watts: float
    idle_watts: tuple[float | None, ...]
    """Before the work and after it. None: not known."""
    edge_uncertainty: float | None
    left_out: tuple[str, ...]
    """What the boundary does not hold."""


@dataclass(frozen=True)
class Row:
    """A record and what follows from it."""

    record: Record
    names: UnitNames
    feeds: int | None
    units: int | None
    throughput_per_s: float | None
    """Of a closed loop: of the steady window where it is known. Of several runs: the geometric mean."""
    half_width: float | None
    """Of its 95 % interval, as a share of it: from the steady window's blocks, or from the runs."""
    latency: Latency
    """From when a feed was due to its last mark: a closed loop's service time, a server's response time."""
    first_mark: Latency
    """Known only where feeds have several marks, as has time_per_unit."""
    time_per_unit: Latency
    roofline: float | None
    energy: Energy | None = None
    """None: not measured, or only in part; the findings say why."""
    invalid: bool = False
    """A rule found it so, such as a wrong answer: it counts for nothing, whatever its figures."""
    runs: int = 1
    """That the throughput is of; all else is of the run with the median throughput."""
    median_per_s: float | None = None
    """Of several runs."""

    @property
    def status(self) -> str:
        error = self.record.error
        if error is None:
            return "invalid" if self.invalid else "ok"
        return "failed" if error.attempted else error.kind


def rows(result: Result) -> list[Row]:
    """One a record but the probes' and the mix's, in the order of the run, suites kept together."""
    known = stats.ceilings(result.records)
    measured = [record for record in result.records if stats.is_cell(record)]
    suites = list(dict.fromkeys(record.route.suite for record in measured))
    measured.sort(key=lambda record: suites.index(record.route.suite))
    invalid = {each.about for each in validate.findings(result) if each.severity == "invalid"}
    return [replace(_row(record, result, known), invalid=record.key in invalid) for record in measured]


def _row(record: Record, result: Result, known: dict[stats.CeilingKey, stats.Ceiling]) -> Row:
    nothing = latency(None)
    done = record.completions
    names = unit_names(result, record)
    if done is None:
        return Row(record, names, None, None, None, None, nothing, nothing, nothing, None)
    streams = stats.time_per_unit_ns(done)
    throughput_per_s, interval = stats.throughput_per_s(done), None
    if record.scenario != "server" and (seen := window(done)) and seen.steady:
        throughput_per_s = float(seen.rates_per_s.mean())
        interval = stats.throughput_interval(seen.rates_per_s)
    return Row(
        record=record,
        names=names,
        feeds=len(done),
        units=stats.units(done),
        throughput_per_s=throughput_per_s,
        half_width=interval.half_width if interval else None,
        latency=latency(stats.latencies_ns(done)),
        first_mark=latency(stats.first_mark_ns(done) if len(streams) else None),
        time_per_unit=latency(streams),
        roofline=stats.achieved(record, known).fraction,
        energy=_energy(record, result),
    )


def _energy(record: Record, result: Result) -> Energy | None:
    found = energy.of_record(result, record) if result.domains else None
    if not record.completions or not found or found.boundary is None or found.joules is None or found.watts is None:
        return None
    per_unit = found.joules / stats.units(record.completions)
    return Energy(
        boundary=found.boundary,
        joules=found.joules,
        joules_per_unit=per_unit,
        watts=found.watts,
        idle_watts=found.idle_watts,
        edge_uncertainty=found.edge_uncertainty,
        left_out=found.unmetered,
    )


def cells(result: Result) -> list[Row]:
    """One a cell: the rows of runs that differ in nothing but their process are one, all of which count."""
    found: dict[Hashable, list[Row]] = defaultdict(list)
    seen: dict[Hashable, int] = defaultdict(int)
    for row in rows(result):
        record = row.record
        at = "max" if record.rate_trials else record.rate_per_s
        cell = (record.route.model_dump_json(), record.scenario, at)
        found[cell, seen[cell, record.run]].append(row)  # the same run again is another phase of the plan
        seen[cell, record.run] += 1
    return [_over_runs(each) for each in found.values()]


def _over_runs(runs: list[Row]) -> Row:
    """A run that failed or is invalid has a finding of its own."""
    measured = sorted(
        (run.throughput_per_s, at) for at, run in enumerate(runs) if run.throughput_per_s and not run.invalid
    )
    if len(measured) < 2:
        return runs[measured[0][1]] if measured else runs[0]
    over = stats.over_runs([value for value, _ in measured])
    assert over is not None and over.low is not None and over.high is not None  # at least two
    return replace(
        runs[measured[(len(measured) - 1) // 2][1]],
        throughput_per_s=over.geometric_mean,
        half_width=(over.high - over.low) / 2 / over.geometric_mean,
        runs=over.runs,
        median_per_s=over.median,
    )


def unit_names(result: Result, record: Record) -> UnitNames:
    """As the record's suite is disclosed; a result that discloses nothing of it has the unit's own name."""
    named = (each.unit_names for each in result.suites if each.name == record.route.suite)
    return next(named, UnitNames(short=record.unit))


def latency(values_ns: Int64s | None) -> Latency:
    if values_ns is None or not len(values_ns):
        return Latency(None, None, None, None, None)
    p50, p90, p99, p999 = (stats.percentile(values_ns, q) for q in (0.5, 0.9, 0.99, 0.999))
    return Latency(round(float(values_ns.mean())), p50, p90, p99, p999)


def significant(value: float, digits: int = 3) -> str:
    """12345.6 -> 12,300; 0.012345 -> 0.0123."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def duration(value_ns: float | None) -> str:
    if value_ns is None:
        return UNKNOWN
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value_ns >= size_ns * 0.9995:  # 999.5 µs rounds to 1.00 ms
            return f"{significant(value_ns / size_ns)} {unit}"
    return f"{significant(value_ns)} ns"


def rate(per_s: float | None, short: str) -> str:
    """Units per second, by the short name of the unit: 4.11 tok/s."""
    return UNKNOWN if per_s is None else f"{significant(per_s)} {name(short, LONGEST_UNIT)}/s"


def throughput(row: Row) -> tuple[str, ...]:
    """(4.11 tok/s, ±1.2 % of 5 runs, median 4.10 tok/s), as far as known; why not where there is none, or where it
    counts for nothing."""
    if row.invalid and row.throughput_per_s is not None:
        return row.status, rate(row.throughput_per_s, row.names.short)
    if row.status != "ok":
        return (row.status,)
    told = [rate(row.throughput_per_s, row.names.short)]
    several = row.runs > 1
    if row.half_width is not None:
        told.append(f"±{percent(row.half_width)}" + (f" of {row.runs} runs" if several else ""))
    if several:
        told.append(f"median {rate(row.median_per_s, row.names.short)}")
    return tuple(told)


def spent(energy: Energy | None) -> tuple[str, ...]:
    """(963 mJ, 235 W, devices): what a unit took, the mean power, and whose; – where that is not known."""
    if energy is None:
        return (UNKNOWN,)
    return prefixed(energy.joules_per_unit, "J"), prefixed(energy.watts, "W"), energy.boundary


def told(measured: Iterable[Row]) -> int:
    """How much of `spent` a table tells: whose joules they are only where they are not all of the same boundary."""
    return 3 if len({row.energy.boundary for row in measured if row.energy}) > 1 else 2


def scope(measured: Iterable[Row]) -> str:
    """What the joules are of, and what is not in them; empty where there are none."""
    kinds = dict.fromkeys((row.energy.boundary, row.energy.left_out) for row in measured if row.energy)
    parts = [f"{boundary} (without {', '.join(left_out)})" if left_out else boundary for boundary, left_out in kinds]
    return f"energy of the {' or the '.join(parts)}, idle included" if parts else ""


def idle(energy: Energy) -> str:
    """61.2 W before, 64.0 W after."""
    told = zip(energy.idle_watts, ("before", "after"), strict=False)
    return ", ".join(f"{prefixed(watts, 'W')} {when}" for watts, when in told if watts is not None) or UNKNOWN


def prefixed(value: float | None, unit: str) -> str:
    """With an SI prefix: 1.49e11, FLOP/s -> 149 GFLOP/s."""
    if value is None:
        return UNKNOWN
    for prefix, size in PREFIXES:
        if value >= size * 0.9995:
            return f"{significant(value / size)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def share(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def percent(share: float) -> str:
    """A half-width: 1.2 %, 0.3 %, 350 %."""
    return f"{share * 100:.1f} %" if share < 0.1 else f"{share * 100:,.0f} %"


def typical(latency: Latency) -> str:
    """The median where the sample carries one, else the mean, named."""
    if latency.p50_ns is not None:
        return f"p50 {duration(latency.p50_ns)}"
    return UNKNOWN if latency.mean_ns is None else f"mean {duration(latency.mean_ns)}"


def tail(latency: Latency) -> str:
    return UNKNOWN if latency.tail is None else f"{latency.tail[0]} {duration(latency.tail[1])}"


def work(record: Record) -> str:
    """Scenario and batch, or arrivals: `offline ×2048`, `server 5/s`, `server max 12.3/s`."""
    if record.rate_per_s is not None:
        return f"{record.scenario} {'max ' if record.rate_trials else ''}{_bare(record.rate_per_s)}/s"
    return f"{record.scenario} ×{record.batch}" if (record.batch or 1) > 1 else record.scenario


def _bare(value: float) -> str:
    """3 digits without zeros behind the point: 5.00 -> 5."""
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def device_names(result: Result) -> dict[str, str]:
    """Device id -> short name, unique in the result: gpu:GPU-5d1cae40-… -> gpu:5d1c."""
    ids = list(dict.fromkeys([*(each.id for each in result.devices), *(one.route.device for one in result.records)]))
    parts = {each: plain(each).partition(":")[2].removeprefix("GPU-") for each in ids}
    length = 4
    while len({parts[each][:length] for each in ids if len(parts[each]) > 6}) < len(
        {parts[each] for each in ids if len(parts[each]) > 6}
    ):
        length += 1
    return {
        each: name(f"{plain(each).partition(':')[0]}:{part[:length] if len(part) > 6 else part}")
        for each, part in parts.items()
    }


def merged(result: Result, findings: tuple[Finding, ...]) -> list[tuple[str, str, str]]:
    """(severity, about, message), worst first; the same message about several things is said once.

    Where it differs in nothing but its figures, these become ranges, unless something is invalid: then each counts.
    """
    labels = {record.key: label(record, device_names(result)) for record in result.records}
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for severity in ("invalid", "warning", "note"):
        for each in (finding for finding in findings if finding.severity == severity):
            words = each.message if severity == "invalid" else NUMBER.sub("#", each.message)
            alike.setdefault((severity, each.rule, words), []).append(each)
    found = []
    for (severity, _, _), same in alike.items():
        abouts = ", ".join(dict.fromkeys(labels.get(each.about, each.about) for each in same))
        about = abouts if len(same) == 1 or len(abouts) <= FEW_LETTERS else f"{len(same)} results"
        found.append((severity, about, _ranged([each.message for each in same])))
    return found


def _ranged(messages: list[str]) -> str:
    """Of messages that differ in nothing but their figures: kept 1.04 to 1.65 of 2 CPUs busy."""
    words, columns = NUMBER.split(messages[0]), zip(*map(NUMBER.findall, messages), strict=True)
    ranges = []
    for column in columns:
        low, high = (edge(column, key=lambda figure: float(figure.replace(",", ""))) for edge in (min, max))
        ranges.append(low if float(low.replace(",", "")) == float(high.replace(",", "")) else f"{low} to {high}")
    return "".join(word + figure for word, figure in zip(words, [*ranges, ""], strict=True))


def name(text: str, most: int = LONGEST_NAME) -> str:
    """Of a thing: plain, and cut where its maker went too far."""
    text = plain(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def label(record: Record, names: dict[str, str]) -> str:
    route = record.route
    return f"{name(route.suite)} on {names[route.device]} by {name(route.adapter)} in {route.precision}, {work(record)}"
