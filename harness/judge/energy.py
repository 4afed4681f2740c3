"""Conclusions from the meters' raw samples: joules over a window, and which of them may be added.

A counter's joules between two of its own updates are exact, whatever was missed in between; a window's edges lie
between two updates and are interpolated. Power is integrated by trapezoids, so a gap is a hole. Nothing here ever
puts a number where something is not known: a reading has joules, or it has the reasons why not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from harness.judge.stats import Floats
from harness.schema import HOST_PROCESSOR, Boundary, Device, Domain, Int64s, Metering, Record, Result, Samples

Reason = Literal[
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
    "window too short",
    "short window",
]

FEWEST_PERIODS = 40  # in a window: each edge may be off by a period, together 5 %
ENOUGH_PERIODS = 200  # 1 %
MOST_MISSED = 3  # periods without a reading of power, or without a change of a counter that is read
PLAUSIBLE = 20  # times the power that is seen but for a twentieth of the time: a counter that says more is wrong
CROSS_CHECK = 0.05  # that a counter and the integral of power beside it may differ, or a whole be less than its parts
WHOLE = "node"  # what a domain covers that covers the machine with all its devices, known or not
CLASSES: tuple[Boundary, ...] = get_args(Boundary)  # the widest first
LEFT_OUT: Mapping[Boundary, tuple[str, ...]] = {
    "wall": (),
    "node": ("power supply",),
    "devices": ("memory", "mainboard", "drives", "fans", "network", "power supply"),
}
PIECE = re.compile(r"(.+)/(\d{1,4})-of-([1-9]\d{0,3})")


@dataclass(frozen=True)
class Reading:
    """What one domain used in one window."""

    domain: str
    begin_ns: int
    end_ns: int
    method: str
    joules: float | None
    """None: `reasons` say why."""
    reasons: tuple[Reason, ...] = ()
    """`short window` goes with joules; all others do not."""
    period_ns: int | None = None
    """Between updates of the source, as far as the sampling shows them. None: never seen to change."""
    longest_gap_ns: int | None = None
    """Between two reads."""
    edge_uncertainty: float | None = None
    """How far the edges may put the joules off, as a share: 2 Δ/T, Δ the period or what the power is a mean over."""

    @property
    def valid(self) -> bool:
        return self.joules is not None

    @property
    def watts(self) -> float | None:
        return None if self.joules is None else self.joules * 1e9 / (self.end_ns - self.begin_ns)


@dataclass(frozen=True, eq=False)
class _Points:
    """Where a domain's energy is known, around a window: from the last point before it to the first one behind."""

    at_ns: Int64s
    steps: Floats
    """[points - 1], joules from one to the next; below 0 where a counter that does not wrap jumped back."""
    watts: Floats
    """Power: [points], at each. A counter: [points - 1], between them."""
    wrapped: npt.NDArray[np.bool_]
    """[points - 1], where a counter began anew."""
    stood_ns: Int64s
    """[points], how long a counter was read on without a change; 0 of power."""
    period_ns: float | None
    longest_gap_ns: int

    def joules(self, at_ns: Int64s) -> Floats:
        """[at], since the first point. Beyond the ends the power next to them goes on."""
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


def reading(domain: Domain, samples: Samples | None, begin_ns: int, end_ns: int, lost: bool = False) -> Reading:
    """lost: whether the source could not be read to the end of its phase."""
    if end_ns <= begin_ns:
        raise ValueError("a window that does not last")
    points = _around(domain, samples, begin_ns, end_ns)
    if points is None:
        why = _without_points(samples, begin_ns, end_ns, lost)
        return Reading(domain.id, begin_ns, end_ns, domain.method, None, (why,))
    period_ns, length_ns = points.period_ns, end_ns - begin_ns
    reasons = list(dict.fromkeys(_problems(domain, points, begin_ns, end_ns, lost)))
    edge = None
    if period_ns is not None:
        edge = 2 * max(period_ns, domain.averaging_ns or 0) / length_ns
        if edge > 2 / FEWEST_PERIODS:
            reasons.append("window too short")
    joules = None if reasons else float(np.diff(points.joules(np.array([begin_ns, end_ns])))[0])
    if joules is not None and edge is not None and edge > 2 / ENOUGH_PERIODS:
        reasons.append("short window")
    return Reading(
        domain=domain.id,
        begin_ns=begin_ns,
        end_ns=end_ns,
        method=domain.method,
        joules=joules,
        reasons=tuple(reasons),
        period_ns=None if period_ns is None else round(period_ns),
        longest_gap_ns=points.longest_gap_ns,
        edge_uncertainty=edge,
    )


