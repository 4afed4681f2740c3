"""The summary in about fifteen lines: verdict, sentence, score, one line per suite, energy, possible improvements.

A run prints it last. The reporter `full` prints all figures before it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.reporters import caps, figures, loads
from mixmark.reporters.summary import SuiteLine, Summary, summary
from mixmark.reporters.tables import TextTable
from mixmark.reporters.terminal import rendered

WIDTH = 100  # longer lines are hard to read
WIDE = 80  # from this width on, the other routes have their own column
COLOURS = {
    "solid": "bold green",
    "fair": "bold yellow",
    "partial": "bold yellow",
    "disturbed": "bold red",
    "invalid": "bold red",
}
"""The colours of the verdicts. An unfinished run has none."""


def report(judgement: Judgement) -> str:
    """Returns the text, as wide as the terminal but at most 100 columns."""
    found = summary(judgement)
    return rendered(lambda out: _write(out, found, judgement), WIDTH, WIDTH)


def _write(out: Console, found: Summary, judgement: Judgement) -> None:
    out.print(Text.assemble((found.verdict, COLOURS.get(found.verdict, "bold")), f": {plain(found.reason)}"))
    out.print()
    out.print(Text(plain(found.system)))
    if found.score:
        out.print(Text(plain(found.score), style="bold"))
    out.print(Text(plain(found.sentence)))
    for line in found.scale:
        out.print(Padding(Text(plain(line)), (0, 0, 0, 2)))
    if found.suites:
        out.print()
        out.print(_lines(out, found.suites))
    if found.hosted:
        out.print()
        out.print(Text(figures.HOSTED))
        out.print(_lines(out, found.hosted))
    out.print()
    for more in filter(None, (loads.table(judgement, brief=True), caps.table(judgement))):
        out.print(text_table(more))
        out.print()
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, value in (*loads.facts(judgement), *caps.facts(judgement)):
        facts.add_row(plain(name), Text(plain(value)))
    facts.add_row("energy", Text(plain(found.energy)))
    if found.better:
        facts.add_row("better", Text(plain(found.better)))
    out.print(facts)


def text_table(source: TextTable) -> Table:
    """A table without lines, whose figures are aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for index, column in enumerate(source.header):
        table.add_column(column, justify="right" if index >= source.text_columns else "left", overflow="fold")
    for row in source.rows:
        table.add_row(*map(plain, row))
    return table


def _lines(out: Console, lines: Iterable[SuiteLine]) -> Table:
    """One line per suite or service. On a narrow terminal the other routes share the column of the best route."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=16)
    table.add_column(justify="right", max_width=28)
    for line in lines:
        cells: tuple[str, ...] = (line.suite, line.rate, line.route, line.others)
        if out.width < WIDE:
            cells = (line.suite, line.rate, ", ".join(filter(None, cells[2:])))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table
