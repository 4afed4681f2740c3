"""Results side by side for a terminal, as wide as the terminal; 100 columns wide in a file or a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.compare.machines import MachineComparison
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.tables import TextTable
from mixmark.reporters.terminal import rendered

WIDTH = 100  # columns of a file or a pipe
WIDEST = 160
NAME, COLUMN = 18, 19  # the least widths of a row's name and of a result: narrower ones would break words
COLOURS = {
    "faster": "green", "slower": "red", "ambiguous": "yellow",
    "solid": "green", "fair": "yellow", "partial": "yellow", "disturbed": "red", "invalid": "red", "unfinished": "red",
}  # fmt: skip


def report(found: MachineComparison) -> str:
    return rendered(lambda out: _write(out, found), WIDTH, WIDEST)


def _write(out: Console, found: MachineComparison) -> None:
    out.print(Text(words.heading(found), style="bold"))
    fitting = max(1, (out.width - NAME) // COLUMN)
    for start in range(1, 1 + len(found.machines), fitting):
        for source in words.tables(found):
            out.print()
            out.print(_table(source, [0, *range(start, min(start + fitting, len(source.header)))]))
    for source in words.verdicts(found):
        out.print()
        out.print(Text(source.title, style="bold"))
        out.print(_table(source, range(len(source.header))))
    if delta := words.delta(found):
        out.print(Text(delta))
    for title, notes in (("Remarks", words.remarks(found)), ("Not compared", words.uncompared(found))):
        if notes:
            out.print()
            out.print(Text(title, style="bold"))
            out.print(_notes(notes))


def _table(source: TextTable, columns: Sequence[int]) -> Table:
    """The columns of a table. Rows without any figure in these columns are left out."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(source.header[column], overflow="fold")
    for row in source.rows:
        cells = [row[column] for column in columns]
        if all(cell == UNKNOWN for cell in cells[1:]):
            continue
        if table.rows and any("\n" in cell for cell in cells):
            table.add_row()
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    return table


def _notes(notes: Sequence[Note]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=8, overflow="fold")
    table.add_column(overflow="fold")
    for note in notes:
        table.add_row(note.labels, Text(f"{plain(note.about)}: {note.text}" if note.about else note.text))
    return table
