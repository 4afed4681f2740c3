"""The score: completed mixes per kilojoule and per second of the mixed runs, and how sure they are.

    G_w = units of suite w stamped inside the window, of feeds within their limits, of a part whose audit passed
    B   = min_w G_w / m_w        λ = B / T   (TX, mix/s)        MX = B / E   (mix/kJ)

A ratio of two totals of one run; over several runs their geometric mean. Everything is computed from the raw stamps
and samples: nothing that a result says of itself is believed, but the facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import (
    Completions,
    Failure,
    Finding,
    Int64s,
    Mix,
    Phase,
    Record,
    Result,
    ServiceLimits,
)
from mixmark.harness.judge import hosts
from mixmark.harness.judge.energy import total as machine
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.hosts import Traffic
from mixmark.harness.judge.statistics.intervals import FEWEST_BLOCKS, Interval, mean_interval, over_runs, ratio_interval
from mixmark.harness.judge.statistics.steadiness import MOST_BLOCKS, Stretch, other_level
from mixmark.harness.judge.statistics.timestamps import (
    Floats,
    finished_by,
    in_time,
    marks_of,
    steps_begin_ns,
    window_ns,
)
from mixmark.harness.plan import mixes
from mixmark.harness.plan.presets import PROVISIONAL_FEEDS

Grade = Literal["official", "provisional", "indicative"]
NS_PER_S = 1_000_000_000

OFFICIAL_RUNS = 5
OFFICIAL_NS = 120 * NS_PER_S
OFFICIAL_FEEDS = 100
OFFICIAL_AUDITS = 30
OFFICIAL_HALF_WIDTH = 0.02
NOT_MEASURED = "EFFICIENCY NOT MEASURED"


@dataclass(frozen=True)
class Figure:
    """An estimate and its 95 % interval; None where nothing tells how wide it is."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the interval's width as a part of the estimate: 0.02 is ± 2 %."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.estimate


@dataclass(frozen=True)
class SuiteProgress:
    """What one run did of one suite, inside the window."""

    suite: str
    units: int
    """G_w: the units that count."""
    mixes: float
    """G_w / m_w."""
    stamps: int
    """The number of stamps in which the units that count came: the fewer, the coarser the figure."""
    feeds: int
    """Feeds that finished inside the window, within their limits."""
    late: int
    """Feeds that finished inside the window and broke a limit."""
    audited: int
    """Feeds whose outputs were compared with the reference, in the whole phase."""


@dataclass(frozen=True)
class ScoreProblem:
    """Why there is no score."""

    message: str
    suite: str = ""
    device: str = ""
    """The device, or the host."""
    phase: str = ""
    """The run that it is about; empty where it is about all of them, or there is only one."""

    @property
    def text(self) -> str:
        """The problem as a reader is told of it: mixed.1: llm on cpu:0: no feed finished."""
        about = " on ".join(each for each in (self.suite, self.device) if each)
        return ": ".join(each for each in (self.phase, about, self.message) if each)


@dataclass(frozen=True)
class ScoredRun:
    """One mixed phase."""

    phase: str
    begin_ns: int
    """The begin of the window, which is common to all streams and hosts. It is as much too early, and the end too late,
    as a stamp of a host may be off: so the window holds all that was done by the stamps between."""
    end_ns: int
    clock_bound_ns: int
    """How far a stamp of a host may be off; 0 on this machine alone."""
    traffic: tuple[Traffic, ...]
    """What the network of each host carried. Empty on this machine alone."""
    steady: bool | None
    """Whether the pace held; None: too few blocks to tell. The window is the same in any case."""
    edges_ns: tuple[int, ...]
    """The edges of the equal blocks by which that was tested."""
    stretch: Stretch | None
    """The blocks that ran at another pace, where it did not hold."""
    streams: tuple[SuiteProgress, ...]
    total: MachineEnergy
    mixes_per_s: Figure
    """λ."""
    mixes_per_kj: Figure | None
    """MX; None where the energy of the boundary is not known."""
    problems: tuple[ScoreProblem, ...]
    """Why this run has no score."""

    @property
    def length_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def mixes(self) -> float:
        """B."""
        return min(stream.mixes for stream in self.streams)

    @property
    def coarseness(self) -> float:
        """The part by which one stamp more or less of the most coarsely counted stream moves the figures."""
        return max((1 / stream.stamps for stream in self.streams if stream.stamps), default=1.0)


