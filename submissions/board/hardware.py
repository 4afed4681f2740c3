"""The pages of processors and accelerators: all entries with one, over all boards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mixmark.reporters import figures
from mixmark.submissions.board import row
from mixmark.submissions.entry import Entry, slug

INDEX = "hardware.html"


@dataclass(frozen=True)
class Processor:
    """A processor or accelerator, and the entries that have it."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def page(self) -> str:
        """The address of its page below the root of the site."""
        return page_of(self.name)


def page_of(name: str) -> str:
    """The address of the page of a processor below the root of the site. Empty: no page can have its name."""
    return f"hardware/{slug(name)}.html" if slug(name) else ""


def processors(entries: Iterable[Entry]) -> list[Processor]:
    """All processors by name. Names that differ only in signs and case are one."""
    found: dict[str, tuple[str, list[Entry]]] = {}
    for entry in entries:
        pages = {page_of(name): name for name in sorted(row.processors(entry)) if page_of(name)}
        for page, name in pages.items():
            found.setdefault(page, (name, []))[1].append(entry)
    return sorted((Processor(name, _ordered(of)) for name, of in found.values()), key=lambda each: each.name.lower())


def _ordered(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of a mix and weight class together, the fastest first."""
    return tuple(
        sorted(entries, key=lambda each: (each.mix, -each.weight_class, -each.mixes_per_hour.estimate, each.path))
    )


def facts(processor: Processor) -> dict[str, Any]:
    """The variables of the template of a processor's page."""
    alone = [row.fastest(entry, processor.name) for entry in processor.entries]
    units = {suite: solo.names.short for of_entry in alone for suite, solo in of_entry.items()}
    suites = sorted(units.items())[: row.SUITES]
    return {
        "heading": processor.name,
        "description": f"{figures.counted(len(processor.entries), 'entry')} of machines with {processor.name}.",
        "suites": suites,
        "lines": [_line(entry, suites, processor.name) for entry in processor.entries],
    }


def _line(entry: Entry, suites: Sequence[tuple[str, str]], processor: str) -> dict[str, Any]:
    alone = row.fastest(entry, processor)
    return {
        "href": row.page_of(entry),
        "system": entry.declaration.system,
        "of": f"{entry.declaration.organisation} · {row.hardware(entry)}",
        "mix": f"{entry.mix}, {entry.weight_class} bit",
        "class": f"{entry.grade}, {entry.division}, {entry.tuning}",
        "per_hour": figures.estimate(entry.mixes_per_hour),
        "per_kwh": f"{figures.number(entry.mixes_per_kwh)} ({entry.boundary})"
        if entry.mixes_per_kwh
        else figures.UNKNOWN,
        "rates": [row.rate(alone.get(suite)) for suite, _ in suites],
        "measured": row.measured(entry),
    }
