"""The verdict on an entry in words: its classes with reasons, or the rules that it breaks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mixmark.harness.contracts.text import plain
from mixmark.reporters import markdown
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


def title(verdict: EntryVerdict) -> str:
    """X obeys all rules: MX 12.3 mix/kWh ± 1.5 %, TX 1.23 mix/h ± 1.5 %."""
    name, entry = plain(verdict.path) or "the entry", verdict.entry
    if entry is None:
        return f"{name} is rejected"
    return (
        f"{name} obeys all rules: MX {row.whole(entry.mixes_per_kwh, 'MX')}, TX {row.whole(entry.mixes_per_hour, 'TX')}"
    )


def table(verdict: EntryVerdict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(header, rows) of the classes of an accepted entry, or of the problems of a rejected one."""
    if verdict.entry is None:
        problems = [(problem.code, problem.where or "the entry", problem.message) for problem in verdict.problems]
        return ("rule", "where", "what"), [tuple(map(plain, cells)) for cells in problems]
    signed = verdict.entry.signed
    rows = [*classes(verdict.entry), ("signature", signed.state, signed.signer or "–")]
    return ("class", "value", "why"), [tuple(map(plain, cells)) for cells in rows]


def as_markdown(verdict: EntryVerdict) -> str:
    """The title and the table in Markdown, for a pull request."""
    header, rows = table(verdict)
    return "\n".join((f"### {markdown.cell(title(verdict))}", "", *markdown.table(header, rows, len(header))))