@dataclass(frozen=True)
class Score:
    """The score of a result with mixed runs."""

    mix: Mix
    runs: tuple[ScoredRun, ...]
    problems: tuple[ScoreProblem, ...]
    """Why there is no score; then both figures are None."""
    mixes_per_s: Figure | None
    """TX."""
    mixes_per_kj: Figure | None
    """MX: the score."""
    boundary: str | None
    """`wall`, `node` or `devices`, the same in all runs."""
    unmeasured: str
    """Why there is no MX though there is TX; empty where there is."""
    weight_class: int
    """16, 8 or 4: the fewest bits of a weight in any part."""
    grade: Grade
    missing: tuple[str, ...]
    """What the next better grade asks for and is not there."""
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
        """The score in words and numbers, as it stands everywhere."""
        if self.problems:
            return f"NO SCORE: {'; '.join(each.text for each in self.problems)}"
        of = f"{self.mix.name}, {self.grade}, {self.weight_class}-bit weights"
        if self.mixes_per_kj is None:
            return f"TX {_said(self.mixes_per_s)} mix/s ({of}). {NOT_MEASURED}: {self.unmeasured}"
        return f"MX {_said(self.mixes_per_kj)} mix/kJ, TX {_said(self.mixes_per_s)} mix/s ({of}, {self.boundary})"


def score(result: Result, doubts: Sequence[Finding]) -> Score | None:
    """None where no mix was asked for, or none was run yet.

    doubts: the findings of the rules of honesty. A record that is invalid by them counts for nothing.
    """
    phases = mixed(result)
    mix = result.mix
    unplanned = [
        ScoreProblem(each.reason) for each in result.absent if mix and (each.kind, each.name) == ("mix", mix.name)
    ]
    if mix is None or not (phases or unplanned):
        return None
    runs = tuple(each for phase in phases if (each := run_of(result, mix, phase, doubts)) is not None)
    numbered = len(runs) > 1
    unplanned += [ScoreProblem(each) for each in took_no_part(result)]
    problems = unplanned + [
        replace(problem, phase=each.phase if numbered else "") for each in runs for problem in each.problems
    ]
    if mix.frozen and mix != mixes.frozen().get(mix.name, mix):
        problems.append(ScoreProblem(f"this is not the mix that was published as {mix.name}"))
    reached = {each.phase for each in runs}
    problems += [ScoreProblem(f"{phase.name} was not run to its end") for phase in phases if phase.name not in reached]
    records = [record for record in result.records if record.phase in reached and record.completions]
    return _scored(
        mix,
        runs,
        problems,
        result.seed_given,
        weight_class=min((record.route.weight_class for record in records), default=16),
        unranked=tuple(_unranked(mix, result, doubts)),
    )


def took_no_part(result: Result) -> tuple[str, ...]:
    """The hosts that were asked for and took no part, each with its reason."""
    return tuple(f"{each.name} took no part: {each.reason}" for each in result.absent if each.kind == "host")


def joined(scores: Sequence[Score], seed_given: bool) -> Score:
    """The score over all runs of several results of one machine, which are all of one mix and have scores.

    The phases are named with the number of their result: 2/mix1. seed_given: whether the seed of any result was given.
    """
    if len(scores) == 1:
        return scores[0]
    runs = [replace(run, phase=f"{at}/{run.phase}") for at, each in enumerate(scores, 1) for run in each.runs]
    return _scored(
        scores[0].mix,
        tuple(runs),
        [problem for each in scores for problem in each.problems],
        seed_given,
        weight_class=min(each.weight_class for each in scores),
        unranked=tuple(dict.fromkeys(why for each in scores for why in each.unranked)),
    )


