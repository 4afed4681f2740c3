"""The joules of one energy source over a window, from its raw samples.

A counter's joules between two of its updates are exact, even if readings between them were missed. A window's edges lie
between two updates and are interpolated. Power is integrated by trapezoids, so a missed reading is missing energy. A
reading has joules, or the reasons why they are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.device_ids import local, part_of, piece
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Domain, Int64s, Metering, Samples
from mixmark.harness.judge.statistics.timestamps import Floats

WHOLE = "node"  # the name that a domain covers if it covers its whole host, with devices known or not
TOO_SHORT: Final = "window too short"
SHORT: Final = "short window"
SHORT_WINDOWS = frozenset({TOO_SHORT, SHORT})
ReadingProblem = Literal[
    "no samples",
    "began late",
    "ended early",
    "lost",
    "gap",
    "stood still",
    "jumped back",
    "jumped ahead",
    "may have wrapped twice",
    "negative power",
    "no value",
    "faster than at rest",
    "less than its parts",
    "more than its supply",
    "window too short",
    "short window",
]

FEWEST_PERIODS = 40  # in a window: each edge may be off by a period, both together by 5 %
ENOUGH_PERIODS = 200  # 1 %
MOST_MISSED = 3  # periods without a reading of power, or without a change of a counter that is read
WRAP_FACTOR = 2  # how far the power of a wrap may be above the highest counted power, or below the lowest
FEWEST_CHANGES = 20  # different changes that two sources must show before they can be found to be one reading
ROW, ROW_NS = 4, 4_000_000_000  # changes in a row, and the time to which their begin is rounded
HASH = 6_364_136_223_846_793_005  # odd: the product of a number with it, modulo 2^64, is not that of another
TOGETHER_NS = 10_000_000  # between two reads that count as made together
RESTING_GAPS = 5  # between samples at rest that tell the period of a source
FASTER = 2  # times more often than at rest: more than one source writes, or the load sets when it is read
ANY_PART_WATTS = 1000.0
"""Watts that a part of a machine may draw, whatever its counter shows: a counter that wraps between all reads shows
remainders, which bound nothing."""
PLAUSIBLE = 20  # more than this times the 95th percentile of the power is wrong, of a counter or above 1 kW
MOST_WATTS = 1e6  # of one machine
LEAST_BITS, SURE_BITS = 15, 31  # of a value of all ones: it may be a power, or a sensor has none
DECIMALS = range(10)  # from watts to nanowatts
SPIKES = 2  # times what its supply can take: a single sample may be above its nameplate


@dataclass(frozen=True)
class EnergyReading:
    """The energy that one domain used in one window."""

    domain: str
    begin_ns: int
    end_ns: int
    method: str
    joules: float | None
    """If None, `reasons` say why."""
    reasons: tuple[ReadingProblem, ...] = ()
    """`short window` goes with joules; all others do not."""
    period_ns: int | None = None
    """The time between updates of the source, as far as the sampling shows them. None if it was never seen to
    change."""
    edge_uncertainty: float | None = None
    """How far the edges may put the joules off, as a fraction: 2 Δ/T. Δ is the period, or the time of averaging."""
    joules_between: tuple[float, float] = (0.0, 0.0)
    """The least and the most joules, by the power inside and outside of the edges. 0: there are no joules."""

    @property
    def needed_ns(self) -> int | None:
        """The shortest window of this source that has joules. None if its period is not known."""
        edge = self.edge_uncertainty
        return None if edge is None else round(edge * (self.end_ns - self.begin_ns) * FEWEST_PERIODS / 2)

    @property
    def valid(self) -> bool:
        return self.joules is not None

    @property
    def watts(self) -> float | None:
        return None if self.joules is None else self.joules * 1e9 / (self.end_ns - self.begin_ns)


@dataclass(frozen=True, eq=False)
class _Points:
    """The moments at which a domain's energy is known, from the last one before a window to the first one after it."""

    at_ns: Int64s
    steps: Floats
    """[points - 1], joules from one to the next. Below 0: a counter that does not wrap jumped back."""
    watts: Floats
    """Power: [points], at each. A counter: [points - 1], between them."""
    wrapped: npt.NDArray[np.bool_]
    """[points - 1], whether a counter wrapped."""
    stood_ns: Int64s
    """[points], how long a counter was read on without a change; 0 of power."""
    period_ns: float | None

    def joules(self, at_ns: Int64s) -> Floats:
        """[at], the joules since the first point. Beyond the ends the power next to them goes on."""
        seconds, when = (self.at_ns - self.at_ns[0]) / 1e9, (at_ns - self.at_ns[0]) / 1e9
        sums = np.concatenate((np.zeros(1), np.cumsum(self.steps)))
        left = np.clip(np.searchsorted(seconds, when, side="right") - 1, 0, len(self.steps) - 1)
        since = when - seconds[left]
        if len(self.watts) == len(self.steps):
            return np.asarray(sums[left] + self.watts[left] * since)
        length = np.diff(seconds)[left]
        inside = np.clip(since, 0, length)
        within = (self.watts[left] + np.diff(self.watts)[left] / length * inside / 2) * inside
        beyond = np.where(since < 0, self.watts[left], self.watts[left + 1]) * (since - inside)
        return np.asarray(sums[left] + within + beyond)


