"""Percentiles, confidence intervals of one run and of several runs, latency limits, and whether a window is steady.

A worker decides by these when a window is long enough, and reports show them. A worker's interpreter has no scipy, so
Student's t and the binomial distribution are computed here, by the regularised incomplete beta function.
tests/judge/statistics/test_distributions.py compares them with scipy's to 1e-10.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.figures import Estimate, exponential
from mixmark.harness.contracts.schema import Completions, FindingValue, Int64s, LatencyLimits, Limits
from mixmark.harness.judge.statistics import timestamps

Numbers = float | npt.NDArray[np.float64]
CLOSE = 1e-15  # a relative change of this size ends the continued fraction
MOST_TERMS = 1_000_000

_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), the probability that a beta variable of shape (a, b) is at most x; a and b are above 0."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x < (a + 1) / (a + b + 2):  # where the fraction converges within about √(a + b) terms
        return float(_front(a, b, x) * _fraction(a, b, x))
    return 1 - float(_front(b, a, 1 - x) * _fraction(b, a, 1 - x))


def _front(a: Any, b: Any, x: Any) -> Any:
    """x^a (1 − x)^b / (a B(a, b)). By Stirling's formula, since the logarithms of large gammas would cancel."""
    n = a + b
    log = a * np.log(x * n / a) + b * np.log((1 - x) * n / b) + np.log(b / (2 * math.pi * a * n)) / 2
    return np.exp(log + _beyond_stirling(n) - _beyond_stirling(a) - _beyond_stirling(b))


def _fraction(a: Any, b: Any, x: Any) -> Any:
    """The continued fraction of DLMF 8.17.22, whose coefficients are 8.17.23, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for coefficient in (even, odd):
            d = 1 / (1 + coefficient * d)
            c = 1 + coefficient / c
            value = value * (c * d)
        if np.max(abs(c * d - 1)) < CLOSE:
            break
    return value


def _beyond_stirling(z: Any) -> Any:
    """ln Γ(z) − [(z − ½) ln z − z + ½ ln 2π], DLMF 5.11.1."""
    small = np.minimum(z, 10.0)
    exact = _log_gamma(small) - ((small - 0.5) * np.log(small) - small + math.log(2 * math.pi) / 2)
    s = 1 / np.maximum(z, 10.0) ** 2
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * 691 / 360360))))) * np.sqrt(s)
    return np.where(z < 10, exact, series)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X ≤ k), where X counts the successes among n independent trials of probability p (DLMF 8.17.24)."""
    if k < 0 or k >= n:
        return float(k >= n)
    return incomplete_beta(n - k, k + 1, 1 - p)


