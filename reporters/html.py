"""One page that needs nothing else: it opens offline, prints, follows the reader's light or dark mode, runs no script.

It begins with what a reader learns in ten seconds, in the words of `summary`, and one picture of the mix; then come the
suites in one chart, then every figure in tables. `html.jinja` is the page and its style sheet, `charts` draws. What a
result says is text to both, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np
from markupsafe import Markup

from mixmark.harness.contracts.schema import Finding, Int64s, LatencyLimits, Result, System
from mixmark.harness.judge.compare.machines import models
from mixmark.harness.judge.energy.total import metered, profile
from mixmark.harness.judge.evidence import Measurement
from mixmark.harness.judge.hosts import processors
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.rows import Latency, Row
from mixmark.harness.judge.statistics import timestamps
from mixmark.reporters import charts, figures, hosts, pictures, scores, summary
from mixmark.reporters.template import template

POWER_BLOCKS = 160  # of a chart 360 px wide


def report(judgement: Judgement) -> str:
    result, found, rows = judgement.result, judgement.findings, judgement.rows
    failed = {record.key for record in result.records if record.error}
    told = scores.score_text(judgement)
    return PAGE.render(
        figures=figures,
        result=result,
        names=figures.device_names(result),
        models=models(result),
        date=_date(result.created_utc),
        verdict=judgement.verdict,
        first=summary.summary(judgement),
        mixes=pictures.mixes(judgement),
        bars=pictures.suites(judgement),
        hues=pictures.hues(judgement),
        tint=pictures.tint,
        runs=max((record.run for record in result.records), default=1),
        suites=_by_suite(judgement.cells),
        hosted=_by_suite(judgement.hosted),
        ceilings=judgement.ceilings,
        told=told,
        matrix=judgement.matrix,
        shorts={each.name: each.unit_names.short for each in result.suites},
        panels=[_panel(row, judgement.measured[row.record.key], found) for row in rows if row.record.completions],
        scope=figures.scope(rows),
        last=figures.energy_parts(rows),
        findings=figures.merged(
            result, tuple(each for each in found if not (each.rule == "finished" and each.about in failed))
        ),
        missing=list(_missing(result)),
        system=[*_systems(result), *_environments(result)],
        processors=processors(result) or "CPU",
    )


def _by_suite(cells: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    return [(suite, list(each)) for suite, each in groupby(cells, lambda row: row.record.route.suite)]


PAGE = template(Path(__file__).parent, "html.jinja")


@dataclass(frozen=True)
class Chart:
    """A chart of a measured record."""

    caption: str
    drawn: Markup
    said: str = ""
    """What there is to know before it is believed."""


@dataclass(frozen=True)
class Panel:
    """A measured record as the page shows it."""

    row: Row
    figures: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...]
    remarks: tuple[Finding, ...]
    facts: tuple[tuple[str, str], ...]


def _panel(row: Row, measured: Measurement, found: Iterable[Finding]) -> Panel:
    about = tuple(finding for finding in found if finding.about == row.record.key)
    screening = row.record.screening
    return Panel(
        row,
        () if screening else tuple(_figures(row)),
        () if screening else (*_charts(row, measured, about), *_power(measured)),
        tuple(finding for finding in about if finding.rule != "steady" or not _is_drawn(row, measured)),
        tuple(_facts(measured, row.names.short)),
    )


def _figures(row: Row) -> Iterator[tuple[str, str]]:
    first, each = figures.name(row.names.first), figures.name(row.names.each)
    for name, latency in ((_total_name(row), row.latency), (first, row.first_mark), (each, row.time_per_unit)):
        if latency.mean_ns is not None:
            yield name, " · ".join(f"{mark} {figures.duration(value)}" for mark, value in _marks(latency))
    if row.record.rate_per_s is not None:
        yield "Arrivals", figures.rate(row.record.rate_per_s, "feeds")
    if row.record.latency_limits is not None and row.record.scenario == "server":
        yield "Limits", _limits(row.record.latency_limits)
    yield "Roofline", figures.share(row.roofline_fraction)
    yield "Energy", " · ".join(_spent(row))
    yield "Feeds", f"{row.feeds:,}"
    yield f"{row.record.unit.capitalize()}s", f"{row.units:,}"


def _spent(row: Row) -> Iterator[str]:
    if row.energy is None:
        yield figures.UNKNOWN
        return
    joules, watts, boundary = figures.spent(row.energy)
    yield f"{joules} a {row.record.unit}"
    yield f"{watts} of the {boundary}"
    if (idle := figures.idle(row.energy)) != figures.UNKNOWN:
        yield f"idle {idle}"


def _total_name(row: Row) -> str:
    return "Response time" if row.record.scenario == "server" else "Service time"


def _marks(latency: Latency) -> list[tuple[str, int]]:
    """(name, ns) of the percentiles that the sample carries; where it carries none, of the mean."""
    named = (("p50", latency.p50_ns), ("p90", latency.p90_ns), ("p99", latency.p99_ns), ("p99.9", latency.p999_ns))
    carried = [(name, value) for name, value in named if value is not None]
    return carried or ([] if latency.mean_ns is None else [("mean", latency.mean_ns)])


def _charts(row: Row, measured: Measurement, found: Iterable[Finding]) -> Iterator[Chart]:
    """None where there is nothing that varies."""
    key, done, seen = measured.key, measured.completions, measured.window
    if seen is not None and row.throughput_per_s is not None and _is_drawn(row, measured):
        since_ns = seen.blocks.edges_ns - seen.blocks.edges_ns[0]
        closed_loop = row.record.scenario != "server"  # an open one's rate is that of the arrivals
        drawn = charts.throughput(
            f"{key}-throughput",
            since_ns,
            seen.blocks.rates_per_s,
            overall_per_s=row.throughput_per_s,
            unit=row.names.short,
            stretch=(seen.stretch.begin, seen.stretch.end) if closed_loop and seen.stretch else None,
        )
        yield Chart("Throughput over the window", drawn, _steadiness(row, measured, found))
    first, each = figures.name(row.names.first), figures.name(row.names.each)
    streams = timestamps.time_per_unit_ns(done)
    spreads: tuple[tuple[str, str, Int64s, Latency], ...] = (
        ("first", first, timestamps.first_mark_ns(done), row.first_mark),
        ("each", each, streams, row.time_per_unit),
    )
    if not len(streams):
        spreads = (("service", _total_name(row), timestamps.latencies_ns(done), row.latency),)
    for name, caption, values_ns, latency in spreads:
        if len(values_ns) > 1:
            yield Chart(caption, charts.distribution(f"{key}-{name}", values_ns, _marks(latency), title=caption))
    if len(gaps_ns := timestamps.gaps_ns(done)) > 1:
        caption = f"Time between {row.record.unit}s"  # those of a feed hang together: they carry no percentile
        yield Chart(caption, charts.distribution(f"{key}-gaps", gaps_ns, (), title=caption, of="gaps"))


def _is_drawn(row: Row, measured: Measurement) -> bool:
    """Whether the throughput over the window is drawn: then its caption says whether it was steady."""
    return measured.window is not None and len(measured.window.blocks) > 1 and row.throughput_per_s is not None


def _steadiness(row: Row, measured: Measurement, found: Iterable[Finding]) -> str:
    """What the caption says of a window: steady, or the words of the finding that says when it was not, how slow it ran
    and what that cost."""
    for finding in found:
        if finding.rule == "steady":
            return finding.message
    held = measured.window is not None and measured.window.steady and row.record.scenario != "server"
    return "steady" if held else ""


def _power(measured: Measurement) -> Iterator[Chart]:
    """The power of the phase around the record, where it shares it with none and is metered."""
    found, result, phase = measured.energy, measured.result, measured.record.phase
    metering = metered(result, phase)
    if found is None or metering is None:
        return
    begin_ns, end_ns = measured.window_ns
    first_ns, last_ns = min(metering.begin_ns, begin_ns), max(metering.end_ns, end_ns)
    edges_ns = np.linspace(first_ns, last_ns, POWER_BLOCKS + 1).astype(np.int64)
    watts = profile(result, phase, edges_ns)
    if np.isfinite(watts).any():
        window_ns = 0, end_ns - begin_ns
        name, since_ns = f"{measured.key}-power", edges_ns - begin_ns
        drawn = charts.power(name, since_ns, watts, window_ns=window_ns, mean_watts=found.watts)
        yield Chart(pictures.powered(found.boundary), drawn)


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
        yield f"trial of {arrivals}", f"{step.feeds} feeds, limits {'kept' if step.kept else 'missed'}"
    if record.latency_limits is not None:
        yield "source of the limits", record.latency_limits.source
    if record.ended_by is not None:
        yield "window ended by", record.ended_by
    yield "run", str(record.run)
    yield from _fared(measured)
    yield "key", record.key


def _limits(limits: LatencyLimits) -> str:
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    told = ", ".join(f"{name} {figures.duration(value)}" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {told}"


def _fared(measured: Measurement) -> Iterator[tuple[str, str]]:
    """What the machine went through during the window, as far as it says."""
    blocks = measured.watched
    elapsed_s = sum(block.end_ns - block.begin_ns for block in blocks) / 1e9
    foreign_ns = [
        block.busy_ns - block.own_ns for block in blocks if block.busy_ns is not None and block.own_ns is not None
    ]
    stolen_ns = [block.stolen_ns for block in blocks if block.stolen_ns is not None]
    switches = [block.involuntary_switches for block in blocks if block.involuntary_switches is not None]
    clocks = [block.clock_mean_mhz for block in blocks if block.clock_mean_mhz is not None]
    temperatures = [block.temperature_c for block in blocks if block.temperature_c is not None]
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


def _missing(result: Result) -> Iterator[tuple[str, str, str]]:
    """(state, what, why) of all that was wanted and has no figure."""
    names = figures.device_names(result)
    for record in result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            state = "failed" if error.attempted else error.kind
            yield state, figures.label(record, names), f"{error.kind}: {error.message}{hint}"
    reached = {record.key for record in result.records}
    over = {record.phase for record in result.records if record.scenario == "mixed"}  # whatever had a turn there
    for phase in (each for each in result.phases if each.name not in over):
        for share in (share for task in phase.tasks for share in task.shares if share.key not in reached):
            yield "not reached", f"{share.route.label}, {share.scenario}", "the run ended before its turn"
    for absent in result.absent:
        yield "absent", absent.label, absent.reason


def _systems(result: Result) -> Iterator[tuple[str, str]]:
    """All that the machine disclosed; of several hosts, equal ones once."""
    for group, system in hosts.groups(result):
        yield "hosts", group
        yield from _disclosed(system)
    if not result.hosts:
        yield from _disclosed(result.system)


def _disclosed(system: System) -> Iterator[tuple[str, str]]:
    """(name, value) of all that the machine disclosed, in the schema's order; what it did not is said too."""
    for field in System.model_fields:
        value = getattr(system, field)
        if field.endswith("_bytes"):
            yield field.removesuffix("_bytes").replace("_", " "), _gib(value)
        elif field.endswith("_mhz"):
            yield field.removesuffix("_mhz").replace("_", " "), f"{value:,.0f} MHz" if value else "not disclosed"
        else:
            yield field.replace("_", " "), _written(value)


def _environments(result: Result) -> Iterator[tuple[str, str]]:
    """(adapter, the software that its workers ran in)."""
    for name, each in result.environments.items():
        versions = {**each.vendor, **each.packages}
        yield (
            f"adapter {name}",
            f"{each.spec} ({each.origin}), {each.python}, Mixmark {each.mixmark}; {_written(versions)}"
            + (f"; SHA-256 of {each.source}: {each.sha256}" if each.sha256 else ""),
        )


def _written(value: object) -> str:
    if value is None:
        return "not disclosed"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "none"
    if isinstance(value, tuple):
        return "; ".join(_written(each) for each in value) or "none"
    return str(value)


def _gib(value: int | None) -> str:
    return "not disclosed" if value is None else f"{figures.significant(value / 2**30)} GiB"


def _date(created_utc: str) -> str:
    """21 November 2026, 02:35 UTC; as it stands where it is no date."""
    try:
        moment = datetime.fromisoformat(created_utc)
    except ValueError:
        return created_utc
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
