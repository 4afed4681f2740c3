"""Figures of one record from its raw timestamps: units, throughput, latencies, and copies of other records.

The throughput of a closed loop counts over the window as the parent timed it, so the time between feeds counts too.

All latencies count from when a feed was due. A feed of a closed loop is due when it is issued, so its latencies are
*service times*. A server's latencies are *response times*, and a stall shows in every feed that had to wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Completions, Int64s, LatencyLimits, Record, ServiceLimits

Floats = npt.NDArray[np.float64]


def units(completions: Completions, limits: ServiceLimits | None = None) -> int:
    """The units of all feeds; with limits, of the feeds within them."""
    counted = completions.units
    return int((counted if limits is None else counted[marks_of(completions, in_time(completions, limits))]).sum())


def window_ns(completions: Completions) -> tuple[int, int]:
    """The first issue and the last mark."""
    return int(completions.issued_ns.min()), int(completions.yielded_ns.max())


def bracket_ns(record: Record) -> tuple[int, int] | None:
    """The window of a closed loop as the parent timed it. None for another scenario, and if it was not timed."""
    return record.parent_window_ns if record.scenario in ("single-stream", "offline") else None


def steps_begin_ns(completions: Completions) -> Int64s:
    """[marks], when the step that led to each mark began: at the mark before it, or at the issue of the feed."""
    begin_ns = np.concatenate((np.zeros(1, np.int64), completions.yielded_ns[:-1]))
    begin_ns[completions.starts] = completions.issued_ns
    return begin_ns


def finished_by(at: Floats, begin: Floats, end: Floats, units: npt.NDArray[Any]) -> Floats:
    """[at], the units finished by each of these moments, which must rise.

    begin, end, units: [steps]. The units of a step are spread evenly over its time, so a step that is under way counts
    in part. A step that took no time counts at once.
    """
    order = np.argsort(end, kind="stable")
    whole = np.concatenate((np.zeros(1), np.cumsum(units[order])))
    finished = whole[np.searchsorted(end[order], at, side="right")]
    first = np.searchsorted(at, begin, side="right")
    inside = np.maximum(np.searchsorted(at, end, side="left") - first, 0)  # the moments at which each step is under way
    step = np.repeat(np.arange(len(begin)), inside)
    moment = np.arange(len(step)) - np.repeat(np.cumsum(inside) - inside, inside) + first[step]
    part = (at[moment] - begin[step]) / (end[step] - begin[step])
    return np.asarray(finished + np.bincount(moment, units[step] * part, len(at)))


def flights_ns(*several: Completions) -> tuple[Int64s, Int64s]:
    """(begins, ends), the spans with at least one of these feeds in flight. The spans do not touch."""
    issued = np.concatenate([each.issued_ns for each in several])
    done = np.concatenate([each.yielded_ns[each.ends - 1] for each in several])
    order = np.argsort(issued, kind="stable")
    issued, done = issued[order], np.maximum.accumulate(done[order])
    gap = np.flatnonzero(issued[1:] > done[:-1])
    return np.concatenate((issued[:1], issued[gap + 1])), np.concatenate((done[gap], done[-1:]))


def in_flight_ns(*several: Completions, inside: tuple[int, int] | None = None) -> int:
    """How long at least one feed was in flight. Feeds that overlap count once; making the next feed does not count.

    inside: the window to count in; None means all of the time.
    """
    begin, end = flights_ns(*several)
    if inside is not None:
        begin, end = np.clip(begin, *inside), np.clip(end, *inside)
    return int((end - begin).sum())


def keeps_up(done: Completions, concurrency: int) -> bool:
    """Whether an open loop worked its feeds off as fast as they arrived: their times in flight add up to no more than
    what the issue threads had until the last arrival. A queue may grow for a while before a latency limit shows it."""
    in_flight_ns = (done.yielded_ns[done.ends - 1] - done.issued_ns).sum()
    return bool(in_flight_ns <= concurrency * (done.due_ns.max() - done.due_ns.min()))


def part_in_flight_ns(own: Completions, several: Sequence[Completions]) -> float:
    """The part of the time in flight that `own` took of a device: while feeds of several suites are in flight at once,
    each feed takes an equal part. several: the completions of all suites on the device, `own` included."""
    at = np.concatenate([each for done in several for each in (done.issued_ns, done.yielded_ns[done.ends - 1])])
    change = np.concatenate([np.repeat((1, -1), len(done)) for done in several])
    is_own = np.repeat([done is own for done in several], [2 * len(done) for done in several])
    order = np.argsort(at, kind="stable")
    in_flight, of_own = (np.cumsum(each[order])[:-1] for each in (change, change * is_own))
    return float((np.diff(at[order]) * of_own / np.maximum(in_flight, 1)).sum())


def most_in_flight(*several: Completions, inside: tuple[int, int] | None = None) -> int:
    """The largest number of feeds that were in flight at once, of all of these together.

    A feed that is issued at the moment when another is done comes after it. A feed that takes no time, or that lies
    outside of the window `inside`, is left out.
    """
    issued = np.concatenate([each.issued_ns for each in several])
    done = np.concatenate([each.yielded_ns[each.ends - 1] for each in several])
    if inside is not None:
        issued, done = np.clip(issued, *inside), np.clip(done, *inside)
    issued, done = issued[done > issued], done[done > issued]
    at, turn = np.concatenate((done, issued)), np.repeat((-1, 1), len(issued))
    return int(np.cumsum(turn[np.argsort(at, kind="stable")]).max(initial=0))


def throughput_per_s(
    completions: Completions, span_ns: float | None = None, limits: ServiceLimits | None = None
) -> float | None:
    """Units per second, of the feeds within the limits if there are any. None if the clock did not tick meanwhile.

    span_ns: the length of the window. If None, the time in flight is taken.
    """
    if span_ns is None:
        span_ns = in_flight_ns(completions)
    return units(completions, limits) * 1e9 / span_ns if span_ns else None


def rate_per_s(record: Record, limits: ServiceLimits | None = None) -> float | None:
    """Units per second of a record, of the feeds within the limits if there are any; of a screening run as if its feeds
    were whole. None if nothing was measured, or the clock did not tick meanwhile.

    A server's window opens one gap before its first arrival: n arrivals take n gaps.
    """
    done = record.completions
    if done is None:
        return None
    bracket, due_ns = bracket_ns(record), schedule_ns(record)
    span_ns = None if bracket is None else bracket[1] - bracket[0]
    if due_ns is not None:
        span_ns = int(done.yielded_ns.max() - done.due_ns.min() + due_ns[0])
    if record.cut_off and record.feed_units:
        return screening_per_s(done, record.feed_units, span_ns)
    return throughput_per_s(done, span_ns, limits)


def schedule_ns(record: Record) -> Int64s | None:
    """[feeds + 1], the due times of a server's feeds from the begin of its window, and of one feed more.

    None for another scenario, without a seed, and for a rate that cannot be offered.
    """
    done, rate_per_s, seed = record.completions, record.rate_per_s, record.seed
    if record.scenario != "server" or done is None or rate_per_s is None or seed is None:
        return None
    try:
        return seeds.schedule(rate_per_s, seeds.arrivals(seed), len(done) + 1)
    except UsageError:
        return None


def screening_per_s(completions: Completions, feed_units: int, span_ns: int | None = None) -> float | None:
    """Units per second of a screening run, whose last feeds may have been broken off. None if the clock did not tick.

    A feed that was broken off is taken to continue at the rate of its units after the first mark. feed_units: the
    number of units in a whole feed. span_ns: the length of the window; if None, the time in flight is taken.
    """
    starts, ends = completions.starts, completions.ends
    done = np.add.reduceat(completions.units, starts)
    behind = done - completions.units[starts]
    decoding_ns = completions.yielded_ns[ends - 1] - completions.yielded_ns[starts]
    missing_ns = np.where(behind > 0, (feed_units - done) * (decoding_ns / np.maximum(behind, 1)), 0.0)
    took_ns = in_flight_ns(completions) if span_ns is None else span_ns
    whole_ns = took_ns + float(missing_ns.max())  # the feeds broken off were in flight at once
    return len(completions) * feed_units * 1e9 / whole_ns if whole_ns else None


def latencies_ns(completions: Completions) -> Int64s:
    """[feeds], from when a feed was due to its last mark."""
    return completions.yielded_ns[completions.ends - 1] - completions.due_ns


def first_unit_ns(completions: Completions) -> Int64s:
    """[feeds], from when a feed was due to its first unit: the time to first token of an LLM."""
    return completions.yielded_ns[completions.starts] - completions.due_ns


def time_per_unit_ns(completions: Completions) -> Int64s:
    """[feeds with at least two marks], from the first mark to the last, over the units after the first mark, rounded
    down.

    This is the time per output token of an LLM as MLPerf Inference counts it. Empty if each feed has one mark.
    """
    first, last = completions.starts, completions.ends - 1
    total = np.add.reduceat(completions.units, first)
    several = last > first
    span = completions.yielded_ns[last] - completions.yielded_ns[first]
    behind_first = total - completions.units[first]
    return span[several] // behind_first[several]


def gaps_ns(completions: Completions) -> Int64s:
    """[marks - feeds], the time from each mark to the next mark of the same feed."""
    return np.delete(np.diff(completions.yielded_ns), completions.starts[1:] - 1)


def in_time(completions: Completions, limits: ServiceLimits) -> npt.NDArray[np.bool_]:
    """[feeds], whether each feed kept the limits of its mix, from when it was due: in a closed loop its issue."""
    first, last = completions.starts, completions.ends - 1
    marks, due = completions.yielded_ns, completions.due_ns
    behind = np.add.reduceat(completions.units, first) - completions.units[first]
    return np.broadcast_to(is_in_time(limits, marks[first] - due, marks[last] - due, behind), len(completions))


def is_in_time(limits: ServiceLimits | LatencyLimits, first_ns: Any, last_ns: Any, behind: Any) -> Any:
    """Whether a feed kept the limits; many feeds by arrays.

    first_ns, last_ns: the first and the last mark, from when the feed was due. behind: the units after the first mark.
    """
    kept: Any = True
    if limits.first_ns is not None:
        kept &= first_ns <= limits.first_ns
    if limits.total_ns is not None:
        kept &= last_ns <= limits.total_ns
    if limits.per_unit_ns is not None:
        kept &= last_ns - first_ns <= limits.per_unit_ns * behind
    return kept


def marks_of(completions: Completions, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """[marks], whether each mark belongs to a feed that is kept. kept: [feeds]."""
    return np.repeat(kept, completions.ends - completions.starts)


Holder = TypeVar("Holder")
BILLION = 1_000_000_000
ALIKE = 1_000  # billionths by which a step of a copy may differ: a microsecond, a microjoule or a microwatt
DIFFERENT_STEPS = 16  # which two series do not share by chance
FIRST_STEPS = 64 * DIFFERENT_STEPS  # of each series are compared


def fingerprint(values: npt.NDArray[Any]) -> Floats | None:
    """[steps], the first steps between values, which a shift of all values does not change: the nanoseconds between
    timestamps, which are integers, or billionths of the unit of samples. None if too few steps differ to tell."""
    steps = np.diff(values[: FIRST_STEPS + 1]) * (1 if np.issubdtype(values.dtype, np.integer) else BILLION)
    return steps.astype(np.float64) if len(np.unique(steps // ALIKE)) >= DIFFERENT_STEPS else None


def copies(series: Iterable[tuple[Holder, Floats]]) -> Iterator[tuple[Holder, Holder]]:
    """The holders (earlier, later) of each two fingerprints whose steps are alike, as far as the shorter one goes."""
    known: dict[float, list[tuple[Holder, Floats]]] = defaultdict(list)
    for holder, steps in series:
        place = float(steps[0] // ALIKE)
        for earlier, others in (each for near in (-1, 0, 1) for each in known.get(place + near, ())):
            length = min(len(steps), len(others))
            if (np.abs(steps[:length] - others[:length]) <= ALIKE).all():
                yield earlier, holder
        known[place].append((holder, steps))