def cumulative(domain: Domain, samples: Samples | None, at_ns: Int64s) -> Floats | None:
    """[at], joules since at_ns[0], for the energy of many blocks of one window; at_ns rises.

    None where the reading of the whole window has no joules. A block may be shorter than a reading is let through
    with: what it has too much, its neighbour has too little.
    """
    begin_ns, end_ns = int(at_ns[0]), int(at_ns[-1])
    points = _around(domain, samples, begin_ns, end_ns)
    if points is None or not reading(domain, samples, begin_ns, end_ns).valid:
        return None
    joules = points.joules(at_ns)
    return np.asarray(joules - joules[0])


def power(domain: Domain, samples: Samples) -> tuple[Int64s, Floats]:
    """(at_ns [n + 1], watts [n]): the mean power between neighbouring points; NaN where it is not known."""
    whole = (int(samples.before_ns[0]), int(samples.after_ns[-1]) + 1) if len(samples.values) else (0, 1)
    points = _around(domain, samples, *whole)
    if points is None:
        return np.zeros(1, np.int64), np.zeros(0)
    gaps_ns = np.diff(points.at_ns)
    known = (points.steps >= 0) & (gaps_ns <= MOST_MISSED * (points.period_ns or np.inf))
    if domain.quantity == "energy":
        known &= _paced_watts(points) <= _plausible_watts(points)
    return points.at_ns, np.where(known, points.steps * 1e9 / gaps_ns, np.nan)


def idle_watts(domain: Domain, metering: Metering) -> tuple[float | None, ...]:
    """Of each interval of Metering.idle_ns, before and after the work."""
    samples, lost = metering.samples.get(domain.id), domain.id in metering.lost
    return tuple(reading(domain, samples, begin, end, lost).watts for begin, end in metering.idle_ns)


def _around(domain: Domain, samples: Samples | None, begin_ns: int, end_ns: int) -> _Points | None:
    """None where fewer than two points enclose or touch the window."""
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
    if last <= first or at_ns[first] >= end_ns or at_ns[last] <= begin_ns:
        return None
    near = slice(first, last + 1)
    at_ns, stood_ns, watts = at_ns[near], stood_ns[near], values[kept[near]]
    gaps_ns = np.diff(at_ns)
    longest_gap_ns = int(np.diff(reads_ns[kept[first] : kept[last] + 1]).max())
    period_ns: float | None = float(np.median(gaps_ns))
    if domain.quantity == "power":
        steps = (watts[1:] + watts[:-1]) / 2 * gaps_ns / 1e9
        wrapped = np.zeros(len(steps), bool)
        if not (samples.before_ns == samples.after_ns).all():  # polled: a source may give the same value many times
            turns_ns = np.diff(at_ns[changed[kept[near]]])
            period_ns = max(period_ns, float(np.median(turns_ns))) if period_ns and len(turns_ns) else None
        return _Points(at_ns, steps, watts, wrapped, stood_ns, period_ns, longest_gap_ns)
    steps = np.diff(watts)
    wrapped = (steps < 0) & (steps + (domain.wrap_joules or 0) >= 0)
    steps = steps + np.where(wrapped, domain.wrap_joules or 0, 0)
    return _Points(at_ns, steps, steps * 1e9 / gaps_ns, wrapped, stood_ns, period_ns, longest_gap_ns)


