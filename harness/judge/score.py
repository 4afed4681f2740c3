"""The score: completed mixes per kilojoule and per second of the mixed runs, how sure they are, and what they explain.

    G_w = units of suite w stamped inside the window, of feeds within their limits, of a part whose audit passed
    B   = min_w G_w / m_w        λ = B / T   (TX, mix/s)        MX = B / E   (mix/kJ)

A ratio of two totals of one run; over several runs their geometric mean. Everything is computed from the raw stamps
and samples: nothing that a result says of itself is believed, but the facts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness import mixes
from harness.errors import MixmarkError
from harness.judge import energy, honest, stats
from harness.judge.stats import FEWEST_BLOCKS, Floats
from harness.judge.steady import MOST_BLOCKS, steady_from
from harness.place import EXACT, Objective, best_kind, replan, verify
from harness.schema import Completions, Finding, Int64s, Mix, Phase, Placement, Rate, Record, Result, ServiceLimits

Grade = Literal["official", "provisional", "indicative"]
NS_PER_S = 1_000_000_000

OFFICIAL_RUNS = 5
OFFICIAL_NS = 120 * NS_PER_S
OFFICIAL_FEEDS = 100
OFFICIAL_AUDITS = 30
OFFICIAL_HALF_WIDTH = 0.02
PROVISIONAL_FEEDS = 10
NOT_MEASURED = "EFFICIENCY NOT MEASURED"


@dataclass(frozen=True)
class Figure:
    """An estimate and its 95 % interval; None where nothing tells how wide it is."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Of the estimate: 0.02 is ± 2 %."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.estimate


@dataclass(frozen=True)
class Stream:
    """What one run did of one suite, inside the window."""

    suite: str
    units: int
    """G_w: that count."""
    mixes: float
    """G_w / m_w."""
    stamps: int
    """In which the units that count came: the fewer, the coarser."""
    feeds: int
    """That finished inside the window, within their limits."""
    late: int
    """That broke a limit."""
    audited: int
    """Feeds whose answers were compared with the reference, in the whole phase."""


@dataclass(frozen=True)
class Run:
    """One mixed phase."""

    phase: str
    begin_ns: int
    end_ns: int
    """Of the window that is common to all streams."""
    steady: bool | None
    """None: too few blocks to tell; then, and where it is False, the window is all of the phase in which every device
    had begun."""
    streams: tuple[Stream, ...]
    total: energy.Total
    mixes_per_s: Figure
    """λ."""
    mixes_per_kj: Figure | None
    """MX; None where the energy of the boundary is not known."""
    problems: tuple[str, ...]
    """Why this run has no score."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def mixes(self) -> float:
        """B."""
        return min(stream.mixes for stream in self.streams)

    @property
    def coarseness(self) -> float:
        """By how much one stamp more or less of the most coarsely counted stream moves it, as a share."""
        return max((1 / stream.stamps for stream in self.streams if stream.stamps), default=1.0)


@dataclass(frozen=True)
class Score:
    """Of a result with mixed runs."""

    mix: Mix
    runs: tuple[Run, ...]
    problems: tuple[str, ...]
    """Why there is no score; then both figures are None."""
    mixes_per_s: Figure | None
    """TX."""
    mixes_per_kj: Figure | None
    """MX: the score."""
    boundary: str | None
    """`wall`, `node` or `devices`: the narrowest of all runs."""
    unmeasured: str
    """Why there is no MX though there is TX; empty where there is."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight in any part."""
    grade: Grade
    missing: tuple[str, ...]
    """For the next better grade."""
    unranked: tuple[str, ...]
    """Why it has no place among others, whatever its grade."""

    @property
    def graded(self) -> str:
        """The grade, and why it is not the next better one."""
        if not self.missing:
            return self.grade
        better = "provisional" if self.grade == "indicative" else "official"
        return f"{self.grade}, not {better}: {', '.join(self.missing)}"

    @property
    def headline(self) -> str:
        """In words and numbers, as it stands everywhere."""
        if self.problems:
            return f"NO SCORE: {'; '.join(self.problems)}"
        of = f"{self.mix.name}, {self.grade}, {self.weight_class}-bit weights"
        if self.mixes_per_kj is None:
            return f"TX {_said(self.mixes_per_s)} mix/s ({of}). {NOT_MEASURED}: {self.unmeasured}"
        return f"MX {_said(self.mixes_per_kj)} mix/kJ, TX {_said(self.mixes_per_s)} mix/s ({of}, {self.boundary})"


