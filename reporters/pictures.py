"""The two pictures that come first on the page, with their words: the mix over time, and the suites side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.rows import Relative, Row
from mixmark.reporters import charts, figures, scores
from mixmark.reporters.timeline import Timeline, timelines

HOTTEST = 10  # times as fast as the baseline, or as slow: the full tint, on a scale that is the same in every report


def powered(boundary: str | None) -> str:
    return f"Power of the {boundary}" if boundary else "Power of what is metered"


@dataclass(frozen=True)
class Strip:
    """A row of a timeline."""

    label: str
    value: str
    drawn: Markup
    lines: tuple[tuple[float, str], ...] = ()
    """(height as a percent, label) of the lines across it."""


@dataclass(frozen=True)
class Mix:
    """A run of the mix over time as the page shows it."""

    phase: str
    length: str
    suites: tuple[str, ...]
    power: Strip | None
    lanes: tuple[Strip, ...]
    ticks: tuple[tuple[float, str], ...]
    """(place as a percent, label) of the time axis."""
    pace: Strip | None
    """When the mix went at another pace, where it was not steady."""
    said: str
    """Whether it was steady; where it was not: when, how slow it went, and what that cost."""
    veiled: bool
    """Whether something was under way outside of the window that counts."""
    told: str
    """What the picture shows, for those who do not see it."""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """A device, what each suite took of the window, and the rest."""


def mixes(judgement: Judgement) -> list[Mix]:
    """One for each run of the mix, the one that the figures are of first."""
    return [_mix(each, judgement) for each in timelines(judgement)]


def _mix(seen: Timeline, judgement: Judgement) -> Mix:
    result = judgement.result
    run, names = seen.run, figures.device_names(result)
    length = figures.duration(run.length_ns)
    lanes = tuple(
        Strip(
            names[each.device], f"{figures.share(each.busy)} busy", charts.lane(each.columns, each.edges, seen.window)
        )
        for each in seen.lanes
    )
    rows = tuple(
        (
            names[each.device],
            *(figures.share(each.shares.get(suite, 0.0)) for suite in seen.suites),
            figures.share(each.busy),
            figures.share(max(0.0, 1 - each.busy)),
        )
        for each in seen.lanes
    )
    power = _power_strip(seen)
    told = "; ".join(
        f"{names[each.device]} was busy for {figures.share(each.busy)} of the window"
        + (f" ({', '.join(f'{figures.name(suite)} {figures.share(part)}' for suite, part in each.shares.items())})")
        * bool(each.shares)
        for each in seen.lanes
    )
    return Mix(
        phase=run.phase,
        length=length,
        suites=tuple(seen.suites),
        power=power,
        lanes=lanes,
        ticks=tuple(_ticks(seen)),
        pace=_pace(seen),
        said=_steadiness(seen, judgement),
        veiled=seen.window != (0, 1),
        told=f"{told}." + (f" {power.label}: {power.value}." if power else ""),
        header=("device", *map(figures.name, seen.suites), "busy", "idle"),
        rows=rows,
    )


def _pace(seen: Timeline) -> Strip | None:
    run = seen.run
    if run.stretch is None:
        return None
    length_ns = seen.end_ns - seen.begin_ns
    begin, end = ((run.edges_ns[at] - seen.begin_ns) / length_ns for at in (run.stretch.begin, run.stretch.end))
    return Strip("at another pace", f"{figures.share(run.stretch.relative)} of the rest", charts.span(begin, end))


def _steadiness(seen: Timeline, judgement: Judgement) -> str:
    for finding in judgement.findings:
        if (finding.rule, finding.about) == ("steady", seen.run.phase):
            return finding.message
    return scores.STEADINESS[seen.run.steady]


def _power_strip(seen: Timeline) -> Strip | None:
    known = seen.watts[np.isfinite(seen.watts)]
    if not len(known):
        return None
    most = max(float(known.max()), 1e-3) * 1.08
    ticks = [(value, label) for value, label in charts.steps(0, most, 2) if value]
    mean = seen.run.total.watts
    low, high = (figures.prefixed(float(each), "W") for each in (known.min(), known.max()))
    return Strip(
        label=powered(seen.run.total.boundary),
        value=f"{low} to {high}" if mean is None else f"{figures.prefixed(mean, 'W')} on average",
        drawn=charts.curve(seen.watts, most, seen.window, mean, [value for value, _ in ticks]),
        lines=tuple((round(100 * (1 - value / most), 1), f"{label} W") for value, label in ticks),
    )


def _ticks(seen: Timeline) -> Iterator[tuple[float, str]]:
    """Times since the window began."""
    unit, unit_ns = charts.time_unit(seen.run.length_ns)
    length_ns = seen.end_ns - seen.begin_ns
    low, high = (seen.begin_ns - seen.run.begin_ns) / unit_ns, (seen.end_ns - seen.run.begin_ns) / unit_ns
    for value, label in charts.steps(low, high, 6):
        yield round(100 * (value * unit_ns + seen.run.begin_ns - seen.begin_ns) / length_ns, 1), f"{label} {unit}"


def hues(judgement: Judgement) -> dict[str, int]:
    """The number of each suite's colour, the same in all pictures of the page: those of the mix come first."""
    mix = judgement.result.mix
    suites = [*(mix.units if mix else ()), *(row.record.route.suite for row in (*judgement.cells, *judgement.hosted))]
    return {suite: number for number, suite in enumerate(dict.fromkeys(suites))}


