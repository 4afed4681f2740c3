"""Results side by side, of one machine or of several: their figures, and their speeds relative to the first result.

There are two kinds of comparison. A relative speed compares machines: by the mix, and for each suite by the best route
of each result, if both did the same work. A verdict (faster, slower, same) tests one solo measurement on one kind of
device, by `capabilities.compare.solo`. Everything that cannot be compared is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mixmark.harness.capabilities.compare.solo import (
    Comparison,
    SoloMeasurement,
    SuiteWork,
    Uncompared,
    caveat,
    compare,
    ratio_between,
    solo_measurements,
    work_of,
)
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import Estimate, figure
from mixmark.harness.contracts.schema import NoiseFloor, Result, Tier
from mixmark.harness.contracts.text import Reason, Unknown, differences, unnamed
from mixmark.harness.judge.assessment import Assessment, Provenance, models
from mixmark.harness.judge.findings import in_full
from mixmark.harness.judge.solo import Solo, best


@dataclass(frozen=True, kw_only=True)
class ComparedMachine(Provenance):
    """A result's machine and its mix: a column of the first table."""

    label: str
    """A for the baseline, then B, C, …"""
    name: str
    """The folder, as it was given."""
    results: int
    """The number of results in the folder. If there are several, the mix is taken from the result with the median
    TX."""
    verdict_reason: str
    cpu_flags: tuple[str, ...]
    """The instruction-set extensions, which tell processors apart whose hypervisor names them alike."""
    mix: str | None = None
    mixes_per_hour: Estimate | None = None
    """TX."""
    mixes_per_kwh: Estimate | None = None
    """MX."""
    watts: float | None = None
    """The mean power of the energy boundary over the runs of the mix, idle included."""
    grade: str | None = None
    weight_class: int | None = None
    """The fewest bits of a weight in any part of the mix: 16, 8 or 4."""
    boundary: str | None = None
    """The energy boundary of MX."""
    no_score: Reason | None = None
    """Why there is no TX."""
    no_efficiency: Reason | None = None
    """Why there is no MX although there is TX."""


@dataclass(frozen=True)
class BestRoute:
    """A result's fastest valid route for one work."""

    label: str
    """The label of the result."""
    solo: Solo
    relative: Estimate | None
    """The rate relative to the baseline's. None if this is the baseline, or the baseline has no route for this work."""


@dataclass(frozen=True)
class BestRoutes:
    """One work and the best route of each result for it."""

    work: SuiteWork
    best: tuple[BestRoute | None, ...]
    """In the order of the results. None if the result has no valid route for this work."""

    @property
    def known(self) -> tuple[BestRoute, ...]:
        return tuple(route for route in self.best if route is not None)


@dataclass(frozen=True)
class MachineComparison:
    """Two results or more. The first is the baseline of the others."""

    machines: tuple[ComparedMachine, ...]
    mixes_per_hour: tuple[Estimate | None, ...]
    """TX relative to the baseline's, in the order of the results. None if this is the baseline, or TX is not
    compared."""
    mixes_per_kwh: tuple[Estimate | None, ...]
    """The same for MX."""
    rows: tuple[BestRoutes, ...]
    """The best routes for each work that a result has a valid route for."""
    verdicts: Mapping[str, tuple[Comparison, ...]]
    """The solo measurements that were tested, by the label of the result; the baseline has none."""
    uncompared: tuple[Uncompared, ...]
    """Everything that could not be compared with the baseline."""

    @property
    @figure
    def comparable(self) -> bool:
        """Whether anything was compared with the baseline."""
        relatives = [*self.mixes_per_hour, *self.mixes_per_kwh]
        relatives += [route.relative for row in self.rows for route in row.known]
        return any(relatives) or any(self.verdicts.values())

    @property
    @figure
    def noise_floors(self) -> Mapping[Tier, NoiseFloor]:
        """The noise floor that the verdicts of each tier rest on, by tier."""
        known = [test.noise_floor for tests in self.verdicts.values() for test in tests if test.noise_floor]
        return {floor.tier: floor for floor in sorted(known, key=lambda floor: floor.fraction)}

    def gate(self, fraction: float) -> Iterator[tuple[bool, str]]:
        """Why a result fails a gate that the solo measurements of the baseline set (True and a line), and what could
        not be decided (False and a line).

        A result fails if a measurement is proven slower by more than `fraction`, or has no figure although the
        baseline has one, and if it is invalid.
        """
        for machine in self.machines[1:]:
            if machine.verdict == "invalid":
                yield True, f"{machine.label} is invalid: {machine.verdict_reason}"
            for test in self.verdicts[machine.label]:
                if test.proven_slower(fraction):
                    yield True, f"{test.label} of {machine.label} is slower by more than {fraction * 100:g} %"
                elif why := test.undecided(fraction):
                    yield False, f"{test.label} of {machine.label} is not decided: {why}"
        for missed in self.uncompared:
            if missed.fails_gate is not None:
                what = "has no figure for" if missed.fails_gate else "could not be tested on"
                yield missed.fails_gate, f"{missed.label} {what} {missed.about}: {missed.reason}"