def score(result: Result) -> Score | None:
    """None where no mix was asked for, or none was run yet."""
    phases = mixed(result)
    mix = result.mix
    unplanned = [each.reason for each in result.absent if mix and (each.kind, each.name) == ("mix", mix.name)]
    if mix is None or not (phases or unplanned):
        return None
    doubts = honest.findings(result)
    runs = tuple(each for phase in phases if (each := _run(result, mix, phase, doubts)) is not None)
    problems = unplanned + [problem for each in runs for problem in _numbered(each.problems, each, runs)]
    if mix.frozen and mix != mixes.frozen().get(mix.name, mix):
        problems.append(f"this is not the mix that was published as {mix.name}")
    reached = {each.phase for each in runs}
    problems += [f"{phase.name} was not run to its end" for phase in phases if phase.name not in reached]
    records = [record for record in result.records if record.phase in reached and record.completions]
    classes = [each.total.boundary for each in runs]
    blind = next((each.total for each in runs if each.total.joules is None), None)
    widen = max((each.coarseness for each in runs), default=1.0)
    tx = None if problems else _over([each.mixes_per_s for each in runs])
    mx = None if problems or blind else _over([each.mixes_per_kj for each in runs if each.mixes_per_kj])
    grade, missing = _grade(mix, runs, mx or tx, result.seed_given)
    if grade != "official":
        tx, mx = (_widened(each, widen) if grade == "provisional" else _bare(each) for each in (tx, mx))
    return Score(
        mix=mix,
        runs=runs,
        problems=tuple(problems),
        mixes_per_s=tx,
        mixes_per_kj=mx,
        boundary=max((each for each in classes if each), key=energy.CLASSES.index, default=None) if mx else None,
        unmeasured="; ".join(blind.reasons) if blind and not problems else "",
        weight_class=min((record.route.weight_class for record in records), default=16),
        grade=grade,
        missing=missing,
        unranked=tuple(_unranked(mix, result, doubts)),
    )


def _unranked(mix: Mix, result: Result, doubts: Sequence[Finding]) -> Iterator[str]:
    if not mix.frozen:
        yield f"{mix.name} is a mix of one's own"
    elif mix.name not in mixes.frozen():
        yield f"{mix.name} is none of the mixes that this version knows"
    elif mix.tier == "smoke":
        yield "the smoke tier shows that everything works"
    fast = {each.about for each in doubts if each.rule == "slower_than_light"}
    for record in result.records:
        if record.key in fast:
            yield f"{record.route.label}, {record.scenario}, is faster than light and not explained"


def mixed(result: Result) -> tuple[Phase, ...]:
    """The mixed phases, one a run."""
    return tuple(phase for phase in result.phases if phase.purpose == "mixed")


def within(completions: Completions, limits: ServiceLimits) -> npt.NDArray[np.bool_]:
    """[feeds], whether each kept its limits, counted from its issue."""
    first, last = completions.starts, completions.ends - 1
    marks, issued = completions.marks_ns, completions.issued_ns
    behind = np.add.reduceat(completions.units, first) - completions.units[first]
    return np.broadcast_to(keeps(limits, marks[first] - issued, marks[last] - issued, behind), len(completions))