def _middles(samples: Samples) -> Int64s:
    return samples.before_ns + (samples.after_ns - samples.before_ns) // 2


def _without_points(samples: Samples | None, begin_ns: int, end_ns: int, lost: bool) -> Reason:
    reads_ns = _middles(samples) if samples else np.zeros(0, np.int64)
    if ((reads_ns >= begin_ns) & (reads_ns <= end_ns)).sum() > 1:
        return "stood still"
    if lost:
        return "lost"
    if len(reads_ns) and reads_ns[-1] < end_ns:
        return "ended early"
    return "began late" if len(reads_ns) and reads_ns[0] > begin_ns else "no samples"


def _problems(domain: Domain, points: _Points, begin_ns: int, end_ns: int, lost: bool) -> Iterator[Reason]:
    """Everything for which there are no joules, but the length of the window."""
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
    if domain.quantity == "power" and (points.watts < 0).any():
        yield "negative power"
    if domain.quantity == "energy":
        yield from _jumps(points, domain.wrap_joules)


def _jumps(points: _Points, wrap_joules: float | None) -> Iterator[Reason]:
    """A reset looks like a wrap but for the power that it would have taken; a long gap may hide a second wrap."""
    limit_watts, watts = _plausible_watts(points), _paced_watts(points)
    beyond = watts > limit_watts
    if (points.steps < 0).any() or (beyond & points.wrapped).any():
        yield "jumped back"
    if (beyond & ~points.wrapped).any():
        yield "jumped ahead"
    if wrap_joules is not None and (np.diff(points.at_ns) / 1e9 * limit_watts >= wrap_joules).any():
        yield "may have wrapped twice"


def _paced_watts(points: _Points) -> Floats:
    """[points - 1]; two reads in quick succession show a whole update in no time, so it counts as a period's."""
    return points.steps * 1e9 / np.maximum(np.diff(points.at_ns), points.period_ns or 0)


def _plausible_watts(points: _Points) -> float:
    """Infinite where a counter does nothing but wrap: anything may have happened."""
    counted = _paced_watts(points)[~points.wrapped & (points.steps >= 0)]
    return PLAUSIBLE * float(np.quantile(counted, 0.95)) if len(counted) else float("inf")


def overlap(one: Domain, other: Domain, domains: Mapping[str, Domain]) -> bool:
    """Whether adding both would count something twice: one contains the other, or both cover the same thing.

    Meters know nothing of each other's domains, so a wall contains every node, and a node every device.
    """
    return (
        one.boundary != other.boundary
        or one.id in _ancestors(other, domains)
        or other.id in _ancestors(one, domains)
        or any(_meet(mine, yours) for mine in one.covers for yours in other.covers)
    )


def _meet(mine: str, yours: str) -> bool:
    """The same thing, or a part and its whole; `cpu:0/1-of-2` and `cpu:0/2-of-2` do not meet."""
    (my_whole, my_part, mine_of), (your_whole, your_part, yours_of) = _piece(mine), _piece(yours)
    return my_whole == your_whole and (my_part == your_part or mine_of != yours_of)


def _piece(covers: str) -> tuple[str, int, int]:
    """`cpu:0/1-of-2` is (cpu:0, 1, 2), `cpu:0` is (cpu:0, 1, 1)."""
    found = PIECE.fullmatch(covers)
    return (found[1], int(found[2]), int(found[3])) if found else (covers, 1, 1)


def _ancestors(domain: Domain, domains: Mapping[str, Domain]) -> set[str]:
    """A file from elsewhere may hold a circle."""
    found: set[str] = set()
    while domain.parent is not None and domain.parent not in found:
        found.add(domain.parent)
        if domain.parent not in domains:
            break
        domain = domains[domain.parent]
    return found


