"""Charts as inline SVG: numbers in, markup out. Colours and type belong to the style sheet of the page.

There are two sorts. A chart of a measurement keeps its proportions, picks the unit of its time axis, and says what it
shows in a title and a description, for those who do not see it. A strip (`lane`, `curve`, `bar`) is marks without any
text: it is stretched to the width of its place in the page, and the page writes beside it what it shows. Names and
units may come from any file: `Markup.format` escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from mixmark.harness.contracts.schema import Int64s
from mixmark.harness.contracts.text import plain
from mixmark.reporters import figures

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 360, 180  # px: as wide as a telephone leaves room for, so that the type is never scaled down there
RIGHT, BOTTOM, ROW = 14, 40, 15  # px: two margins, and the height of a row of labels
LETTER = 6.2  # px: a little more than a letter of the style sheet's 11 px type is wide
FEW = 20  # below that each value is drawn for itself: bins of two or three say nothing
MOST_BINS = 48
HUES = 6  # of the palette of suites in the style sheet
LOGARITHMIC_FROM = 20  # times that the largest value exceeds the smallest
LANE = 100  # the height of a strip that shows a device: a percent of its time each
ACROSS = 1000  # the width of a strip that shows power or a rate
NARROWEST = 0.01  # of the largest value: an axis spans at least this, or noise of a nanosecond would fill it


@dataclass(frozen=True)
class Axis:
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
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], at most `about` + 1 of them, with labels."""
    least = (high - low) / about
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(count * step, f"{count * step:,.{decimals}f}") for count in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within [low, high]; the powers alone where they are more than three."""
    factors = (1, 2, 5) if high <= low * 1000 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for each in exponents for factor in factors if low <= (value := factor * 10.0**each) <= high]


def lane(columns: Floats, edges: Iterable[float], window: tuple[float, float]) -> Markup:
    """A strip of what a device did: each column of time is filled from the bottom by the shares of the suites.

    columns: [suites, columns], shares that add up to 1 at most. edges: where long feeds begin. window: the part of the
    strip that counts. Neighbouring columns that are alike become one rectangle, so many feeds make no large page.
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
    began = "".join(f"M{edge * count:.1f} 0V{LANE}" for edge in edges if edge > 0)
    if began:
        body += Markup('<path class="began" d="{}"/>').format(began)
    return _strip(count, LANE, body + _outside(window, count, LANE))


def curve(
    values: Floats, most: float, window: tuple[float, float], mean: float | None, ticks: Iterable[float]
) -> Markup:
    """A strip of a quantity over time, as steps with holes where it is not known (NaN); its axis goes from 0 to most.

    values: [blocks], evenly over the strip. mean: that of the window, drawn as a dotted line. ticks: values at which a
    line is drawn from side to side.
    """
    tall = Axis(0, most, LANE, 0)
    step = ACROSS / len(values)
    line, filled, drawing = "", "", False
    for at, value in enumerate(values.tolist()):
        begin, end, top = f"{at * step:g}", f"{(at + 1) * step:g}", f"{tall(value):g}" if math.isfinite(value) else ""
        if top:
            line += (f"V{top}" if drawing else f"M{begin} {top}") + f"H{end}"
            filled += (f"V{top}" if drawing else f"M{begin} {LANE}V{top}") + f"H{end}"
        elif drawing:
            filled += f"V{LANE}z"
        drawing = bool(top)
    filled += f"V{LANE}z" if drawing else ""
    body = Markup('<path class="filled" d="{}"/>').format(filled)
    body += _joined('<path class="grid" d="M0 {}H{}"/>', ((tall(value), ACROSS) for value in ticks))
    body += Markup('<path class="power" d="{}"/>').format(line)
    if mean is not None:
        first, last = (round(edge * ACROSS) for edge in window)
        body += Markup('<path class="overall" d="M{} {}H{}"/>').format(first, tall(mean), last)
    return _strip(ACROSS, LANE, body + _outside(window, ACROSS, LANE))


def bar(value: float, interval: tuple[float, float] | None, most: float, hue: int) -> Markup:
    """A strip with a bar from 0 to the value, and a whisker for its interval below; its axis ends at most."""
    wide = Axis(0, most, 0, ACROSS)
    body = Markup('<path class="{}" d="M0 2H{}V12H0z"/>').format(hue_of(hue), wide(value))
    if interval is not None:
        low, high = map(wide, interval)
        body += Markup('<path class="whisker" d="M{0} 16H{1}M{0} 13V19M{1} 13V19"/>').format(low, high)
    return _strip(ACROSS, 20, body)


