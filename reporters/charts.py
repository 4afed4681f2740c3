"""Draws charts as inline SVG: numbers in, markup out. Colours and type belong to the style sheet of the page.

A chart keeps its proportions, picks the unit of its time axis, and has a title and a description for screen readers.
Names and units may come from any file, so `Markup.format` escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from mixmark.harness.contracts.schema import Int64s
from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 360, 180  # px: the width of a phone's screen, so that the type is never scaled down there
RIGHT, BOTTOM, ROW = 14, 40, 15  # px: two margins, and the height of a row of labels
FLOOR, TOP = HEIGHT - BOTTOM, 2 * ROW  # px: the ends of the vertical axis of `over_time`
LETTER = 6.2  # px: slightly more than the width of a letter in the style sheet's 11 px type
FEWEST = 20  # values of a histogram: bins of two or three values show nothing
MOST_BINS = 48
LOGARITHMIC_FROM = 20  # the ratio of the largest to the smallest value from which an axis is logarithmic
HEADROOM = 1.08  # the end of a vertical axis, as a multiple of the largest value
NARROWEST = (
    0.01  # the least span of an axis as a fraction of the largest value: noise of 1 ns would fill a narrower one
)


@dataclass(frozen=True)
class PixelAxis:
    """Maps values to pixels."""

    low: float
    high: float
    start_px: float
    end_px: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.start_px + (value - low) / (high - low) * (self.end_px - self.start_px), 1)

    def ticks(self, about: int) -> list[tuple[float, str]]:
        """(value, label)."""
        if self.logarithmic:
            return [(value, f"{value:,.12g}") for value in decades(self.low, self.high)]
        return steps(self.low, self.high, about)


def steps(low: float, high: float, about: int) -> list[tuple[float, str]]:
    """(value, label) of at most `about` + 1 values in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / about
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(count * step, f"{count * step:,.{decimals}f}") for count in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten in [low, high]; only the powers if they are more than three."""
    factors = (1, 2, 5) if high <= low * 1000 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [value for value in values if low <= value <= high]


def over_time(
    key: str,
    title: str,
    edges_ns: Int64s,
    per_s: Floats,
    *,
    unit: str,
    text: Callable[[float], str],
    mean_per_s: float,
    stretch_ns: tuple[int, ...] = (),
) -> Markup:
    """A rate in blocks of time, as steps. The axis starts at zero.

    edges_ns: [blocks + 1] since the first feed. per_s: [blocks]. text: writes a rate with its unit. mean_per_s: of a
    dotted line. stretch_ns: the ends of a stretch at another level. Empty if there is none.
    """
    low, high = float(per_s.min()), float(per_s.max())
    time, time_ns = time_unit(int(edges_ns[-1]))
    tall = PixelAxis(0, max(high, mean_per_s, 1e-3) * HEADROOM, FLOOR, TOP)
    left, right = _left_margin(tall.ticks(5)), WIDTH - RIGHT
    wide = PixelAxis(0, edges_ns[-1] / time_ns, left, right)
    line, filled = stairs([wide(edge) for edge in edges_ns / time_ns], [tall(value) for value in per_s], FLOOR)
    overall = f"overall {text(mean_per_s)}"
    body, description = _across(tall, left), f"{len(per_s)} blocks, from {text(low)} to {text(high)}; {overall}"
    if stretch_ns:
        begin, end = (wide(edge_ns / time_ns) for edge_ns in stretch_ns)
        size = round(end - begin, 1), FLOOR - TOP
        body += Markup('<rect class="band" x="{}" y="{}" width="{}" height="{}"/>').format(begin, TOP, *size)
        body += _text("word", begin + 6, FLOOR - 8, "another level")
        description += f"; another level from {' to '.join(map(figures.duration, stretch_ns))}"
    body += Markup('<path class="area" d="{}"/><path class="line" d="{}"/>').format(filled, line)
    body += Markup('<path class="overall" d="M{} {}H{}"/>').format(left, tall(mean_per_s), right)
    body += _text("value end", right, ROW, overall)
    body += _text("name", left, ROW, unit) + _below(wide, f"{time} since the first feed")
    return _svg(key, title, f"{description}.", body)


def stairs(edges: Sequence[float], tops: Sequence[float], floor: int) -> tuple[str, str]:
    """(the path of the steps, the path of the area below them), in pixels. Both have holes where a top is NaN."""
    line, area, drawing = "", "", False
    for begin, end, top in zip(edges[:-1], edges[1:], tops, strict=True):
        if math.isfinite(top):
            line += (f"V{top:g}" if drawing else f"M{begin:g} {top:g}") + f"H{end:g}"
            area += (f"V{top:g}" if drawing else f"M{begin:g} {floor}V{top:g}") + f"H{end:g}"
        elif drawing:
            area += f"V{floor}z"
        drawing = math.isfinite(top)
    return line, area + (f"V{floor}z" if drawing else "")


def distribution(key: str, values_ns: Int64s, percentiles: Sequence[tuple[str, int]], title: str) -> Markup:
    """The distribution of a time of feeds, as a histogram.

    percentiles: (name, ns), marked and labelled. The axis is logarithmic if the values span more than LOGARITHMIC_FROM.
    """
    least, most = int(values_ns.min()), int(values_ns.max())
    logarithmic = 0 < least * LOGARITHMIC_FROM < most
    time, time_ns = time_unit(math.sqrt(least * most) if logarithmic else most)
    values = values_ns / time_ns
    low, high = _domain(float(values.min()), float(values.max()), logarithmic)
    counts, edges = np.histogram(values, _bins(low, high, len(values), logarithmic))
    scale = [tick for tick in steps(0, float(counts.max()), 3) if tick[0] == round(tick[0])]
    left = _left_margin(scale)
    wide = PixelAxis(low, high, left, WIDTH - RIGHT, logarithmic)
    labels = [(wide(value / time_ns), f"{name} {figures.duration(value)}") for name, value in percentiles]
    rows = _rows(labels, taken_px=left + len("feeds") * LETTER)
    tall = PixelAxis(0, float(counts.max()), FLOOR, (max(rows, default=0) + 1) * ROW + 10)
    bars = "".join(
        f"M{wide(start)} {FLOOR}V{tall(count)}H{wide(end)}V{FLOOR}Z"
        for count, start, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if count
    )
    body = _across(tall, left, scale) + Markup('<path class="bars" d="{}"/>').format(bars)
    body += _text("name", left, ROW, "feeds")
    body += joined(
        '<path class="mark" d="M{} {}V{}"/>',
        ((x, row * ROW + 6, FLOOR) for (x, _), row in zip(labels, rows, strict=True)),
    )
    for (x, label), row in zip(labels, rows, strict=True):
        flipped = _flipped(x, label)
        body += _text("value end" if flipped else "value", x - 5 if flipped else x + 5, (row + 1) * ROW, label)
    body += _below(wide, f"{time}, logarithmic" if logarithmic else time)
    marked = "; ".join(label for _, label in labels) or "no percentile"
    description = f"{len(values)} feeds from {figures.duration(least)} to {figures.duration(most)}; {marked}."
    return _svg(key, title, description, body)


def time_unit(typical_ns: float) -> tuple[str, float]:
    """(name, length in ns) of the unit for a time of this size."""
    units = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))
    return next(((name, size) for name, size in units if typical_ns >= size), ("ns", 1.0))


def _domain(least: float, most: float, logarithmic: bool) -> tuple[float, float]:
    """The ends of an axis: slightly beyond the values."""
    if logarithmic:
        return least / 1.1, most * 1.1
    missing = max(0.0, (most or 1) * NARROWEST - (most - least)) / 2
    margin = (most - least) * 0.02 + missing
    return max(0.0, least - margin), most + margin


def _bins(low: float, high: float, values: int, logarithmic: bool) -> Floats:
    """The edges of 2 n^(1/3) bins: Rice's rule."""
    bins = min(MOST_BINS, math.ceil(2 * values ** (1 / 3)))
    return np.geomspace(low, high, bins + 1) if logarithmic else np.linspace(low, high, bins + 1)


