"""Results side by side as tables for GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.judge.compare.machines import BestRoute, BestRoutes, SideBySide
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.markdown import cell, table


def report(found: SideBySide) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: SideBySide) -> Iterator[str]:
    yield f"## {cell(words.heading(found))}"
    yield ""
    labels = [words.column(machine) for machine in found.machines]
    yield from table(("", *labels), [(name, *values) for name, values in words.machines(found)], right_from=1)
    if found.rows:
        yield ""
        rows = [(words.title(row, found.rows), *(_best(row, best) for best in row.best)) for row in found.rows]
        yield from table(("best route of each", *labels), rows, right_from=1)
    for title, verdicts in words.verdicts(found):
        yield ""
        yield f"### {cell(title)}"
        yield ""
        yield from table(words.VERDICTS, verdicts, right_from=5)
    if delta := words.delta(found):
        yield ""
        yield cell(delta)
    yield from _notes("Remarks", words.remarks(found))
    yield from _notes("Not compared", words.uncompared(found))


def _best(row: BestRoutes, best: BestRoute | None) -> str:
    if best is None:
        return UNKNOWN
    parts = (" ".join(words.rate(best, row)), words.route(best), best.relative and words.relative(best.relative))
    return "; ".join(part for part in parts if part)


def _notes(title: str, notes: Sequence[Note]) -> Iterator[str]:
    if not notes:
        return
    yield ""
    yield f"### {title}"
    yield ""
    for note in notes:
        about = ": ".join(part for part in (note.labels, note.about) if part)
        yield f"- {cell(f'{about}: {note.text}')}"