def student_t(df: Numbers, confidence: float) -> Any:
    """The t with P(|T| ≤ t) = confidence, where T has Student's distribution with df degrees of freedom, at least 1.

    Newton's method from the first terms of the Cornish–Fisher expansion (Abramowitz & Stegun 26.7.5). These lie below
    the solution, from where the steps go up to it, since the tail is convex.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    for _ in range(100):
        x = df / (df + t * t)  # P(|T| > t) = I_x(df/2, 1/2), whose derivative is −df · front / t
        front = _front(df / 2, 0.5, x)
        step = t * (front * _fraction(df / 2, 0.5, x) - (1 - confidence)) / (df * front)
        t = t + step
        if np.max(abs(step) / t) < 1e-12:  # the error goes with the square of the step
            break
    return t


LOWEST_TAIL = 0.9
CONFIDENCE = 0.95
FEWEST_BLOCKS = 20  # fewer blocks do not show how they depend on each other
FEWEST_INDEPENDENT = 4  # the least effective sample size of a window whose interval is known
ROUNDING = 1e-24  # a smaller variance over the mean square is a rounding error of equal blocks
PARTS = 6  # equal parts of a window whose means are compared
WIDEST = 0.25  # an interval with a larger half-width, as a fraction of the estimate, is not known


def sample_needed(q: float) -> int:
    """The smallest sample that carries the percentile, the median or a tail.

    Median: [min, max] holds it with 95 % confidence. Tail: MLPerf's early stopping with one value discarded,
    P(Binomial(n, 1 − q) ≤ 1) ≤ 1 %, which gives 64 for p90, 662 for p99 and 6,636 for p99.9.
    """
    if q == 0.5:
        return 6  # 1 − 2 · 0.5⁶ = 96.9 %
    enough = math.ceil(20 / (1 - q))  # ≈ 6.64 / (1 − q) are needed
    return bisect_left(range(enough), True, lo=1, key=lambda n: q**n + n * (1 - q) * q ** (n - 1) <= 0.01)


def percentile(values: Int64s, q: float) -> int | None:
    """The percentile by nearest rank: the smallest value that at least q of the sample does not exceed.

    None if the sample is too small for it.
    """
    if len(values) < sample_needed(q):
        return None
    rank = math.ceil(round(q * len(values), 6))  # 0.9 · 70 is 63.00000000000001 in floating point
    return int(np.sort(values)[rank - 1])


def early_stopping(values: Int64s, q: float) -> int | None:
    """The value that the percentile does not exceed with 99 % confidence, by MLPerf's early stopping.

    It is the largest value but t − 1, for the largest t with P(Binomial(n, 1 − q) ≤ t) ≤ 1 %. None if even t = 1 is too
    many, with fewer than 64 values for p90 and fewer than 662 for p99. It assumes independent values. Source: appendix
    of the MLPerf Inference rules, LoadGen's early_stopping.cc.
    """
    n = len(values)
    discards = bisect_left(range(n), True, key=lambda t: binomial_cdf(t, n, 1 - q) > 0.01) - 1
    return int(np.sort(values)[n - discards]) if discards >= 1 else None


def effective_sample_size(series: timestamps.Floats) -> timestamps.Floats:
    """[...], how many independent blocks the blocks of each series [blocks, ...] are worth: n (1 − ρ) / (1 + ρ).

    ρ is the lag-1 autocorrelation. Samples understate it by about (1 + 4 ρ) / n (Kendall, Biometrika 41, 1954). 2.5
    times that is added: a window ends when its interval looks narrow, and so when ρ looks small. ρ is never taken to be
    below 0.
    """
    n = len(series)
    off = series - series.mean(axis=0)
    squares = (off * off).sum(axis=0)
    scatters = squares > ROUNDING * (series * series).sum(axis=0)
    seen = np.divide((off[1:] * off[:-1]).sum(axis=0), squares, out=np.zeros_like(squares), where=scatters)
    rho = np.clip(seen + 2.5 * (1 + 4 * seen) / n, 0, 0.95)
    return np.asarray(n * (1 - rho) / (1 + rho))


def mean_half_width(series: timestamps.Floats, confidence: float = CONFIDENCE) -> timestamps.Floats:
    """[...], how far the mean of each series [blocks, ...] may be off: the wider of two half-widths.

    One is Student's t on the effective sample size, for blocks that resemble their neighbours. The other is Student's t
    on the means of PARTS equal parts of the series, for changes too slow to show between neighbours.
    """
    n = len(series)
    off = series - series.mean(axis=0)
    worth = np.maximum(effective_sample_size(series), 2)
    variance = (off * off).sum(axis=0) / (n * (1 - 1 / worth))  # the sample's own mean takes one degree of freedom
    by_neighbours = student_t(worth - 1, confidence) * np.sqrt(variance / worth)
    parts = np.stack([part.mean(axis=0) for part in np.array_split(series, min(PARTS, n))])
    spread = parts.std(axis=0, ddof=1) if len(parts) > 1 else np.zeros_like(by_neighbours)
    by_parts = student_t(max(1, len(parts) - 1), confidence) * spread / math.sqrt(len(parts))
    return np.asarray(np.maximum(by_neighbours, by_parts))


def mean_interval(rates_per_s: timestamps.Floats, confidence: float = CONFIDENCE) -> Estimate | None:
    """The interval of the throughput of one run, from the rates of its blocks [blocks].

    None if there are fewer than FEWEST_BLOCKS blocks, their effective sample size is below FEWEST_INDEPENDENT, or the
    half-width exceeds WIDEST of the mean. It does not show how the next process would differ; `over_runs` does.
    """
    mean = float(rates_per_s.mean()) if len(rates_per_s) else 0.0
    if len(rates_per_s) < FEWEST_BLOCKS or mean <= 0:
        return None
    if float(effective_sample_size(rates_per_s)) < FEWEST_INDEPENDENT:
        return None
    half = float(mean_half_width(rates_per_s, confidence))
    return Estimate(mean, mean - half, mean + half) if half <= WIDEST * mean else None


def ratio_interval(gained: timestamps.Floats, spent: timestamps.Floats) -> Estimate | None:
    """The interval of Σ gained / Σ spent, both [blocks] above 0. None as in `mean_interval`.

    The ratio is linearised about its estimate: its interval follows from the mean of gained − ratio · spent.
    """
    ratio = float(gained.sum() / spent.sum())
    around = mean_interval(gained.mean() + gained - ratio * spent)
    return None if around is None else Estimate.within(ratio, around.half_width)


def over_runs(values: Sequence[float]) -> Estimate | None:
    """The geometric mean of a figure over several runs, each in a fresh process, with the 95 % interval of Student's t
    on the logarithms.

    There is no interval of a single run, or if the half-width exceeds WIDEST of the mean. None if there are no values.
    Raises ValueError unless all are above 0 and finite.
    """
    if not values:
        return None
    logs = logarithms(values)
    n, mean = len(logs), float(logs.mean())
    if n > 1:
        half = float(student_t(n - 1, CONFIDENCE)) * float(logs.std(ddof=1)) / math.sqrt(n)
        if math.sinh(half) <= WIDEST:
            return exponential(mean, half)
    return Estimate(math.exp(mean))


def logarithms(values: Sequence[float]) -> timestamps.Floats:
    """Raises ValueError unless all values are above 0 and finite."""
    if not all(0 < value < math.inf for value in values):
        raise ValueError("figures of runs must be above 0 and finite")
    return np.log(np.array(values, np.float64))


def within_limits(completions: Completions, limits: LatencyLimits) -> bool | None:
    """Whether each latency limit holds at its percentile. None if the sample is too small to tell."""
    pairs = (
        (timestamps.latencies_ns(completions), limits.total_ns),
        (timestamps.first_unit_ns(completions), limits.first_ns),
        (timestamps.time_per_unit_ns(completions), limits.per_unit_ns),
    )
    return holds(pairs, limits.percentile)


def holds(pairs: Iterable[tuple[Int64s, int | None]], q: float) -> bool | None:
    """Whether the percentile of each sample keeps its limit, by MLPerf's early-stopping bound. A sample that is too
    small for the bound can still show with 99 % confidence that the limit is broken. None if one shows neither.

    pairs: each sample with its limit, or None without a limit.
    """
    known = [(values, limit, early_stopping(values, q)) for values, limit in pairs if limit is not None]
    for values, limit, bound in known:
        late = int((values > limit).sum())
        if binomial_cdf(late - 1, len(values), 1 - q) >= 0.99 if bound is None else bound > limit:
            return False
    return None if any(bound is None for *_, bound in known) else True


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
    units: timestamps.Floats
    """[blocks], the units finished in each. A step across an edge counts in part on both sides."""
    block_ns: float
    """The length of each block."""

    @property
    def rates_per_s(self) -> timestamps.Floats:
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
    begin_ns, end_ns = bracket_ns or timestamps.window_ns(completions)
    if end_ns <= begin_ns:
        return None
    marks = completions.yielded_ns
    step_from, step_to = (
        (each - begin_ns).astype(np.float64) for each in (timestamps.steps_begin_ns(completions), marks)
    )
    block_ns = max(block_ns, int(np.median(marks[completions.ends - 1] - completions.issued_ns)), 1)
    count = max(1, (end_ns - begin_ns) // block_ns)
    cuts = np.linspace(0, end_ns - begin_ns, count + 1)
    finished = timestamps.finished_by(cuts, step_from, step_to, completions.units)
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

    def levelled(self, rates: timestamps.Floats) -> timestamps.Floats:
        """[blocks], the rates as if the stretch had run at the mean of the rest."""
        inside = np.zeros(len(rates), bool)
        inside[self.begin : self.end] = True
        rest = rates[~inside].mean()
        return np.where(inside, rates / self.relative if self.relative > TINY else rest, rates)


def other_level(rates: timestamps.Floats) -> Stretch | None:
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


def can_judge_steadiness(rates: timestamps.Floats) -> bool:
    """Whether the window has at least FEWEST_BLOCKS blocks, not all empty. rates: [blocks]."""
    return len(rates) >= FEWEST_BLOCKS and bool(rates.any())


def is_steady(rates: timestamps.Floats) -> bool | None:
    """Whether no stretch of the window ran at another level. None if it cannot be told. rates: [blocks]."""
    return other_level(rates) is None if can_judge_steadiness(rates) else None


def _noise(level: timestamps.Floats) -> tuple[float, float]:
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


def _mean_variance(count: Int64s, variance: float, rho: float) -> timestamps.Floats:
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


def precise(rates: timestamps.Floats, half_width: float) -> npt.NDArray[np.bool_]:
    """[...], whether the mean of each series of rates [blocks, ...] is known to ± half_width of itself."""
    return np.asarray(mean_half_width(rates) <= half_width * rates.mean(axis=0))


def twice_precise(rates: timestamps.Floats, half_width: float) -> bool:
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
    begin_ns, end_ns = bracket_ns or timestamps.window_ns(completions)
    blocks = block_rates(completions, (end_ns - begin_ns) // MOST_BLOCKS, bracket_ns)
    if blocks is None:
        return None
    known = can_judge_steadiness(blocks.rates_per_s)
    stretch = other_level(blocks.rates_per_s) if known else None
    return Window(blocks, stretch is None if known else None, stretch)