def _scored(
    mix: Mix,
    runs: tuple[ScoredRun, ...],
    problems: Sequence[ScoreProblem],
    seed_given: bool,
    weight_class: int,
    unranked: tuple[str, ...],
) -> Score:
    blind = machine.unmeasured({each.phase: each.total for each in runs})
    widen = max((each.coarseness for each in runs), default=1.0)
    tx = None if problems else _over([each.mixes_per_s for each in runs])
    mx = None if problems or blind else _over([each.mixes_per_kj for each in runs if each.mixes_per_kj])
    grade, missing = _grade(mix, runs, mx or tx, seed_given)
    if grade != "official":
        tx, mx = (_widened(each, widen) if grade == "provisional" else _bare(each) for each in (tx, mx))
    return Score(
        mix=mix,
        runs=runs,
        problems=tuple(problems),
        mixes_per_s=tx,
        mixes_per_kj=mx,
        boundary=runs[0].total.boundary if mx else None,
        unmeasured="" if problems else blind,
        weight_class=weight_class,
        grade=grade,
        missing=missing,
        unranked=unranked,
    )


def proven(score: Score, unproven: Mapping[str, Sequence[str]]) -> Score:
    """The score, or none where the proof of a run's λ* fails: then the plan, or the rates behind it, were changed.

    unproven: what is wrong with the proof, by the phase of the run; empty where it holds.
    """
    failed = [
        ScoreProblem(f"λ* is not proven: {'; '.join(why)}", phase=phase) for phase, why in unproven.items() if why
    ]
    if score.problems or not failed:
        return score
    return replace(score, problems=tuple(failed), mixes_per_s=None, mixes_per_kj=None, boundary=None, unmeasured="")


def _unranked(mix: Mix, result: Result, doubts: Sequence[Finding]) -> Iterator[str]:
    if not mix.frozen:
        yield f"{mix.name} is a mix of one's own"
    elif mix.name not in mixes.frozen():
        yield f"{mix.name} is none of the mixes that this version knows"
    elif mix.tier == "smoke":
        yield "the smoke tier shows that everything works"
    fast = {each.about for each in doubts if each.rule == "below_ceiling"}
    unverified = {each.about for each in doubts if each.rule == "suites_verified"}
    for record in result.records:
        if record.key in fast:
            yield f"{record.route.label}, {record.scenario}, exceeds the ceiling of its probe without an explanation"
        if record.key in unverified:
            yield f"{record.route.label}, {record.scenario}, was not compared with the code of its suite"
    unknown = {each.about for each in doubts if each.rule == "probed"}
    phases = {phase.name for phase in mixed(result)}
    routes = [record.route for record in result.records if record.phase in phases and record.key in unknown]
    for device, precision in dict.fromkeys((route.device, route.precision) for route in routes):
        yield f"no probe of {device} in {precision} passed its audit, so nothing tells what is too fast"


def mixed(result: Result) -> tuple[Phase, ...]:
    """The mixed phases, one a run."""
    return tuple(phase for phase in result.phases if phase.purpose == "mixed")


@dataclass(frozen=True, eq=False)
class _Part:
    """One record of a mixed phase and which of its feeds count."""

    record: Record
    completions: Completions
    kept: npt.NDArray[np.bool_]
    """[feeds]."""

    @property
    def counts(self) -> npt.NDArray[np.bool_]:
        """[marks], whether the units of each mark count."""
        return marks_of(self.completions, self.kept)

    def finished(self, at_ns: Int64s) -> Floats:
        """[at], the units that count and were finished by then; a step that is under way counts in part."""
        done, units = self.completions, np.where(self.counts, self.completions.units, 0)
        begin, end, at = (each - at_ns[0] for each in (steps_begin_ns(done), done.marks_ns, at_ns))
        return finished_by(at.astype(np.float64), begin.astype(np.float64), end.astype(np.float64), units)