def antichain(domains: Iterable[Domain], readable: Collection[str], devices: Iterable[Device]) -> tuple[Domain, ...]:
    """Domains of one boundary that overlap nowhere: of the widest boundary that covers every device, else of `devices`.

    Among those that overlap, the one that covers more is taken, then a counter before polled power, then the parent.
    """
    known = {domain.id: domain for domain in domains}
    devices = tuple(devices)
    chosen: list[Domain] = []
    for boundary in CLASSES:
        of_it = [each for each in known.values() if each.boundary == boundary and each.id in readable]
        chosen = []
        for domain in sorted(of_it, key=lambda each: _rank(each, known)):
            if not any(overlap(domain, other, known) for other in chosen):
                chosen.append(domain)
        if not uncovered(chosen, devices):
            break
    return tuple(chosen)


def _rank(domain: Domain, known: Mapping[str, Domain]) -> tuple[object, ...]:
    covered = sum(1 / _piece(each)[2] for each in domain.covers)
    method = ("external", "counter", "integrated", "modelled").index(domain.method)
    return (-covered, method, domain.accuracy or 1, len(_ancestors(domain, known)), domain.id)


def uncovered(domains: Iterable[Domain], devices: Iterable[Device]) -> tuple[str, ...]:
    """Devices of which not all is covered, in order; the host's processor is one even where no adapter reaches it."""
    covers, needed = {each for domain in domains for each in domain.covers}, tuple(devices)
    if WHOLE in covers:
        return ()
    hosts = not any(each.on_host for each in needed)
    host = (HOST_PROCESSOR,) if hosts and not _covered(HOST_PROCESSOR, covers) else ()
    return (*host, *(each.id for each in needed if not _whole(each, covers)))


def _whole(device: Device, covers: Collection[str]) -> bool:
    """A slice is metered where the device is that it is a part of."""
    return _covered(device.whole.id, covers) or all(_covered(part, covers) for part in device.silicon)


def _covered(whole: str, covers: Collection[str]) -> bool:
    """By itself, or by all pieces of a division of it."""
    counts = {of for each in covers for name, _, of in (_piece(each),) if name == whole}
    return any(all(_part(whole, number, of) in covers for number in range(1, of + 1)) for of in counts)


def _part(whole: str, number: int, of: int) -> str:
    return whole if of == 1 and number == 1 else f"{whole}/{number}-of-{of}"


@dataclass(frozen=True)
class Total:
    """What the whole machine used in one window, as far as that is known."""

    boundary: Boundary | None
    """None: some device is not metered, or not validly, or only modelled; then there are no joules either."""
    joules: float | None
    domains: tuple[str, ...]
    """That were added, or would be: no two overlap."""
    unmetered: tuple[str, ...]
    """Devices where `boundary` is None, else what lies outside of it."""
    reasons: tuple[str, ...]
    """Why there is no boundary, a sentence each."""
    edge_uncertainty: float | None
    """How far the windows' edges may put the joules off, as a share: of the worst domain."""
    readings: Mapping[str, Reading]
    """Of every domain, added or not."""
    idle_watts: tuple[float | None, ...] = ()
    """Of the domains that were added, before and after the phase. None: not known."""

    @property
    def watts(self) -> float | None:
        watts = [self.readings[each].watts for each in self.domains]
        return None if self.joules is None else sum(each for each in watts if each is not None)


