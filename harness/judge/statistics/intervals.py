"""Percentiles, confidence intervals of one run and of several runs, and latency limits."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from mixmark.harness.contracts.figures import Estimate, exponential
from mixmark.harness.contracts.schema import Completions, Int64s, LatencyLimits
from mixmark.harness.judge.statistics.distributions import binomial_cdf, student_t
from mixmark.harness.judge.statistics.timestamps import Floats, first_unit_ns, latencies_ns, time_per_unit_ns

LOWEST_TAIL = 0.9
CONFIDENCE = 0.95
FEWEST_BLOCKS = 20  # fewer blocks do not show how they depend on each other
FEWEST_INDEPENDENT = 4  # the least effective sample size of a window whose interval is known
ROUNDING = 1e-24  # a smaller variance over the mean square is a rounding error of equal blocks
PARTS = 6  # equal parts of a window whose means are compared
WIDEST = 0.25  # an interval with a larger half-width, as a fraction of the estimate, is not known


def sample_needed(q: float) -> int:
    """The smallest sample that carries the percentile.

    Median: [min, max] holds it with 95 % confidence. Tail: MLPerf's early stopping with one value discarded,
    P(Binomial(n, 1 − q) ≤ 1) ≤ 1 %, which gives 64 for p90, 662 for p99 and 6,636 for p99.9.
    """
    if not 0.5 <= q < 1:
        raise ValueError(f"percentile {q} is not in [0.5, 1)")
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


def percentile_interval(values: Int64s, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The two order statistics that hold the percentile, with at most half of 1 − confidence missed on each side.

    It assumes independent values, of any distribution. None if the sample is too small for both ranks; at 95 % the
    median needs 6 values, p90 36 and p99 368. David & Nagaraja, Order Statistics, 2003, section 7.1.
    """
    n, miss = len(values), (1 - confidence) / 2
    low = bisect_left(range(n), True, key=lambda rank: binomial_cdf(rank, n, q) > miss)  # P(rank < low) ≤ miss
    high = 1 + bisect_left(range(n), True, key=lambda rank: binomial_cdf(rank, n, q) >= 1 - miss)
    if low < 1 or high > n:
        return None
    ordered = np.sort(values)
    return int(ordered[low - 1]), int(ordered[high - 1])


def early_stopping(values: Int64s, q: float) -> int | None:
    """The value that the percentile does not exceed with 99 % confidence, by MLPerf's early stopping.

    It is the largest value but t − 1, for the largest t with P(Binomial(n, 1 − q) ≤ t) ≤ 1 %. None if even t = 1 is too
    many, with fewer than 64 values for p90 and fewer than 662 for p99. It assumes independent values. Source: appendix
    of the MLPerf Inference rules, LoadGen's early_stopping.cc.
    """
    n = len(values)
    discards = bisect_left(range(n), True, key=lambda t: binomial_cdf(t, n, 1 - q) > 0.01) - 1
    return int(np.sort(values)[n - discards]) if discards >= 1 else None


def effective_sample_size(series: Floats) -> Floats:
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


def mean_half_width(series: Floats, confidence: float = CONFIDENCE) -> Floats:
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


def mean_interval(rates_per_s: Floats, confidence: float = CONFIDENCE) -> Estimate | None:
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


def ratio_interval(gained: Floats, spent: Floats) -> Estimate | None:
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


def logarithms(values: Sequence[float]) -> Floats:
    """Raises ValueError unless all values are above 0 and finite."""
    if not all(0 < value < math.inf for value in values):
        raise ValueError("figures of runs must be above 0 and finite")
    return np.log(np.array(values, np.float64))


def within_limits(completions: Completions, limits: LatencyLimits) -> bool | None:
    """Whether each latency limit holds at its percentile. None if the sample is too small to tell."""
    pairs = (
        (latencies_ns(completions), limits.total_ns),
        (first_unit_ns(completions), limits.first_ns),
        (time_per_unit_ns(completions), limits.per_unit_ns),
    )
    return holds(pairs, limits.percentile)


def holds(pairs: Iterable[tuple[Int64s, int | None]], q: float) -> bool | None:
    """Whether the percentile of each sample keeps its limit, by MLPerf's early-stopping bound. None if a sample is too
    small to tell. pairs: each sample with its limit, or None without a limit."""
    bounds = [(early_stopping(values, q), limit) for values, limit in pairs if limit is not None]
    if any(bound is None for bound, _ in bounds):
        return None
    return all(bound <= limit for bound, limit in bounds if bound is not None)