def keeps(limits: ServiceLimits, first_ns: Any, last_ns: Any, behind: Any) -> Any:
    """Of one feed, or of many by arrays: its first and last stamp from its issue, and the units behind the first."""
    kept: Any = True
    if limits.first_ns is not None:
        kept &= first_ns <= limits.first_ns
    if limits.total_ns is not None:
        kept &= last_ns <= limits.total_ns
    if limits.per_unit_ns is not None:
        kept &= last_ns - first_ns <= limits.per_unit_ns * behind
    return kept


@dataclass(frozen=True, eq=False)
class _Part:
    """One record, as far as it counts."""

    record: Record
    completions: Completions
    kept: npt.NDArray[np.bool_]
    """[feeds]."""

    @property
    def counts(self) -> npt.NDArray[np.bool_]:
        """[marks]."""
        return np.repeat(self.kept, self.completions.ends - self.completions.starts)

    def finished(self, at_ns: Int64s) -> Floats:
        """[at], units that count, in part those of a step under way: it began at the mark before, or the issue."""
        done = self.completions
        before = np.concatenate((np.zeros(1, np.int64), done.marks_ns[:-1]))
        before[done.starts] = done.issued_ns
        units = np.where(self.counts, done.units, 0).astype(np.float64)
        took = np.maximum(done.marks_ns - before, 1)
        begun, ended = np.argsort(before), np.argsort(done.marks_ns)
        total = np.zeros(len(at_ns))
        for order, edge, sign in ((begun, before, 1), (ended, done.marks_ns, -1)):
            speed = np.concatenate((np.zeros(1), np.cumsum((units / took)[order])))
            moment = np.concatenate((np.zeros(1), np.cumsum((units / took * (edge - at_ns[0]))[order])))
            passed = np.searchsorted(edge[order], at_ns, side="right")
            total += sign * (speed[passed] * (at_ns - at_ns[0]) - moment[passed])
        return total


def _run(result: Result, mix: Mix, phase: Phase, doubts: Sequence[Finding]) -> Run | None:
    """None where nothing was recorded of it."""
    records = [record for record in result.records if record.phase == phase.name and record.route.suite in mix.units]
    parts = [_part(record, mix) for record in records if record.completions is not None]
    brackets = [part.record.bracket_ns or _span(part.completions) for part in parts]
    if not parts:
        return None
    first = defaultdict[str, list[int]](list)
    for part in parts:
        first[part.record.route.device].append(int(part.completions.issued_ns.min()))
    began = max(min(bracket[0] for bracket in brackets), max(min(each) for each in first.values()))
    end_ns = max(bracket[1] for bracket in brackets)
    if end_ns <= began:
        return None
    edges, steady = _window(parts, mix, began, end_ns)
    begin_ns = int(edges[0])
    streams = tuple(_stream(suite, mix, parts, begin_ns, end_ns) for suite in mix.units)
    total = energy.total(result, phase.name, begin_ns, end_ns)
    mixes = min(stream.mixes for stream in streams)
    joules = energy.blocks(result, phase.name, edges)
    rates = np.stack([_progress(suite, mix, parts, edges) for suite in mix.units], axis=1)
    told = bool(steady) and len(edges) > FEWEST_BLOCKS
    seconds = (end_ns - begin_ns) / NS_PER_S
    return Run(
        phase=phase.name,
        begin_ns=begin_ns,
        end_ns=end_ns,
        steady=steady,
        streams=streams,
        total=total,
        mixes_per_s=_figure(mixes / seconds, rates, None, told),
        mixes_per_kj=None if total.joules is None else _figure(1000 * mixes / total.joules, rates, joules, told),
        problems=tuple(_problems(streams, records, doubts)),
    )


def _part(record: Record, mix: Mix) -> _Part:
    assert record.completions is not None  # its caller saw to it
    passed = record.audit is not None and record.audit.passed
    limits = mix.limits.get(record.route.suite, ServiceLimits())
    return _Part(record, record.completions, within(record.completions, limits) & passed)


def _span(done: Completions) -> tuple[int, int]:
    return int(done.issued_ns.min()), int(done.marks_ns.max())


