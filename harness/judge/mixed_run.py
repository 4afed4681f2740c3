"""One mixed run: how much of the mix was completed in its window, how fast, and for how many joules.

G_w = units of suite w stamped inside the window, of feeds within their limits, of records whose audit passed
B   = min_w G_w / m_w        TX = λ = B / T   (mix/h)        MX = B / E   (mix/kWh)

The hosts of the run belong to it: which of them failed, how well the clock of each is known, and what its network
carried. A run on this machine alone has one host, whose name is empty.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.judge.energy import total as machine
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.findings import declare, found, invalid, warning
from mixmark.harness.judge.roofline import farthest
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.judge.statistics.timestamps import (
    Floats,
    finished_by,
    in_time,
    marks_of,
    part_in_flight_ns,
    steps_begin_ns,
    window_ns,
)

AT_REST_BYTES_PER_S = 64_000  # received and sent: a remote shell, discovery of services and a meter stay below


@dataclass(frozen=True)
class Traffic:
    """What the network of a host carried while a phase ran: sent and received, on all interfaces but the loopback."""

    host: str
    """The name of the host."""
    seconds: float
    """How long it was watched. 0: it was not, or its system does not say."""
    network_bytes: int
    """What the host sent and received."""
    agent_bytes: int
    """What the stream between the host's agent and the leading host carried."""

    @property
    def outside_bytes(self) -> int:
        """What is not the agent's own, if its stream went over one of these interfaces."""
        return max(0, self.network_bytes - self.agent_bytes)

    @property
    @figure
    def outside_per_s(self) -> float:
        """`outside_bytes` a second. 0: the host was not watched."""
        return self.outside_bytes / self.seconds if self.seconds else 0.0

    @property
    @figure
    def self_contained(self) -> bool | None:
        """Whether the host had no more traffic with the outside than a machine at rest has. None if not known."""
        return self.outside_per_s <= AT_REST_BYTES_PER_S if self.seconds else None


def connection(result: schema.Result, phase: str, host: str) -> schema.Connection | None:
    """How the leading host reached another one during a phase."""
    return next((each for each in result.connections if (each.phase, each.host) == (phase, host)), None)


def clock_bounds_ns(connections: Iterable[schema.Connection]) -> Mapping[str, int]:
    """How far a timestamp of one of these hosts may be off in each phase. It is 0 on this machine alone."""
    bounds_ns = defaultdict[str, int](int)
    for each in connections:
        bounds_ns[each.phase] = max(bounds_ns[each.phase], each.clock.bound_ns)
    return bounds_ns


def touching(blocks: tuple[schema.Conditions, ...], begin_ns: int, end_ns: int) -> tuple[schema.Conditions, ...]:
    """The blocks of a watch that touch a window."""
    return tuple(each for each in blocks if each.begin_ns < end_ns and begin_ns < each.end_ns)


def carried(result: schema.Result, phase: str, host: str, blocks: tuple[schema.Conditions, ...]) -> Traffic:
    """The traffic of a host in these blocks of a phase."""
    known = [
        (each.received_bytes + each.sent_bytes, each.end_ns - each.begin_ns)
        for each in blocks
        if each.received_bytes is not None and each.sent_bytes is not None
    ]
    stream = connection(result, phase, host)
    return Traffic(
        host=host,
        seconds=sum(ns for _, ns in known) / 1e9,
        network_bytes=sum(moved for moved, _ in known),
        agent_bytes=stream.sent_bytes + stream.received_bytes if stream else 0,
    )


HOUR_NS = 3_600_000_000_000
HOUR_S, KWH_J = 3600, 3_600_000
"""The length of an hour in seconds, and a kilowatt-hour in joules."""
FEWEST_FEEDS = 6  # of a record whose pace within a window is seen
LARGEST_SURPLUS = 0.02
"""By how much a score may be too low because its window ended with work that no mix counts."""
UNLIKE = 0.001
"""By how much unlike devices do less than their plan, because feeds are whole."""


declare(
    "mix_complete",
    failed=invalid("{phase}: {suite} on {device}: {kind}: {message}{hint:hint}"),
    no_feed=warning("{phase}: {suite}: no feed finished"),
    unaudited=invalid("{phase}: {suite}: it was not audited: {why:exempt}"),
    late=invalid("{phase}: {suite}: no unit counts in the window, {late} broke their limits"),
    no_unit=invalid("{phase}: {suite}: no unit counts in the window"),
)


