"""All figures, findings and absences as plain text, at most 120 columns wide; the summary of `console` comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.schema import Result, System
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.roofline import Ceiling
from mixmark.harness.judge.rows import Matrix, Row
from mixmark.reporters import console, figures, hosts, scores
from mixmark.reporters.terminal import rendered

WIDTH = 120
NAMES = ("suite", "device", "adapter")  # columns that wrap long names; figures never wrap


def report(judgement: Judgement) -> str:
    details = rendered(lambda out: _write(out, judgement), WIDTH, WIDTH, coloured=False)
    return f"{details}\n{console.report(judgement)}"


def _write(out: Console, judgement: Judgement) -> None:
    result = judgement.result
    _head(out, judgement)
    if score := scores.score_text(judgement):
        _score(out, score)
    out.print(_rates(out, result, judgement.solo_rows) if judgement.solo_rows else "no suite was measured alone")
    if judgement.hosted:
        out.print()
        out.print(figures.HOSTED)
        out.print(_rates(out, result, judgement.hosted))
    if judgement.matrix:
        out.print()
        out.print(_matrix(out, result, judgement.matrix))
    if judgement.ceilings:
        out.print()
        out.print(_ceilings(out, result, judgement.ceilings))
    out.print()
    out.print(_remarks(judgement))


def _head(out: Console, judgement: Judgement) -> None:
    result, system = judgement.result, judgement.result.system
    state = "finished" if result.finished else "UNFINISHED"
    facts = (f"Mixmark {system.mixmark}", f"{result.tier} tier", result.preset, result.created_utc, state)
    out.print(" · ".join(map(figures.name, facts)))
    for group, of_group in hosts.groups(result):
        out.print(group)
        out.print(f"  {_machine(of_group)}")
    if not result.hosts:
        out.print(_machine(system))
    names = figures.device_names(result)
    for device in result.devices:
        size = "" if device.memory_bytes is None else f", {figures.gibibytes(device.memory_bytes)}"
        out.print(f"  {names[device.id]}  {figures.name(device.name) or device.kind}{size}")
    if scope := figures.scope(judgement.rows):
        out.print(f"  {scope}")
    out.print()


def _machine(system: System) -> str:
    memory = None if system.memory_bytes is None else figures.gibibytes(system.memory_bytes)
    threads = None if system.cpu_threads is None else f"{system.cpu_threads} threads"
    parts = (system.cpu_model, threads, memory, system.operating_system, system.virtualization, system.container)
    return " · ".join(figures.name(part) for part in parts if part)


def _table(out: Console, *columns: str) -> Table:
    """A table without lines. A column whose name starts with `>` is aligned to the right; narrow tables wrap cells."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(
            column.removeprefix(">"),
            justify=justify,
            no_wrap=out.width == WIDTH and column not in NAMES,
            overflow="fold",
        )
    return table


def _rates(out: Console, result: Result, rows: Sequence[Row]) -> Table:
    names = figures.device_names(result)
    return _wide_rates(out, names, rows) if out.width == WIDTH else _narrow_rates(out, names, rows)


def _narrow_rates(out: Console, names: Mapping[str, str], rows: Sequence[Row]) -> Table:
    """The table for a narrow terminal: suite, device, adapter and scenario share one column, on three lines."""
    table = _table(out, "what, where", ">throughput", "latency", ">roof-\nline", ">energy\na unit")
    for row in rows:
        if table.rows:
            table.add_row()
        route = row.record.route
        target = (
            f"{figures.name(route.suite)}, {names[route.device]}",
            f"{figures.name(route.adapter)}, {route.precision}",
            figures.work(row.record),
        )
        typical, tail = _latencies(row)
        latencies = [text for pair in zip(typical.split("\n"), tail.split("\n"), strict=True) for text in pair]
        table.add_row(
            "\n".join(map(plain, target)),
            "\n".join(figures.throughput(row)),
            "\n".join(text for text in latencies if text != figures.UNKNOWN) or figures.UNKNOWN,
            figures.share(row.roofline_fraction),
            "\n".join(figures.spent(row.energy)[: figures.energy_parts(rows)]),
        )
    return table


