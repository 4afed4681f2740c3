"""The output in about fifteen lines: verdict, sentence, score, one line per suite, energy, and what would be better.

It is written to be the last that stands on the screen. `full` has everything else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.reporters import figures
from mixmark.reporters.summary import SuiteLine, Summary, summary

WIDTH = 100  # longer lines are hard to read
WIDE = 80  # columns, from which on the other routes have a column of their own
NARROWEST = 60  # below that the terminal breaks the lines
COLOURS = {"solid": "bold green", "fair": "bold yellow", "disturbed": "bold red", "invalid": "bold red"}
"""The colours of the verdicts. An interrupted run has none."""


def report(judgement: Judgement) -> str:
    """Returns the text, as wide as the terminal but at most 100 columns, in colour only on a terminal."""
    out = Console(
        file=StringIO(),
        width=min(max(shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH, NARROWEST), WIDTH),
        force_terminal=sys.stdout.isatty(),
        markup=False,
        emoji=False,
        highlight=False,
    )
    with out.capture() as captured:
        _write(out, summary(judgement))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _write(out: Console, told: Summary) -> None:
    out.print(Text.assemble((told.verdict, COLOURS.get(told.verdict, "bold")), f": {plain(told.reason)}"))
    out.print()
    out.print(Text(plain(told.sentence), style="bold"))
    for each in told.scale:
        out.print(Padding(Text(plain(each)), (0, 0, 0, 2)))
    if told.score:
        out.print(Text(plain(told.score)))
    if told.suites:
        out.print()
        out.print(_lines(out, told.suites))
    if told.hosted:
        out.print()
        out.print(Text(figures.HOSTED))
        out.print(_lines(out, told.hosted))
    out.print()
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column()
    facts.add_row("energy", Text(plain(told.energy)))
    if told.better:
        facts.add_row("better", Text(plain(told.better)))
    out.print(facts)


def _lines(out: Console, lines: Iterable[SuiteLine]) -> Table:
    """One line per suite or service; on a narrow terminal the other routes stand in the column of the best one."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=16)
    table.add_column(justify="right", max_width=28)
    for line in lines:
        cells: tuple[str, ...] = (line.suite, line.rate, line.route, line.others)
        if out.width < WIDE:
            cells = (line.suite, line.rate, ", ".join(each for each in cells[2:] if each))
        table.add_row(*(Text(plain(each)) for each in cells))
    return table