def boundary(
    domains: Sequence[Domain],
    readings: Mapping[str, Reading],
    devices: Iterable[Device],
    lost: Mapping[str, str] | None = None,
) -> Total:
    """readings: of one window, by domain. lost: Metering.lost. The widest boundary that holds every device decides, and
    its worst aspect.

    Modelled energy counts as none: its domains are read and shown, and never added.
    """
    devices = tuple(devices)
    measured = {each.id for each in domains if each.method != "modelled" and readings[each.id].valid}
    chosen = antichain(domains, measured, devices)
    missing = uncovered(chosen, devices)
    if missing or not chosen:
        broken = [each for each in domains if each.method != "modelled" and not readings[each.id].valid]
        reasons = [f"{device} is not metered" for device in uncovered((*chosen, *broken), devices)]
        reasons += [
            f"{each.id}: {', '.join(told(readings[each.id], lost or {}))}"
            for each in domains
            if not readings[each.id].valid
        ]
        reasons += [f"{each.id} is modelled, not measured" for each in domains if each.method == "modelled"]
        names = tuple(each.id for each in chosen)
        return Total(None, None, names, missing, tuple(reasons), None, readings)
    added = [readings[each.id] for each in chosen]
    kind = chosen[0].boundary
    covers = {each for domain in chosen for each in domain.covers}
    outside = tuple(each for each in LEFT_OUT[kind] if not _covered(each, covers))
    joules = sum(each.joules for each in added if each.joules is not None)
    edges = max((each.edge_uncertainty for each in added if each.edge_uncertainty is not None), default=None)
    return Total(kind, joules, tuple(each.domain for each in added), outside, (), edges, readings)


def told(read: Reading, lost: Mapping[str, str]) -> tuple[str, ...]:
    """The reasons of a reading, and in its meter's own words why it was lost."""
    return (*read.reasons, *((lost[read.domain],) if read.domain in lost else ()))


def total(result: Result, phase: str, begin_ns: int, end_ns: int) -> Total:
    """The machine's energy in a window of a phase; where a meter is missing, the reasons say so."""
    metering = metered(result, phase)
    if metering is None or not result.domains:
        missing = uncovered((), result.devices)
        return Total(None, None, (), missing, ("no meter was read",), None, {})
    readings = {
        each.id: reading(each, metering.samples.get(each.id), begin_ns, end_ns, each.id in metering.lost)
        for each in result.domains
    }
    found = boundary(result.domains, readings, result.devices, metering.lost)
    added = [idle_watts(each, metering) for each in result.domains if each.id in found.domains]
    idle = tuple(
        None if any(watts is None for watts in each) else sum(watts for watts in each if watts is not None)
        for each in zip(*added, strict=True)
    )
    return replace(found, idle_watts=idle if found.boundary else ())


def of_record(result: Result, record: Record) -> Total | None:
    """In the record's window, from its first issue to its last mark. None where nothing finished; and where other
    records share its phase, since no meter tells whose joules are whose."""
    sharing = [each for each in result.records if each.phase == record.phase]
    planned = [
        share for each in result.phases if each.name == record.phase for task in each.tasks for share in task.shares
    ]
    if record.completions is None or max(len(sharing), len(planned)) > 1:
        return None
    begin_ns, end_ns = int(record.completions.issued_ns.min()), int(record.completions.marks_ns.max())
    return total(result, record.phase, begin_ns, end_ns) if end_ns > begin_ns else None


def profile(result: Result, phase: str, edges_ns: Int64s) -> Floats:
    """[edges - 1], mean watts of the domains that the phase's `total` would add, whole phase long; NaN where one of
    them is not known. For a chart: short blocks of a source that updates rarely are interpolated."""
    metering = metered(result, phase)
    watts = np.full(len(edges_ns) - 1, np.nan)
    if metering is None:
        return watts
    found = {each.id: power(each, samples) for each in result.domains if (samples := metering.samples.get(each.id))}
    readable = {each.id for each in result.domains if each.method != "modelled" and each.id in found}
    sums = np.zeros(len(watts))
    chosen = antichain(result.domains, {id for id in readable if np.isfinite(found[id][1]).any()}, result.devices)
    for each in chosen:
        at_ns, steps = found[each.id]
        length_s = np.diff(at_ns) / 1e9
        known = np.isfinite(steps)
        joules, seconds = (
            np.interp(edges_ns, at_ns, np.concatenate((np.zeros(1), np.cumsum(np.where(known, each, 0)))))
            for each in (steps * length_s, length_s)
        )
        whole_s = np.diff(edges_ns) / 1e9
        covered_s = np.diff(seconds)
        sums += np.where(covered_s > whole_s * (1 - 1e-6), np.diff(joules) / whole_s, np.nan)
    return sums if chosen else watts


