"""Results side by side for a terminal, as wide as the terminal; 100 columns wide in a file or a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.compare.machines import BestRoute, BestRoutes, SideBySide
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.terminal import rendered

WIDTH = 100  # columns of a file or a pipe
WIDEST = 160
NAME, COLUMN = 18, 19  # the least widths of a row's name and of a result: narrower ones would break words
COLOURS = {
    "faster": "green", "slower": "red", "ambiguous": "yellow",
    "solid": "green", "fair": "yellow", "disturbed": "red", "invalid": "red", "unfinished": "red",
}  # fmt: skip


def report(found: SideBySide) -> str:
    return rendered(lambda out: _write(out, found), WIDTH, WIDEST)


def _write(out: Console, found: SideBySide) -> None:
    out.print(Text(words.heading(found), style="bold"))
    fitting = max(1, (out.width - NAME) // COLUMN)
    indices = range(len(found.machines))
    for start in range(0, len(found.machines), fitting):
        shown = indices[start : start + fitting]
        out.print()
        out.print(_machines(found, shown))
        if found.rows:
            out.print()
            out.print(_suites(found, shown))
    for title, rows in words.verdicts(found):
        out.print()
        out.print(Text(title, style="bold"))
        out.print(_verdicts(rows))
    if delta := words.delta(found):
        out.print(Text(delta))
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


def _machines(found: SideBySide, shown: Sequence[int]) -> Table:
    table = _table("", *(words.column(found.machines[index]) for index in shown))
    for name, values in words.machines(found):
        table.add_row(name, *(Text(plain(values[index]), style=COLOURS.get(values[index], "")) for index in shown))
    return table


def _suites(found: SideBySide, shown: Sequence[int]) -> Table:
    """Three lines for each suite and result: the rate, its route, and its relative speed."""
    table = _table("best route of each", *(found.machines[index].label for index in shown))
    for row in found.rows:
        if not any(row.best[index] for index in shown):
            continue
        if table.rows:
            table.add_row()
        title = words.title(row, found.rows).replace(", ", ",\n", 1)
        table.add_row(title, *(_best(row, row.best[index]) for index in shown))
    return table


def _best(row: BestRoutes, best: BestRoute | None) -> Text:
    if best is None:
        return Text(UNKNOWN)
    text = Text("\n".join(map(plain, words.rate(best, row))), style="bold")
    text.append(f"\n{plain(words.route(best))}", style="not bold")
    if best.relative is not None:
        text.append(f"\n{words.relative(best.relative)}", style="not bold")
    return text


def _verdicts(rows: Sequence[tuple[str, ...]]) -> Table:
    table = _table(words.VERDICTS[0])
    for head in ("speed", *words.VERDICTS[2:]):
        table.add_column(head, no_wrap=True)
    for measurement, speed, interval, verdict, runs in rows:
        table.add_row(plain(measurement), speed, interval, Text(verdict, style=COLOURS.get(verdict, "")), runs)
    return table


def _notes(notes: Sequence[Note]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=8, overflow="fold")
    table.add_column(overflow="fold")
    for note in notes:
        table.add_row(note.labels, Text(f"{plain(note.about)}: {note.text}" if note.about else note.text))
    return table