@dataclass(frozen=True, eq=False)
class _Side:
    """One result, or several of the same plan, and their solo measurements."""

    label: str
    assessments: tuple[Assessment, ...]
    measurements: list[SoloMeasurement]
    machine: ComparedMachine


def compare_machines(given: Sequence[tuple[str, Sequence[Assessment]]]) -> MachineComparison:
    """Compares all results but the first with the first.

    given: (name of the folder, its results), at least two. Raises UsageError if the results of one folder cannot be
    merged, since they are not of one machine and one plan, and if a folder has the same result twice.
    """
    sides = [_side(_label(index), name, tuple(assessments)) for index, (name, assessments) in enumerate(given)]
    baseline = sides[0]
    uncompared: list[Uncompared] = []
    relatives: dict[str, list[Estimate | None]] = {"TX": [None], "MX": [None]}
    for side in sides[1:]:
        for which, found in relatives.items():
            relative = _of_mixes(baseline, side, which)
            found.append(relative if isinstance(relative, Estimate) else None)
            if isinstance(relative, str) and (baseline.machine.mix or side.machine.mix):  # else no run had a mix
                uncompared.append(Uncompared(side.label, which, relative))
    fastest = [_best_measurements(side) for side in sides]
    works = list(dict.fromkeys(work for of_side in fastest for work in of_side))
    suites = [work.suite for work in works]
    works.sort(key=lambda work: suites.index(work.suite))
    for side, of_side in zip(sides[1:], fastest[1:], strict=True):
        uncompared += _unmatched(baseline, fastest[0], side, of_side)
    verdicts = {}
    for side in sides[1:]:
        tests = compare(baseline.assessments, side.assessments, (baseline.label, side.label))
        verdicts[side.label] = tuple(test for test in tests if isinstance(test, Comparison))
        uncompared += [test for test in tests if isinstance(test, Uncompared)]
    return MachineComparison(
        machines=tuple(side.machine for side in sides),
        mixes_per_hour=tuple(relatives["TX"]),
        mixes_per_kwh=tuple(relatives["MX"]),
        rows=tuple(_row(work, sides, fastest) for work in works),
        verdicts=verdicts,
        uncompared=tuple(uncompared),
    )