def _flipped(x: float, label: str) -> bool:
    """Whether a label stands to the left of its line, since it would leave the chart on the right."""
    return x + 5 + len(label) * LETTER > WIDTH


def _rows(labels: Iterable[tuple[float, str]], taken_px: float) -> list[int]:
    """The highest row for each label where it covers no other label. The labels come from left to right."""
    ends = [taken_px]
    rows = []
    for x, label in labels:
        width = len(label) * LETTER + 5
        start = x - width if _flipped(x, label) else x
        row = next((index for index, end in enumerate(ends) if end < start), len(ends))
        ends[row : row + 1] = [start + width + LETTER]
        rows.append(row)
    return rows


def _left_margin(ticks: Iterable[tuple[float, str]]) -> int:
    return 14 + math.ceil(max((len(label) for _, label in ticks), default=0) * LETTER)


def _across(tall: PixelAxis, left: float, ticks: Iterable[tuple[float, str]] | None = None) -> Markup:
    """Horizontal lines behind a chart at the ticks, labelled on the left. ticks: about five round values by default."""
    ticks = tall.ticks(5) if ticks is None else list(ticks)
    lines = joined('<path class="grid" d="M{} {}H{}"/>', ((left, tall(value), WIDTH - RIGHT) for value, _ in ticks))
    return lines + Markup("").join(_text("tick end", left - 8, tall(value) + 4, label) for value, label in ticks)


def _below(wide: PixelAxis, name: str) -> Markup:
    """The time axis below a chart, with its name."""
    ticks = [(wide(value), label) for value, label in wide.ticks(5)]
    axis = Markup('<path class="axis" d="M{} {}H{}"/>').format(wide.start_px, FLOOR, wide.end_px)
    axis += joined('<path class="axis" d="M{} {}v4"/>', ((x, FLOOR) for x, _ in ticks))
    axis += Markup("").join(_text("tick middle", x, FLOOR + 17, label) for x, label in ticks)
    return axis + _text("name middle", (wide.start_px + wide.end_px) / 2, HEIGHT - 5, name)


def joined(markup: str, rows: Iterable[tuple[float, ...]]) -> Markup:
    return Markup("").join(Markup(markup).format(*row) for row in rows)


def _text(kind: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, round(x, 1), round(y, 1), plain(text))


def _svg(key: str, title: str, description: str, body: Markup) -> Markup:
    """key: a text that is unique on the page and safe as an id."""
    return Markup(
        '<svg role="img" viewBox="0 0 {0} {1}" aria-labelledby="{2}-t {2}-d">'
        '<title id="{2}-t">{3}</title><desc id="{2}-d">{4}</desc>{5}</svg>'
    ).format(WIDTH, HEIGHT, key, plain(title), plain(description), body)
