"""The verdict on an entry in words: its classes with reasons, or the rules that it breaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mixmark.harness.contracts.text import plain
from mixmark.reporters import document
from mixmark.reporters.document import Document, Table
from mixmark.submissions.board import row
from mixmark.submissions.entry import Entry, EntryVerdict

LEVELS = ("below level 1", "level 1", "level 2", "level 3")


def classes(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(class, value, reasons) of each class by which entries are kept apart."""
    why = defaultdict(str, {name: "; ".join(reasons) for name, reasons in entry.reasons.items()})
    yield "division", entry.division, why["division"] or "everybody does the same work"
    yield "tuning", entry.tuning, why["tuning"] or "built-in adapters with one setting for all suites"
    yield "grade", entry.grade, why["grade"] or "nothing is missing"
    yield "ranked", "yes" if entry.ranked else "no", why["ranked"] or "it has a place among others"
    yield "weights", f"{entry.weight_class} bit", why["weight_class"]
    yield "energy boundary", entry.boundary or "none", why["boundary"]
    if entry.level is not None:
        aspects = (f"{aspect.name}: {LEVELS[aspect.level]}, {aspect.reason}" for aspect in entry.aspects)
        yield "EE HPC level", LEVELS[entry.level], "; ".join(aspects)


def text(found: EntryVerdict, markdown: bool) -> str:
    """The verdict in Markdown, for a pull request, or for a terminal."""
    return (document.markdown if markdown else document.console)(verdict(found))


def verdict(found: EntryVerdict) -> Document:
    """The classes of an accepted entry, or the problems of a rejected one."""
    name, entry = plain(found.path) or "the entry", found.entry
    if entry is None:
        problems = [(problem.code, problem.where or "the entry", problem.message) for problem in found.problems]
        return Document(f"{name} is rejected", "", [Table("", ("rule", "where", "what"), problems, text_columns=3)])
    scores = f"MX {row.whole(entry.mixes_per_kwh, 'MX')}, TX {row.whole(entry.mixes_per_hour, 'TX')}"
    rows = [*classes(entry), ("signature", entry.signed.state, entry.signed.signer or "–")]
    table = Table("", ("class", "value", "why"), rows, text_columns=3)
    return Document(f"{name} obeys all rules: {scores}", "", [table])