def run_of(result: Result, mix: Mix, phase: Phase, doubts: Sequence[Finding]) -> ScoredRun | None:
    """What a phase of the mix did. None where nothing was recorded of it."""
    records = [record for record in result.records if record.phase == phase.name and record.route.suite in mix.units]
    parts = [_part(record, mix) for record in records if record.completions is not None]
    brackets = [part.record.bracket_ns or window_ns(part.completions) for part in parts]
    if not parts:
        return None
    begin_ns, end_ns = min(bracket[0] for bracket in brackets), max(bracket[1] for bracket in brackets)
    if end_ns <= begin_ns:
        return None
    streams = tuple(_stream(suite, mix, parts, begin_ns, end_ns) for suite in mix.units)
    bound_ns = hosts.clock_bound_ns(result, phase.name)
    begin_ns, end_ns = begin_ns - bound_ns, end_ns + bound_ns  # what was stamped in the window was done in this one
    edges = _edges(parts, begin_ns, end_ns)
    total = machine.total(result, phase.name, begin_ns, end_ns)
    mixes = min(stream.mixes for stream in streams)
    joules = machine.blocks(total, result, phase.name, edges)
    rates = np.stack([_progress(suite, mix, parts, edges) for suite in mix.units], axis=1)
    pace = rates.mean(axis=1)
    stretch = other_level(pace) if len(pace) >= FEWEST_BLOCKS else None
    steady = stretch is None if len(pace) >= FEWEST_BLOCKS else None
    seconds = (end_ns - begin_ns) / NS_PER_S
    known = bool(steady) and mixes > 0
    per_s = _figure(mixes / seconds, mean_interval(pace) if known else None)
    per_kj = None
    if total.joules is not None:
        per_kj = _figure(
            1000 * mixes / total.joules, ratio_interval(pace, joules) if known and joules is not None else None
        )
    return ScoredRun(
        phase=phase.name,
        begin_ns=begin_ns,
        end_ns=end_ns,
        clock_bound_ns=bound_ns,
        traffic=hosts.traffic(result, phase.name, begin_ns, end_ns),
        steady=steady,
        edges_ns=tuple(edges.tolist()),
        stretch=stretch,
        streams=streams,
        total=total,
        mixes_per_s=per_s,
        mixes_per_kj=per_kj,
        problems=tuple(_problems(streams, records, doubts)),
    )


def _part(record: Record, mix: Mix) -> _Part:
    assert record.completions is not None  # its caller saw to it
    passed = record.audit is not None and record.audit.passed
    limits = mix.limits.get(record.route.suite, ServiceLimits())
    return _Part(record, record.completions, in_time(record.completions, limits) & passed)