@dataclass(frozen=True)
class Draw:
    """What is drawn at the moment, to look at; no conclusion follows from it."""

    watts: float
    boundary: Boundary | None
    """None: of some device it is not known, and not in it."""


def draw(domains: Sequence[Domain], samples: Mapping[str, Samples], devices: Iterable[Device]) -> Draw | None:
    """Mean power of an antichain over samples of the last seconds. None: nothing is known."""
    watts = {}
    for domain in domains:
        if domain.method != "modelled" and domain.id in samples:
            at_ns, steps = power(domain, samples[domain.id])
            known = np.isfinite(steps)
            if known.any():
                watts[domain.id] = float(np.average(steps[known], weights=np.diff(at_ns)[known]))
    devices = tuple(devices)
    chosen = antichain(domains, watts.keys(), devices)
    if not chosen:
        return None
    return Draw(sum(watts[each.id] for each in chosen), None if uncovered(chosen, devices) else chosen[0].boundary)


def blocks(result: Result, phase: str, edges_ns: Int64s) -> Floats | None:
    """[edges - 1], joules of the machine in neighbouring blocks of a window: they add up to the joules of `total`.

    None where that has none.
    """
    found, metering = total(result, phase, int(edges_ns[0]), int(edges_ns[-1])), metered(result, phase)
    if found.joules is None or metering is None:
        return None
    known = {each.id: each for each in result.domains}
    sums = [cumulative(known[id], metering.samples.get(id), edges_ns) for id in found.domains]
    return np.asarray(sum(np.diff(each) for each in sums if each is not None))


def metered(result: Result, phase: str) -> Metering | None:
    return next((each for each in reversed(result.meterings) if each.phase == phase), None)


def device_watts(result: Result, phase: str, device: Device, begin_ns: int, end_ns: int) -> float | None:
    """Mean power of a device's own domains: of those that cover it and no other device. None: not measured.

    What it shares with others, such as a package with an accelerator inside, is nobody's own.
    """
    metering = metered(result, phase)
    if metering is None:
        return None
    of_it = {device.id, *device.silicon}
    own = [
        each
        for each in result.domains
        if each.boundary == "devices"
        and each.method != "modelled"
        and {_piece(part)[0] for part in each.covers} <= of_it
    ]
    readings = {each.id: reading(each, metering.samples.get(each.id), begin_ns, end_ns) for each in own}
    chosen = antichain(own, {id for id, each in readings.items() if each.valid}, (device,))
    if not _whole(device, {each for domain in chosen for each in domain.covers}):
        return None
    return sum(watts for each in chosen if (watts := readings[each.id].watts) is not None)


def disagreements(domains: Iterable[Domain], readings: Mapping[str, Reading]) -> Iterator[tuple[Domain, Domain, float]]:
    """(counter, power, by how much of the counter's they differ): of one device's two sources, in one window."""
    domains = tuple(domains)
    for counter in (each for each in domains if each.method == "counter"):
        for integral in (each for each in domains if each.method == "integrated"):
            joules, beside = readings[counter.id].joules, readings[integral.id].joules
            if set(counter.covers) == set(integral.covers) and joules and beside is not None:
                yield counter, integral, beside / joules - 1


def contradictions(domains: Iterable[Domain], readings: Mapping[str, Reading]) -> Iterator[tuple[Domain, float]]:
    """(whole, by how much less than its parts together it used): a wall or a node, against what it holds."""
    read = {each.id: each for each in domains if each.method != "modelled" and readings[each.id].valid}
    for whole in (each for each in read.values() if WHOLE in each.covers):
        for narrower in CLASSES[CLASSES.index(whole.boundary) + 1 :]:
            parts = antichain((each for each in read.values() if each.boundary == narrower), read, ())
            inside, around = sum(readings[each.id].joules or 0 for each in parts), readings[whole.id].joules
            if inside and around is not None and around < inside:
                yield whole, around / inside - 1