def _wide_rates(out: Console, names: Mapping[str, str], rows: Sequence[Row]) -> Table:
    table = _table(
        out,
        "suite",
        "device",
        "adapter",
        "scenario",
        "type",
        ">throughput",
        "latency",
        "tail",
        ">roof-\nline",
        ">energy\na unit",
    )
    suite = ""
    for row in rows:
        route = row.record.route
        if suite and route.suite != suite:
            table.add_row()
        typical, tail = _latencies(row)
        table.add_row(
            figures.name(route.suite) if route.suite != suite else "",
            names[route.device],
            figures.name(route.adapter),
            figures.work(row.record),
            route.precision,
            "\n".join(figures.throughput(row)),
            typical,
            tail,
            figures.share(row.roofline_fraction),
            "\n".join(figures.spent(row.energy)[: figures.energy_parts(rows)]),
        )
        suite = route.suite
    return table


def _score(out: Console, found: scores.ScoreText) -> None:
    out.print(plain(found.headline))
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, value in found.facts:
        facts.add_row(f"  {name}", Text(plain(value)))
    out.print(facts)
    for source in found.tables:
        out.print()
        columns = [f"{'>' if index >= source.text_columns else ''}{name}" for index, name in enumerate(source.header)]
        table = _table(out, *columns)
        for row in source.rows:
            table.add_row(*map(plain, row))
        out.print(table)
    out.print()


def _matrix(out: Console, result: Result, compared: Matrix) -> Table:
    """The matrix of the devices that fit; the other reporters show all devices."""
    names = figures.device_names(result)
    fitting = (out.width - 24) // 12
    shown = compared.devices[:fitting]
    table = _table(out, f"relative to {names[compared.baseline]}", *(f">{names[device]}" for device in shown))
    for suite, relatives in compared.rows:
        table.add_row(figures.name(suite), *map(figures.ratio, relatives[:fitting]))
    return table


def _latencies(row: Row) -> tuple[str, str]:
    """(typical, tail) of the latency; if a feed yields its units singly, also of the first unit and of each unit."""
    if row.time_per_unit.mean_ns is None:
        return figures.typical(row.latency), figures.tail(row.latency)
    short = figures.name(row.names.short, figures.LONGEST_UNIT)
    lines = (("feed", row.latency), ("first", row.first_unit), (f"/{short}", row.time_per_unit))
    return (
        "\n".join(f"{name:<5} {figures.typical(latency)}" for name, latency in lines),
        "\n".join(figures.tail(latency) for _, latency in lines),
    )


def _ceilings(out: Console, result: Result, known: Sequence[Ceiling]) -> Table:
    names = figures.device_names(result)
    table = _table(out, "ceiling", "adapter", "type", ">compute", "", ">memory", "")
    for ceiling in known:
        table.add_row(
            names[ceiling.device],
            figures.name(ceiling.adapter),
            ceiling.precision,
            figures.prefixed(ceiling.flops_per_s, "FLOP/s"),
            figures.name(ceiling.flops_kernel or ""),
            figures.prefixed(ceiling.bytes_per_s, "B/s"),
            figures.name(ceiling.bytes_kernel or ""),
        )
    return table


def _remarks(judgement: Judgement) -> Table:
    """Findings and absences; long texts wrap inside their column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for severity, about, message in figures.merged(judgement.result, judgement.findings):
        subject = "" if about == "run" else f"{about}: "
        table.add_row(severity, Text(plain(subject + message, figures.LONGEST)))
    for absent in judgement.result.absent:
        table.add_row("absent", Text(plain(f"{absent.label}: {absent.reason}", figures.LONGEST)))
    return table