@dataclass(frozen=True)
class SuiteProgress:
    """What a run did of one suite, inside the window."""

    suite: str
    units: int
    """G_w: the units that count."""
    mixes: float
    """G_w / m_w."""
    mixes_begun: float
    """The same, with the feeds that were under way at the end of the window in part."""
    timestamps: int
    """The number of timestamps of these units: the fewer, the coarser the figure."""
    feeds: int
    """Feeds that finished inside the window, within their limits."""
    late: int
    """Feeds that finished inside the window and broke a limit."""
    audited: int
    """Feeds whose outputs were compared with the reference, in the whole phase."""


@dataclass(frozen=True)
class ScoredRun:
    """One mixed phase."""

    phase: str
    begin_ns: int
    """The begin of the window, which is common to all suites and hosts. The window is longer at both ends by
    `clock_bound_ns`, so that it holds all the work whose timestamps lie in it."""
    end_ns: int
    clock_bound_ns: int
    """How far a timestamp of a host may be off. 0: the run had this machine alone."""
    steady: bool | None
    """Whether the pace held. None if it cannot be told. The window is the same in any case."""
    edges_ns: tuple[int, ...]
    """The edges of the equal blocks that `steady` was tested with."""
    stretch: intervals.Stretch | None
    """The blocks that ran at another pace. None if the pace held, or it cannot be told."""
    suites: tuple[SuiteProgress, ...]
    total: MachineEnergy
    mixes_per_hour: Estimate
    """TX."""
    mixes_per_kwh: Estimate | None
    """MX. None if the energy of the boundary is not known."""
    surplus: float
    """The fraction of the window's work that no mix counts. It is the lead of suites over the least advanced one, and
    the work on feeds under way at the end. The dual values of the plan weigh the work."""
    most: float = field(metadata=RAW)
    """The factor by which a longer window of the same pace may show more: 1 / (1 − surplus), and UNLIKE more on several
    devices."""
    problems: tuple[schema.Finding, ...]
    """Why this run has no score."""
    widened_by: Literal["speed", "feeds", "short", "floor"] = field(default="short", metadata=RAW)
    """What makes its interval widest: its speed varied, feeds of a suite are few, its blocks are too few to tell, or
    runs of the machine differ by a self-test."""
    disturbed: schema.Finding | None = None
    """Why the run does not count if there is one that nothing disturbed. None if the counters of the machine show no
    disturbance."""

    @property
    def length_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.begin_ns

    @property
    @figure
    def mixes(self) -> float:
        """B."""
        return min(progress.mixes for progress in self.suites)

    @property
    def most_per_hour(self) -> float:
        """The highest rate that a longer window of the same pace could show: the rate of its most advanced suite."""
        return max(progress.mixes_begun for progress in self.suites) * HOUR_NS / self.length_ns

    @property
    def coarseness(self) -> float:
        """How far one timestamp more or less of the most coarsely counted suite moves the figures, as a fraction."""
        return max((1 / progress.timestamps for progress in self.suites if progress.timestamps), default=1.0)

    def of_suite(self, suite: str) -> SuiteProgress:
        return next(progress for progress in self.suites if progress.suite == suite)


@dataclass(frozen=True, eq=False)
class _Counted:
    """One record of a mixed phase and which of its feeds count."""

    record: schema.Record
    completions: schema.Completions
    kept: npt.NDArray[np.bool_]
    """[feeds]."""

    @property
    def marks_kept(self) -> npt.NDArray[np.bool_]:
        """[marks], whether the units of each mark count."""
        return marks_of(self.completions, self.kept)

    def finished(self, edges_ns: schema.Int64s) -> Floats:
        """[edges], the units that count and were finished by each edge. A step that is under way counts in part."""
        return self._by(edges_ns, np.where(self.marks_kept, self.completions.units, 0))

    def taken_ns(self, edges_ns: schema.Int64s) -> Floats:
        """[edges], the time of its feeds by each edge; feeds in flight at once count each."""
        return self._by(edges_ns, self.completions.yielded_ns - steps_begin_ns(self.completions))

    def _by(self, edges_ns: schema.Int64s, amounts: npt.NDArray[Any]) -> Floats:
        """[edges], the sum by each edge of what each step brings."""
        times = (steps_begin_ns(self.completions), self.completions.yielded_ns, edges_ns)
        begin, end, edges = ((time_ns - edges_ns[0]).astype(np.float64) for time_ns in times)
        return finished_by(edges, begin, end, amounts)

    @property
    def is_seen(self) -> bool:
        """Whether it has enough feeds to show how its pace varies."""
        return len(self.completions) >= FEWEST_FEEDS


