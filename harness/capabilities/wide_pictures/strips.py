"""Draws strips as inline SVG. A strip has no text: the page stretches it to the width of its place, and writes its
labels beside it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from markupsafe import Markup

from mixmark.reporters.charts import Floats, PixelAxis, joined, stairs
from mixmark.reporters.document import Chart, Table, template

HUES = 6  # colours of suites in the style sheet
LANE = 100  # the height of a strip of a device: 1 for each percent of its time
ACROSS = 1000  # the width of a strip of power or of a rate
HATCH = 20  # the distance of the slats of a hatched bar


def drawing(title: str, macro: str, *values: object, table: Table | None = None) -> Chart:
    """A chart as wide as the page, made by a macro of pictures.jinja."""
    drawn = getattr(template("pictures.jinja", Path(__file__).parent).module, macro)(*values)
    return Chart(title, drawn, table=table, wide=True)


def lane(columns: Floats, window: tuple[float, ...]) -> Markup:
    """A strip of a device over time: the fractions of the suites fill each column of time from the bottom.

    columns: [suites, columns], fractions that add up to at most 1. window: the edges of the part that counts, as
    fractions of the width. Equal neighbouring columns become one rectangle, so that many feeds make no large page.
    """
    count = columns.shape[1]
    tops = np.round(LANE * (1 - np.cumsum(columns, axis=0))).astype(int)
    floors = np.concatenate((np.full((1, count), LANE), tops[:-1]))
    body = Markup("")
    for hue, (top, floor) in enumerate(zip(tops, floors, strict=True)):
        starts = np.flatnonzero(np.concatenate(([True], (np.diff(top) != 0) | (np.diff(floor) != 0))))
        stops = [*starts[1:].tolist(), count]
        drawn = "".join(
            f"M{start} {top[start]}h{stop - start}v{floor[start] - top[start]}h{start - stop}z"
            for start, stop in zip(starts.tolist(), stops, strict=True)
            if floor[start] > top[start]
        )
        if drawn:
            body += Markup('<path class="{}" d="{}"/>').format(hue_of(hue), drawn)
    return strip(count, LANE, body + _outside(window, count, LANE))


def curve(values: Floats, most: float, window: tuple[float, ...], mean: float | None, ticks: Iterable[float]) -> Markup:
    """A strip of a quantity over time, as steps with holes where it is unknown (NaN). Its axis goes from 0 to most.

    values: [blocks], evenly over the strip. mean: the mean of the window, drawn as a dotted line. ticks: the values of
    horizontal lines.
    """
    tall = PixelAxis(0, most, LANE, 0)
    step = ACROSS / len(values)
    edges = [block * step for block in range(len(values) + 1)]
    line, filled = stairs(edges, [tall(value) for value in values.tolist()], LANE)
    body = Markup('<path class="filled" d="{}"/>').format(filled)
    body += joined('<path class="grid" d="M0 {}H{}"/>', ((tall(value), ACROSS) for value in ticks))
    body += Markup('<path class="power" d="{}"/>').format(line)
    if mean is not None:
        first, last = (round(edge * ACROSS) for edge in window)
        body += Markup('<path class="overall" d="M{} {}H{}"/>').format(first, tall(mean), last)
    return strip(ACROSS, LANE, body + _outside(window, ACROSS, LANE))


def bar(
    value: float,
    interval: tuple[float, float] | None,
    limit: float | None,
    most: float,
    hue: int,
    hatched: bool = False,
) -> Markup:
    """A strip with a bar from 0 to the value, a whisker of its interval below, and a line at the limit. Its axis goes
    from 0 to most."""
    wide = PixelAxis(0, most, 0, ACROSS)
    end = wide(value)
    slats = [(start, min(start + HATCH / 2, end)) for start in np.arange(0, end, HATCH)] if hatched else [(0, end)]
    drawn = "".join(f"M{low:g} 2H{high:g}V12H{low:g}z" for low, high in slats)
    body = Markup('<path class="{}" d="{}"/>').format(hue_of(hue), drawn)
    if limit is not None and limit <= most:
        body += Markup('<path class="limit" d="M{0} 0V14"/>').format(wide(limit))
    if interval is not None:
        low, high = map(wide, interval)
        body += Markup('<path class="whisker" d="M{0} 16H{1}M{0} 13V19M{1} 13V19"/>').format(low, high)
    return strip(ACROSS, 20, body)


def hue_of(number: int) -> str:
    """The style sheet's class for the colour of a suite. Suites beyond the palette share the last colour."""
    return f"hue{min(number, HUES - 1)}"


def _outside(window: tuple[float, ...], width: int, height: int) -> Markup:
    """A veil over the time outside of the window that counts, and a line at each edge of the window."""
    begin, end = (round(edge * width, 1) for edge in window)
    sides = [(left, right) for left, right in ((0.0, begin), (end, float(width))) if right - left > 0]
    veil = joined('<path class="veil" d="M{0} 0H{1}V{2}H{0}z"/>', ((*side, height) for side in sides))
    inside = [(edge, height) for edge in (begin, end) if 0 < edge < width]
    return veil + joined('<path class="limit" d="M{} 0V{}"/>', inside)


def strip(width: int, height: int, body: Markup) -> Markup:
    return Markup(
        '<svg class="strip" aria-hidden="true" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(width, height, body)
