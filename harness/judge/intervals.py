"""How sure a figure is: percentiles, confidence intervals of one run and of several, latency limits."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.judge.distributions import binomial_cdf, student_t
from harness.judge.stamps import Floats, first_mark_ns, latencies_ns, time_per_unit_ns
from harness.schema import Completions, Int64s, LatencyLimits

LOWEST_TAIL = 0.9
CONFIDENCE = 0.95
FEWEST_BLOCKS = 20  # with fewer, how blocks depend on each other cannot be told from them
RESAMPLES = 2000


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

    None where the sample is too small for it.
    """
    if len(values) < sample_needed(q):
        return None
    rank = math.ceil(round(q * len(values), 6))  # 0.9 · 70 is 63.00000000000001 in floating point
    return int(np.sort(values)[rank - 1])


def percentile_interval(values: Int64s, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The two order statistics that hold the percentile, with at most half of 1 − confidence missed on each side.

    It assumes independent values, of any distribution. None where the sample is too small for both ranks: at 95 % the
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
    """The value that the percentile does not exceed with 99 % confidence: the largest but t − 1, for the largest t with
    P(Binomial(n, 1 − q) ≤ t) ≤ 1 %. None where even t = 1 is too many: under 64 values for p90, under 662 for p99.

    MLPerf Inference's early stopping: rules appendix, LoadGen's early_stopping.cc. It assumes independent values.
    """
    n = len(values)
    discards = bisect_left(range(n), True, key=lambda t: binomial_cdf(t, n, 1 - q) > 0.01) - 1
    return int(np.sort(values)[n - discards]) if discards >= 1 else None


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % confidence interval."""

    low: float
    estimate: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's width as a part of the estimate: 0.02 is ± 2 %."""
        return (self.high - self.low) / 2 / self.estimate


def mean_half_width(series: Floats, confidence: float = CONFIDENCE) -> Floats:
    """[...], half the width of the confidence interval of the mean of each series [blocks, ...].

    It is Student's t on the effective sample size n (1 − ρ) / (1 + ρ), since neighbouring blocks resemble each other.
    Samples understate ρ by about (1 + 4 ρ) / n (Kendall, Biometrika 41, 1954). 2.5 times that is added, because an
    interval that is watched until it is narrow is caught when ρ looks small; tests/judge/test_coverage.py goes red with
    1 time. ρ is never taken below 0.
    """
    n = len(series)
    off = series - series.mean(axis=0)
    squares = (off * off).sum(axis=0)
    seen = np.divide((off[1:] * off[:-1]).sum(axis=0), squares, out=np.zeros_like(squares), where=squares > 0)
    rho = np.clip(seen + 2.5 * (1 + 4 * seen) / n, 0, 0.95)
    blocks_each = (1 + rho) / (1 - rho)
    worth = np.maximum(n / blocks_each, 2)
    variance = squares / (n * (1 - 1 / worth))  # the sample's own mean took a block's worth of freedom
    return np.asarray(student_t(worth - 1, confidence) * np.sqrt(variance / worth))


def replicates(series: Floats, seed: int = 0, confidence: float = CONFIDENCE) -> Floats:
    """[resamples, columns], the means of resampled series [blocks, columns]: the block bootstrap.

    Circular runs of n^⅓ blocks are drawn with replacement, all columns alike (Politis & Romano 1992). Runs so short
    show too little spread, so each column's deviations are stretched until quantiles at the confidence agree with
    `mean_half_width`. Repeats exactly for a seed.
    """
    n = len(series)
    length = math.ceil(n ** (1 / 3))
    draws = math.ceil(n / length)
    wrapped = np.concatenate((series, series[: length - 1]))
    runs = sum((wrapped[at : at + n] for at in range(length)), np.zeros_like(series)) / length
    means = series.mean(axis=0)
    off = runs - means
    starts = np.random.Generator(np.random.Philox(seed)).integers(0, n, (RESAMPLES, draws))
    rows = np.arange(RESAMPLES)[:, None] * n
    weights = np.bincount((rows + starts).ravel(), minlength=RESAMPLES * n).reshape(RESAMPLES, n) / draws
    drawn = NormalDist().inv_cdf((1 + confidence) / 2) * np.sqrt((off * off).mean(axis=0) / draws)
    stretch = np.divide(mean_half_width(series, confidence), drawn, out=np.zeros_like(drawn), where=drawn > 0)
    return np.asarray(means + stretch * (weights @ off))


def block_bootstrap(
    series: Floats,
    statistic: Callable[[Floats], Floats] = lambda means: means,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> tuple[Floats, Floats]:
    """The confidence interval (low, high) of a statistic of the columns' means, from `replicates`.

    statistic: [resamples, columns] -> [resamples, ...].
    """
    miss = (1 - confidence) / 2
    low, high = np.quantile(statistic(replicates(series, seed, confidence)), (miss, 1 - miss), axis=0)
    return low, high


def throughput_interval(rates_per_s: Floats) -> Interval | None:
    """The throughput of one run from the rates of its blocks (`steady.block_rates`). None under 20 blocks.

    It does not tell how the next process would differ: `over_runs` does.
    """
    if len(rates_per_s) < FEWEST_BLOCKS:
        return None
    low, high = block_bootstrap(rates_per_s[:, None])
    return Interval(float(low[0]), float(rates_per_s.mean()), float(high[0]))


@dataclass(frozen=True)
class OverRuns:
    """The figures of several runs, each in a fresh process, in one."""

    geometric_mean: float
    median: float
    low: float | None
    """Lower end of the 95 % interval of the geometric mean: Student's t on the logarithms. None for a single run."""
    high: float | None
    runs: int


def over_runs(values: Sequence[float]) -> OverRuns | None:
    """values: one for each run. None where there is none. Raises ValueError unless all are above 0 and finite."""
    if not values:
        return None
    logs = logarithms(values)
    n, mean = len(logs), float(logs.mean())
    low = high = None
    if n > 1:
        half = float(student_t(n - 1, CONFIDENCE)) * float(logs.std(ddof=1)) / math.sqrt(n)
        low, high = math.exp(mean - half), math.exp(mean + half)
    return OverRuns(math.exp(mean), float(np.median(values)), low, high, n)


def logarithms(values: Sequence[float]) -> Floats:
    """Raises ValueError unless all values are above 0 and finite."""
    if not all(0 < value < math.inf for value in values):
        raise ValueError("figures of runs must be above 0 and finite")
    return np.log(np.array(values, np.float64))


def within_limits(completions: Completions, limits: LatencyLimits) -> bool | None:
    """Whether each latency limit holds at its percentile, by MLPerf's early-stopping bound. None where the sample is
    too small to tell."""
    pairs = (
        (latencies_ns(completions), limits.total_ns),
        (first_mark_ns(completions), limits.first_ns),
        (time_per_unit_ns(completions), limits.per_unit_ns),
    )
    bounds = [(early_stopping(values, limits.percentile), limit) for values, limit in pairs if limit is not None]
    if any(bound is None for bound, _ in bounds):
        return None
    return all(bound <= limit for bound, limit in bounds if bound is not None)
