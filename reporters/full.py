"""All figures, findings and absences as plain text, at most 120 columns wide; the summary of `console` comes last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.schema import Result, System
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import console, figures, hosts, scores, tables
from mixmark.reporters.tables import TextTable
from mixmark.reporters.terminal import rendered

WIDTH = 120
NAMES = ("suite", "device", "adapter")  # columns that wrap long names; figures never wrap
FIGURES = ">throughput", "latency", ">roof-\nline", ">energy\na unit"
WIDE_COLUMNS = (*NAMES, "scenario", "type", *FIGURES[:2], "tail", *FIGURES[2:])
NARROW_COLUMNS = ("what, where", *FIGURES)


def report(judgement: Judgement) -> str:
    details = rendered(lambda out: _write(out, judgement), WIDTH, WIDTH, coloured=False)
    return f"{details}\n{console.report(judgement)}"


def _write(out: Console, judgement: Judgement) -> None:
    result = judgement.result
    _head(out, judgement)
    if score := scores.score_text(judgement):
        _score(out, score)
    out.print(_rates(out, result, judgement.solos) if judgement.solos else "no suite was measured alone")
    if judgement.hosted:
        out.print()
        out.print(figures.HOSTED)
        out.print(_rates(out, result, judgement.hosted))
    if matrix := tables.matrix(judgement):
        fitting = 1 + (out.width - 24) // 12  # the other reporters show all devices
        out.print()
        out.print(_text_table(out, matrix, fitting))
    if ceilings := tables.ceilings(judgement):
        out.print()
        out.print(_text_table(out, ceilings))
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
    if scope := figures.scope(judgement.runs):
        out.print(f"  {scope}")
    out.print()


def _machine(system: System) -> str:
    memory = None if system.memory_bytes is None else figures.gibibytes(system.memory_bytes)
    threads = None if system.cpu_threads is None else figures.counted(system.cpu_threads, "thread")
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


def _text_table(out: Console, source: TextTable, fitting: int | None = None) -> Table:
    """fitting: the number of columns that are shown, if not all."""
    columns = [f"{'>' if index >= source.text_columns else ''}{name}" for index, name in enumerate(source.header)]
    table = _table(out, *columns[:fitting])
    for row in source.rows:
        table.add_row(*map(plain, row[:fitting]))
    return table


def _rates(out: Console, result: Result, rows: Sequence[Solo]) -> Table:
    """On a narrow terminal suite, device, adapter and scenario share a column, and so do latency and tail."""
    names, is_wide = figures.device_names(result), out.width == WIDTH
    table = _table(out, *(WIDE_COLUMNS if is_wide else NARROW_COLUMNS))
    suite_before = ""
    for row in rows:
        route, work = row.route, figures.scenario(row)
        suite, device, adapter = figures.name(route.suite), names[route.device], figures.name(route.adapter)
        if table.rows and (route.suite != suite_before or not is_wide):
            table.add_row()
        typical, tail = _latencies(row)
        if is_wide:
            target = ["" if route.suite == suite_before else suite, device, adapter, work, route.precision]
            latency = ["\n".join(typical), "\n".join(tail)]
        else:
            target = ["\n".join(map(plain, (f"{suite}, {device}", f"{adapter}, {route.precision}", work)))]
            known = [text for pair in zip(typical, tail, strict=True) for text in pair if text != figures.UNKNOWN]
            latency = ["\n".join(known) or figures.UNKNOWN]
        table.add_row(
            *target,
            "\n".join(figures.throughput(row)),
            *latency,
            figures.roofline(row.roofline_fraction),
            "\n".join(figures.spent(row.energy)[: figures.energy_parts(rows)]),
        )
        suite_before = route.suite
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
        out.print(_text_table(out, source))
    out.print()


def _latencies(row: Solo) -> tuple[Sequence[str], Sequence[str]]:
    """(typical, tail) of the latency; if a feed yields its units singly, also of the first unit and of each unit."""
    if row.time_per_unit.mean_ns is None:
        return [figures.typical(row.latency)], [figures.tail(row.latency)]
    short = figures.name(row.names.short, figures.LONGEST_UNIT)
    spans = (("feed", row.latency), ("first", row.first_unit), (f"/{short}", row.time_per_unit))
    typical = [f"{name:<5} {figures.typical(latency)}" for name, latency in spans]
    tail = [figures.tail(latency) for _, latency in spans]
    if row.gap_p99 is not None and row.gap_most is not None:
        typical.append("gaps")
        tail.append(f"p99 {significant(row.gap_p99)} ×, most {significant(row.gap_most)} ×")
    return typical, tail


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
