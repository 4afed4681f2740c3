"""A table to read in a terminal of 100 to 120 columns, as plain text."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import stats, validate
from harness.schema import Result
from harness.text import plain
from reporters import figures, scores
from reporters.figures import Row

WIDTH = 120
COLUMNS = 8  # devices of the matrix that fit


def report(result: Result) -> str:
    out = Console(
        file=StringIO(),
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        _head(out, result)
        if found := scores.told(result):
            _score(out, found)
        out.print(_rates(result))
        if compared := scores.matrix(result):
            out.print()
            out.print(_matrix(result, compared))
        if known := stats.ceilings(result.records):
            out.print()
            out.print(_ceilings(result, known))
        out.print()
        out.print(_remarks(result))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _head(out: Console, result: Result) -> None:
    system = result.system
    state = "finished" if result.finished else "UNFINISHED"
    out.print(
        plain(f"Mixmark {system.mixmark} · {result.tier} tier · {result.preset} · {result.created_utc} · {state}")
    )
    memory = None if system.memory_bytes is None else f"{figures.significant(system.memory_bytes / 2**30)} GiB"
    threads = None if system.cpu_threads is None else f"{system.cpu_threads} threads"
    parts = (system.cpu_model, threads, memory, system.operating_system, system.virtualization, system.container)
    out.print(plain(" · ".join(part for part in parts if part)))
    names = figures.device_names(result)
    for device in result.devices:
        size = "" if device.memory_bytes is None else f", {figures.significant(device.memory_bytes / 2**30)} GiB"
        out.print(f"  {names[device.id]}  {plain(device.name) or device.kind}{size}")
    if told := figures.scope(figures.rows(result)):
        out.print(f"  {told}")
    out.print()


def _table(*columns: str) -> Table:
    """A column whose name starts with `>` is aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return table


def _rates(result: Result) -> Table:
    names = figures.device_names(result)
    rows = figures.cells(result)
    table = _table(
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
            plain(route.suite) if route.suite != suite else "",
            names[route.device],
            plain(route.adapter),
            figures.work(row.record),
            route.precision,
            "\n".join(figures.throughput(row)),
            typical,
            tail,
            figures.share(row.roofline),
            "\n".join(figures.spent(row.energy)[: figures.told(rows)]),
        )
        suite = route.suite
    return table


def _score(out: Console, found: scores.Told) -> None:
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
        table = _table(*columns)
        for row in each.rows:
            table.add_row(*(plain(cell) for cell in row))
        out.print(table)
    out.print()


def _matrix(result: Result, compared: scores.Matrix) -> Table:
    """As many devices as fit; the page and the other reports have all."""
    names = figures.device_names(result)
    shown = compared.devices[:COLUMNS]
    table = _table(f"alone, of {names[compared.baseline]}", *(f">{names[device]}" for device in shown))
    for suite, cells in compared.rows:
        table.add_row(plain(suite), *(cell.text for cell in cells[:COLUMNS]))
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
    return figures.UNITS.get(row.record.unit, row.record.unit)


def _ceilings(result: Result, known: dict[stats.CeilingKey, stats.Ceiling]) -> Table:
    names = figures.device_names(result)
    table = _table("ceiling", "adapter", "type", ">compute", "", ">memory", "")
    for (device, adapter, precision), ceiling in known.items():
        table.add_row(
            names[device],
            plain(adapter),
            precision,
            figures.prefixed(ceiling.flops_per_s, "FLOP/s"),
            plain(ceiling.flops_kernel or ""),
            figures.prefixed(ceiling.bytes_per_s, "B/s"),
            plain(ceiling.bytes_kernel or ""),
        )
    return table


def _remarks(result: Result) -> Table:
    """Failures, warnings and notes; long ones wrap inside their column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for severity, about, message in figures.merged(result, validate.findings(result)):
        subject = "" if about == "run" else f"{about}: "
        table.add_row(severity, Text(plain(subject + message)))
    for absent in result.absent:
        table.add_row("absent", Text(plain(f"{absent.what}: {absent.reason}")))
    return table
