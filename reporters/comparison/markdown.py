"""Results side by side as tables for GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.judge.compare.machines import MachineComparison
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.markdown import cell, table


def report(found: MachineComparison) -> str:
    return "\n".join(_lines(found))


def _lines(found: MachineComparison) -> Iterator[str]:
    yield f"## {cell(words.heading(found))}"
    yield ""
    for source in words.tables(found):
        rows = [[text.replace("\n", "; ") for text in row] for row in source.rows]
        yield from (*table(source.header, rows, right_from=1), "")
    for source in words.verdicts(found):
        yield from (f"### {cell(source.title)}", "", *table(source.header, source.rows, source.text_columns), "")
    if delta := words.delta(found):
        yield from (cell(delta), "")
    yield from _notes("Remarks", words.remarks(found))
    yield from _notes("Not compared", words.uncompared(found))


def _notes(title: str, notes: Sequence[Note]) -> Iterator[str]:
    if notes:
        yield from (f"### {title}", "")
    for note in notes:
        about = ": ".join(part for part in (note.labels, note.about) if part)
        yield f"- {cell(f'{about}: {note.text}')}"
    if notes:
        yield ""
