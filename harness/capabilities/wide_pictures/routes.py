"""The routes of each suite as bars with their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from mixmark.harness.capabilities.wide_pictures.strips import bar, drawing
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import figures
from mixmark.reporters.document import Chart

UNSTEADY = ("steady", "warning")  # the rule and the severity of the finding that a window was not steady


def hues(assessment: Assessment) -> dict[str, int]:
    """The number of each suite's colour in all pictures of the page. The suites of the mix come first."""
    mix = assessment.result.mix
    suites = [*(mix.units if mix else ()), *(row.route.suite for row in (*assessment.solos, *assessment.hosted))]
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


def routes(assessment: Assessment) -> Iterator[Chart]:
    yield drawing(
        "",
        "bars",
        "Throughputs, on a scale from zero for each suite. A line marks the roofline: what the device allows by its "
        "best probe. Whiskers are 95 % intervals. Hatched routes had only a quick check of seconds.",
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
        drawn = bar(value, None, None, scale.most_per_s, scale.hue, hatched=True)
        return Bar(label, details[0], ", ".join([rate, *details[1:]]), drawn, href)
    if _drawn(row).half_width is not None:
        interval = max(0.0, _drawn(row).ends[0]), _drawn(row).ends[1]
    elif row.runs == 1:
        details = ["not steady, no interval" if unsteady else "interval not known", *details]
    if value < scale.best_per_s:
        details = [*details, f"{figures.whole_percent(value / scale.best_per_s)} of the best"]
    drawn = bar(value, interval, limit, scale.most_per_s, scale.hue)
    return Bar(label, rate, ", ".join(details), drawn, href)
