"""Conclusions from the raw stamps: throughput, latencies and percentiles, how sure they are, share of the roofline.

All latencies count from when a feed was due. A closed loop's are due when they are issued, so theirs are *service
times*; a server's are *response times*, and a stall shows in every feed that had to wait for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from harness.judge.distributions import binomial_cdf, student_t
from harness.schema import Completions, Int64s, LatencyLimits, Record

STAND_IN = "torch"  # the built-in adapter whose probe stands in where a device's own adapter has none
LOWEST_TAIL = 0.9
CONFIDENCE = 0.95
FEWEST_BLOCKS = 20  # with fewer, how blocks depend on each other cannot be told from them
RESAMPLES = 2000
CeilingKey = tuple[str, str, str]
"""Device, adapter, precision."""
Floats = npt.NDArray[np.float64]


def is_cell(record: Record) -> bool:
    """Whether it is of a suite alone on a device: neither a probe nor a part of a mixed phase."""
    return record.scenario not in ("probe", "mixed")


def units(completions: Completions) -> int:
    return int(completions.units.sum())


def in_flight_ns(completions: Completions) -> int:
    """How long at least one feed was in flight: feeds that overlap count once, making the next feed does not."""
    done = np.maximum.accumulate(completions.marks_ns[completions.ends - 1])
    gaps = completions.issued_ns[1:] - done[:-1]
    return int(done[-1] - completions.issued_ns[0] - gaps[gaps > 0].sum())


def most_in_flight(several: Sequence[Completions]) -> int:
    """Feeds at once, of all of these together. One that is issued when another is done comes behind it."""
    issued = np.concatenate([each.issued_ns for each in several])
    done = np.concatenate([each.marks_ns[each.ends - 1] for each in several])
    at, turn = np.concatenate((done, issued)), np.repeat((-1, 1), len(issued))
    return int(np.cumsum(turn[np.argsort(at, kind="stable")]).max())


def throughput_per_s(completions: Completions) -> float | None:
    """Units per second: of a closed loop over the time in flight; of a server, whose feeds come when they come, from
    the first due time to the last mark. None where the clock did not tick meanwhile."""
    closed = bool((completions.due_ns == completions.issued_ns).all())
    span_ns = in_flight_ns(completions) if closed else int(completions.marks_ns.max() - completions.due_ns.min())
    return units(completions) * 1e9 / span_ns if span_ns else None


def latencies_ns(completions: Completions) -> Int64s:
    """[feeds], due to last mark."""
    return completions.marks_ns[completions.ends - 1] - completions.due_ns


def first_mark_ns(completions: Completions) -> Int64s:
    """[feeds], due to first mark: an LLM's time to first token."""
    return completions.marks_ns[completions.starts] - completions.due_ns


def time_per_unit_ns(completions: Completions) -> Int64s:
    """[feeds with at least two marks], first to last mark over the units behind the first mark, rounded down.

    An LLM's time per output token, as MLPerf Inference counts it. Empty where each feed has one mark.
    """
    first, last = completions.starts, completions.ends - 1
    total = np.add.reduceat(completions.units, first)
    several = last > first
    span = completions.marks_ns[last] - completions.marks_ns[first]
    behind_first = total - completions.units[first]
    return span[several] // behind_first[several]


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
    """By nearest rank: the smallest value that at least q of the sample does not exceed. None where it carries none."""
    if len(values) < sample_needed(q):
        return None
    rank = math.ceil(round(q * len(values), 6))  # 0.9 · 70 is 63.00000000000001 in floating point
    return int(np.sort(values)[rank - 1])