def reading(domain: Domain, samples: Samples | None, begin_ns: int, end_ns: int, lost: bool = False) -> EnergyReading:
    """lost: whether the source could not be read to the end of its phase."""
    if end_ns <= begin_ns:
        raise ValueError("a window that does not last")
    points, length_ns = _around(domain, samples, begin_ns, end_ns), end_ns - begin_ns
    slow_ns = _slow_period_ns(samples) if points is None or points.period_ns is None else None
    if slow_ns and slow_ns * FEWEST_PERIODS > length_ns:  # it never changed within the window
        found = EnergyReading(domain.id, begin_ns, end_ns, domain.method, None, (TOO_SHORT,), round(slow_ns))
        return replace(found, edge_uncertainty=2 * slow_ns / length_ns)
    if points is None:
        why = _without_points(samples, begin_ns, end_ns, lost)
        return EnergyReading(domain.id, begin_ns, end_ns, domain.method, None, (why,))
    period_ns = points.period_ns
    reasons = list(dict.fromkeys(_problems(domain, points, begin_ns, end_ns, lost)))
    edge = None
    if period_ns is not None:
        edge = 2 * max(period_ns, domain.averaging_ns or 0) / length_ns
        if edge > 2 / FEWEST_PERIODS:
            reasons.append(TOO_SHORT)
    joules = None if reasons else float(np.diff(points.joules(np.array([begin_ns, end_ns])))[0])
    if joules is not None and edge is not None and edge > 2 / ENOUGH_PERIODS:
        reasons.append(SHORT)
    return EnergyReading(
        domain=domain.id,
        begin_ns=begin_ns,
        end_ns=end_ns,
        method=domain.method,
        joules=joules,
        reasons=tuple(reasons),
        period_ns=None if period_ns is None else round(period_ns),
        edge_uncertainty=edge,
    )


