"""Results side by side, of one machine or of different ones: what each reached, and its speed relative to the first.

Two things are told apart. A relative speed holds machines against each other: the mix, and of each suite the best route
of each result, where both did the same work. A verdict (faster, slower, same) tests one cell on one kind of device, by
`judge.compare.solo`. What can be held against nothing is listed with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import NoiseFloor, Result, ScenarioName, Tier, UnitNames
from mixmark.harness.judge import hosts
from mixmark.harness.judge.compare.solo import (
    Comparison,
    cells,
    compare,
    figure,
    no_figure,
    not_the_same,
    ratio_between,
)
from mixmark.harness.judge.compare.solo import Run as CellRun
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.rows import unit_names
from mixmark.harness.judge.score import Figure, Score
from mixmark.harness.judge.statistics.intervals import OverRuns, over_runs
from mixmark.harness.judge.verdict import VerdictWord


@dataclass(frozen=True)
class Work:
    """What a route does. Only routes that do the same work are held against each other."""

    suite: str
    suite_version: str
    tier: Tier
    suite_options: tuple[tuple[str, str], ...]
    weights: str
    scenario: ScenarioName
    unit: str
    weight_class: int
    """16, 8 or 4 bits of a weight; fp32 is counted with the 16-bit formats."""

    def differs(self, other: Work) -> str:
        """What is not the same, by name and with both values."""
        told = (
            ("suite version", self.suite_version, other.suite_version),
            ("tier", self.tier, other.tier),
            ("suite options", dict(self.suite_options), dict(other.suite_options)),
            ("weights", self.weights, other.weights),
            ("scenario", self.scenario, other.scenario),
            ("unit", self.unit, other.unit),
            ("bits of a weight", self.weight_class, other.weight_class),
        )
        return "; ".join(f"{name}: {one} and {another}" for name, one, another in told if one != another)


@dataclass(frozen=True)
class Quotient:
    """A figure of a result, divided by that of the baseline; above 1 it is faster, or more efficient."""

    estimate: float
    low: float | None
    """The lower end of the interval. None, as `high`: nothing tells how wide it is, and `reason` says why."""
    high: float | None
    reason: str = ""
    """Why there is no interval, or what it leaves out."""


@dataclass(frozen=True)
class Machine:
    """What a result says of its machine and its mix: a column of the first table."""

    label: str
    """A for the baseline, then B, C, …"""
    name: str
    """The folder, as it was given."""
    results: int
    """The number of results in the folder. If there are several, the mix is that of the one with the median TX."""
    cpu: str | None
    threads: int | None
    memory_bytes: int | None
    devices: tuple[str, ...]
    """The models of the devices other than the CPU, as `8 × Acme Topaz`."""
    created_utc: str
    mixmark: str
    """The version of Mixmark that measured."""
    tier: Tier
    preset: str
    verdict: VerdictWord
    """Whether the figures are good for anything: solid, fair, disturbed, invalid or unfinished."""
    verdict_reason: str
    copy_of: str | None = None
    """The label of an earlier result that is this very measurement, such as a copy of its folder."""
    mix: str | None = None
    mixes_per_s: Figure | None = None
    """TX."""
    mixes_per_kj: Figure | None = None
    """MX."""
    watts: float | None = None
    """The mean power of the energy boundary over the runs of the mix, idle included."""
    grade: str | None = None
    weight_class: int | None = None
    """The fewest bits of a weight in any part of the mix: 16, 8 or 4."""
    boundary: str | None = None
    """The energy boundary of MX."""
    no_score: str = ""
    """Why there is no TX."""
    no_efficiency: str = ""
    """Why there is no MX though there is TX."""

    @property
    def s_per_mix(self) -> float | None:
        return 1 / self.mixes_per_s.estimate if self.mixes_per_s else None

    @property
    def kj_per_mix(self) -> float | None:
        return 1 / self.mixes_per_kj.estimate if self.mixes_per_kj else None


@dataclass(frozen=True)
class Best:
    """The fastest valid route of a result for some work."""

    label: str
    """The label of the result."""
    device: str
    device_name: str
    adapter: str
    precision: str
    batch: int | None
    units_per_s: float
    """Over several runs: the geometric mean."""
    half_width: float | None
    """Half the width of the 95 % interval as a share of the rate. None: not known."""
    runs: int
    relative: Quotient | None
    """None for the baseline, and where the baseline has no route for this work."""


@dataclass(frozen=True)
class Row:
    """One work and the best route of each result for it."""

    work: Work
    names: UnitNames
    best: tuple[Best | None, ...]
    """In the order of the results."""

    @property
    def known(self) -> tuple[Best, ...]:
        return tuple(each for each in self.best if each is not None)


@dataclass(frozen=True)
class Uncompared:
    """Something of a result that was held against nothing of the baseline."""

    label: str
    about: str
    """TX, MX, a suite or a cell."""
    reason: str
    differing: tuple[str, ...] = ()
    """For two cells that are not alike: what differs, by name and with both values, the device first."""


@dataclass(frozen=True)
class SideBySide:
    """Two results or more. The first is the baseline of all others."""

    machines: tuple[Machine, ...]
    mixes_per_s: tuple[Quotient | None, ...]
    """TX relative to the baseline's, in the order of the results. None for the baseline, and where it is not
    compared."""
    mixes_per_kj: tuple[Quotient | None, ...]
    """The same for MX."""
    rows: tuple[Row, ...]
    verdicts: Mapping[str, tuple[Comparison, ...]]
    """The cells of each result but the baseline, by its label: those that have a ratio."""
    uncompared: tuple[Uncompared, ...]

    @property
    def comparable(self) -> bool:
        """Whether anything at all was held against the baseline."""
        relatives = [*self.mixes_per_s, *self.mixes_per_kj, *(each.relative for row in self.rows for each in row.known)]
        return any(relatives) or any(self.verdicts.values())

    @property
    def floors(self) -> dict[Tier, NoiseFloor]:
        """The noise floor that verdicts of each tier rest on."""
        known = [each.floor for compared in self.verdicts.values() for each in compared if each.floor]
        return {each.tier: each for each in sorted(known, key=lambda floor: floor.share)}


@dataclass(frozen=True, eq=False)
class _Side:
    """One result, or several of the same plan, and the cells of all."""

    label: str
    judgements: tuple[Judgement, ...]
    cells: list[tuple[CellRun, ...]]
    machine: Machine
    score: Score | None


def side_by_side(given: Sequence[tuple[str, Sequence[Judgement]]]) -> SideBySide:
    """Holds all results but the first against the first.

    given: (name of the folder, its results), at least two. Raises UsageError where the results of one folder are not of
    one machine and one plan, since they would be merged, and where one of them is there twice.
    """
    sides = [_side(_label(at), name, tuple(judgements)) for at, (name, judgements) in enumerate(given)]
    baseline, others = sides[0], sides[1:]
    uncompared: list[Uncompared] = []
    per_s: list[Quotient | None] = [None]
    per_kj: list[Quotient | None] = [None]
    for other in others:
        for name, found in (("TX", per_s), ("MX", per_kj)):
            relative = _of_mixes(baseline, other, name)
            found.append(relative if isinstance(relative, Quotient) else None)
            if isinstance(relative, str) and (baseline.machine.mix or other.machine.mix):  # else nobody asked for one
                uncompared.append(Uncompared(other.label, name, relative))
    best = [_best(side) for side in sides]
    works = list(dict.fromkeys(work for each in best for work in each))
    suites = [work.suite for work in works]
    works.sort(key=lambda work: suites.index(work.suite))
    rows = tuple(_row(work, sides, best) for work in works)
    for at, other in enumerate(others, start=1):
        uncompared += _unmatched(baseline, best[0], other, best[at])
    verdicts = {}
    for other in others:
        compared = compare(baseline.judgements, other.judgements, (baseline.label, other.label))
        verdicts[other.label] = tuple(each for each in compared if each.ratio)
        uncompared += [
            Uncompared(other.label, each.label, each.reason, each.differing) for each in compared if not each.ratio
        ]
    machines = tuple(_copies_named(sides))
    return SideBySide(machines, tuple(per_s), tuple(per_kj), rows, verdicts, tuple(uncompared))


def days_between(earlier: str, later: str) -> int | None:
    """Whole days from one time to another, both as a result states them. None where either is no time."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).days
    except (ValueError, TypeError):  # one of both has no time zone
        return None


