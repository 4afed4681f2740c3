"""The verdict of a check as a document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures
from mixmark.reporters.document import Document, Table
from mixmark.submissions.entry import Entry, EntryVerdict


def score(figure: Estimate | None, unit: str) -> str:
    """12.3 mix/kWh ± 1.5 %."""
    return "not measured" if figure is None else figures.estimate(figure, unit)


def classes(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(class, value, reasons) of each class that keeps entries apart."""
    why = defaultdict(str, {name: "; ".join(reasons) for name, reasons in entry.reasons.items()})
    yield "division", entry.division, why["division"] or "everybody does the same work"
    yield "tuning", entry.tuning, why["tuning"] or "built-in adapters with one setting for all suites"
    better = {"official": "nothing is missing", "ranked": "not official", "indicative": "no rank"}.get(entry.standing)
    yield "grade", entry.standing, ": ".join(filter(None, (better, why["grade"] if better else why["ranked"])))
    yield "verdict", entry.verdict, why["verdict"]
    if why["devices"]:
        yield "devices", "processors alone", why["devices"]
    yield "weights", f"{entry.weight_class} bit", why["weight_class"]
    yield "energy boundary", entry.boundary or "none", why["boundary"]


def document(found: EntryVerdict) -> Document:
    """The classes of an accepted entry, and the problems of one that breaks a rule."""
    name, entry = plain(found.path) or "the entry", found.entry
    rows = [(problem.code, problem.where or "the entry", problem.message) for problem in found.problems]
    problems = [Table("", ("rule", "where", "what"), rows, text_columns=3)] if rows else []
    if entry is None:
        return Document(f"{name} is rejected", "", problems)
    scores = f"MX {score(entry.mixes_per_kwh, 'mix/kWh')}, TX {score(entry.mixes_per_hour, 'mix/h')}"
    rows = [*classes(entry), ("signature", entry.signed.state, entry.signed.signer or "–")]
    table = Table("", ("class", "value", "why"), rows, text_columns=3)
    state = "has no rank until it is known whose run it holds" if problems else "obeys all rules"
    return Document(f"{name} {state}: {scores}", "", [*problems, table])