def _edges(parts: Sequence[_Part], begin_ns: int, end_ns: int) -> Int64s:
    """[blocks + 1], the edges of equal blocks of the window: as many as tell whether it is steady, else one.

    Blocks are at least as long as the median feed of every part: more would be invented evidence.
    """
    feeds_ns = [
        np.median(each.completions.marks_ns[each.completions.ends - 1] - each.completions.issued_ns) for each in parts
    ]
    count = int(min(MOST_BLOCKS, (end_ns - begin_ns) // max(1, *feeds_ns)))
    blocks = count if count >= FEWEST_BLOCKS else 1
    return np.asarray(np.linspace(begin_ns, end_ns, blocks + 1).round().astype(np.int64))


def _progress(suite: str, mix: Mix, parts: Sequence[_Part], edges: Int64s) -> Floats:
    """[edges - 1], mixes of one stream in each block."""
    own = [part.finished(edges) for part in parts if part.record.route.suite == suite]
    return np.asarray(np.diff(sum(own, np.zeros(len(edges)))) / mix.units[suite])


def _stream(suite: str, mix: Mix, parts: Sequence[_Part], begin_ns: int, end_ns: int) -> SuiteProgress:
    units = stamps = feeds = late = audited = 0
    for part in (each for each in parts if each.record.route.suite == suite):
        done = part.completions
        inside = part.counts & (done.marks_ns > begin_ns) & (done.marks_ns <= end_ns)
        units += int(done.units[inside].sum())
        stamps += int(inside.sum())
        last = done.marks_ns[done.ends - 1]
        ended = (last > begin_ns) & (last <= end_ns)
        feeds += int((ended & part.kept).sum())
        late += int((ended & ~in_time(done, mix.limits.get(suite, ServiceLimits()))).sum())
        audited += len(part.record.audit.values) if part.record.audit else 0
    return SuiteProgress(suite, units, units / mix.units[suite], stamps, feeds, late, audited)


def _problems(
    streams: Sequence[SuiteProgress], records: Sequence[Record], doubts: Sequence[Finding]
) -> list[ScoreProblem]:
    """Why there is no score: a record is invalid, a device or a host fell out, or a suite has no unit that counts."""
    problems: list[ScoreProblem] = []
    faults = {record.key: fault for record in records if (fault := _fault(record))}
    of_host: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_host[host_of(record.route.device)].append(record)
    lost = {host for host, own in of_host.items() if host and all(each.key in faults for each in own)}
    for host in sorted(lost):
        told = dict.fromkeys(f"{faults[each.key].kind}: {faults[each.key].message}" for each in of_host[host])
        problems.append(ScoreProblem(f"all of its parts failed: {'; '.join(told)}", device=host))
    for record in records:
        messages = [each.message for each in doubts if each.about == record.key and each.severity == "invalid"]
        if record.key in faults and host_of(record.route.device) not in lost:
            messages.append(f"{faults[record.key].kind}: {faults[record.key].message}")
        problems += [ScoreProblem(each, record.route.suite, record.route.device) for each in messages]
    troubled = {each.suite for each in problems} | {each.route.suite for host in lost for each in of_host[host]}
    for stream in (each for each in streams if not each.units and each.suite not in troubled):
        done = [record for record in records if record.route.suite == stream.suite and record.completions]
        unaudited = [record for record in done if record.audit is None or not record.audit.passed]
        if not done:
            message = "no feed finished"
        elif unaudited:
            why = next((record.unaudited for record in unaudited if record.unaudited), "no output was compared")
            message = f"it was not audited: {why}"
        else:
            late = f", {stream.late} broke their limits" if stream.late else ""
            message = f"no unit counts in the window{late}"
        problems.append(ScoreProblem(message, stream.suite))
    return problems


def _fault(record: Record) -> Failure | None:
    """What ended a part of a mix, if something did."""
    return record.cut_short or (record.error if record.error and record.error.attempted else None)


def _figure(estimate: float, around: Interval | None) -> Figure:
    """The estimate with the relative interval of the pace.

    The pace is the mean progress of all streams, in mixes. The harness keeps the streams in proportion, so how the
    least advanced one scatters with the machine's speed is how their mean does, without the noise of single feeds.
    """
    if around is None:
        return Figure(estimate)
    return Figure(estimate, estimate * around.low / around.estimate, estimate * around.high / around.estimate)


def _over(figures: Sequence[Figure]) -> Figure | None:
    """The figure of a single run as it is; of several runs the geometric mean, and the interval over the runs."""
    if len(figures) < 2:
        return figures[0] if figures else None
    seen = over_runs([figure.estimate for figure in figures])
    return Figure(seen.geometric_mean, seen.low, seen.high) if seen else None


def _widened(figure: Figure | None, by: float) -> Figure | None:
    if figure is None or figure.low is None or figure.high is None:
        return figure
    by *= figure.estimate
    return Figure(figure.estimate, max(0.0, figure.low - by), figure.high + by)


def _bare(figure: Figure | None) -> Figure | None:
    return figure and Figure(figure.estimate)


def _grade(
    mix: Mix, runs: Sequence[ScoredRun], figure: Figure | None, seed_given: bool
) -> tuple[Grade, tuple[str, ...]]:
    """The grade, and what the next better one lacks."""
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
    if edges > 2 / ENOUGH_PERIODS:
        lacks.append(f"the slowest meter had {2 / edges:.0f} periods of {ENOUGH_PERIODS}")
    if half_width is not None and half_width > OFFICIAL_HALF_WIDTH:
        lacks.append(f"±{half_width * 100:.1f} % of ±{OFFICIAL_HALF_WIDTH * 100:g} %")
    if not mix.frozen:
        lacks.append(f"{mix.name} is a mix of one's own")
    return ("provisional", tuple(lacks)) if lacks else ("official", ())


def _of(run: ScoredRun, suite: str) -> SuiteProgress:
    return next(stream for stream in run.streams if stream.suite == suite)


def _said(figure: Figure | None) -> str:
    if figure is None:
        return "unknown"
    half = figure.half_width
    return f"{figure.estimate:.3g}" + ("" if half is None else f" ± {half * 100:.2g} %")