def run_of(
    result: schema.Result, mix: schema.Mix, phase: schema.Phase, doubts: Sequence[schema.Finding]
) -> ScoredRun | None:
    """What a phase of the mix did. None if nothing of it was recorded."""
    records = [record for record in result.records if record.phase == phase.name and record.route.suite in mix.units]
    counted = [each for record in records if (each := _counted(record, mix)) is not None]
    brackets = [each.record.parent_window_ns or window_ns(each.completions) for each in counted]
    if not counted:
        return None
    begin_ns, end_ns = min(begin for begin, _ in brackets), max(end for _, end in brackets)
    if end_ns <= begin_ns:
        return None
    suites = tuple(_progress(suite, mix, counted, begin_ns, end_ns) for suite in mix.units)
    bound_ns = clock_bounds_ns(result.connections)[phase.name]
    begin_ns, end_ns = begin_ns - bound_ns, end_ns + bound_ns  # holds all work whose timestamps lie in the window
    assert phase.placement is not None  # a mixed phase has a plan
    seen = [each for each in counted if each.is_seen]
    edges_ns = _edges(seen, begin_ns, end_ns)
    paces = _paces(counted, phase.placement.device_prices, edges_ns)
    pace = np.asarray(sum(paces, np.zeros(len(edges_ns) - 1)))
    known = intervals.can_judge_steadiness(pace)
    stretch = intervals.other_level(pace) if known else None
    total = machine.total(result, phase.name, begin_ns, end_ns)
    mixes = min(progress.mixes for progress in suites)
    surplus = _surplus(suites, mix, phase.placement)
    unlike = UNLIKE * (len({record.route.device for record in records}) > 1)
    most = (1 + unlike) / (1 - surplus) if surplus <= LARGEST_SURPLUS else math.inf
    floors = [each.fraction for each in (result.noise_floor,) if each and each.tier == result.tier]
    of_time = of_energy = None
    widened_by: Literal["speed", "feeds", "short", "floor"] = "short"
    if known and mixes > 0:
        joules = machine.blocks(total, result, phase.name, edges_ns)
        level, moved = (pace, 0.0) if stretch is None else (stretch.levelled(pace), stretch.moved)
        parts = ((each, own.sum() / pace.sum()) for each, own in zip(counted, paces, strict=True) if not each.is_seen)
        unseen = [_unseen(each, part, seen, (begin_ns, end_ns)) for each, part in parts if part]
        around, drift = intervals.mean_interval(level), _drift(result, phase) / 2
        besides = [*unseen, drift, *floors]
        by = {"speed": [around.half_width or 0.0 if around else math.inf, moved, drift], "floor": floors}
        by["feeds"] = [math.inf if each is None else each for each in unseen]
        widened_by = max(("feeds", "speed", "floor"), key=lambda name: math.hypot(*by[name]))
        of_time = _with(around, besides, moved)
        of_energy = _with(intervals.ratio_interval(level, joules), besides, moved) if joules is not None else None
    kind: Literal["interval", "window"] = "interval" if floors else "window"
    (low, high), per_joule = total.of_edges, mixes * KWH_J / total.joules if total.joules else None
    return ScoredRun(
        phase=phase.name,
        begin_ns=begin_ns,
        end_ns=end_ns,
        clock_bound_ns=bound_ns,
        steady=stretch is None if known else None,
        edges_ns=tuple(edges_ns.tolist()),
        stretch=stretch,
        suites=suites,
        total=total,
        mixes_per_hour=_figure(mixes * HOUR_NS / (end_ns - begin_ns), of_time, (1.0, most), kind),
        mixes_per_kwh=None if per_joule is None else _figure(per_joule, of_energy, (low, high * most), kind),
        surplus=surplus,
        most=most,
        problems=tuple(_problems(phase.name, suites, records, doubts)),
        widened_by=widened_by,
    )