@dataclass(frozen=True)
class Bar:
    """A cell in the chart of all suites."""

    label: str
    rate: str
    """Why there is none, where there is none."""
    said: str
    """Its interval, the runs that it is of, and how it compares with the best route of its suite."""
    drawn: Markup | None
    state: str
    """`ok`, or why it has no bar."""
    href: str


def suites(judgement: Judgement) -> list[tuple[str, list[Bar]]]:
    """(suite, its cells) of the chart of all suites, with the fastest first; what has no figure comes last."""
    names = figures.device_names(judgement.result)
    colours = hues(judgement)
    unsteady = {each.about for each in judgement.findings if each.rule == "steady" and each.severity == "warning"}
    grouped: dict[str, list[Row]] = {}
    for row in judgement.cells:
        grouped.setdefault(row.record.route.suite, []).append(row)
    best = {suite: max((_counted(row) for row in rows), default=0.0) for suite, rows in grouped.items()}
    widest = max(
        (
            _counted(row) * (1 + (row.half_width or 0)) / best[suite]
            for suite, rows in grouped.items()
            for row in rows
            if best[suite]
        ),
        default=1.0,
    )
    return [
        (
            suite,
            [
                _bar(row, best[suite], max(widest, 1.0), colours[suite], names, row.record.key in unsteady)
                for row in sorted(rows, key=_counted, reverse=True)
            ],
        )
        for suite, rows in grouped.items()
    ]


def _counted(row: Row) -> float:
    return row.throughput_per_s or 0.0 if row.status == "ok" else 0.0


def _bar(row: Row, best_per_s: float, most: float, hue: int, names: dict[str, str], unsteady: bool) -> Bar:
    route, (rate, *rest) = row.record.route, figures.throughput(row)
    device = [names[route.device]] if len(names) > 1 else []
    parts = [*device, figures.name(route.adapter), route.precision, figures.work(row.record)]
    href = "missing" if row.record.completions is None else row.record.key
    if not _counted(row):
        why = [row.record.error.kind] if row.record.error and row.record.error.kind != rate else []
        return Bar(" · ".join(parts), rate, ", ".join([*why, *rest]), None, row.status, href)
    value = _counted(row) / best_per_s
    interval = None
    if row.half_width is not None:
        interval = max(0.0, value * (1 - row.half_width)), value * (1 + row.half_width)
    elif row.runs == 1:
        rest = ["not steady, no interval" if unsteady else "interval not known", *rest]
    relative = [figures.share(value)] if value < 1 else []
    return Bar(
        " · ".join(parts),
        rate,
        ", ".join([*rest, *(f"{each} of the best" for each in relative)]),
        charts.bar(value, interval, most, hue),
        row.status,
        href,
    )


def tint(relative: Relative) -> int:
    """How strong the colour of a cell of the matrix is, in percent: 0 at the baseline's speed, 100 at HOTTEST times as
    fast or as slow. The scale is logarithmic and the same in every report, so 1.03 times hardly shows."""
    if not relative.ratio:
        return 0
    return round(100 * min(1.0, abs(math.log(relative.ratio)) / math.log(HOTTEST)))
