"""Results side by side as one page: it needs nothing else, runs no script, and fits a phone.

Quotient speeds are bars on a logarithmic scale around 1, so that twice as fast and half as fast are equally long, and
1.03 times as fast is nearly nothing. `page.jinja` is the page and its style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.judge.compare.machines import Machine, Quotient, SideBySide
from mixmark.harness.judge.score import Figure
from mixmark.reporters import figures
from mixmark.reporters.comparison import words
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.template import template

SCALES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""The factors by which the ends of the chart's scale may lie from 1; powers of ten beyond."""
IN_CARD = (
    *("processor", "devices", "memory", "MX", "TX", "time of a mix", "energy of a mix", "mix", "grade", "weights"),
    *("boundary", "tier, preset", "measured", "Mixmark", "folder"),
)
"""The rows of the machines' table that stand in a result's card, as far as the result has them."""


@dataclass(frozen=True)
class Bar:
    """From the middle of the scale to the figure, in percent of the scale's width."""

    left: float
    width: float
    slower: bool
    interval: tuple[float, float] | None
    """(left, width) of the interval. None: not known."""


@dataclass(frozen=True)
class Line:
    """A figure of one result."""

    label: str
    value: str
    detail: str
    relative: str
    bar: Bar | None
    """None for the baseline, and where nothing was compared."""


@dataclass(frozen=True)
class Group:
    """A figure of all results: MX, TX or a suite."""

    title: str
    lines: tuple[Line, ...]


def report(found: SideBySide) -> str:
    edge = _edge(found)
    facts = dict(words.machines(found))
    return PAGE.render(
        heading=words.heading(found),
        title=" and ".join(figures.name(one.cpu or one.name) for one in found.machines[:2]),
        cards=[
            (one, words.column(one), [(what, facts[what][at]) for what in IN_CARD if _known(facts.get(what), at)])
            for at, one in enumerate(found.machines)
        ],
        baseline=found.machines[0].label,
        edge=f"{edge:g}",
        groups=[*_scores(found, edge), *_suites(found, edge)],
        heads=words.VERDICTS,
        verdicts=list(words.verdicts(found)),
        delta=words.delta(found),
        lists=[("Remarks", words.remarks(found)), ("Not compared", words.uncompared(found))],
    )


def _known(values: list[str] | None, at: int) -> bool:
    return values is not None and values[at] != UNKNOWN


def _edge(found: SideBySide) -> float:
    """The factor at the ends of the scale: the least one that holds every ratio and its interval."""
    relatives = [*found.mixes_per_s, *found.mixes_per_kj, *(each.relative for row in found.rows for each in row.known)]
    factors = [
        max(value, 1 / value)
        for each in relatives
        if each is not None
        for value in (each.estimate, each.low, each.high)
        if value
    ]
    most = max(factors, default=1.0)
    return next((scale for scale in SCALES if most <= scale), 10.0 ** math.ceil(math.log10(most)))


def _scores(found: SideBySide, edge: float) -> Iterator[Group]:
    looks: Sequence[tuple[str, str, Sequence[Figure | None], Sequence[Quotient | None]]] = (
        ("MX, mixes per kilojoule", "mix/kJ", [one.mixes_per_kj for one in found.machines], found.mixes_per_kj),
        ("TX, mixes per second", "mix/s", [one.mixes_per_s for one in found.machines], found.mixes_per_s),
    )
    for title, unit, values, relatives in looks:
        if not any(values):
            continue
        lines = [
            _line(one.label, words.figure(value, unit), _conditions(one, unit), relative, edge, found.machines[0].label)
            for one, value, relative in zip(found.machines, values, relatives, strict=True)
            if value is not None
        ]
        yield Group(title, tuple(lines))


def _conditions(one: Machine, unit: str) -> str:
    """What a score holds for, and the same in a unit for people."""
    told = [one.mix or "", one.grade or "", f"{one.weight_class}-bit weights"]
    if unit == "mix/kJ":
        told += [f"{one.boundary}", f"{figures.significant(one.kj_per_mix or 0)} kJ a mix"]
    else:
        told.append(f"{figures.significant(one.s_per_mix or 0)} s a mix")
    return ", ".join(filter(None, told))


def _suites(found: SideBySide, edge: float) -> Iterator[Group]:
    for row in found.rows:
        baseline = found.machines[0].label
        lines = [
            _line(best.label, " ".join(words.rate(best, row)), words.route(best), best.relative, edge, baseline)
            for best in row.known
        ]
        yield Group(words.title(row, found.rows), tuple(lines))


def _line(label: str, value: str, detail: str, relative: Quotient | None, edge: float, baseline: str) -> Line:
    if relative is None:
        return Line(label, value, detail, "baseline" if label == baseline else "not compared", None)
    at = _place(relative.estimate, edge)
    interval = None
    if relative.low and relative.high:
        low, high = _place(relative.low, edge), _place(relative.high, edge)
        interval = (low, round(high - low, 2))
    bar = Bar(min(at, 50.0), round(abs(at - 50.0), 2), at < 50, interval)
    return Line(label, value, detail, words.relative(relative), bar)


def _place(ratio: float, edge: float) -> float:
    """Where a ratio lies on the scale: 0 at 1 / edge, 50 at 1, 100 at edge."""
    return round(50 + 50 * math.log(ratio) / math.log(edge), 2)


PAGE = template(Path(__file__).parent, "page.jinja")