def _drift(result: schema.Result, phase: schema.Phase) -> float:
    """By how much the probes directly before and after a phase differ, beyond the scatter of their passes. 0: there are
    none."""
    runs = [each.name for each in result.phases if each.purpose == "mixed"]
    around = tuple(f"around{runs.index(phase.name) + after}." for after in (0, 1)) if phase.name in runs else ("-",)
    return farthest(record for record in result.records if record.phase.startswith(around))


def _surplus(suites: Sequence[SuiteProgress], mix: schema.Mix, plan: schema.Placement) -> float:
    """1: a suite has no unit that counts."""
    prices = plan.suite_prices
    worth = sum(each.mixes_begun * mix.units[each.suite] * prices.get(each.suite, 0.0) for each in suites)
    total = sum(units * prices.get(suite, 0.0) for suite, units in mix.units.items())
    mixes = min(each.mixes for each in suites)
    return max(0.0, 1 - mixes * total / worth) if mixes and worth > 0 else 1.0


def device_time_ns(records: Sequence[schema.Record]) -> dict[str, float]:
    """The time that each record of a mixed phase took of its device, by its key; see `part_in_flight_ns`."""
    of_device: dict[str, list[schema.Completions]] = defaultdict(list)
    for record in records:
        if record.completions is not None:
            of_device[record.route.device].append(record.completions)
    return {
        record.key: part_in_flight_ns(record.completions, of_device[record.route.device])
        for record in records
        if record.completions is not None
    }


def _counted(record: schema.Record, mix: schema.Mix) -> _Counted | None:
    """None if nothing was measured. No feed of a record counts whose audit did not pass."""
    if record.completions is None:
        return None
    limits = mix.limits.get(record.route.suite, schema.ServiceLimits())
    return _Counted(record, record.completions, in_time(record.completions, limits) & record.audited)