def _label(index: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def _side(label: str, name: str, assessments: tuple[Assessment, ...]) -> _Side:
    plan = _plan(assessments[0].result)
    for assessment in assessments[1:]:
        if differing := differences(plan, _plan(assessment.result)):
            raise UsageError(
                f"{name} holds results that cannot be merged: {'; '.join(differing)}",
                hint="a folder of several results is one side if all are of one machine and one plan; give the folder "
                "of each result by itself",
            )
    if len(_ids(assessments)) < len(assessments):
        raise UsageError(
            f"{name} holds the same result twice",
            hint="a copy is no further run, and would make the interval too narrow",
        )
    typical = _median(assessments)
    machine = _machine(label, name, len(assessments), typical)
    return _Side(label, assessments, solo_measurements(assessments, label), machine)


def _ids(assessments: Sequence[Assessment]) -> frozenset[str]:
    return frozenset(assessment.provenance.result_id for assessment in assessments)


def _plan(result: Result) -> dict[str, object]:
    """What results must have in common to be merged."""
    return {
        "processor": result.machine.cpu_model or Unknown(),
        "instructions": ", ".join(result.machine.cpu_flags),
        "CPU quota": result.machine.quota_in_words,
        "devices": ", ".join(models(result)),
        "tier": result.tier,
        "preset": result.preset,
        "mix": result.mix and result.mix.name,
        "Mixmark": result.system.mixmark,
    }


def _median(assessments: Sequence[Assessment]) -> Assessment:
    """The result with the median TX; the first result if none has a TX."""
    scored = [
        (assessment.score.mixes_per_hour.estimate, index)
        for index, assessment in enumerate(assessments)
        if assessment.score and assessment.score.mixes_per_hour
    ]
    return assessments[sorted(scored)[(len(scored) - 1) // 2][1]] if scored else assessments[0]


def _machine(label: str, name: str, results: int, assessment: Assessment) -> ComparedMachine:
    result, score = assessment.result, assessment.score
    facts = ComparedMachine(
        **vars(assessment.provenance),
        label=label,
        name=name,
        results=results,
        verdict_reason=assessment.verdict.reason,
        cpu_flags=result.machine.cpu_flags,
        mix=result.mix.name if result.mix else None,
    )
    if score is None:
        return replace(facts, no_score="the run ended before its mix" if result.mix else "no mix was asked for")
    if score.problems:
        return replace(facts, no_score="; ".join(map(in_full, score.problems)))
    return replace(
        facts,
        mixes_per_hour=score.mixes_per_hour,
        mixes_per_kwh=score.mixes_per_kwh,
        watts=score.watts,
        grade=score.grade,
        weight_class=score.weight_class,
        boundary=score.boundary,
        no_efficiency=score.unmeasured,
    )


def _of_mixes(a: _Side, b: _Side, figure: str) -> Estimate | Reason:
    """TX or MX of b relative to a, or why the two are not compared."""
    for side in (a, b):
        if side.machine.no_score:
            return f"{side.label} has no score: {side.machine.no_score}"
    if differing := _different_mixes(a, b):
        return differing
    first, second = (side.machine.mixes_per_hour if figure == "TX" else side.machine.mixes_per_kwh for side in (a, b))
    if first is None or second is None:
        lacks = a if first is None else b
        return f"the efficiency of {lacks.label} was not measured: {lacks.machine.no_efficiency}"
    if figure == "MX" and a.machine.boundary != b.machine.boundary:
        return f"energy boundary: {a.machine.boundary} and {b.machine.boundary}; only equal boundaries are compared"
    return _doubted(_relative(first, second, (a, b)), a, b)


def _different_mixes(a: _Side, b: _Side) -> Reason | None:
    first, second = (side.assessments[0].result.mix for side in (a, b))
    assert first is not None and second is not None  # both have a score
    differing = differences(
        {"mix": first.name, "weight class": a.machine.weight_class, **_versions(a)},
        {"mix": second.name, "weight class": b.machine.weight_class, **_versions(b)},
    )
    if not differing and first != second:
        return f"both mixes are called {first.name}, but they differ"
    return "; ".join(differing) or None


def _versions(side: _Side) -> dict[str, str]:
    """The version of each suite in the mix, in words, with its weights and options if it has any."""
    found = {}
    records = (record for assessment in side.assessments for record in assessment.result.records)
    for route in (record.route for record in records if record.scenario == "mixed"):
        options = ", ".join(f"{name} = {value}" for name, value in sorted(route.suite_options.items()))
        weights = "" if route.weights == "synthetic" else f"weights {unnamed(route.weights)}"
        found[f"version of {route.suite}"] = ", ".join(filter(None, (route.suite_version, weights, options)))
    return found


def _relative(a: Estimate, b: Estimate, sides: tuple[_Side, _Side]) -> Estimate:
    """The ratio of two figures, or why it has no interval."""
    ratio = b.ratio(a)
    if a.half_width is None or b.half_width is None:
        lacking = [
            f"{side.label} is {side.machine.grade}"
            for side, figure in zip(sides, (a, b), strict=True)
            if figure.half_width is None
        ]
        return replace(ratio, reason=f"{' and '.join(lacking)}, without an interval")
    return ratio


def _doubted(ratio: Estimate, *sides: _Side) -> Estimate:
    """The ratio without its interval if a result is disturbed: then it proves nothing."""
    disturbed = [side.label for side in sides if side.machine.verdict == "disturbed"]
    if not disturbed:
        return ratio
    return Estimate(
        ratio.estimate, reason=f"{' and '.join(disturbed)} {'is' if len(disturbed) == 1 else 'are'} disturbed"
    )


def _best_measurements(side: _Side) -> dict[SuiteWork, SoloMeasurement]:
    """The fastest valid route for each work."""
    of_key = {each.solo.key: each for each in side.measurements}
    return {work: of_key[solo.key] for work, solo in best((each.solo for each in side.measurements), work_of).items()}


def _row(work: SuiteWork, sides: Sequence[_Side], fastest: Sequence[Mapping[SuiteWork, SoloMeasurement]]) -> BestRoutes:
    routes = (
        _best_route(work, sides[0], side, fastest[0], of_side) for side, of_side in zip(sides, fastest, strict=True)
    )
    return BestRoutes(work, tuple(routes))


def _best_route(
    work: SuiteWork,
    first: _Side,
    side: _Side,
    of_baseline: Mapping[SuiteWork, SoloMeasurement],
    of_side: Mapping[SuiteWork, SoloMeasurement],
) -> BestRoute | None:
    baseline, measurement = of_baseline.get(work), of_side.get(work)
    if measurement is None:
        return None
    relative = None
    if baseline and baseline is not measurement:
        relative = _doubted(_relative_rate(baseline, measurement), first, side)
    return BestRoute(side.label, measurement.solo, relative)


def _relative_rate(a: SoloMeasurement, b: SoloMeasurement) -> Estimate:
    ratio = a.problem or b.problem or ratio_between(a, b)
    if isinstance(ratio, str):
        return Estimate(b.solo.speed / a.solo.speed, reason=ratio)
    return replace(ratio, reason=caveat(a, b))


def _unmatched(
    baseline: _Side, base_works: Mapping[SuiteWork, object], side: _Side, works: Mapping[SuiteWork, object]
) -> Iterator[Uncompared]:
    """The works of the baseline that a side has no valid route for, with its most similar work, and the works of
    suites that only the side has."""
    for work in (work for work in base_works if work not in works):
        differing = [differences(work.facts(), similar.facts()) for similar in works if similar.suite == work.suite]
        yield Uncompared(
            side.label, work.label, f"{side.label} has no valid route{_instead(work.suite, side, differing)}"
        )
    measured = {work.suite for work in base_works}
    for work in (work for work in works if work.suite not in measured):
        yield Uncompared(
            side.label, work.label, f"{baseline.label} has no valid route{_instead(work.suite, baseline, ())}"
        )


def _instead(suite: str, side: _Side, differing: Sequence[Sequence[str]]) -> str:
    """How a side's most similar valid route differs, or why its routes have no figure."""
    if differing:
        return f" for the same work ({'; '.join(sorted(differing, key=len)[0])})"
    runs = (run for measurement in side.measurements for run in measurement.runs if run.solo.route.suite == suite)
    why = next((run.no_figure for run in runs if run.no_figure), None)
    return f": it {why}" if why else ""
