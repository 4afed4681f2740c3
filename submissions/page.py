"""Writes the README.md of an entry. The page follows from the entry, so a check writes it again and compares.

The page holds facts and figures, but no sentence of a rule, so that the rules can be reworded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mixmark.harness.contracts.text import plain
from mixmark.submissions.entry import Entry, Estimate

LEVELS = ("below level 1", "level 1", "level 2", "level 3")


def page(entry: Entry) -> bytes:
    """The page in Markdown."""
    return ("\n".join(_lines(entry)) + "\n").encode()


def text(words: str) -> str:
    """Words in which nothing is taken for a link, a table's bar, HTML or markup."""
    words = plain(words)
    for mark in "\\|`*_[]()#~!<>&":
        words = words.replace(mark, f"\\{mark}")
    return words.replace("://", ":\\//")


def figure(estimate: Estimate | None, unit: str) -> str:
    """12.3 mix/kJ ± 1.5 %."""
    if estimate is None:
        return "not measured"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g} {unit}"
    half = (estimate.high - estimate.low) / 2 / estimate.value if estimate.value else 0.0
    return f"{estimate.value:.3g} {unit} ± {half * 100:.2g} %"


def classes(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(class, value, reasons) of everything by which entries are kept apart."""
    claim, why = entry.claim, defaultdict(str, {name: "; ".join(each) for name, each in entry.reasons.items()})
    yield "division", claim.division, why["division"] or "everybody does the same work"
    yield "tuning", claim.tuning, why["tuning"] or "built-in adapters with one setting for all suites"
    yield "grade", claim.grade, why["grade"] or "nothing is missing"
    yield "ranked", "yes" if claim.ranked else "no", why["ranked"] or "it has a place among others"
    yield "weights", f"{claim.weight_class} bit", why["weight_class"]
    yield "energy boundary", claim.boundary or "none", why["boundary"]
    if claim.level is not None:
        reasons = "; ".join(f"{each.name}: {LEVELS[each.level]}, {each.reason}" for each in entry.aspects)
        yield "EE HPC level", LEVELS[claim.level], reasons


def _lines(entry: Entry) -> Iterator[str]:
    declaration, claim = entry.declaration, entry.claim
    yield f"# {text(declaration.organisation)}: {text(declaration.system)}, {text(claim.mix)}"
    yield ""
    yield "`mixmark check` computed all figures and classes on this page from the raw samples in this folder."
    yield ""
    yield f"- MX: {figure(claim.mixes_per_kj, 'mix/kJ')}"
    yield f"- TX: {figure(claim.mixes_per_s, 'mix/s')}"
    if claim.watts is not None:
        yield f"- mean power: {claim.watts:.3g} W"
    yield f"- mixed runs: {claim.runs}, the last result of {text(entry.ended_utc)}"
    yield ""
    yield from table(("class", "value"), [(name, value) for name, value, _ in classes(entry)])
    yield ""
    yield "`mixmark check` tells why. docs/rules.md of Mixmark says what the classes mean."
    yield ""
    yield "## The machine"
    yield ""
    machine = entry.machine
    yield from _facts(
        ("processor", machine.cpu_model),
        ("cores and threads", f"{machine.cpu_cores or 'unknown'} and {machine.cpu_threads or 'unknown'}"),
        ("memory", None if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.3g} GiB"),
        ("operating system", machine.operating_system),
        ("kernel", machine.kernel),
        ("virtualization", machine.virtualization),
        *(each.summary for each in machine.hosts),
        *((f"device {each.id}", f"{each.kind}, {each.name or 'without a name'}") for each in machine.devices),
        *((f"adapter {each.adapter}", f"{each.origin}, {_packages(each.packages)}") for each in machine.software),
        *((f"conformance kit of {name}", "passed" if passed else "failed") for name, passed in entry.kits.items()),
        ("suites", ", ".join(f"{name} {version}" for name, version in entry.suites.items())),
        ("Mixmark", claim.mixmark),
        ("commands", "; ".join(dict.fromkeys(" ".join(("mixmark", *each)) for each in entry.commands))),
    )
    yield ""
    yield "## Declared, not measured"
    yield ""
    yield from _facts(
        (
            "availability",
            f"{declaration.availability}{f', from {declaration.available_on}' if declaration.available_on else ''}",
        ),
        ("cooling", declaration.cooling),
        ("form factor", declaration.form_factor),
        ("origin", declaration.origin),
        ("licence", declaration.licence),
        ("provisioned power", None if declaration.provisioned_watts is None else f"{declaration.provisioned_watts} W"),
        *(("notes", line) for line in declaration.notes.split("\n") if line),
        *((f"reproduced by {each.by}", f"{each.url}, {each.date}") for each in declaration.reproduced_by),
    )
    if declaration.price:
        yield ""
        rows = [
            (each.what, str(each.quantity), each.unit_price, each.currency, str(each.date), each.locale, each.source)
            for each in declaration.price
        ]
        yield from table(("item", "quantity", "price of one", "currency", "date", "market", "source"), rows)
        if claim.price:
            yield ""
            yield f"Together: {claim.price.amount} {claim.price.currency}."


def _packages(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items()) or "no packages told"


def _facts(*facts: tuple[str, str | None]) -> Iterator[str]:
    return (f"- {text(name)}: {text(value)}" for name, value in facts if value)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(text(each) for each in row)} |"