def _between(domain: Domain, samples: Samples | None, found: EnergyReading, age_ns: int) -> tuple[float, float]:
    """The least and the most that the joules of a reading may be, since the edges of a window lie between two updates.

    A source may be late or early by its period or its time of averaging, a clock of its own by the age of its readings,
    and a counter, which is interpolated between two updates, by a quarter of the time between them. What is missing
    then is the lateness times the difference of the power inside and outside; below 0, it is too much: a warm-up may
    take more than the work.
    """
    points = _around(domain, samples, found.begin_ns, found.end_ns)
    assert points is not None and found.joules is not None  # a reading that has joules has points
    gaps_ns = np.diff(points.at_ns)[[0, -1]]
    own_ns = gaps_ns.sum() / 4 if domain.quantity == "energy" else found.period_ns or 0
    late_ns = max(own_ns, domain.averaging_ns or 0) + abs(age_ns)
    beyond_ns = (
        (np.array([-3, -1, 1, 3]) * (late_ns + gaps_ns.max())).round().astype(np.int64)
    )  # nearer is on both sides
    points = _around(domain, samples, found.begin_ns + beyond_ns[0], found.end_ns + beyond_ns[-1]) or points
    edges_ns = found.begin_ns, found.end_ns
    begin, end = (late_ns * np.diff(points.joules(at + beyond_ns)) / np.diff(beyond_ns) for at in edges_ns)
    missing = float(end[0] - begin[0]), float(begin[2] - end[2])  # of a source that is late, and that is early
    return max(0.0, found.joules + min(0.0, *missing)), found.joules + max(0.0, *missing)


def in_phase(domain: Domain, metering: Metering, begin_ns: int, end_ns: int) -> EnergyReading:
    """The reading of a window of a metered phase. Power that was the same at rest and at work, or came more often at
    work than at rest, has no joules, and neither has a source above what its supply can take."""
    samples = metering.samples.get(domain.id)
    found = reading(domain, samples, begin_ns, end_ns, domain.id in metering.lost)
    if found.valid:
        between = _between(domain, samples, found, metering.reading_age_ns.get(domain.id, 0))
        found = replace(found, joules_between=between)
    if found.watts is not None and domain.supply_watts is not None and found.watts > domain.supply_watts:
        return replace(found, joules=None, reasons=("more than its supply",))
    if samples is None or not found.valid or domain.quantity != "power":
        return found
    if _frozen(domain, samples, metering, found):
        return replace(found, joules=None, reasons=("stood still",))
    if _hurried(samples, metering, found):
        return replace(found, joules=None, reasons=("faster than at rest",))
    return found


def _hurried(samples: Samples, metering: Metering, found: EnergyReading) -> bool:
    """Whether the samples of a source with timestamps of its own are much denser in the window than in
    the rests of its phase. Another source may have begun to write, or the load decides when power is sampled."""
    at_ns = samples.before_ns
    if (samples.after_ns != at_ns).any():
        return False
    rests = [np.diff(at_ns[(begin <= at_ns) & (at_ns <= end)]) for begin, end in metering.idle_ns]
    at_rest = np.concatenate((np.zeros(0, np.int64), *rests))
    at_work = np.diff(at_ns[(found.begin_ns <= at_ns) & (at_ns <= found.end_ns)])
    return len(at_rest) >= RESTING_GAPS and bool(np.median(at_work) * FASTER < np.median(at_rest))