def span(begin: float, end: float) -> Markup:
    """A strip that marks a part of itself. begin, end: as shares of its width."""
    drawn = f"M{begin * ACROSS:.1f} 10H{end * ACROSS:.1f}M{begin * ACROSS:.1f} 2V18M{end * ACROSS:.1f} 2V18"
    return _strip(ACROSS, 20, Markup('<path class="span" d="{}"/>').format(drawn))


def hue_of(number: int) -> str:
    """The class of the style sheet that gives a suite its colour; those beyond the palette share the last one."""
    return f"hue{min(number, HUES - 1)}"


def _outside(window: tuple[float, float], width: int, height: int) -> Markup:
    """A veil over what lies outside of the window that counts, and a line at each of its edges inside the strip."""
    begin, end = (round(edge * width, 1) for edge in window)
    sides = [(left, right) for left, right in ((0.0, begin), (end, float(width))) if right - left > 0]
    veil = _joined('<path class="veil" d="M{0} 0H{1}V{2}H{0}z"/>', ((*side, height) for side in sides))
    inside = [(edge, height) for edge in (begin, end) if 0 < edge < width]
    return veil + _joined('<path class="limit" d="M{} 0V{}"/>', inside)


def _strip(width: int, height: int, body: Markup) -> Markup:
    return Markup(
        '<svg class="strip" aria-hidden="true" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(width, height, body)


def throughput(
    key: str,
    edges_ns: Int64s,
    per_s: Floats,
    *,
    overall_per_s: float,
    unit: str,
    stretch: tuple[int, int] | None = None,
) -> Markup:
    """The rate in each block, as steps over the window; its axis starts at zero.

    edges_ns: [blocks + 1] since the first feed; per_s: [blocks]. A band marks the `stretch` of blocks, from the
    first to behind the last, that ran at another level than the rest.
    """
    time, time_ns = time_unit(int(edges_ns[-1]))
    floor, top = HEIGHT - BOTTOM, 2 * ROW
    tall = Axis(0, float(max(per_s.max(), overall_per_s)) * 1.08, floor, top)
    marks = tall.ticks(5)
    left = _left_margin(marks)
    wide = Axis(0, edges_ns[-1] / time_ns, left, WIDTH - RIGHT)
    at = [wide(edge / time_ns) for edge in edges_ns.tolist()]
    line = f"M{at[0]} {tall(float(per_s[0]))}" + "".join(
        f"V{tall(rate)}H{end}" for rate, end in zip(per_s.tolist(), at[1:], strict=True)
    )
    body = _across(tall, marks, left)
    if stretch is not None:
        begin, end = at[stretch[0]], at[stretch[1]]
        body += Markup('<rect class="band" x="{}" y="{}" width="{}" height="{}"/>').format(
            begin, top, round(end - begin, 1), floor - top
        )
    body += Markup('<path class="area" d="{}V{}H{}Z"/><path class="line" d="{}"/>').format(line, floor, at[0], line)
    if stretch is not None:
        body += Markup('<path class="edge" d="M{} {}V{}"/>').format(begin, top, floor)
        body += _text("word", begin + 6, floor - 8, "another level")
    body += Markup('<path class="overall" d="M{} {}H{}"/>').format(left, tall(overall_per_s), wide.end_px)
    body += _text("name", left, ROW, f"{unit}/s")
    body += _text("value end", wide.end_px, ROW, f"overall {figures.rate(overall_per_s, unit)}")
    body += _below(wide, f"{time} since the first feed")
    extremes = (figures.rate(float(rate), unit) for rate in (per_s.min(), per_s.max()))
    moved = ""
    if stretch is not None:
        first, last = (figures.duration(int(edges_ns[block])) for block in stretch)
        moved = f" It ran at another level from {first} to {last}."
    description = f"{len(per_s)} blocks, from {' to '.join(extremes)}; {figures.rate(overall_per_s, unit)} overall."
    return _svg(key, "Throughput over the window", description + moved, body)


def power(key: str, edges_ns: Int64s, watts: Floats, *, window_ns: tuple[int, int], mean_watts: float | None) -> Markup:
    """The power in each block, as steps with holes where it is not known; its axis starts at zero.

    edges_ns: [blocks + 1] since the window began; watts: [blocks], NaN where unknown, and somewhere known. A band marks
    the window.
    """
    time, time_ns = time_unit(int(edges_ns[-1] - edges_ns[0]))
    floor, top = HEIGHT - BOTTOM, 2 * ROW
    known = watts[np.isfinite(watts)]
    tall = Axis(0, max(float(known.max()), 1e-3) * 1.08, floor, top)
    marks = tall.ticks(5)
    left = _left_margin(marks)
    wide = Axis(edges_ns[0] / time_ns, edges_ns[-1] / time_ns, left, WIDTH - RIGHT)
    begin, end = (wide(edge / time_ns) for edge in window_ns)
    body = _across(tall, marks, left)
    body += Markup('<rect class="band" x="{}" y="{}" width="{}" height="{}"/>').format(
        begin, top, round(end - begin, 1), floor - top
    )
    steps, drawing = [], False
    for start, stop, value in zip(edges_ns[:-1].tolist(), edges_ns[1:].tolist(), watts.tolist(), strict=True):
        if math.isfinite(value):
            move = "V{}" if drawing else "M" + f"{wide(start / time_ns)} " + "{}"
            steps.append(move.format(tall(value)) + f"H{wide(stop / time_ns)}")
        drawing = math.isfinite(value)
    body += Markup('<path class="line" d="{}"/>').format("".join(steps))
    body += _joined('<path class="edge" d="M{} {}V{}"/>', ((x, top, floor) for x in (begin, end)))
    body += _text("word", begin + 6, floor - 8, "window")
    body += _text("name", left, ROW, "W")
    extremes = " to ".join(figures.prefixed(float(each), "W") for each in (known.min(), known.max()))
    said = ""
    if mean_watts is not None:
        said = f"mean of the window {figures.prefixed(mean_watts, 'W')}"
        body += Markup('<path class="overall" d="M{} {}H{}"/>').format(begin, tall(mean_watts), end)
        body += _text("value end", wide.end_px, ROW, said)
    body += _below(wide, f"{time} since the window began")
    holes = "; with holes where it is not known" if len(known) < len(watts) else ""
    return _svg(key, "Power", f"From {extremes}{holes}{said and '; '}{said}.", body)


def distribution(
    key: str, values_ns: Int64s, percentiles: Sequence[tuple[str, int]], *, title: str, of: str = "feeds"
) -> Markup:
    """How a time spreads: a histogram of what `of` names, or a dot each where they are few.

    percentiles: (name, ns), marked and labelled. The axis is logarithmic where values lie far apart.
    """
    least, most = int(values_ns.min()), int(values_ns.max())
    logarithmic = 0 < least * LOGARITHMIC_FROM < most
    time, time_ns = time_unit(math.sqrt(least * most) if logarithmic else most)
    values = values_ns / time_ns
    low, high = _domain(float(values.min()), float(values.max()), logarithmic)
    dots = len(values) < FEW
    counts, edges = np.histogram(values, _bins(low, high, len(values), logarithmic))
    scale = [] if dots else [tick for tick in steps(0, float(counts.max()), 3) if tick[0] == round(tick[0])]
    left = _left_margin(scale)
    wide = Axis(low, high, left, WIDTH - RIGHT, logarithmic)
    labels = [(wide(value / time_ns), f"{name} {figures.duration(value)}") for name, value in percentiles]
    rows = _rows(labels, taken_px=left + len(of) * LETTER)
    floor, top = HEIGHT - BOTTOM, (max(rows, default=0) + 1) * ROW + 10
    tall = Axis(0, float(counts.max()), floor, top)
    body = _across(tall, scale, left)
    if dots:
        middle = (top + floor) // 2
        body += _joined('<circle class="dot" cx="{}" cy="{}" r="5"/>', ((wide(x), middle) for x in values.tolist()))
    else:
        bars = "".join(
            f"M{wide(start)} {floor}V{tall(count)}H{wide(end)}V{floor}Z"
            for count, start, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            if count
        )
        body += Markup('<path class="bars" d="{}"/>').format(bars)
        body += _text("name", left, ROW, of)
    body += _joined(
        '<path class="mark" d="M{} {}V{}"/>',
        ((x, row * ROW + 6, floor) for (x, _), row in zip(labels, rows, strict=True)),
    )
    for (x, label), row in zip(labels, rows, strict=True):
        flipped = _flipped(x, label)
        body += _text("value end" if flipped else "value", x - 5 if flipped else x + 5, (row + 1) * ROW, label)
    body += _below(wide, f"{time}, logarithmic" if logarithmic else time)
    said = "; ".join(label for _, label in labels) or "no percentile"
    description = f"{len(values)} {of} from {figures.duration(least)} to {figures.duration(most)}; {said}."
    return _svg(key, title, description, body)


def time_unit(typical_ns: float) -> tuple[str, float]:
    """(name, its length in ns) of the unit in which times like this are written."""
    units = (("s", 1e9), ("ms", 1e6), ("µs", 1e3))
    return next(((name, size) for name, size in units if typical_ns >= size), ("ns", 1.0))


def _domain(least: float, most: float, logarithmic: bool) -> tuple[float, float]:
    """What an axis spans: a little more than the values do."""
    if logarithmic:
        return least / 1.1, most * 1.1
    missing = max(0.0, (most or 1) * NARROWEST - (most - least)) / 2
    margin = (most - least) * 0.02 + missing
    return max(0.0, least - margin), most + margin


def _bins(low: float, high: float, values: int, logarithmic: bool) -> Floats:
    """Edges, as many as Rice's rule asks for: 2 n^(1/3) bins."""
    bins = min(MOST_BINS, math.ceil(2 * values ** (1 / 3)))
    return np.geomspace(low, high, bins + 1) if logarithmic else np.linspace(low, high, bins + 1)


def _flipped(x: float, label: str) -> bool:
    """Whether a label stands to the left of its mark, since it would leave the chart on the right."""
    return x + 5 + len(label) * LETTER > WIDTH


def _rows(labels: Iterable[tuple[float, str]], taken_px: float) -> list[int]:
    """The highest row in which each label covers no other; labels come from left to right."""
    ends = [taken_px]
    rows = []
    for x, label in labels:
        width = len(label) * LETTER + 5
        start = x - width if _flipped(x, label) else x
        row = next((each for each, end in enumerate(ends) if end < start), len(ends))
        ends[row : row + 1] = [start + width + LETTER]
        rows.append(row)
    return rows


def _left_margin(ticks: Iterable[tuple[float, str]]) -> int:
    return 14 + math.ceil(max((len(label) for _, label in ticks), default=0) * LETTER)


def _across(tall: Axis, ticks: Iterable[tuple[float, str]], left: float) -> Markup:
    """Horizontal lines behind a chart, labelled on the left."""
    lines = _joined('<path class="grid" d="M{} {}H{}"/>', ((left, tall(value), WIDTH - RIGHT) for value, _ in ticks))
    return lines + Markup("").join(_text("tick end", left - 8, tall(value) + 4, label) for value, label in ticks)


def _below(wide: Axis, name: str) -> Markup:
    floor = HEIGHT - BOTTOM
    ticks = [(wide(value), label) for value, label in wide.ticks(5)]
    axis = Markup('<path class="axis" d="M{} {}H{}"/>').format(wide.start_px, floor, wide.end_px)
    axis += _joined('<path class="axis" d="M{} {}v4"/>', ((x, floor) for x, _ in ticks))
    axis += Markup("").join(_text("tick middle", x, floor + 17, label) for x, label in ticks)
    return axis + _text("name middle", (wide.start_px + wide.end_px) / 2, HEIGHT - 5, name)


def _joined(markup: str, rows: Iterable[tuple[float, ...]]) -> Markup:
    return Markup("").join(Markup(markup).format(*row) for row in rows)


def _text(kind: str, x: float, y: float, text: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}">{}</text>').format(kind, round(x, 1), round(y, 1), plain(text))


def _svg(key: str, title: str, description: str, body: Markup) -> Markup:
    """The key is unique on the page and safe as an id."""
    return Markup(
        '<svg role="img" viewBox="0 0 {0} {1}" aria-labelledby="{2}-t {2}-d">'
        '<title id="{2}-t">{3}</title><desc id="{2}-d">{4}</desc>{5}</svg>'
    ).format(WIDTH, HEIGHT, key, plain(title), plain(description), body)
