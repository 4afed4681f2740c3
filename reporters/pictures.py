"""The first two pictures of the page with their words: the mix over time, and the routes of each suite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.solo import Relative, Solo
from mixmark.reporters import charts, figures, scores
from mixmark.reporters.document import Chart, Table, drawing
from mixmark.reporters.timeline import Timeline, timelines

UNSTEADY = ("steady", "warning")  # the rule and the severity of the finding that a window was not steady
FULL_TINT = 10  # the ratio to the baseline, or its inverse, at which a cell of the matrix has the full tint


def power_title(boundary: str | None) -> str:
    return f"Power of the {boundary}" if boundary else "Power of what is metered"


@dataclass(frozen=True)
class Strip:
    """A row of the picture of a mix: a strip with its label and its value."""

    label: str
    value: str
    drawn: Markup
    lines: tuple[tuple[float, str], ...] = ()
    """(height in percent, label) of the horizontal lines."""


@dataclass(frozen=True)
class MixPicture:
    """A run of the mix over time, as the page shows it."""

    phase: str
    length: str
    suites: tuple[str, ...]
    power: Strip | None
    lanes: tuple[Strip, ...]
    """A strip for each device."""
    ticks: tuple[tuple[float, str], ...]
    """(place in percent, label) of the time axis."""
    other_level: Strip | None
    """The stretch of the window that ran at another level. None if the mix was steady, or too short to tell."""
    steadiness: str
    """Steady, or when the mix was not, how fast it ran then and what that cost."""
    veiled: bool
    """Whether feeds ran outside of the window that counts."""
    table: Table
    """The same as a table: a device, the part of the window that each suite took, and the rest."""


def drawn(assessment: Assessment) -> list[Chart]:
    """A chart for each run of the mix."""
    found = mixes(assessment)
    return [drawing("", "mix_over_time", mix, len(found) > 1, hues(assessment), table=mix.table) for mix in found]


def mixes(assessment: Assessment) -> list[MixPicture]:
    """One for each run of the mix. The run that the report's figures are of comes first."""
    return [_mix(timeline, assessment) for timeline in timelines(assessment)]


def _mix(timeline: Timeline, assessment: Assessment) -> MixPicture:
    run, names = timeline.run, figures.device_names(assessment.result)
    header = ("device", *map(figures.name, timeline.suites), "busy", "idle")
    rows = [
        (
            names[lane.device],
            *(figures.whole_percent(lane.fractions.get(suite, 0.0)) for suite in timeline.suites),
            figures.whole_percent(lane.busy),
            figures.whole_percent(max(0.0, 1 - lane.busy)),
        )
        for lane in timeline.lanes
    ]
    return MixPicture(
        phase=run.phase,
        length=figures.duration(run.length_ns),
        suites=tuple(timeline.suites),
        power=_power(timeline),
        lanes=tuple(
            Strip(
                names[lane.device],
                f"{figures.whole_percent(lane.busy)} busy",
                charts.lane(lane.columns, lane.edges, timeline.window),
            )
            for lane in timeline.lanes
        ),
        ticks=tuple(_ticks(timeline)),
        other_level=_other_level(timeline),
        steadiness=_steadiness(timeline, assessment),
        veiled=timeline.window != (0, 1),
        table=Table("Fractions of the window", header, rows),
    )


def _other_level(timeline: Timeline) -> Strip | None:
    run = timeline.run
    if run.stretch is None:
        return None
    length_ns = timeline.end_ns - timeline.begin_ns
    edges_ns = run.edges_ns[run.stretch.begin], run.edges_ns[run.stretch.end]
    begin, end = ((edge_ns - timeline.begin_ns) / length_ns for edge_ns in edges_ns)
    return Strip("another level", f"{figures.whole_percent(run.stretch.relative)} of the rest", charts.span(begin, end))


def _steadiness(timeline: Timeline, assessment: Assessment) -> str:
    for finding in assessment.findings:
        if (finding.rule, finding.about) == ("steady", timeline.run.phase):
            return words(finding)
    return scores.STEADINESS[timeline.run.steady]


def _power(timeline: Timeline) -> Strip | None:
    known = timeline.watts[np.isfinite(timeline.watts)]
    if not len(known):
        return None
    axis, mean = charts.PixelAxis(0, max(float(known.max()), 1e-3) * charts.HEADROOM, 100, 0), timeline.run.total.watts
    ticks = [(value, label) for value, label in axis.ticks(2) if value]
    low, high = (figures.prefixed(float(value), "W") for value in (known.min(), known.max()))
    return Strip(
        label=power_title(timeline.run.total.boundary),
        value=f"{low} to {high}" if mean is None else f"{figures.prefixed(mean, 'W')} on average",
        drawn=charts.curve(timeline.watts, axis.high, timeline.window, mean, [value for value, _ in ticks]),
        lines=tuple((axis(value), f"{label} W") for value, label in ticks),
    )


