"""A window cut into blocks: whether it is steady, and whether it is long enough. Workers and reports ask this."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Completions, FindingValue, Int64s, Limits
from mixmark.harness.judge.statistics.intervals import FEWEST_BLOCKS, mean_half_width, mean_interval
from mixmark.harness.judge.statistics.timestamps import Floats, finished_by, steps_begin_ns, window_ns

CLEARLY = 5.0  # a stretch must differ from the rest by this many standard errors; independent noise rarely does
MOVES = 0.005  # of the window's mean: a stretch that moves it by less does not matter
TRIMMED = 0.6230  # the mean of the smallest 90 % of squared normal deviates of variance 1 (chi-squared, 1 degree)
TINY = 1e-12
MOST_BLOCKS = 60  # of a finished window
CHECKS_GROW = 1.5  # each look at the interval inflates the rate of false stops, so looks are few


@dataclass(frozen=True, eq=False)
class Blocks:
    """A window in blocks of equal length. The mean of the rates is the throughput of the window."""

    edges_ns: Int64s
    """[blocks + 1], on the clock of the timestamps."""
    units: Floats
    """[blocks], the units finished in each. A step across an edge counts in part on both sides."""
    block_ns: float
    """The length of each block."""

    @property
    def rates_per_s(self) -> Floats:
        return self.units * 1e9 / self.block_ns

    def __len__(self) -> int:
        return len(self.units)


def block_rates(completions: Completions, block_ns: int, bracket_ns: tuple[int, int] | None = None) -> Blocks | None:
    """The whole window in equal blocks, each as near to block_ns as fits. None if the clock did not tick.

    A mark's units are spread evenly over the step that led to it: from the mark before it or, for the first mark of a
    feed, from the issue. So a feed of one yield counts evenly over its service time, and an edge favours no block. A
    block is at least as long as the median feed: more blocks than feeds would be invented evidence, and a block with
    only an LLM's prefill would look like a warm-up.

    bracket_ns: the window as the parent timed it. If None, it runs from the first issue to the last mark.
    """
    begin_ns, end_ns = bracket_ns or window_ns(completions)
    if end_ns <= begin_ns:
        return None
    marks = completions.yielded_ns
    step_from, step_to = ((each - begin_ns).astype(np.float64) for each in (steps_begin_ns(completions), marks))
    block_ns = max(block_ns, int(np.median(marks[completions.ends - 1] - completions.issued_ns)), 1)
    count = max(1, (end_ns - begin_ns) // block_ns)
    cuts = np.linspace(0, end_ns - begin_ns, count + 1)
    finished = finished_by(cuts, step_from, step_to, completions.units)
    finished[0], finished[-1] = 0, completions.units.sum()
    return Blocks(begin_ns + cuts.round().astype(np.int64), np.diff(finished), (end_ns - begin_ns) / count)


@dataclass(frozen=True)
class Stretch:
    """A part of a window that ran at another level than the rest of it."""

    begin: int
    """The index of its first block."""
    end: int
    """The index behind its last block."""
    relative: float
    """Its mean rate over the mean rate of the rest: 0 is a standstill."""
    moved: float
    """How far the mean of the rest lies from the mean of the window, as a fraction of it, above 0."""

    def values(self, edges_ns: Int64s) -> dict[str, FindingValue]:
        """When the window ran at another level, at which, and by how much this moved its figure.

        edges_ns: [blocks + 1], the edges of the window's blocks.
        """
        since_s = ((edges_ns - edges_ns[0]) / 1e9).tolist()
        return {
            "begin_s": since_s[self.begin],
            "end_s": since_s[self.end],
            "window_s": since_s[-1],
            "rate_pct": self.relative * 100,
            "moved_pct": self.moved * 100,
            "other": "higher" if self.relative < 1 else "lower",
        }


def other_level(rates: Floats) -> Stretch | None:
    """The stretch of neighbouring blocks that differs most clearly from the rest. None if no stretch does.

    rates: [blocks], not all 0. Every stretch is compared with all other blocks, unless these stood still. It runs at
    another level if the two means are more than CLEARLY standard errors apart and the difference moves the mean of the
    window by more than MOVES. The errors are computed for AR(1) noise. `_noise` takes its variance and autocorrelation
    from differences of neighbours, which a change of level hardly affects. Scanning all stretches is the test for an
    epidemic change of Levin & Kline (Statistics in Medicine 4, 1985). One stretch finds warm-ups, late drops, steps,
    stalls and drifts alike.
    """
    n, mean = len(rates), float(rates.mean())
    level = rates / mean
    variance, rho = _noise(level)
    sums = np.concatenate((np.zeros(1), np.cumsum(level)))
    index = np.arange(n + 1)
    begin, end = (grid.ravel() for grid in np.meshgrid(index, index, indexing="ij"))
    at_an_edge = (begin == 0) | (end == n)  # the rest is a stretch too, and the shorter of the two is taken
    proper = (begin < end) & (end - begin <= np.where(at_an_edge, n // 2, n - 1))
    begin, end = begin[proper], end[proper]
    length = end - begin
    inside = (sums[end] - sums[begin]) / length
    outside = (n - (sums[end] - sums[begin])) / (n - length)
    apart = np.abs(inside - outside)
    error = np.sqrt(_mean_variance(length, variance, rho) + _mean_variance(n - length, variance, rho))
    moved = apart * np.minimum(length, n - length) / n
    counts = (apart > CLEARLY * error) & (moved > MOVES) & (outside > TINY)
    if not counts.any():
        return None
    at = int(np.argmax(np.where(counts, apart / np.maximum(error, TINY), -1.0)))
    return Stretch(int(begin[at]), int(end[at]), float(inside[at] / outside[at]), float(moved[at]))


def tells(rates: Floats) -> bool:
    """Whether it can be told if a window is steady: it has FEWEST_BLOCKS blocks, and something counts in it.

    rates: [blocks].
    """
    return len(rates) >= FEWEST_BLOCKS and bool(rates.any())


def is_steady(rates: Floats) -> bool | None:
    """Whether no stretch of the window ran at another level. None if it cannot be told. rates: [blocks]."""
    return other_level(rates) is None if tells(rates) else None


def _noise(level: Floats) -> tuple[float, float]:
    """(variance, lag-1 autocorrelation) of the noise about levels that may change a few times.

    Half the mean square of the differences is σ² (1 − ρ) between neighbours, and σ² (1 − ρ²) two blocks apart. The
    median difference, which comes of a drift, is subtracted. The largest tenth of the squares, which may come of a
    change of level, is left out; TRIMMED corrects the mean for that.
    """
    halves = []
    for lag in (1, 2):
        steps = level[lag:] - level[:-lag]
        squares = np.sort((steps - np.median(steps)) ** 2)
        halves.append(float(squares[: max(1, round(0.9 * len(squares)))].mean()) / TRIMMED / 2)
    near, far = halves
    rho = min(max(far / near - 1, 0.0), 0.9) if near > 0 else 0.0
    return near / (1 - rho), rho


def _mean_variance(count: Int64s, variance: float, rho: float) -> Floats:
    """[...], the variance of the mean of `count` neighbouring blocks of AR(1) noise."""
    tail = 2 * rho * (1 - rho**count) / (count * (1 - rho) ** 2)
    return np.asarray(variance / count * ((1 + rho) / (1 - rho) - tail))


def checks(cap: int) -> list[int]:
    """The numbers of blocks at which the interval is looked at: 20, 30, 45, … up to the cap."""
    counts: list[int] = []
    count = FEWEST_BLOCKS
    while count <= cap:
        counts.append(count)
        count = math.ceil(count * CHECKS_GROW)
    return counts


def precise(rates: Floats, half_width: float) -> npt.NDArray[np.bool_]:
    """[...], whether the mean of each series of rates [blocks, ...] is known to ± half_width of itself."""
    return np.asarray(mean_half_width(rates) <= half_width * rates.mean(axis=0))


def twice_precise(rates: Floats, half_width: float) -> bool:
    """Whether the 95 % interval had this half-width, relative to the throughput, at the last two checks. A single one
    may be luck, and stopping on luck makes intervals too narrow. The speed itself plays no part."""
    done = checks(len(rates))[-2:]
    return len(done) == 2 and all(bool(precise(rates[:count], half_width)) for count in done)


def enough(limits: Limits, completions: Completions) -> bool:
    """Whether the window may end: it is steady, and its throughput is known to the half-width of the limits."""
    if limits.half_width is None:
        return True
    blocks = block_rates(completions, limits.min_ns // checks(FEWEST_BLOCKS * 2)[1])
    if blocks is None or not is_steady(blocks.rates_per_s):
        return False
    return twice_precise(blocks.rates_per_s, limits.half_width)


@dataclass(frozen=True, eq=False)
class Window:
    """A closed loop's window in blocks. All of them count: nothing is cut off."""

    blocks: Blocks
    steady: bool | None
    """None if it cannot be told."""
    stretch: Stretch | None
    """The stretch at another level. None if the window is steady, or it cannot be told."""

    @property
    def interval(self) -> Estimate | None:
        """The 95 % interval of the throughput. None if the window is not steady, or the interval is not known."""
        return mean_interval(self.blocks.rates_per_s) if self.steady else None


def window(completions: Completions, bracket_ns: tuple[int, int] | None = None) -> Window | None:
    """A closed loop's window in at most MOST_BLOCKS blocks; see `block_rates`. None if the clock did not tick."""
    begin_ns, end_ns = bracket_ns or window_ns(completions)
    blocks = block_rates(completions, (end_ns - begin_ns) // MOST_BLOCKS, bracket_ns)
    if blocks is None:
        return None
    known = tells(blocks.rates_per_s)
    stretch = other_level(blocks.rates_per_s) if known else None
    return Window(blocks, stretch is None if known else None, stretch)
