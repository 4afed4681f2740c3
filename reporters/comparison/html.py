"""Results side by side as one HTML page, without scripts or other files; it fits a phone.

Relative speeds are bars on a logarithmic scale around 1: twice as fast and half as fast have bars of equal length, and
1.03 times as fast is hardly visible. `page.jinja` is the page with its style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.judge.compare.machines import ComparedMachine, MachineComparison
from mixmark.reporters import figures
from mixmark.reporters.charts import PixelAxis
from mixmark.reporters.comparison import words
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.template import template

SCALES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""The factors at the ends of the chart's scale; beyond the last one, powers of ten."""
IN_CARD = (
    *("processor", "devices", "memory", "MX", "TX", "time of a mix", "energy of a mix", "mix", "grade", "weights"),
    *("boundary", "tier, preset", "measured", "Mixmark", "folder"),
)
"""The rows of the machines' table that a result's card shows; unknown ones are left out."""


@dataclass(frozen=True)
class Bar:
    """A bar from the middle of the scale to a figure, in percent of the scale's width."""

    left: float
    width: float
    slower: bool
    interval: tuple[float, float] | None
    """(left, width) of the interval. None: not known."""


@dataclass(frozen=True)
class ResultLine:
    """A figure of one result: its value, the conditions, the relative value and its bar."""

    label: str
    value: str
    detail: str
    relative: str
    bar: Bar | None
    """None: this is the baseline, or the figure was not compared."""


@dataclass(frozen=True)
class Group:
    """A figure of all results: MX, TX or a suite."""

    title: str
    lines: tuple[ResultLine, ...]


def report(found: MachineComparison) -> str:
    edge = _edge(found)
    facts = dict(words.machines(found))
    return PAGE.render(
        heading=words.heading(found),
        title=" and ".join(figures.name(machine.cpu_model or machine.name) for machine in found.machines[:2]),
        cards=[
            (
                machine,
                words.column(machine),
                [(name, facts[name][index]) for name in IN_CARD if name in facts and facts[name][index] != UNKNOWN],
            )
            for index, machine in enumerate(found.machines)
        ],
        baseline=found.machines[0].label,
        edge=f"{edge:g}",
        groups=[*_scores(found, edge), *_suites(found, edge)],
        verdicts=list(words.verdicts(found)),
        delta=words.delta(found),
        lists=[("Remarks", words.remarks(found)), ("Not compared", words.uncompared(found))],
    )


def _edge(found: MachineComparison) -> float:
    """The factor at the ends of the scale: the least that holds every ratio and its interval."""
    relatives = [
        *found.mixes_per_hour,
        *found.mixes_per_kwh,
        *(best.relative for row in found.rows for best in row.known),
    ]
    factors = [
        max(value, 1 / value)
        for ratio in relatives
        if ratio is not None
        for value in (ratio.estimate, ratio.low, ratio.high)
        if value
    ]
    most = max(factors, default=1.0)
    return next((scale for scale in SCALES if most <= scale), 10.0 ** math.ceil(math.log10(most)))


def _scores(found: MachineComparison, edge: float) -> Iterator[Group]:
    baseline = found.machines[0].label
    scores: Sequence[tuple[str, str, Sequence[Estimate | None], Sequence[Estimate | None]]] = (
        ("MX, mixes per kWh", "mix/kWh", [machine.mixes_per_kwh for machine in found.machines], found.mixes_per_kwh),
        ("TX, mixes per hour", "mix/h", [machine.mixes_per_hour for machine in found.machines], found.mixes_per_hour),
    )
    for title, unit, values, relatives in scores:
        if any(values):
            lines = [
                _line(machine.label, words.figure(value, unit), _conditions(machine, unit), relative, edge, baseline)
                for machine, value, relative in zip(found.machines, values, relatives, strict=True)
                if value is not None
            ]
            yield Group(title, tuple(lines))


def _conditions(machine: ComparedMachine, unit: str) -> str:
    """The conditions of a score, and the time or the energy of one mix."""
    conditions = [machine.mix or "", machine.grade or "", f"{machine.weight_class}-bit weights"]
    if unit == "mix/kWh":
        conditions += [f"{machine.boundary}", f"{figures.significant(machine.kj_per_mix or 0)} kJ a mix"]
    else:
        conditions.append(f"{figures.significant(machine.s_per_mix or 0)} s a mix")
    return ", ".join(filter(None, conditions))


def _suites(found: MachineComparison, edge: float) -> Iterator[Group]:
    baseline = found.machines[0].label
    for row in found.rows:
        lines = [
            _line(best.label, words.rate(best), words.route(best), best.relative, edge, baseline) for best in row.known
        ]
        yield Group(words.title(row, found.rows), tuple(lines))


def _line(label: str, value: str, detail: str, relative: Estimate | None, edge: float, baseline: str) -> ResultLine:
    if relative is None:
        return ResultLine(label, value, detail, "baseline" if label == baseline else "not compared", None)
    axis = PixelAxis(1 / edge, edge, 0, 100, logarithmic=True)
    end = axis(relative.estimate)
    interval = None
    if relative.low and relative.high:
        low, high = axis(relative.low), axis(relative.high)
        interval = (low, round(high - low, 1))
    bar = Bar(min(end, 50.0), round(abs(end - 50.0), 1), end < 50, interval)
    return ResultLine(label, value, detail, words.relative(relative), bar)


PAGE = template(Path(__file__).parent, "page.jinja")
