"""Results side by side for a terminal, as wide as it is; 100 columns where it is written to a file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.compare.machines import Best, Row, SideBySide
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.figures import UNKNOWN

WIDTH = 100  # columns of a file or a pipe
WIDEST = 160
NARROWEST = 60  # below that the terminal breaks the lines
NAME, COLUMN = 18, 19  # the least columns of a row's name and of a result: with fewer, words would break
COLOURS = {
    "faster": "green", "slower": "red", "ambiguous": "yellow",
    "solid": "green", "fair": "yellow", "disturbed": "red", "invalid": "red", "unfinished": "red",
}  # fmt: skip


def report(found: SideBySide) -> str:
    terminal = sys.stdout.isatty()
    out = Console(
        file=StringIO(),
        width=min(max(shutil.get_terminal_size().columns if terminal else WIDTH, NARROWEST), WIDEST),
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        _write(out, found)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _write(out: Console, found: SideBySide) -> None:
    out.print(Text(words.heading(found), style="bold"))
    at_once = max(1, (out.width - NAME) // COLUMN)
    count = len(found.machines)
    for start in range(0, count, at_once):
        some = range(start, min(start + at_once, count))
        out.print()
        out.print(_machines(found, some))
        if found.rows:
            out.print()
            out.print(_suites(found, some))
    for title, rows in words.verdicts(found):
        out.print()
        out.print(Text(title, style="bold"))
        out.print(_verdicts(rows))
    if told := words.delta(found):
        out.print(Text(told))
    for title, notes in (("Remarks", words.remarks(found)), ("Not compared", words.uncompared(found))):
        if notes:
            out.print()
            out.print(Text(title, style="bold"))
            out.print(_notes(notes))


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _machines(found: SideBySide, some: Sequence[int]) -> Table:
    table = _table("", *(words.column(found.machines[at]) for at in some))
    for what, values in words.machines(found):
        table.add_row(what, *(Text(plain(values[at]), style=COLOURS.get(values[at], "")) for at in some))
    return table


def _suites(found: SideBySide, some: Sequence[int]) -> Table:
    """Three lines for each suite and result: the rate, what it was reached with, and how it compares."""
    table = _table("best route of each", *(found.machines[at].label for at in some))
    for row in found.rows:
        if not any(row.best[at] for at in some):
            continue
        if table.rows:
            table.add_row()
        title = words.title(row, found.rows).replace(", ", ",\n", 1)
        table.add_row(title, *(_best(row, row.best[at]) for at in some))
    return table


def _best(row: Row, best: Best | None) -> Text:
    if best is None:
        return Text(UNKNOWN)
    told = Text("\n".join(map(plain, words.rate(best, row))), style="bold")
    told.append(f"\n{plain(words.route(best))}", style="not bold")
    if best.relative is not None:
        told.append(f"\n{words.relative(best.relative)}", style="not bold")
    return told


def _verdicts(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    table.add_column(words.VERDICTS[0], overflow="fold")
    for head in ("speed", *words.VERDICTS[2:]):
        table.add_column(head, no_wrap=True)
    for cell, speed, interval, verdict, runs in rows:
        table.add_row(plain(cell), speed, interval, Text(verdict, style=COLOURS.get(verdict, "")), runs)
    return table


def _notes(notes: Sequence[Note]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=8, overflow="fold")
    table.add_column(overflow="fold")
    for note in notes:
        told = Text(plain(note.about))
        table.add_row(note.labels, told.append(f": {note.text}" if note.about else note.text))
    return table
