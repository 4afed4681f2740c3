"""All figures, findings and absences as plain text, at most 120 columns wide, and the output last."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
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

WIDTH = 120
NAMES = ("suite", "device", "adapter")  # columns that wrap where names are long: figures never do
NARROWEST = 60  # below that the terminal breaks the lines


def report(judgement: Judgement) -> str:
    result = judgement.result
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    out = Console(
        file=StringIO(),
        width=min(max(width, NARROWEST), WIDTH),
        color_system=None,
        force_terminal=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        _head(out, judgement)
        if found := scores.score_text(judgement):
            _score(out, found)
        audited, hosted = (_rates(out, judgement.result, rows) for rows in (judgement.cells, judgement.hosted))
        out.print(audited if judgement.cells else "no suite was measured alone")
        if judgement.hosted:
            out.print()
            out.print(figures.HOSTED)
            out.print(hosted)
        if judgement.matrix:
            out.print()
            out.print(_matrix(out, result, judgement.matrix))
        if judgement.ceilings:
            out.print()
            out.print(_ceilings(out, result, judgement.ceilings))
        out.print()
        out.print(_remarks(judgement))
    details = "\n".join(line.rstrip() for line in captured.get().splitlines())
    return f"{details}\n\n{console.report(judgement)}"


def _head(out: Console, judgement: Judgement) -> None:
    result, system = judgement.result, judgement.result.system
    state = "finished" if result.finished else "UNFINISHED"
    written = (f"Mixmark {system.mixmark}", f"{result.tier} tier", result.preset, result.created_utc, state)
    out.print(" · ".join(map(figures.name, written)))
    for group, each in hosts.groups(result):
        out.print(group)
        out.print(f"  {_machine(each)}")
    if not result.hosts:
        out.print(_machine(system))
    names = figures.device_names(result)
    for device in result.devices:
        size = "" if device.memory_bytes is None else f", {figures.significant(device.memory_bytes / 2**30)} GiB"
        out.print(f"  {names[device.id]}  {figures.name(device.name) or device.kind}{size}")
    if told := figures.scope(judgement.rows):
        out.print(f"  {told}")
    out.print()


def _machine(system: System) -> str:
    memory = None if system.memory_bytes is None else f"{figures.significant(system.memory_bytes / 2**30)} GiB"
    threads = None if system.cpu_threads is None else f"{system.cpu_threads} threads"
    parts = (system.cpu_model, threads, memory, system.operating_system, system.virtualization, system.container)
    return " · ".join(figures.name(part) for part in parts if part)


def _table(out: Console, *columns: str) -> Table:
    """A column whose name starts with `>` is aligned to the right. Where the terminal is narrow, cells wrap."""
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
    """The table for a narrow terminal: what runs where in one column, on three lines."""
    table = _table(out, "what, where", ">throughput", "latency", ">roof-\nline", ">energy\na unit")
    for at, row in enumerate(rows):
        if at:
            table.add_row()
        route = row.record.route
        of_what = (
            f"{figures.name(route.suite)}, {names[route.device]}",
            f"{figures.name(route.adapter)}, {route.precision}",
        )
        typical, tail = _latencies(row)
        known = [each for pair in zip(typical.split("\n"), tail.split("\n"), strict=True) for each in pair]
        table.add_row(
            "\n".join(plain(each) for each in (*of_what, figures.work(row.record))),
            "\n".join(figures.throughput(row)),
            "\n".join(each for each in known if each != figures.UNKNOWN) or figures.UNKNOWN,
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
    for each in found.tables:
        out.print()
        columns = [f"{'>' if at >= each.text_columns else ''}{name}" for at, name in enumerate(each.header)]
        table = _table(out, *columns)
        for row in each.rows:
            table.add_row(*(plain(cell) for cell in row))
        out.print(table)
    out.print()


def _matrix(out: Console, result: Result, compared: Matrix) -> Table:
    """The matrix of as many devices as fit; the other reports have all of them."""
    names = figures.device_names(result)
    fitting = (out.width - 24) // 12
    shown = compared.devices[:fitting]
    table = _table(out, f"alone, of {names[compared.baseline]}", *(f">{names[device]}" for device in shown))
    for suite, relatives in compared.rows:
        table.add_row(figures.name(suite), *(figures.ratio(each) for each in relatives[:fitting]))
    return table


def _latencies(row: Row) -> tuple[str, str]:
    """Cells of the latency; where units stream out of a feed, of its first mark and of each unit too."""
    if row.time_per_unit.mean_ns is None:
        return figures.typical(row.latency), figures.tail(row.latency)
    lines = (("feed", row.latency), ("first", row.first_mark), (f"/{_short(row)}", row.time_per_unit))
    return (
        "\n".join(f"{name:<5} {figures.typical(latency)}" for name, latency in lines),
        "\n".join(figures.tail(latency) for _, latency in lines),
    )


def _short(row: Row) -> str:
    return figures.name(row.names.short, figures.LONGEST_UNIT)


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
    """Failures, warnings and notes; long ones wrap inside their column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for severity, about, message in figures.merged(judgement.result, judgement.findings):
        subject = "" if about == "run" else f"{about}: "
        table.add_row(severity, Text(plain(subject + message, figures.LONGEST)))
    for absent in judgement.result.absent:
        table.add_row("absent", Text(plain(f"{absent.label}: {absent.reason}", figures.LONGEST)))
    return table