def percentile_interval(values: Int64s, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """The two order statistics that hold the percentile, with at most half of 1 − confidence missed on each side.

    Assumes nothing of the distribution, but independent values. None where the sample is too small for both ranks:
    at 95 % the median needs 6 values, p90 36 and p99 368. David & Nagaraja, Order Statistics, 2003, section 7.1.
    """
    n, miss = len(values), (1 - confidence) / 2
    low = bisect_left(range(n), True, key=lambda rank: binomial_cdf(rank, n, q) > miss)  # P(rank < low) ≤ miss
    high = 1 + bisect_left(range(n), True, key=lambda rank: binomial_cdf(rank, n, q) >= 1 - miss)
    if low < 1 or high > n:
        return None
    ordered = np.sort(values)
    return int(ordered[low - 1]), int(ordered[high - 1])


def early_stopping(values: Int64s, q: float) -> int | None:
    """What the percentile does not exceed with 99 % confidence: the largest value but t − 1, for the largest t with
    P(Binomial(n, 1 − q) ≤ t) ≤ 1 %. None where even t = 1 is too many, under 64 values for p90 and 662 for p99.

    MLPerf Inference's early stopping, rules appendix and LoadGen's early_stopping.cc. Assumes independent values.
    """
    n = len(values)
    discards = bisect_left(range(n), True, key=lambda t: binomial_cdf(t, n, 1 - q) > 0.01) - 1
    return int(np.sort(values)[n - discards]) if discards >= 1 else None


@dataclass(frozen=True)
class Interval:
    """An estimate and what holds the truth with 95 % confidence."""

    low: float
    estimate: float
    high: float

    @property
    def half_width(self) -> float:
        """Of the estimate: 0.02 is ± 2 %."""
        return (self.high - self.low) / 2 / self.estimate


def mean_half_width(series: Floats, confidence: float = CONFIDENCE) -> Floats:
    """[...], how far the mean of each series [blocks, ...] may be off. Neighbouring blocks may resemble each other.

    Student's t on n (1 − ρ) / (1 + ρ) blocks that are worth an independent one. Samples understate ρ by about
    (1 + 4 ρ) / n (Kendall, Biometrika 41, 1954). 2.5 times that is added, because an interval that is watched until it
    is narrow is caught when ρ looks small; tests/judge/test_coverage.py goes red with 1 time. Never takes ρ below 0.
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
    """[resamples, columns], means of series [blocks, columns] had other moments been seen: the block bootstrap.

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
    """(low, high) of a statistic of the columns' means: of `replicates` [resamples, columns], along the first axis."""
    miss = (1 - confidence) / 2
    low, high = np.quantile(statistic(replicates(series, seed, confidence)), (miss, 1 - miss), axis=0)
    return low, high


def throughput_interval(rates_per_s: Floats) -> Interval | None:
    """Of the throughput of one run, from the rates of its blocks (`steady.block_rates`). None under 20 blocks.

    Says nothing of how the next process would differ: that is `over_runs`.
    """
    if len(rates_per_s) < FEWEST_BLOCKS:
        return None
    low, high = block_bootstrap(rates_per_s[:, None])
    return Interval(float(low[0]), float(rates_per_s.mean()), float(high[0]))


@dataclass(frozen=True)
class OverRuns:
    """What several fresh processes measured, all of them kept."""

    geometric_mean: float
    median: float
    low: float | None
    """Of the 95 % interval of the geometric mean: Student's t on the logarithms. None for a single run."""
    high: float | None
    runs: int


def over_runs(values: Sequence[float]) -> OverRuns | None:
    """values: one of each run. None where there is none; raises ValueError unless all are above 0 and finite."""
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


def keeps(completions: Completions, limits: LatencyLimits) -> bool | None:
    """Whether each limit holds at its percentile, by MLPerf's early-stopping bound; None where the sample is too
    small to tell."""
    pairs = (
        (latencies_ns(completions), limits.total_ns),
        (first_mark_ns(completions), limits.first_ns),
        (time_per_unit_ns(completions), limits.per_unit_ns),
    )
    bounds = [(early_stopping(values, limits.percentile), limit) for values, limit in pairs if limit is not None]
    if any(bound is None for bound, _ in bounds):
        return None
    return all(bound <= limit for bound, limit in bounds if bound is not None)


@dataclass(frozen=True)
class Ceiling:
    """The best rates that a probe reached on a device, and the kernel that did; None where no kernel asks for it."""

    flops_per_s: float | None = None
    flops_kernel: str | None = None
    bytes_per_s: float | None = None
    bytes_kernel: str | None = None


@dataclass(frozen=True)
class Achieved:
    """The share of the roofline that was reached; `note` says why it is unknown, or whose ceiling stood in."""

    fraction: float | None
    note: str = ""


def ceilings(records: Iterable[Record]) -> dict[CeilingKey, Ceiling]:
    """Of every (device, adapter, precision) that was probed: the best over all its probe records."""
    best: dict[CeilingKey, Ceiling] = {}
    for record in records:
        for name, flops_per_s, bytes_per_s in _probed(record):
            key = (record.route.device, record.route.adapter, record.route.precision)
            top = best.get(key, Ceiling())
            if flops_per_s > (top.flops_per_s or 0):
                top = Ceiling(flops_per_s, name, top.bytes_per_s, top.bytes_kernel)
            if bytes_per_s > (top.bytes_per_s or 0):
                top = Ceiling(top.flops_per_s, top.flops_kernel, bytes_per_s, name)
            best[key] = top
    return best


def _probed(record: Record) -> Iterator[tuple[str, float, float]]:
    """(kernel, flop/s, byte/s) of the fastest run of each kernel of a probe record. Where several feeds were in flight,
    what the other ones did during that run counts too: the ceiling is the device's and not that of one lane."""
    completions = record.completions
    if record.scenario != "probe" or completions is None or _mismatch(record):
        return
    begins = np.concatenate((np.zeros(1, np.int64), completions.marks_ns[:-1]))
    begins[completions.starts] = completions.issued_ns
    begins, ends = begins.reshape(len(completions), -1), completions.marks_ns.reshape(len(completions), -1)
    each = [cost for cost in record.costs for _ in range(cost.yields)]
    flops, moved = (_per_s(record.slots, begins, ends, of) for of in ([c.flops for c in each], [c.bytes for c in each]))
    end = 0
    for cost in record.costs:
        start, end = end, end + cost.yields
        timed = ends[:, start:end] > begins[:, start:end]
        if timed.any():
            best = [float(rate[:, start:end][timed].max()) for rate in (flops, moved)]
            yield cost.name, best[0] if cost.flops else 0.0, best[1] if cost.bytes else 0.0


def _per_s(slots: int, begins: Int64s, ends: Int64s, work: Sequence[float]) -> npt.NDArray[np.float64]:
    """[feeds, yields]: the work per second of all feeds together while each step ran; 0 for a step without length.

    begins, ends: [feeds, yields] in ns. work: of each yield. A step's work is spread evenly over its time.
    """
    took = np.maximum(ends - begins, 1)
    done = np.broadcast_to(np.array(work, np.float64), took.shape)
    if slots > 1:
        rates = (done / took).ravel()
        shared = done.copy()
        for feed, (row_begins, row_ends) in enumerate(zip(begins, ends, strict=True)):
            for step, (begin, end) in enumerate(zip(row_begins, row_ends, strict=True)):
                overlap = np.minimum(ends, end) - np.maximum(begins, begin)
                overlap[feed] = 0  # a feed's own steps follow one another
                shared[feed, step] += float(np.maximum(overlap, 0).ravel() @ rates)
        done = shared
    return np.where(ends > begins, done * 1e9 / took, 0.0)


def _mismatch(record: Record) -> str:
    """Why the record's costs do not describe its marks; empty where they do."""
    if record.completions is None:
        return "nothing was measured"
    if not record.costs:
        return "the suite has no cost model"
    modelled = sum(cost.yields for cost in record.costs)
    yielded = record.completions.ends - record.completions.starts
    if (yielded != modelled).any():
        return f"the cost model has {modelled} yields a feed, the record {yielded.min()} to {yielded.max()}"
    return ""


def achieved(record: Record, known: Mapping[CeilingKey, Ceiling]) -> Achieved:
    """Σ over yields of max(flops / F, bytes / B), over the time that feeds were in flight.

    F and B come from `ceilings`. Williams et al., Roofline, CACM 52(4), 2009.
    """
    if reason := _mismatch(record):
        return Achieved(None, reason)
    assert record.completions is not None  # _mismatch said so
    route = record.route
    ceiling, note = known.get((route.device, route.adapter, route.precision)), ""
    if ceiling is None:
        ceiling, note = known.get((route.device, STAND_IN, route.precision)), f"ceiling from adapter {STAND_IN}"
    if ceiling is None:
        return Achieved(None, f"{route.device} was not probed in {route.precision}")
    least_s = 0.0
    for cost in record.costs:
        if (cost.flops and not ceiling.flops_per_s) or (cost.bytes and not ceiling.bytes_per_s):
            return Achieved(None, f"the probe of {route.device} in {route.precision} lacks flop/s or byte/s")
        compute_s = cost.flops / ceiling.flops_per_s if ceiling.flops_per_s else 0.0
        memory_s = cost.bytes / ceiling.bytes_per_s if ceiling.bytes_per_s else 0.0
        least_s += cost.yields * max(compute_s, memory_s)
    in_flight = in_flight_ns(record.completions)
    if not in_flight:
        return Achieved(None, "the clock did not tick")
    return Achieved(least_s * len(record.completions) * 1e9 / in_flight, note)