def _edges(seen: Sequence[_Counted], begin_ns: int, end_ns: int) -> schema.Int64s:
    """[blocks + 1], the edges of equal blocks of the window: as many as tell whether it is steady, else one.

    Blocks are at least as long as the median feed of every record whose pace is seen: more would be invented evidence.
    """
    feeds_ns = [
        np.median(each.completions.yielded_ns[each.completions.ends - 1] - each.completions.issued_ns) for each in seen
    ]
    fitting = int(min(intervals.MOST_BLOCKS, (end_ns - begin_ns) // max(1, *feeds_ns))) if seen else 0
    blocks = fitting if fitting >= intervals.FEWEST_BLOCKS else 1
    return np.asarray(np.linspace(begin_ns, end_ns, blocks + 1).round().astype(np.int64))


def _paces(counted: Sequence[_Counted], prices: Mapping[str, float], edges_ns: schema.Int64s) -> list[Floats]:
    """[blocks] of each record: what it did in each block in the seconds that it takes at its own rate over the phase,
    valued by the dual value of its device.

    So a device that changes from one suite to another keeps its pace. A block of mixes would count the change as noise.
    A record of few feeds counts with the time that these took: its rate is the mean of too little to show a pace.
    """
    took_ns = device_time_ns([each.record for each in counted])
    paces = []
    for each in counted:
        done = each.completions
        part = each.finished(edges_ns) / max(1, int(done.units[each.marks_kept].sum()))
        if not each.is_seen:
            part = each.taken_ns(edges_ns) / max(1, (done.yielded_ns - steps_begin_ns(done)).sum())
        paces.append(prices.get(each.record.route.device, 0.0) * took_ns[each.record.key] / 1e9 * np.diff(part))
    return paces


def _unseen(of: _Counted, part: float, seen: Sequence[_Counted], window_ns: tuple[int, int]) -> float | None:
    """How far the pace of a record of few feeds may move the pace of the window: such a record shows no pace but its
    mean. It is taken to vary as the other records do at most, over stretches as long as its feeds.

    part: its part of the work. None if the window has no two such stretches.
    """
    done = of.completions
    feeds_ns = done.yielded_ns[done.ends - 1] - done.issued_ns
    if (count := int((window_ns[1] - window_ns[0]) // max(1, feeds_ns.mean()))) < 2 or not seen:
        return None
    edges_ns = np.linspace(*window_ns, count + 1).round().astype(np.int64)
    varies = max(_variation(each, edges_ns) for each in seen)
    return part * float(intervals.student_t(count - 1, intervals.CONFIDENCE)) * varies / math.sqrt(len(done))


def _variation(of: _Counted, edges_ns: schema.Int64s) -> float:
    """The standard deviation of the rate of a record between these edges, over its mean."""
    done, took_ns = np.diff(of.finished(edges_ns)), np.diff(of.taken_ns(edges_ns))
    rates = done[took_ns > 0] / took_ns[took_ns > 0]
    return float(rates.std(ddof=1) / rates.mean()) if len(rates) > 1 else math.inf


def _with(around: Estimate | None, besides: Sequence[float | None], moved: float) -> float | None:
    """The half-width of an interval with others that are independent, in squares, and by how much a stretch at another
    level moved the figure. None if one is not known, or all together exceed intervals.WIDEST."""
    if around is None or None in besides:
        return None
    half = moved + math.hypot(around.half_width or 0.0, *filter(None, besides))
    return half if half <= intervals.WIDEST else None


def _progress(suite: str, mix: schema.Mix, counted: Sequence[_Counted], begin_ns: int, end_ns: int) -> SuiteProgress:
    units = timestamps = feeds = late = audited = 0
    begun = 0.0
    edges_ns = np.array([begin_ns, end_ns])
    for each in counted:
        if each.record.route.suite != suite:
            continue
        done = each.completions
        inside = each.marks_kept & (done.yielded_ns > begin_ns) & (done.yielded_ns <= end_ns)
        units += int(done.units[inside].sum())
        timestamps += int(inside.sum())
        begun += float(np.diff(each.finished(edges_ns))[0])
        last_ns = done.yielded_ns[done.ends - 1]
        ended = (last_ns > begin_ns) & (last_ns <= end_ns)
        feeds += int((ended & each.kept).sum())
        late += int((ended & ~in_time(done, mix.limits.get(suite, schema.ServiceLimits()))).sum())
        audited += len(each.record.audit.values) if each.record.audit else 0
    return SuiteProgress(
        suite=suite,
        units=units,
        mixes=units / mix.units[suite],
        mixes_begun=begun / mix.units[suite],
        timestamps=timestamps,
        feeds=feeds,
        late=late,
        audited=audited,
    )


def _problems(
    phase: str, suites: Sequence[SuiteProgress], records: Sequence[schema.Record], doubts: Sequence[schema.Finding]
) -> Iterator[schema.Finding]:
    """A record is invalid, a device failed, or a suite has no unit that counts."""
    explained = set()
    for record in records:
        problems = [each for each in doubts if each.about == record.key and each.voids]
        if fault := _fault(record):
            part = {"phase": phase, "suite": record.route.suite, "device": record.route.device}
            problems.append(
                found("mix_complete.failed", **part, kind=fault.kind, message=fault.message, hint=fault.hint)
            )
        if problems:
            explained.add(record.route.suite)
        yield from problems
    for progress in suites:
        if not progress.units and progress.suite not in explained:
            own = [record for record in records if record.route.suite == progress.suite and record.completions]
            yield _nothing_counts(phase, progress, own)


def _fault(record: schema.Record) -> schema.Failure | None:
    """What ended a record of a mix before its time."""
    return record.cut_short or (record.error if record.error and record.error.attempted else None)


def _nothing_counts(phase: str, progress: SuiteProgress, records: Sequence[schema.Record]) -> schema.Finding:
    """Why no unit of a suite counts. records: the suite's records with a finished feed."""
    suite = {"phase": phase, "suite": progress.suite}
    unaudited = [record for record in records if not record.audited]
    if not records:
        return found("mix_complete.no_feed", **suite)
    if unaudited:
        reasons = (record.exempt or record.unaudited for record in unaudited)
        why = next(filter(None, reasons), "no output was compared")
        return found("mix_complete.unaudited", **suite, why=why)
    if progress.late:
        return found("mix_complete.late", **suite, late=progress.late)
    return found("mix_complete.no_unit", **suite)


def _figure(
    estimate: float, half: float | None, by: tuple[float, float], kind: Literal["interval", "window"]
) -> Estimate:
    """by: the factors by which the figure may be too high and too low. Without an interval if the surplus is too large
    for one."""
    if half is None or by[1] == math.inf:
        return Estimate(estimate)
    return Estimate(estimate, estimate * by[0] * (1 - half), estimate * by[1] * (1 + half), kind)