def _frozen(domain: Domain, samples: Samples, metering: Metering, found: EnergyReading) -> bool:
    """Whether a power is the same value in the whole window and on across a change of the load.

    The load of the host changes between the rests and the work of a phase. A phase without rests begins with nothing to
    do; there the value must be the same in all of it. A source may well give one value while the load is steady, or
    while its device is not used.
    """
    hosts = any(local(part_of(each)) in (HOST_PROCESSOR, WHOLE) for each in domain.covers)
    if found.period_ns is None or not hosts:
        return False
    at_ns, values = _middles(samples), samples.values
    first = max(int(np.searchsorted(at_ns, found.begin_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(at_ns, found.end_ns, side="left"))
    if (values[first : last + 1] != values[first]).any():
        return False
    others = np.flatnonzero(values != values[first])
    before, after = others[others < first], others[others > last]
    begin_ns = int(at_ns[before[-1] + 1] if len(before) else at_ns[0])
    end_ns = int(at_ns[after[0] - 1] if len(after) else at_ns[-1])
    slack_ns = max(MOST_MISSED * found.period_ns, domain.averaging_ns or 0)
    if not metering.idle_ns:
        outside_ns = max(found.begin_ns - begin_ns, end_ns - found.end_ns)
        return not len(others) and outside_ns > slack_ns
    rest_ns = sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in metering.idle_ns)
    return rest_ns > slack_ns and end_ns - begin_ns - rest_ns > slack_ns


def same(one: Samples, other: Samples) -> bool:
    """Whether two sources show one and the same reading: most of their changes between reads that were made together
    are equal. False: too few different changes were seen to tell."""
    at_ns, beside_ns = _middles(one), _middles(other)
    if not len(at_ns) or not len(beside_ns):
        return False
    right = np.clip(np.searchsorted(beside_ns, at_ns), 1, max(1, len(beside_ns) - 1)) % len(beside_ns)
    nearest = np.where(np.abs(beside_ns[right - 1] - at_ns) <= np.abs(beside_ns[right] - at_ns), right - 1, right)
    together = np.abs(beside_ns[nearest] - at_ns) <= TOGETHER_NS
    mine, yours = np.diff(one.values[together]), np.diff(other.values[nearest][together])
    moved = (mine != 0) | (yours != 0)
    if len(np.unique(np.round(mine[moved], 6))) < FEWEST_CHANGES:
        return False
    return bool(np.isclose(mine[moved], yours[moved], rtol=0, atol=1e-6).mean() > 0.5)


def rows_of_changes(samples: Samples) -> set[int]:
    """A hash of each four changes in a row, rounded, with the time at which they began to 4 s. Sources of one reading
    have most of them in common, and other sources few, even if they show few different values."""
    moved = np.flatnonzero(np.diff(samples.values)) + 1
    changes = np.round(np.diff(np.concatenate((samples.values[:1], samples.values[moved]))) * 1e6)
    if len(changes) < ROW:
        return set()
    rows = np.stack([changes[at : len(changes) - ROW + 1 + at] for at in range(ROW)], axis=1).astype(np.int64)
    hashes = _middles(samples)[moved[: len(rows)]] // ROW_NS
    for column in rows.T:
        hashes = hashes * HASH + column
    return {*hashes.tolist()}


def cumulative(domain: Domain, samples: Samples | None, at_ns: Int64s) -> Floats | None:
    """[at], joules since at_ns[0], for the energy of many blocks of one window; at_ns rises.

    None if the reading of the whole window has no joules. A block may be shorter than the shortest window of a reading:
    an excess in one block is lacking in its neighbour.
    """
    begin_ns, end_ns = int(at_ns[0]), int(at_ns[-1])
    points = _around(domain, samples, begin_ns, end_ns)
    if points is None or not reading(domain, samples, begin_ns, end_ns).valid:
        return None
    joules = points.joules(at_ns)
    return np.asarray(joules - joules[0])


def power(domain: Domain, samples: Samples) -> tuple[Int64s, Floats]:
    """(at_ns [n + 1], watts [n]): the mean power between neighbouring points. NaN if not known."""
    whole = (int(samples.before_ns[0]), int(samples.after_ns[-1]) + 1) if len(samples.values) else (0, 1)
    points = _around(domain, samples, *whole)
    if points is None:
        return np.zeros(1, np.int64), np.zeros(0)
    gaps_ns = np.diff(points.at_ns)
    known = (points.steps >= 0) & (gaps_ns <= MOST_MISSED * (points.period_ns or np.inf))
    if domain.quantity == "energy":
        known &= np.where(points.wrapped, _wraps(points), _paced_watts(points) <= _plausible_watts(points))
    return points.at_ns, np.where(known, points.steps * 1e9 / gaps_ns, np.nan)


def _around(domain: Domain, samples: Samples | None, begin_ns: int, end_ns: int) -> _Points | None:
    """The points around a window. None if fewer than two enclose or touch it."""
    if samples is None or len(samples.values) < 2:
        return None
    reads_ns, values = np.maximum.accumulate(_middles(samples)), samples.values
    fresh = np.concatenate((np.ones(1, bool), np.diff(reads_ns) > 0))
    reads_ns, values = reads_ns[fresh], values[fresh]
    changed = np.concatenate((np.ones(1, bool), np.diff(values) != 0))
    kept = np.flatnonzero(changed) if domain.quantity == "energy" else np.arange(len(values))
    at_ns = reads_ns[kept]
    stood_ns = reads_ns[np.append(kept[1:], len(values)) - 1] - at_ns
    first = max(int(np.searchsorted(at_ns, begin_ns, side="right")) - 1, 0)
    last = min(int(np.searchsorted(at_ns, end_ns, side="left")), len(at_ns) - 1)
    if last <= first:
        return None
    near = slice(first, last + 1)
    at_ns, stood_ns, watts = at_ns[near], stood_ns[near], values[kept[near]]
    gaps_ns = np.diff(at_ns)
    period_ns: float | None = float(np.median(gaps_ns))
    if domain.quantity == "power":
        steps = (watts[1:] + watts[:-1]) / 2 * gaps_ns / 1e9
        wrapped = np.zeros(len(steps), bool)
        if not (samples.before_ns == samples.after_ns).all():  # polled: a source may give the same value many times
            turns_ns = np.diff(at_ns[changed[kept[near]]])
            period_ns = max(period_ns, float(np.median(turns_ns))) if period_ns and len(turns_ns) else None
        return _Points(at_ns, steps, watts, wrapped, stood_ns, period_ns)
    steps = np.diff(watts)
    wrapped = (steps < 0) & (steps + (domain.wrap_joules or 0) >= 0)
    steps = steps + np.where(wrapped, domain.wrap_joules or 0, 0)
    return _Points(at_ns, steps, steps * 1e9 / gaps_ns, wrapped, stood_ns, period_ns)


def _middles(samples: Samples) -> Int64s:
    return samples.before_ns + (samples.after_ns - samples.before_ns) // 2


def _slow_period_ns(samples: Samples | None) -> float | None:
    """The median time that a source shows one value. None if it shows one throughout."""
    if samples is None or not len(samples.values):
        return None
    turns = np.flatnonzero(np.diff(samples.values)) + 1
    at_ns = _middles(samples)[[0, *turns, len(samples.values) - 1]]
    return float(np.median(np.diff(at_ns))) if len(turns) else None


def _without_points(samples: Samples | None, begin_ns: int, end_ns: int, lost: bool) -> ReadingProblem:
    reads_ns = _middles(samples) if samples else np.zeros(0, np.int64)
    if ((reads_ns >= begin_ns) & (reads_ns <= end_ns)).sum() > 1:
        return "stood still"
    return "lost" if lost else "no samples"


def _problems(domain: Domain, points: _Points, begin_ns: int, end_ns: int, lost: bool) -> Iterator[ReadingProblem]:
    """Every reason for which there are no joules, except that the window is too short."""
    at_ns, period_ns = points.at_ns, points.period_ns
    if period_ns is None:  # power that was polled and is the same throughout
        yield "stood still"
        return
    if begin_ns < at_ns[0] - period_ns:
        yield "began late"
    if end_ns > at_ns[-1] + period_ns:
        yield "lost" if lost else "ended early"
    if (points.stood_ns[at_ns < end_ns] > MOST_MISSED * period_ns).any():
        yield "stood still"
    unread_ns = np.diff(at_ns) - points.stood_ns[:-1]
    if domain.quantity == "energy":
        unread_ns = unread_ns[[0, -1]]  # a counter misses nothing in between; at an edge one would have to guess
    if (unread_ns > MOST_MISSED * period_ns).any():
        yield "gap"
    if domain.quantity == "power":
        yield from _absurd(domain, points.watts)
    if domain.quantity == "energy":
        yield from _jumps(points, domain.wrap_joules)


def _absurd(domain: Domain, watts: Floats) -> Iterator[ReadingProblem]:
    """Power that no machine draws. A machine that runs never draws 0 W, but a spare supply or a device may."""
    bits = _bits_of_ones(watts)
    usual = watts[(watts > 0) & (bits < LEAST_BITS)]
    most = PLAUSIBLE * float(np.quantile(usual, 0.95)) if len(usual) else MOST_WATTS
    hosts = any(local(name) in (HOST_PROCESSOR, WHOLE) and of == 1 for name, _, of in map(piece, domain.covers))
    if (watts < 0).any():
        yield "negative power"
    if (bits >= SURE_BITS).any() or (hosts and (watts == 0).any() and (watts > 0).any()):
        yield "no value"
    if (watts > min(max(most, domain.supply_watts or ANY_PART_WATTS), MOST_WATTS)).any():
        yield "jumped ahead"
    if domain.supply_watts and (watts > SPIKES * domain.supply_watts).any():
        yield "more than its supply"


def _bits_of_ones(watts: Floats) -> npt.NDArray[np.int64]:
    """[points], the bits of a value that is all ones in a decimal unit, such as 4,294,967.295 W; 0 of another value."""
    bits = np.zeros(len(watts), np.int64)
    for decimals in DECIMALS:
        beyond = np.maximum(watts, 0) * 10.0**decimals + 1
        ones = np.round(np.log2(beyond))
        bits = np.maximum(bits, np.where(np.isclose(beyond, 2**ones, rtol=1e-12, atol=0), ones, 0).astype(np.int64))
    return bits


def _jumps(points: _Points, wrap_joules: float | None) -> Iterator[ReadingProblem]:
    """A counter that fell has wrapped or was reset. There are joules only if a wrap is certain. A long gap may hide a
    second wrap."""
    limit_watts, watts = _plausible_watts(points), _paced_watts(points)
    gaps_ns = np.diff(points.at_ns)
    unread_ns = gaps_ns - points.stood_ns[:-1]
    most_joules = np.maximum(gaps_ns * limit_watts, unread_ns * ANY_PART_WATTS) / 1e9
    twice = wrap_joules is not None and bool((most_joules >= wrap_joules).any())
    if (points.steps < 0).any() or (not twice and (points.wrapped & ~_wraps(points)).any()):
        yield "jumped back"
    if ((watts > limit_watts) & ~points.wrapped).any():
        yield "jumped ahead"
    if twice:
        yield "may have wrapped twice"


def _wraps(points: _Points) -> npt.NDArray[np.bool_]:
    """[points - 1], whether a counter that fell is certain to have wrapped once: it was read at least every MOST_MISSED
    periods, and the power that the wrap implies is like the power counted in the rest of the window, by WRAP_FACTOR.

    A reset implies the power that is needed to reach the end of the counter's range first: mostly far too much, and
    close to the end of the range too little.
    """
    watts, counted = _paced_watts(points), _counted_watts(points)
    if not len(counted):
        return np.zeros(len(points.steps), bool)
    alike = (watts >= counted.min() / WRAP_FACTOR) & (watts <= counted.max() * WRAP_FACTOR)
    return np.asarray(points.wrapped & alike & (np.diff(points.at_ns) <= MOST_MISSED * (points.period_ns or np.inf)))


def _paced_watts(points: _Points) -> Floats:
    """[points - 1]; two reads in quick succession show a whole update in no time, so it counts as a period's."""
    return points.steps * 1e9 / np.maximum(np.diff(points.at_ns), points.period_ns or 0)


def _plausible_watts(points: _Points) -> float:
    """The largest plausible power. Infinite: the counter does nothing but wrap."""
    counted = _counted_watts(points)
    return PLAUSIBLE * float(np.quantile(counted, 0.95)) if len(counted) else float("inf")


def _counted_watts(points: _Points) -> Floats:
    """The power between points between which the counter rose."""
    return _paced_watts(points)[~points.wrapped & (points.steps >= 0)]
