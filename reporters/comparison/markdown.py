"""Results side by side as tables for GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.judge.compare.machines import Best, Row, SideBySide
from mixmark.reporters.comparison import words
from mixmark.reporters.comparison.words import Note
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.markdown import cell, table


def report(found: SideBySide) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: SideBySide) -> Iterator[str]:
    yield f"## {cell(words.heading(found))}"
    yield ""
    labels = [words.column(one) for one in found.machines]
    yield from table(("", *labels), [(what, *values) for what, values in words.machines(found)], right_from=1)
    if found.rows:
        yield ""
        rows = [(words.title(row, found.rows), *(_best(row, each) for each in row.best)) for row in found.rows]
        yield from table(("best route of each", *labels), rows, right_from=1)
    for title, verdicts in words.verdicts(found):
        yield ""
        yield f"### {cell(title)}"
        yield ""
        yield from table(words.VERDICTS, verdicts, right_from=5)
    if told := words.delta(found):
        yield ""
        yield cell(told)
    yield from _notes("Remarks", words.remarks(found))
    yield from _notes("Not compared", words.uncompared(found))


def _best(row: Row, best: Best | None) -> str:
    if best is None:
        return UNKNOWN
    told = (" ".join(words.rate(best, row)), words.route(best), best.relative and words.relative(best.relative))
    return "; ".join(each for each in told if each)


def _notes(title: str, notes: Sequence[Note]) -> Iterator[str]:
    if not notes:
        return
    yield ""
    yield f"### {title}"
    yield ""
    for note in notes:
        about = ": ".join(each for each in (note.labels, note.about) if each)
        yield f"- {cell(f'{about}: {note.text}')}"