def _window(parts: Sequence[_Part], mix: Mix, begin_ns: int, end_ns: int) -> tuple[Int64s, bool | None]:
    """Edges of the blocks of the window, and whether it is steady by the mean progress of all streams.

    Blocks are at least as long as the median feed of every part: more would be invented evidence.
    """
    feeds_ns = [
        np.median(each.completions.marks_ns[each.completions.ends - 1] - each.completions.issued_ns) for each in parts
    ]
    count = int(min(MOST_BLOCKS, (end_ns - begin_ns) // max(1, *feeds_ns)))
    if count < FEWEST_BLOCKS:
        return np.array([begin_ns, end_ns]), None
    edges = np.linspace(begin_ns, end_ns, count + 1).round().astype(np.int64)
    progress = np.mean([_progress(suite, mix, parts, edges) for suite in mix.units], axis=0)
    start = steady_from(progress)
    return edges[start or 0 :], start is not None


def _progress(suite: str, mix: Mix, parts: Sequence[_Part], edges: Int64s) -> Floats:
    """[edges - 1], mixes of one stream in each block."""
    own = [part.finished(edges) for part in parts if part.record.route.suite == suite]
    return np.asarray(np.diff(sum(own, np.zeros(len(edges)))) / mix.units[suite])


def _stream(suite: str, mix: Mix, parts: Sequence[_Part], begin_ns: int, end_ns: int) -> Stream:
    units = stamps = feeds = late = audited = 0
    for part in (each for each in parts if each.record.route.suite == suite):
        done = part.completions
        inside = part.counts & (done.marks_ns > begin_ns) & (done.marks_ns <= end_ns)
        units += int(done.units[inside].sum())
        stamps += int(inside.sum())
        last = done.marks_ns[done.ends - 1]
        ended = (last > begin_ns) & (last <= end_ns)
        feeds += int((ended & part.kept).sum())
        late += int((ended & ~within(done, mix.limits.get(suite, ServiceLimits()))).sum())
        audited += len(part.record.audit.values) if part.record.audit else 0
    return Stream(suite, units, units / mix.units[suite], stamps, feeds, late, audited)


def _problems(streams: Sequence[Stream], records: Sequence[Record], doubts: Sequence[Finding]) -> list[str]:
    """Why there is no score: a record is invalid, a device fell out, or a suite has no unit that counts."""
    problems = []
    for record in records:
        about = f"{record.route.suite} on {record.route.device}"
        problems += [
            f"{about}: {each.message}" for each in doubts if each.about == record.key and each.severity == "invalid"
        ]
        fault = record.cut_short or (record.error if record.error and record.error.attempted else None)
        if fault is not None:
            problems.append(f"{about}: {fault.kind}: {fault.message}")
    for stream in streams:
        own = [record for record in records if record.route.suite == stream.suite]
        if stream.units or any(problem.startswith(f"{stream.suite} on ") for problem in problems):
            continue
        done = [record for record in own if record.completions]
        unaudited = [record for record in done if record.audit is None or not record.audit.passed]
        if not done:
            problems.append(f"{stream.suite}: no feed finished")
        elif unaudited:
            why = next((record.unaudited for record in unaudited if record.unaudited), "no answer was compared")
            problems.append(f"{stream.suite} was not audited: {why}")
        else:
            late = f", {stream.late} broke their limits" if stream.late else ""
            problems.append(f"{stream.suite}: no unit counts in the window{late}")
    return problems


def _figure(estimate: float, progress: Floats, joules: Floats | None, told: bool) -> Figure:
    """progress: [blocks, suites], joules: [blocks]; min and ratio are taken of each replicate's means."""
    if not told or estimate == 0:
        return Figure(estimate)
    series = progress if joules is None else np.column_stack((progress, joules))
    suites = progress.shape[1]

    def statistic(means: Floats) -> Floats:
        mixes = means[:, :suites].min(axis=1)
        return np.asarray(mixes if joules is None else mixes / means[:, suites])

    middle = float(statistic(series.mean(axis=0)[None])[0])
    low, high = stats.block_bootstrap(series, statistic)
    return Figure(estimate, estimate * float(low) / middle, estimate * float(high) / middle)


def _over(figures: Sequence[Figure]) -> Figure | None:
    """One run: as it is. Several: the geometric mean, and how far the runs differ."""
    if len(figures) < 2:
        return figures[0] if figures else None
    seen = stats.over_runs([figure.estimate for figure in figures])
    return Figure(seen.geometric_mean, seen.low, seen.high) if seen else None


def _widened(figure: Figure | None, by: float) -> Figure | None:
    if figure is None or figure.low is None or figure.high is None:
        return figure
    by *= figure.estimate
    return Figure(figure.estimate, max(0.0, figure.low - by), figure.high + by)


def _bare(figure: Figure | None) -> Figure | None:
    return figure and Figure(figure.estimate)


def _grade(mix: Mix, runs: Sequence[Run], figure: Figure | None, seed_given: bool) -> tuple[Grade, tuple[str, ...]]:
    """And what the next better one lacks."""
    feeds = {suite: min(_of(each, suite).feeds for each in runs) for suite in mix.units} if runs else {}
    audits = {suite: min(_of(each, suite).audited for each in runs) for suite in mix.units} if runs else {}
    few = [
        f"{suite} finished {count} feeds of {PROVISIONAL_FEEDS}"
        for suite, count in feeds.items()
        if count < PROVISIONAL_FEEDS
    ]
    if any(each.steady is None for each in runs):
        few.append(
            f"too few feeds fit into the window to tell whether it was steady: {FEWEST_BLOCKS} of each suite are needed"
        )
    if any(each.steady is False for each in runs):
        few.append("the window was not steady")
    if seed_given:
        few.append("its seed was given")
    half_width = figure.half_width if figure else None
    if half_width is None and not few:
        few.append("nothing tells how sure it is")
    if few:
        return "indicative", tuple(few)
    lacks = []
    if len(runs) < OFFICIAL_RUNS:
        lacks.append(f"{len(runs)} of {OFFICIAL_RUNS} runs")
    shortest = min(each.length_ns for each in runs)
    if shortest < OFFICIAL_NS:
        lacks.append(f"a window of {shortest / NS_PER_S:.0f} s of {OFFICIAL_NS // NS_PER_S} s")
    lacks += [
        f"{suite} finished {count} feeds of {OFFICIAL_FEEDS}"
        for suite, count in feeds.items()
        if count < OFFICIAL_FEEDS
    ]
    lacks += [
        f"{suite} had {count} feeds audited of {OFFICIAL_AUDITS}"
        for suite, count in audits.items()
        if count < OFFICIAL_AUDITS
    ]
    edges = max((each.total.edge_uncertainty or 0 for each in runs), default=0)
    if edges > 2 / energy.ENOUGH_PERIODS:
        lacks.append(f"the slowest meter had {2 / edges:.0f} periods of {energy.ENOUGH_PERIODS}")
    if half_width is not None and half_width > OFFICIAL_HALF_WIDTH:
        lacks.append(f"±{half_width * 100:.1f} % of ±{OFFICIAL_HALF_WIDTH * 100:g} %")
    if not mix.frozen:
        lacks.append(f"{mix.name} is a mix of one's own")
    return ("provisional", tuple(lacks)) if lacks else ("official", ())


def _of(run: Run, suite: str) -> Stream:
    return next(stream for stream in run.streams if stream.suite == suite)


def _numbered(problems: Sequence[str], run: Run, runs: Sequence[Run]) -> list[str]:
    return [problem if len(runs) == 1 else f"{run.phase}: {problem}" for problem in problems]


def _said(figure: Figure | None) -> str:
    if figure is None:
        return "unknown"
    half = figure.half_width
    return f"{figure.estimate:.3g}" + ("" if half is None else f" ± {half * 100:.2g} %")


@dataclass(frozen=True)
class Part:
    """What one device did of one suite in a mixed run."""

    suite: str
    device: str
    planned: float
    """Part of the device's time, x."""
    units_per_s: float
    """While it worked on this suite."""
    solo_units_per_s: float | None
    """As planned with. None: the plan had no such route."""

    @property
    def retained(self) -> float | None:
        """Of the solo rate in the same share of time: 1 is undisturbed by the other devices."""
        return None if self.solo_units_per_s is None else self.units_per_s / self.solo_units_per_s


@dataclass(frozen=True)
class Diagnosis:
    """Of one mixed run; none of it is ranked."""

    phase: str
    bound_per_s: float
    """λ*."""
    unproven: tuple[str, ...]
    """What is wrong with λ* or the plan; empty: the stored prices prove them."""
    estimate: bool
    """Whether λ* is no bound, because a device ran more than one feed at a time."""
    kappa: Figure
    """κ = λ / λ*."""
    busy: Mapping[str, float]
    """Part of the window in which each device had a feed in flight."""
    surplus: float
    """Part of that time which went into units beyond B mixes: they earn nothing, and κ is lower by about so much."""
    parts: tuple[Part, ...]
    best_kind: str
    """Of device, whose devices alone would get most done. Empty: no kind runs every suite."""
    gain: float | None
    """Heterogeneity gain: measured λ over λ* of that kind."""
    plan: Placement
    """That the run began with."""
    other: Placement | None
    """For the other objective, from the same rates. None: not all power was known."""


def rates(result: Result, mix: Mix) -> tuple[Rate, ...]:
    """The best solo rate of every route of the mix's suites that passed its gate and broke no rule of honesty, from
    feeds within the mix's limits. Where routes were measured again, only those, and only by what they did then."""
    by_route: dict[str, Rate] = {}
    invalid = {each.about for each in honest.findings(result) if each.severity == "invalid"}
    tried = [record for record in result.records if record.scenario != "mixed" and record.route.suite in mix.units]
    once_more = {phase.name for phase in result.phases if phase.purpose == "again"}
    again = [record for record in tried if record.phase in once_more]
    for record in again or tried:
        if record.completions is None or record.scenario == "server" or record.key in invalid:
            continue
        if record.audit is None or not record.audit.passed:
            continue
        rate = _rate(result, record, mix.limits.get(record.route.suite))
        key = record.route.model_dump_json()
        if rate and (key not in by_route or rate.units_per_s > by_route[key].units_per_s):
            by_route[key] = rate
    return tuple(by_route.values())


def _rate(result: Result, record: Record, limits: ServiceLimits | None) -> Rate | None:
    done, route = record.completions, record.route
    assert done is not None  # the caller looked
    in_flight_ns = stats.in_flight_ns(done)
    kept = within(done, limits or ServiceLimits())
    units = int(done.units[np.repeat(kept, done.ends - done.starts)].sum())
    if not in_flight_ns or not units:
        return None
    device = next((each for each in result.devices if each.id == route.device), None)
    span = int(done.issued_ns.min()), int(done.marks_ns.max())
    return Rate(
        suite=route.suite,
        device=route.device,
        adapter=route.adapter,
        precision=route.precision,
        batch=record.batch or 1,
        units_per_s=units * 1e9 / in_flight_ns,
        watts=energy.device_watts(result, record.phase, device, *span) if device else None,
        memory_bytes=record.peak_pss_bytes if device and device.memory_pool == "host" else record.needed_bytes,
    )


def _unmeasured(plan: Placement, mix: Mix, result: Result) -> Iterator[str]:
    """The rates of a plan are those of the solo records: higher ones would make little of what was reached, lower ones
    much of what the devices gain together."""
    measured = {
        (rate.suite, rate.device, rate.adapter, rate.precision, rate.batch): rate.units_per_s
        for rate in rates(result, mix)
    }
    for rate in plan.rates:
        found = measured.get((rate.suite, rate.device, rate.adapter, rate.precision, rate.batch))
        if found is None or not math.isclose(found, rate.units_per_s, rel_tol=EXACT):
            seen = "no solo record that passed" if found is None else f"its solo record {found:g} units/s"
            yield f"the plan has {rate.suite} on {rate.device} at {rate.units_per_s:g} units/s, and {seen}"


def diagnose(result: Result, run: Run) -> Diagnosis | None:
    """None where the run's mix or placement is not in the result."""
    phase = next((each for each in mixed(result) if each.name == run.phase), None)
    if phase is None or phase.placement is None or result.mix is None:
        return None
    plan, mix = phase.placement, result.mix
    records = [record for record in result.records if record.phase == run.phase and record.completions]
    of_device: dict[str, list[Completions]] = defaultdict(list)
    for record in records:
        if record.completions:
            of_device[record.route.device].append(record.completions)
    flights = {device: _flights(each, run.begin_ns, run.end_ns) for device, each in of_device.items()}
    solo = {(rate.suite, rate.device): rate.units_per_s for rate in plan.rates}
    parts = []
    for record in records:
        route = record.route
        if record.completions and (speed := stats.throughput_per_s(record.completions)):
            planned = plan.shares.get(route.suite, {}).get(route.device, 0.0)
            parts.append(Part(route.suite, route.device, planned, speed, solo.get((route.suite, route.device))))
    kind, alone = best_kind(mix.units, plan.rates, result.devices)
    measured = run.mixes_per_s
    bound = plan.bound_per_s
    return Diagnosis(
        phase=run.phase,
        bound_per_s=bound,
        unproven=(*verify(plan, mix.units), *_unmeasured(plan, mix, result)),
        estimate=any(most > 1 for _, most in flights.values()),
        kappa=Figure(
            measured.estimate / bound,
            None if measured.low is None else measured.low / bound,
            None if measured.high is None else measured.high / bound,
        ),
        busy={
            device.id: flights[device.id][0] / run.length_ns if device.id in flights else 0.0
            for device in result.devices
        },
        surplus=_surplus(records, run),
        parts=tuple(parts),
        best_kind=kind,
        gain=measured.estimate / alone if alone else None,
        plan=plan,
        other=None if plan.rest_watts is None else _other(plan, mix, result),
    )


def _other(plan: Placement, mix: Mix, result: Result) -> Placement | None:
    objective: Objective = "efficiency" if plan.objective == "throughput" else "throughput"
    try:
        return replan(plan, mix.units, result.devices, objective)
    except MixmarkError:  # a power that efficiency would need is not known
        return None


def _surplus(records: Sequence[Record], run: Run) -> float:
    worked = dict.fromkeys((stream.suite for stream in run.streams), 0)
    for record in records:
        if record.completions and record.route.suite in worked:
            worked[record.route.suite] += _flights([record.completions], run.begin_ns, run.end_ns)[0]
    beyond = sum(worked[each.suite] * (1 - run.mixes / each.mixes) for each in run.streams if each.mixes)
    return beyond / (sum(worked.values()) or 1)


def _flights(several: Sequence[Completions], begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Of one device: how long at least one feed was in flight inside the window, and the most at a time."""
    issued = np.concatenate([each.issued_ns for each in several])
    done = np.concatenate([each.marks_ns[each.ends - 1] for each in several])
    issued, done = np.clip(issued, begin_ns, end_ns), np.clip(done, begin_ns, end_ns)
    at = np.concatenate((done, issued))  # at the same time, what ends counts before what begins
    turn = np.concatenate((-np.ones(len(done), np.int64), (done > issued).astype(np.int64)))
    turn[: len(done)][done == issued] = 0
    order = np.argsort(at, kind="stable")
    flying = np.cumsum(turn[order])
    return int(np.diff(at[order])[flying[:-1] > 0].sum()), int(flying.max())
