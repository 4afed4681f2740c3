"""The solo measurements: all figures in one table, and each measurement with its charts and conditions for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mixmark.harness.contracts.schema import Int64s, LatencyLimits
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.evidence import Measurement
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.solo import Latency, Solo
from mixmark.harness.judge.statistics import timestamps
from mixmark.reporters import charts, figures
from mixmark.reporters.document import Block, Chart, Facts, Heading, Link, Notes, Paragraph, Table

ENDED = {
    "precision": "once its interval was as narrow as the preset asks for",
    "cap": "at the longest time of the preset",
    "time": "at the shortest time of the preset",
}
"""When a window ended, by `Record.ended_by`."""


def table(rows: Sequence[Solo], assessment: Assessment) -> Table:
    """Every figure. The lines of a cell belong together."""
    names, parts = figures.device_names(assessment.result), figures.energy_parts(rows)
    header = ("suite", "route", "feeds", "throughput", "latency", "roofline", "energy a unit")
    return Table("", header, [tuple(_cells(row, names, parts)) for row in rows], text_columns=2)


def _cells(row: Solo, names: dict[str, str], energy_parts: int) -> Iterator[str]:
    route = row.route
    yield figures.name(route.suite)
    yield f"{names[route.device]} {figures.name(route.adapter)} {route.precision}\n{figures.scenario(row)}"
    yield figures.UNKNOWN if row.feeds is None else f"{row.feeds:,}"
    yield Link("\n".join(figures.throughput(row)), "#missing" if row.feeds is None else f"#{row.key}")
    yield "\n".join(figures.latencies(row))
    yield figures.roofline(row.roofline_fraction)
    yield "\n".join(figures.spent(row.energy)[:energy_parts])


def each(assessment: Assessment) -> Iterator[Block]:
    """Every measurement by itself."""
    several = max((record.run for record in assessment.result.records), default=1) > 1
    names = figures.device_names(assessment.result)
    for row in assessment.runs:
        if row.feeds is None:
            continue
        measured, route = assessment.measured[row.key], row.route
        aside = [names[route.device], figures.name(route.adapter), route.precision, figures.scenario(row)]
        title = " · ".join([*aside, *[f"run {row.run}"] * several])
        yield Heading(figures.name(route.suite), row.key, 3, title)
        rate = figures.rate(row.units_per_s, row.names.short)
        yield Paragraph(rate, word="" if row.status == "ok" else figures.status(row), style="strong")
        if not measured.record.screening:
            yield Facts(list(_figures(row)))
            yield from _charts(row, measured)
        about = [finding for finding in assessment.findings if finding.about == row.key]
        yield Notes([(finding.severity, "", words(finding)) for finding in about])
        yield Facts(list(_facts(measured, row.names.short)), folded="What ran")


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


def _charts(row: Solo, measured: Measurement) -> Iterator[Chart]:
    """The throughput over the window and the distributions of times, where the feeds are not too few."""
    key, done, window = measured.key, measured.completions, measured.window
    if window is not None and len(window.blocks) > 1 and row.units_per_s is not None:
        caption, edges_ns = "Throughput over the window", window.blocks.edges_ns - window.blocks.edges_ns[0]
        stretch = window.stretch if row.scenario != "server" else None  # a server's rate follows the arrivals
        drawn = charts.over_time(
            f"{key}-throughput",
            caption,
            edges_ns,
            window.blocks.rates_per_s,
            unit=figures.rate_unit(row.names.short),
            text=lambda per_s: figures.rate(per_s, row.names.short),
            mean_per_s=row.speed,
            stretch_ns=tuple(edges_ns[[stretch.begin, stretch.end]].tolist()) if stretch else (),
        )
        yield Chart(caption, drawn)
    whole, first, further = _latencies(row)
    times: list[tuple[tuple[str, str, Latency], Int64s]] = [(whole, timestamps.latencies_ns(done))]
    if len(per_unit_ns := timestamps.time_per_unit_ns(done)):
        times = [(first, timestamps.first_unit_ns(done)), (further, per_unit_ns)]
    for (name, caption, latency), values_ns in times:
        if len(values_ns) >= charts.FEWEST:
            yield Chart(caption, charts.distribution(f"{key}-{name}", values_ns, _percentiles(latency), caption))


def _facts(measured: Measurement, short: str) -> Iterator[tuple[str, str]]:
    record, route = measured.record, measured.record.route
    yield "suite", f"{route.suite} {route.suite_version}, {route.tier} tier"
    yield "weights", route.weights
    yield "batch", figures.UNKNOWN if record.batch is None else str(record.batch)
    yield "loaded in", figures.duration(record.load_ns)
    yield "peak memory", figures.gibibytes(record.peak_pss_bytes)
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
        yield "window ended", ENDED[record.ended_by]
    yield "run", str(record.run)
    yield from _conditions(measured)
    yield "key", record.key


def _limits(limits: LatencyLimits) -> str:
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    values = ", ".join(f"{name} {figures.duration(value)}" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {values}"


def _conditions(measured: Measurement) -> Iterator[tuple[str, str]]:
    """The state of the machine during the window, as far as it is known."""
    clocks = _known(block.clock_mean_mhz for block in measured.watched)
    temperatures = _known(block.temperature_c for block in measured.watched)
    for name, counter in (
        ("CPUs kept busy by others", "foreign_ns"),
        ("of these by meters and other plugins", "plugins_ns"),
    ):
        if measured.total(counter) is not None:
            yield name, f"{max(0.0, measured.per_s(counter)) / 1e9:.2f}"
    if measured.stolen is not None:
        mean, worst = map(figures.percent, measured.stolen)
        yield "taken by the hypervisor", f"{mean} of the machine's CPU time, {worst} in the worst block"
    if measured.total("involuntary_switches") is not None:
        yield "involuntary switches", f"{figures.significant(measured.per_s('involuntary_switches'))} a second"
    if clocks:
        yield "clock of the busy CPUs", f"{_range(clocks)} MHz"
    if temperatures:
        yield "hottest CPU sensor", f"{_range(temperatures)} °C"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _range(values: Sequence[float]) -> str:
    """2,100 to 2,596, or 2,596 if it never changed."""
    return " to ".join(dict.fromkeys(f"{value:,.0f}" for value in (min(values), max(values))))