def _ticks(timeline: Timeline) -> Iterator[tuple[float, str]]:
    """(place in percent, label) of round times since the window began."""
    unit, unit_ns = charts.time_unit(timeline.run.length_ns)
    begin, end = ((edge_ns - timeline.run.begin_ns) / unit_ns for edge_ns in (timeline.begin_ns, timeline.end_ns))
    axis = charts.PixelAxis(begin, end, 0, 100)
    return ((axis(value), f"{label} {unit}") for value, label in axis.ticks(6))


def hues(assessment: Assessment) -> dict[str, int]:
    """The number of each suite's colour in all pictures of the page. The suites of the mix come first."""
    mix = assessment.result.mix
    suites = [
        *(mix.units if mix else ()),
        *(row.route.suite for row in (*assessment.solos, *assessment.hosted)),
    ]
    return {suite: number for number, suite in enumerate(dict.fromkeys(suites))}


@dataclass(frozen=True)
class Bar:
    """A bar with its texts: a route in the picture of its suite, or a run of the mix."""

    label: str
    rate: str
    """The throughput. Without a throughput that counts: the status."""
    detail: str
    """The interval, the number of runs, and the speed relative to the best route of the suite."""
    drawn: Markup | None
    """None if no throughput counts."""
    href: str = ""
    """The id of the place on the page that has more of it. Empty if there is none."""


def suites(assessment: Assessment) -> list[tuple[str, list[Bar]]]:
    """(suite, its routes), the fastest route first; routes without a figure come last."""
    names, colours = figures.device_names(assessment.result), hues(assessment)
    unsteady = {finding.about for finding in assessment.findings if (finding.rule, finding.severity) == UNSTEADY}
    grouped: dict[str, list[Solo]] = {}
    for row in assessment.solos:
        grouped.setdefault(row.route.suite, []).append(row)
    found = []
    for suite, rows in grouped.items():
        best_per_s = max(map(_counted, rows))
        most_per_s = max((max(_drawn(row).ends[1], _limit(row) or 0.0) for row in rows), default=0.0)
        scale = Scale(best_per_s, most_per_s, colours[suite])
        ranked = sorted(rows, key=lambda row: (_counted(row), _drawn(row).estimate), reverse=True)
        found.append((suite, [_bar(row, scale, names, row.key in unsteady) for row in ranked]))
    return found


def routes(assessment: Assessment) -> Chart:
    return drawing(
        "",
        "bars",
        "Throughputs, on a scale from zero for each suite. A line marks the roofline: what the device allows by its "
        "probes. Whiskers are 95 % intervals. Hatched routes had only a quick check of seconds.",
        suites(assessment),
    )


@dataclass(frozen=True)
class Scale:
    """What the bars of one suite have in common."""

    best_per_s: float
    """The throughput of the fastest measured route; 0: none was measured."""
    most_per_s: float
    """The end of the axis."""
    hue: int


NOTHING = Estimate(0.0)


def _counted(row: Solo) -> float:
    """The rate of a measured route, or 0."""
    return row.speed if row.stands else 0.0


def _drawn(row: Solo) -> Estimate:
    """The rate that is drawn: of a measured route, or of screening runs."""
    return row.units_per_s or NOTHING if row.stands or row.status == "screened" else NOTHING


def _limit(row: Solo) -> float | None:
    """The throughput at the roofline of a measured route. None if not known."""
    return _counted(row) / row.roofline_fraction if row.roofline_fraction else None


def _bar(row: Solo, scale: Scale, names: dict[str, str], unsteady: bool) -> Bar:
    route, (rate, *details) = row.route, figures.throughput(row)
    device = [names[route.device]] if len(names) > 1 else []
    label = " · ".join([*device, figures.name(route.adapter), route.precision, figures.scenario(row)])
    href = "missing" if row.feeds is None else row.key
    value = _drawn(row).estimate
    if not value:
        why = [row.failure.kind] if row.failure and row.failure.kind != rate else []
        return Bar(label, rate, ", ".join([*why, *details]), None, href)
    interval, limit = None, _limit(row)
    if row.status == "screened":
        drawn = charts.bar(value, None, None, scale.most_per_s, scale.hue, hatched=True)
        return Bar(label, details[0], ", ".join([rate, *details[1:]]), drawn, href)
    if _drawn(row).half_width is not None:
        interval = max(0.0, _drawn(row).ends[0]), _drawn(row).ends[1]
    elif row.runs == 1:
        details = ["not steady, no interval" if unsteady else "interval not known", *details]
    if value < scale.best_per_s:
        details = [*details, f"{figures.whole_percent(value / scale.best_per_s)} of the best"]
    drawn = charts.bar(value, interval, limit, scale.most_per_s, scale.hue)
    return Bar(label, rate, ", ".join(details), drawn, href)


def tint(relative: Relative) -> float:
    """The tint of a cell of the matrix: 0 at the baseline's speed, 1 at FULL_TINT times as fast, -1 at as many times as
    slow. The scale is logarithmic and the same in every report, so 1.03 times as fast is hardly visible."""
    if not relative.ratio:
        return 0.0
    return round(max(-1.0, min(1.0, math.log(relative.ratio) / math.log(FULL_TINT))), 2)