def _label(at: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + at % 26) + (str(at // 26 + 1) if at >= 26 else "")


def _side(label: str, name: str, judgements: tuple[Judgement, ...]) -> _Side:
    first = judgements[0].result
    for each in judgements[1:]:
        if differing := _unlike_plans(first, each.result):
            raise UsageError(
                f"{name} holds results that cannot be merged: {differing}",
                hint="a folder of several results is one side if all are of one machine and one plan; give the folder "
                "of each result by itself",
            )
    if len(_texts(judgements)) < len(judgements):
        raise UsageError(
            f"{name} holds the same result twice",
            hint="a copy is no further run, and would make the interval too narrow",
        )
    typical = _median(judgements)
    return _Side(label, judgements, cells(judgements), _machine(label, name, len(judgements), typical), typical.score)


def _copies_named(sides: Sequence[_Side]) -> Iterator[Machine]:
    """The machines of all sides, each that is a copy of an earlier one with its label."""
    first: dict[frozenset[str], str] = {}
    for side in sides:
        label = first.setdefault(_texts(side.judgements), side.label)
        yield replace(side.machine, copy_of=None if label == side.label else label)


def _texts(judgements: Sequence[Judgement]) -> frozenset[str]:
    return frozenset(each.result.model_dump_json() for each in judgements)


def _unlike_plans(a: Result, b: Result) -> str:
    """What keeps two results from being measurements of the same thing, by name and with both values."""
    told = (
        ("processor", hosts.processors(a), hosts.processors(b)),
        ("devices", ", ".join(models(a)), ", ".join(models(b))),
        ("tier", a.tier, b.tier),
        ("preset", a.preset, b.preset),
        ("mix", a.mix and a.mix.name, b.mix and b.mix.name),
        ("Mixmark", a.system.mixmark, b.system.mixmark),
    )
    return "; ".join(
        f"{name}: {one or 'none'} and {another or 'none'}" for name, one, another in told if one != another
    )


def _median(judgements: Sequence[Judgement]) -> Judgement:
    """The result with the median TX; the first one where none has a TX."""
    scored = [each for each in judgements if each.score and each.score.mixes_per_s]
    scored.sort(key=lambda each: each.score.mixes_per_s.estimate if each.score and each.score.mixes_per_s else 0.0)
    return scored[(len(scored) - 1) // 2] if scored else judgements[0]


def models(result: Result) -> tuple[str, ...]:
    """The models of the devices but the host's processor: 2 × Acme Topaz."""
    counted = Counter(device.name or device.kind for device in result.devices if not device.on_host)
    return tuple(f"{count} × {name}" if count > 1 else name for name, count in counted.items())


def _machine(label: str, name: str, results: int, judgement: Judgement) -> Machine:
    result, found = judgement.result, judgement.score
    facts = Machine(
        label=label,
        name=name,
        results=results,
        cpu=hosts.processors(result),
        threads=hosts.sum_of(result, "cpu_threads"),
        memory_bytes=hosts.sum_of(result, "memory_bytes"),
        devices=models(result),
        created_utc=result.created_utc,
        mixmark=result.system.mixmark,
        tier=result.tier,
        preset=result.preset,
        verdict=judgement.verdict.word,
        verdict_reason=judgement.verdict.reason,
        mix=result.mix.name if result.mix else None,
    )
    if found is None:
        why = "the run ended before its mix" if result.mix else "no mix was asked for"
        return replace(facts, no_score=why)
    if found.problems:
        return replace(facts, no_score="; ".join(each.text for each in found.problems))
    watts = [each.total.watts for each in found.runs if each.total.watts is not None]
    return replace(
        facts,
        mixes_per_s=found.mixes_per_s,
        mixes_per_kj=found.mixes_per_kj,
        watts=sum(watts) / len(watts) if watts and found.mixes_per_kj else None,
        grade=found.grade,
        weight_class=found.weight_class,
        boundary=found.boundary,
        no_efficiency=found.unmeasured,
    )


def _of_mixes(a: _Side, b: _Side, name: str) -> Quotient | str:
    """TX or MX of b relative to that of a, or why the two are not compared."""
    for side in (a, b):
        if side.machine.no_score:
            return f"{side.label} has no score: {side.machine.no_score}"
    if differing := _unlike_mixes(a, b):
        return differing
    first, second = (side.machine.mixes_per_s if name == "TX" else side.machine.mixes_per_kj for side in (a, b))
    if first is None or second is None:
        lacks = a if first is None else b
        return f"the efficiency of {lacks.label} was not measured: {lacks.machine.no_efficiency}"
    if name == "MX" and a.machine.boundary != b.machine.boundary:
        return f"the energy boundary: {a.machine.boundary} and {b.machine.boundary}, which are never compared"
    return _relative(first, second, (a, b))


def _unlike_mixes(a: _Side, b: _Side) -> str:
    first, second = (side.judgements[0].result.mix for side in (a, b))
    assert first is not None and second is not None  # both have a score
    told: list[tuple[str, object, object]] = [
        ("mix", first.name, second.name),
        ("bits of a weight", a.machine.weight_class, b.machine.weight_class),
    ]
    versions, other_versions = _versions(a), _versions(b)
    told += [(f"version of {suite}", versions[suite], other_versions.get(suite)) for suite in versions]
    differing = [f"{name}: {one} and {another}" for name, one, another in told if one != another]
    if not differing and first != second:
        differing = [f"both call their mix {first.name}, and it is not the same"]
    return "; ".join(differing)


def _versions(side: _Side) -> dict[str, str]:
    """What did each suite's part of the mix, in words: its version, and its weights and options where it has any."""
    found = {}
    for record in (each for one in side.judgements for each in one.result.records if each.scenario == "mixed"):
        route = record.route
        options = ", ".join(f"{name} = {value}" for name, value in sorted(route.suite_options.items()))
        weights = "" if route.weights == "synthetic" else f"weights {route.weights}"
        found[route.suite] = ", ".join(filter(None, (route.suite_version, weights, options)))
    return found


def _relative(a: Figure, b: Figure, sides: tuple[_Side, _Side]) -> Quotient:
    """The quotient of two figures. On the logarithm, the half-widths of independent figures add in squares."""
    estimate = b.estimate / a.estimate
    if a.half_width is None or b.half_width is None:
        lacking = [
            f"{side.label} is {side.machine.grade}"
            for side, each in zip(sides, (a, b), strict=True)
            if each.half_width is None
        ]
        return Quotient(estimate, None, None, f"{' and '.join(lacking)}, without an interval")
    half = math.hypot(a.half_width, b.half_width)
    single = [side.label for side in sides if side.score and len(side.score.runs) == 1]
    caveat = f"one run of {' and of '.join(single)}: how fresh processes differ is not in it" if single else ""
    return Quotient(estimate, estimate * math.exp(-half), estimate * math.exp(half), caveat)


def _work(run: CellRun) -> Work:
    record, route = run.record, run.record.route
    return Work(
        route.suite,
        route.suite_version,
        route.tier,
        tuple(sorted(route.suite_options.items())),
        route.weights,
        record.scenario,
        record.unit,
        route.weight_class,
    )


def _best(side: _Side) -> dict[Work, tuple[CellRun, ...]]:
    """The runs of the fastest valid route for each work of a closed loop. A server's rate is what it was offered, and
    its response times are compared as a cell."""
    best: dict[Work, tuple[CellRun, ...]] = {}
    for runs in side.cells:
        work = _work(runs[0])
        if work.scenario == "server" or any(no_figure(run) or not_the_same(runs[0], run) for run in runs):
            continue
        if work not in best or _rate(runs) > _rate(best[work]):
            best[work] = runs
    return best


def _rate(runs: Sequence[CellRun]) -> float:
    return _over(runs).geometric_mean


def _over(runs: Sequence[CellRun]) -> OverRuns:
    """The rate over runs that all have a figure."""
    over = over_runs([value for run in runs if (value := figure(run.record, run.measured)[0])])
    assert over is not None  # there is at least one run
    return over


def _row(work: Work, sides: Sequence[_Side], best: Sequence[Mapping[Work, tuple[CellRun, ...]]]) -> Row:
    first = next(runs[work][0] for runs in best if work in runs)
    names = next(
        unit_names(side.judgements[0].result, first.record)
        for side, runs in zip(sides, best, strict=True)
        if work in runs
    )
    found: list[Best | None] = []
    for at, side in enumerate(sides):
        runs, base = best[at].get(work), best[0].get(work)
        if runs is None:
            found.append(None)
            continue
        relative = None
        if at and base:
            _, ratio, reason = ratio_between(base, runs, (sides[0].label, side.label))
            relative = (
                Quotient(_rate(runs) / _rate(base), None, None, reason)
                if ratio is None
                else Quotient(ratio.estimate, ratio.low, ratio.high, reason)
            )
        found.append(_told(side.label, runs, relative))
    return Row(work, names, tuple(found))


def _told(label: str, runs: tuple[CellRun, ...], relative: Quotient | None) -> Best:
    first, over = runs[0], _over(runs)
    half_width = None
    if over.low is not None and over.high is not None:
        half_width = (over.high - over.low) / 2 / over.geometric_mean
    elif len(runs) == 1 and first.measured and first.measured.interval:
        half_width = first.measured.interval.half_width
    return Best(
        label=label,
        device=first.record.route.device,
        device_name=first.device.name,
        adapter=first.record.route.adapter,
        precision=first.record.route.precision,
        batch=first.record.batch,
        units_per_s=over.geometric_mean,
        half_width=half_width,
        runs=len(runs),
        relative=relative,
    )


def _unmatched(
    baseline: _Side, ours: Mapping[Work, object], other: _Side, theirs: Mapping[Work, object]
) -> Iterator[Uncompared]:
    """The works of the baseline that the other one has no valid route for, with what it has instead, and the suites
    that only the other one has."""
    for work in (each for each in ours if each not in theirs):
        differing = [work.differs(each) for each in theirs if each.suite == work.suite]
        yield Uncompared(other.label, _about(work), f"{other.label} has none{_instead(work.suite, other, differing)}")
    measured = {each.suite for each in ours}
    for work in (each for each in theirs if each.suite not in measured):
        yield Uncompared(other.label, _about(work), f"{baseline.label} has none{_instead(work.suite, baseline, ())}")


def _about(work: Work) -> str:
    return f"{work.suite}, {work.scenario}, {work.weight_class}-bit weights"


def _instead(suite: str, side: _Side, differing: Sequence[str]) -> str:
    """What a result has in place of some work: the most similar valid route, or why its routes have no figure."""
    if differing:
        return f" of the same work ({min(differing, key=lambda told: told.count(';'))})"
    cells_of_it = (runs for runs in side.cells if runs[0].record.route.suite == suite)
    why = (told for runs in cells_of_it for run in runs if (told := no_figure(run)))
    return f": it {failed}" if (failed := next(why, "")) else ""
