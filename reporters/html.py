"""The report as one HTML page, without scripts or other files. It opens offline, prints, and has a dark mode.

It begins with the summary and a picture of the mix; then come the routes of each suite, then every figure in tables.
`html.jinja` is the page with its style sheet; `charts` draws. Both treat all content of a result as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np
from markupsafe import Markup

from mixmark.harness.contracts.schema import Finding, Int64s, LatencyLimits, Record, Result, System
from mixmark.harness.judge.energy.total import metered, profile
from mixmark.harness.judge.evidence import Measurement
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.hosts import processors
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.solo import Latency, Solo
from mixmark.harness.judge.statistics import timestamps
from mixmark.reporters import caps, charts, figures, hosts, loads, pictures, scores, summary, tables
from mixmark.reporters.template import template

POWER_BLOCKS = 160  # of a chart that is 360 px wide


def report(judgement: Judgement) -> str:
    result, rows = judgement.result, judgement.runs
    failed = {record.key for record in result.records if record.error}  # listed under "Not measured"
    findings = [finding for finding in judgement.findings if finding.rule != "finished" or finding.about not in failed]
    return PAGE.render(
        figures=figures,
        result=result,
        names=figures.device_names(result),
        date=_date(result.created_utc),
        verdict=judgement.verdict,
        summary=summary.summary(judgement),
        mixes=pictures.mixes(judgement),
        bars=pictures.suites(judgement),
        hues=pictures.hues(judgement),
        tint=pictures.tint,
        runs=max((record.run for record in result.records), default=1),
        suites=_by_suite(judgement.solos),
        hosted=_by_suite(judgement.hosted),
        ceilings=tables.ceilings(judgement),
        score=scores.score_text(judgement),
        loads=[*loads.drawn(judgement), *caps.drawn(judgement)],
        matrix=judgement.matrix,
        shorts={suite.name: suite.unit_names.short for suite in result.suites},
        panels=[_panel(row, judgement) for row in rows if row.feeds is not None],
        scope=figures.scope(rows),
        energy_parts=figures.energy_parts(rows),
        findings=figures.merged(result, findings),
        words=words,
        missing=list(_missing(result)),
        system=[*_systems(result), *_environments(result)],
        processors=processors(result) or "CPU",
    )


def _by_suite(rows: Iterable[Solo]) -> list[tuple[str, list[Solo]]]:
    return [(suite, list(own)) for suite, own in groupby(rows, lambda row: row.route.suite)]


PAGE = template(Path(__file__).parent, "html.jinja")


@dataclass(frozen=True)
class Chart:
    """A chart of a measured record."""

    caption: str
    drawn: Markup
    remark: str = ""
    """A remark on the reliability of the figures, beside the caption."""


@dataclass(frozen=True)
class Panel:
    """A measured record as the page shows it."""

    row: Solo
    record: Record
    figures: tuple[tuple[str, str], ...]
    """(name, figure)."""
    charts: tuple[Chart, ...]
    remarks: tuple[Finding, ...]
    """The findings about the record, without those in the caption of a chart."""
    facts: tuple[tuple[str, str], ...]
    """(name, value) of the conditions of the measurement."""


def _panel(row: Solo, judgement: Judgement) -> Panel:
    measured = judgement.measured[row.key]
    about = tuple(finding for finding in judgement.findings if finding.about == row.key)
    screening = measured.record.screening
    return Panel(
        row,
        measured.record,
        () if screening else tuple(_figures(row)),
        () if screening else (*_charts(row, measured, about), *_power(measured)),
        tuple(finding for finding in about if finding.rule != "steady" or not _is_drawn(row, measured)),
        tuple(_facts(measured, row.names.short)),
    )


def _figures(row: Solo) -> Iterator[tuple[str, str]]:
    for _, name, latency in _latencies(row):
        if latency.mean_ns is not None:
            yield name, " · ".join(f"{percentile} {figures.duration(ns)}" for percentile, ns in _percentiles(latency))
    if row.gap_p99 is not None:
        yield f"Between {row.unit}s", figures.jitter(row)
    if row.rate_per_s is not None:
        yield "Arrivals", figures.rate(row.rate_per_s, "feeds")
    if row.limits is not None and row.scenario == "server":
        yield "Limits", _limits(row.limits)
    yield "Roofline", figures.roofline(row.roofline_fraction)
    yield "Energy", " · ".join(_spent(row))
    yield "Feeds", f"{row.feeds:,}"
    yield f"{row.unit.capitalize()}s", f"{row.units:,}"


def _spent(row: Solo) -> Iterator[str]:
    if row.energy is None:
        yield figures.UNKNOWN
        return
    joules, watts, boundary = figures.spent(row.energy)
    yield f"{joules} per {row.unit}"
    yield f"{watts} of the {boundary}"
    if (idle := figures.idle(row.energy)) != figures.UNKNOWN:
        yield f"idle {idle}"


def _latencies(row: Solo) -> tuple[tuple[str, str, Latency], ...]:
    """(key, name, latency) of a feed, of its first unit and of its further units."""
    whole = "Response time" if row.scenario == "server" else "Service time"
    return (
        ("service", whole, row.latency),
        ("first", figures.name(row.names.first_unit), row.first_unit),
        ("each", figures.name(row.names.per_unit), row.time_per_unit),
    )


def _percentiles(latency: Latency) -> list[tuple[str, int]]:
    """(name, ns) of the percentiles that the sample is large enough for; if there is none, of the mean."""
    named = (("p50", latency.p50_ns), ("p90", latency.p90_ns), ("p99", latency.p99_ns), ("p99.9", latency.p999_ns))
    known = [(name, value) for name, value in named if value is not None]
    return known or ([] if latency.mean_ns is None else [("mean", latency.mean_ns)])


def _charts(row: Solo, measured: Measurement, found: Iterable[Finding]) -> Iterator[Chart]:
    """The throughput over the window and the distributions of times; none of a quantity that does not vary."""
    key, done, window = measured.key, measured.completions, measured.window
    if window is not None and row.units_per_s is not None and _is_drawn(row, measured):
        caption, short = "Throughput over the window", row.names.short
        edges_ns = window.blocks.edges_ns - window.blocks.edges_ns[0]
        stretch = window.stretch if row.scenario != "server" else None  # a server's rate is that of the arrivals
        drawn = charts.over_time(
            f"{key}-throughput",
            caption,
            edges_ns,
            window.blocks.rates_per_s,
            since="the first feed",
            unit=f"{short}/s",
            text=lambda per_s: figures.rate(per_s, short),
            mean=("overall", row.speed),
            band=charts.Band("another level", *edges_ns[[stretch.begin, stretch.end]].tolist()) if stretch else None,
        )
        yield Chart(caption, drawn, _steadiness(row, measured, found))
    whole, first, further = _latencies(row)
    times: list[tuple[tuple[str, str, Latency], Int64s]] = [(whole, timestamps.latencies_ns(done))]
    if len(per_unit_ns := timestamps.time_per_unit_ns(done)):
        times = [(first, timestamps.first_unit_ns(done)), (further, per_unit_ns)]
    for (name, caption, latency), values_ns in times:
        if len(values_ns) > 1:
            drawn = charts.distribution(f"{key}-{name}", values_ns, _percentiles(latency), title=caption)
            yield Chart(caption, drawn)
    if len(gaps_ns := timestamps.gaps_ns(done)) > 1:
        caption = f"Time between {row.unit}s"  # the times of one feed depend on each other: no percentiles
        yield Chart(caption, charts.distribution(f"{key}-gaps", gaps_ns, (), title=caption, counted="gaps"))


def _is_drawn(row: Solo, measured: Measurement) -> bool:
    """Whether the throughput over the window is drawn; its caption then says whether it was steady."""
    return measured.window is not None and len(measured.window.blocks) > 1 and row.units_per_s is not None


def _steadiness(row: Solo, measured: Measurement, found: Iterable[Finding]) -> str:
    """The remark in the caption: the finding about the steadiness of the window, or "steady"."""
    for finding in found:
        if finding.rule == "steady":
            return words(finding)
    is_steady = measured.window is not None and measured.window.steady and row.scenario != "server"
    return "steady" if is_steady else ""


def _power(measured: Measurement) -> Iterator[Chart]:
    """The power during the phase of the record, if the phase was metered and has no other record."""
    energy, result, phase = measured.energy, measured.result, measured.record.phase
    metering = metered(result, phase)
    if energy is None or metering is None:
        return
    begin_ns, end_ns = measured.window_ns
    first_ns, last_ns = min(metering.begin_ns, begin_ns), max(metering.end_ns, end_ns)
    edges_ns = np.linspace(first_ns, last_ns, POWER_BLOCKS + 1).astype(np.int64)
    watts = profile(result, phase, edges_ns)
    if np.isfinite(watts).any():
        drawn = charts.over_time(
            f"{measured.key}-power",
            "Power",
            edges_ns - begin_ns,
            watts,
            since="the window began",
            unit="W",
            text=lambda value: figures.prefixed(value, "W"),
            mean=None if energy.watts is None else ("mean of the window", energy.watts),
            band=charts.Band("window", 0, end_ns - begin_ns),
        )
        yield Chart(pictures.power_title(energy.boundary), drawn)


def _facts(measured: Measurement, short: str) -> Iterator[tuple[str, str]]:
    record, route = measured.record, measured.record.route
    yield "suite", f"{route.suite} {route.suite_version}, {route.tier} tier"
    yield "weights", route.weights
    yield "batch", figures.UNKNOWN if record.batch is None else str(record.batch)
    yield "loaded in", figures.duration(record.load_ns)
    yield "peak memory", _gib(record.peak_pss_bytes)
    yield from route.options.items()
    yield from ((f"suite option {name}", value) for name, value in route.suite_options.items())
    yield from record.facts.items()
    for trial in record.trials:
        yield f"trial of batch {trial.batch}", figures.rate(trial.units * 1e9 / trial.elapsed_ns, short)
    for step in record.rate_trials:
        arrivals = figures.rate(step.rate_per_s, "feeds")
        yield (
            f"trial of {arrivals}",
            f"{figures.counted(step.feeds, 'feed')}, limits {'kept' if step.kept else 'missed'}",
        )
    if record.latency_limits is not None:
        yield "source of the limits", record.latency_limits.source
    if record.ended_by is not None:
        yield "window ended by", record.ended_by
    yield "run", str(record.run)
    yield from _conditions(measured)
    yield "key", record.key


def _limits(limits: LatencyLimits) -> str:
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    values = ", ".join(f"{name} {figures.duration(value)}" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {values}"


def _conditions(measured: Measurement) -> Iterator[tuple[str, str]]:
    """The state of the machine during the window, as far as it is known."""
    blocks = measured.watched
    elapsed_s = sum(block.end_ns - block.begin_ns for block in blocks) / 1e9
    foreign_ns = _known(block.foreign_ns for block in blocks)
    stolen_ns = _known(block.stolen_ns for block in blocks)
    switches = _known(block.involuntary_switches for block in blocks)
    clocks = _known(block.clock_mean_mhz for block in blocks)
    temperatures = _known(block.temperature_c for block in blocks)
    if foreign_ns:
        yield "CPUs kept busy by others", f"{max(0, sum(foreign_ns)) / 1e9 / elapsed_s:.2f}"
    if stolen_ns:
        yield "CPUs taken by the hypervisor", f"{sum(stolen_ns) / 1e9 / elapsed_s:.2f}"
    if switches:
        yield "involuntary switches", f"{figures.significant(sum(switches) / elapsed_s)} a second"
    if clocks:
        yield "clock of the busy CPUs", f"{min(clocks):,.0f} to {max(clocks):,.0f} MHz"
    if temperatures:
        yield "hottest CPU sensor", f"{min(temperatures):.0f} to {max(temperatures):.0f} °C"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _missing(result: Result) -> Iterator[tuple[str, str, str]]:
    """(state, name, reason) of everything that was planned or asked for and has no figure."""
    names = figures.device_names(result)
    for record in result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            state = "failed" if error.attempted else error.kind
            yield state, figures.label(record, names), f"{error.kind}: {error.message}{hint}"
    reached = {record.key for record in result.records}
    mixed = {record.phase for record in result.records if record.scenario == "mixed"}  # its plan names no single turn
    for phase in (phase for phase in result.phases if phase.name not in mixed):
        for share in (share for task in phase.tasks for share in task.shares if share.key not in reached):
            yield "not reached", f"{share.route.label}, {share.scenario}", "the run ended before its turn"
    for absent in result.absent:
        yield "absent", absent.label, absent.reason


def _systems(result: Result) -> Iterator[tuple[str, str]]:
    """The disclosure of the machine, or of each group of equal hosts."""
    for group, system in hosts.groups(result):
        yield "hosts", group
        yield from _disclosed(system)
    if not result.hosts:
        yield from _disclosed(result.system)


def _disclosed(system: System) -> Iterator[tuple[str, str]]:
    """(name, value) of each field of the disclosure, in the schema's order; "not disclosed" if it is unknown."""
    for field in System.model_fields:
        value = getattr(system, field)
        if field.endswith("_bytes"):
            yield field.removesuffix("_bytes").replace("_", " "), _gib(value)
        elif field.endswith("_mhz"):
            yield field.removesuffix("_mhz").replace("_", " "), f"{value:,.0f} MHz" if value else "not disclosed"
        else:
            yield field.replace("_", " "), _written(value)


def _environments(result: Result) -> Iterator[tuple[str, str]]:
    """(adapter, the software of its workers)."""
    for name, environment in result.environments.items():
        origin = f"{environment.spec} ({environment.origin})"
        versions = _written({**environment.vendor, **environment.packages})
        sha256 = f"; SHA-256 of {environment.source}: {environment.sha256}" if environment.sha256 else ""
        yield f"adapter {name}", f"{origin}, {environment.python}, Mixmark {environment.mixmark}; {versions}{sha256}"


def _written(value: object) -> str:
    if value is None:
        return "not disclosed"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, tuple):
        return "; ".join(map(_written, value)) or "none"
    return str(value)


def _gib(size_bytes: int | None) -> str:
    return "not disclosed" if size_bytes is None else figures.gibibytes(size_bytes)


def _date(created_utc: str) -> str:
    """21 November 2026, 02:35 UTC. A text that is not a time stays as it is."""
    try:
        moment = datetime.fromisoformat(created_utc)
    except ValueError:
        return created_utc
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
