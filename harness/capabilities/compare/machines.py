"""Results side by side, of one machine or of several: their figures, and their speeds relative to the first result.

There are two kinds of comparison. A relative speed compares machines: by the mix, and for each suite by the best route
of each result, if both did the same work. A verdict (faster, slower, same) tests one solo measurement on one kind of
device, by `capabilities.compare.solo`. Everything that cannot be compared is listed with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mixmark.harness.capabilities.compare.solo import (
    Comparison,
    Runs,
    SuiteWork,
    Uncompared,
    caveat,
    compare,
    floor_between,
    measurements,
    only_in,
    over,
    problem,
    ratio_between,
    ratio_of_runs,
    value_of,
    work_of,
)
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.contracts.schema import NoiseFloor, Result, Tier
from mixmark.harness.contracts.text import Reason, Unknown, differences, unnamed
from mixmark.harness.judge.assessment import Assessment, Provenance, models
from mixmark.harness.judge.findings import in_full
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo, best
from mixmark.harness.judge.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Side:
    """A result, or several of one machine and one plan: a column."""

    label: str
    """A for the baseline, then B, C, …"""
    name: str
    """The folder, as it was given."""
    assessments: tuple[Assessment, ...] = field(metadata=RAW)

    @cached_property
    def typical(self) -> Assessment:
        """The result with the median TX; the first result if none has a TX."""
        scored = [
            (each.score.mixes_per_hour.estimate, index)
            for index, each in enumerate(self.assessments)
            if each.score and each.score.mixes_per_hour
        ]
        return self.assessments[sorted(scored)[(len(scored) - 1) // 2][1] if scored else 0]

    @cached_property
    def best(self) -> Mapping[SuiteWork, tuple[Solo, Runs]]:
        """The fastest valid route for each work, with its runs."""
        of_key = {solo.key: (solo, runs) for runs in measurements(self.assessments) for solo in (over(runs),)}
        fastest = best((solo for solo, _ in of_key.values()), work_of)
        return {work: of_key[solo.key] for work, solo in fastest.items()}

    @property
    @figure
    def results(self) -> int:
        """The number of results. If there are several, the other figures are of the result with the median TX."""
        return len(self.assessments)

    @property
    @figure
    def provenance(self) -> Provenance:
        """The result and its machine."""
        return self.typical.provenance

    @property
    @figure
    def verdict(self) -> Verdict:
        """Whether the figures can be relied on."""
        return self.typical.verdict

    @property
    @figure
    def score(self) -> Score | None:
        """The score. None if no mix was asked for, or none was run."""
        return self.typical.score

    def figures(self, tx: bool) -> list[tuple[ScoredRun, Estimate]]:
        """The runs that the scores of all results count, with the TX or the MX of each that has one."""
        scores = [each.score for each in self.assessments if each.score and not each.score.problems]
        runs = [run for score in scores for run in score.counted()]
        return [(run, each) for run in runs if (each := run.mixes_per_hour if tx else run.mixes_per_kwh) is not None]

    @property
    @figure
    def no_score(self) -> Reason | None:
        """Why there is no TX."""
        if self.score is None:
            return "the run ended before its mix" if self.typical.result.mix else "no mix was asked for"
        return "; ".join(map(in_full, self.score.problems)) or None


@dataclass(frozen=True)
class Row:
    """One work, and the best route of each result for it."""

    work: SuiteWork
    solos: tuple[Solo | None, ...]
    """In the order of the results. None if the result has no valid route for this work."""
    relatives: tuple[Estimate | None, ...]
    """The rates relative to the baseline's. None of the baseline, and if one of both has no route for this work."""


@dataclass(frozen=True)
class MachineComparison:
    """Two results or more. The first is the baseline of the others."""

    machines: tuple[Side, ...]
    mixes_per_hour: tuple[Estimate | None, ...]
    """TX relative to the baseline's, in the order of the results. None if this is the baseline, or TX is not
    compared."""
    mixes_per_kwh: tuple[Estimate | None, ...]
    """The same for MX."""
    rows: tuple[Row, ...]
    """The best routes for each work that a result has a valid route for."""
    verdicts: Mapping[str, tuple[Comparison, ...]]
    """The solo measurements that were tested, by the label of the result; the baseline has none."""
    uncompared: tuple[Uncompared, ...]
    """Everything that could not be compared with the baseline."""

    @property
    @figure
    def comparable(self) -> bool:
        """Whether anything was compared with the baseline."""
        relatives = [*self.mixes_per_hour, *self.mixes_per_kwh, *(each for row in self.rows for each in row.relatives)]
        return any(relatives) or any(self.verdicts.values())

    @property
    @figure
    def noise_floors(self) -> Mapping[Tier, NoiseFloor]:
        """The noise floor that is in the verdicts of each tier, by tier."""
        known = [test.noise_floor for tests in self.verdicts.values() for test in tests if test.noise_floor]
        return {floor.tier: floor for floor in sorted(known, key=lambda floor: floor.fraction)}

    def gate(self, fraction: float) -> Iterator[tuple[bool, str]]:
        """Why a result fails a gate that the solo measurements of the baseline set (True and a line), and what could
        not be decided (False and a line).

        A result fails if a measurement is proven slower by more than `fraction`, or has no figure although the
        baseline has one, and if it is invalid.
        """
        baseline, *others = self.machines
        invalid = {machine.label for machine in others if machine.verdict.word == "invalid"}
        for machine in others:
            if machine.label in invalid:
                yield True, f"{machine.label} is invalid: {machine.verdict.reason}"
            for test in self.verdicts[machine.label]:
                if test.proven_slower(fraction):
                    yield True, f"{test.label} of {machine.label} is slower by more than {fraction * 100:g} %"
                elif why := test.undecided(fraction):
                    yield False, f"{test.label} of {machine.label} is not decided: {why}"
        for missed in self.uncompared:
            said = missed.label in invalid and missed.reason == only_in(baseline.label)
            if missed.fails_gate is not None and not said:
                what = "has no figure for" if missed.fails_gate else "could not be tested on"
                yield missed.fails_gate, f"{missed.label} {what} {missed.about}: {missed.reason}"


def compare_machines(given: Sequence[tuple[str, Sequence[Assessment]]]) -> MachineComparison:
    """Compares all results but the first with the first.

    given: (name of the folder, its results), at least two. Raises UsageError if the results of one folder cannot be
    merged, since they are not of one machine and one plan, and if a folder has the same result twice.
    """
    sides = [Side(_label(index), name, tuple(assessments)) for index, (name, assessments) in enumerate(given)]
    for side in sides:
        _check(side)
    baseline, *others = sides
    uncompared: list[Uncompared] = []
    relatives: dict[str, list[Estimate | None]] = {"TX": [None], "MX": [None]}
    for side in others:
        for which, found in relatives.items():
            relative = _of_mixes(baseline, side, which)
            found.append(relative if isinstance(relative, Estimate) else None)
            mixes = baseline.typical.result.mix or side.typical.result.mix
            if isinstance(relative, str) and mixes:  # else no run had a mix
                uncompared.append(Uncompared(side.label, which, relative))
    works = list(dict.fromkeys(work for side in sides for work in side.best))
    suites = [work.suite for work in works]
    works.sort(key=lambda work: suites.index(work.suite))
    for side in others:
        uncompared += _unmatched(baseline, side)
    verdicts = {}
    for side in others:
        tests = compare(baseline.assessments, side.assessments, (baseline.label, side.label))
        verdicts[side.label] = tuple(test for test in tests if isinstance(test, Comparison))
        uncompared += [test for test in tests if isinstance(test, Uncompared)]
    return MachineComparison(
        machines=tuple(sides),
        mixes_per_hour=tuple(relatives["TX"]),
        mixes_per_kwh=tuple(relatives["MX"]),
        rows=tuple(_row(work, sides) for work in works),
        verdicts=verdicts,
        uncompared=tuple(uncompared),
    )


def _label(index: int) -> str:
    """A, B, … Z, A2, B2, …"""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def _check(side: Side) -> None:
    plan = _plan(side.assessments[0].result)
    for assessment in side.assessments[1:]:
        if differing := differences(plan, _plan(assessment.result)):
            raise UsageError(
                f"{side.name} holds results that cannot be merged: {'; '.join(differing)}",
                hint="a folder of several results is one side if all are of one machine and one plan; give the folder "
                "of each result by itself",
            )
    if len({assessment.provenance.result_id for assessment in side.assessments}) < side.results:
        raise UsageError(
            f"{side.name} holds the same result twice",
            hint="a copy is no further run, and would make the interval too narrow",
        )


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


def _of_mixes(a: Side, b: Side, which: str) -> Estimate | Reason:
    """TX or MX of b relative to a, or why the two are not compared."""
    for side in (a, b):
        if side.no_score:
            return f"{side.label} has no score: {side.no_score}"
    assert a.score and b.score
    if differing := _different_mixes(a, b):
        return differing
    first, second = (each.mixes_per_hour if which == "TX" else each.mixes_per_kwh for each in (a.score, b.score))
    if first is None or second is None:
        lacks, score = (a, a.score) if first is None else (b, b.score)
        return f"the efficiency of {lacks.label} was not measured: {score.unmeasured}"
    if which == "MX" and a.score.boundary != b.score.boundary:
        return f"energy boundary: {a.score.boundary} and {b.score.boundary}; only equal boundaries are compared"
    tx = which == "TX"
    values = [[run.most * figure.estimate for run, figure in side.figures(tx)] for side in (a, b)]
    if all(len(own) > 1 and min(own) > 0 and max(own) < math.inf for own in values):
        floor = floor_between(a.assessments, b.assessments)
        return _doubted(ratio_of_runs(values[0], values[1], floor.fraction if floor else 0.0), a, b)
    ratio = second.ratio(first)
    ends = ((a, first, a.score), (b, second, b.score))
    if lacking := [
        f"{side.label} is {score.grade}"
        for side, value, score in ends
        if value.half_width is None or value.kind == "window"
    ]:
        ratio = Estimate(ratio.estimate, reason=f"{' and '.join(lacking)}, without an interval of several runs")
    return _doubted(ratio, a, b)


def _different_mixes(a: Side, b: Side) -> Reason | None:
    assert a.score and b.score
    first, second = a.score.mix, b.score.mix
    differing = differences(
        {"mix": first.name, "weight class": a.score.weight_class, **_versions(a)},
        {"mix": second.name, "weight class": b.score.weight_class, **_versions(b)},
    )
    if not differing and first != second:
        return f"both mixes are called {first.name}, but they differ"
    return "; ".join(differing) or None


def _versions(side: Side) -> dict[str, str]:
    """The version of each suite in the mix, in words, with its weights and options if it has any."""
    found = {}
    records = (record for assessment in side.assessments for record in assessment.result.records)
    for route in (record.route for record in records if record.scenario == "mixed"):
        options = ", ".join(f"{name} = {value}" for name, value in sorted(route.suite_options.items()))
        weights = "" if route.weights == "synthetic" else f"weights {unnamed(route.weights)}"
        found[f"version of {route.suite}"] = ", ".join(filter(None, (route.suite_version, weights, options)))
    return found


def _doubted(ratio: Estimate, *sides: Side) -> Estimate:
    """The ratio without its interval if a result is disturbed: then it proves nothing."""
    disturbed = [side.label for side in sides if side.verdict.word == "disturbed"]
    if not disturbed:
        return ratio
    return Estimate(
        ratio.estimate, reason=f"{' and '.join(disturbed)} {'is' if len(disturbed) == 1 else 'are'} disturbed"
    )


def _row(work: SuiteWork, sides: Sequence[Side]) -> Row:
    known = [side.best.get(work) for side in sides]
    relatives = [_relative_rate(sides[0], side, work) for side in sides]
    return Row(work, tuple(each and each[0] for each in known), tuple(relatives))


def _relative_rate(a: Side, b: Side, work: SuiteWork) -> Estimate | None:
    """The rate of b for a work relative to a's. None if one has none, or they are the same side."""
    if a is b or work not in a.best or work not in b.best:
        return None
    (first, before), (second, after) = a.best[work], b.best[work]
    labels = a.label, b.label
    ratio = problem(before, a.label) or problem(after, b.label) or ratio_between(before, after, labels)
    if isinstance(ratio, str):
        ratio = Estimate(second.speed / first.speed, reason=ratio)
    else:
        ratio = replace(ratio, reason=caveat((before, after), labels))
    return _doubted(ratio, a, b)


def _unmatched(baseline: Side, side: Side) -> Iterator[Uncompared]:
    """The works of the baseline that a side has no valid route for, with its most similar work, and the works of
    suites that only the side has."""
    for work in (work for work in baseline.best if work not in side.best):
        differing = [differences(work.facts(), similar.facts()) for similar in side.best if similar.suite == work.suite]
        yield Uncompared(
            side.label, work.label, f"{side.label} has no valid route{_instead(work.suite, side, differing)}"
        )
    measured = {work.suite for work in baseline.best}
    for work in (work for work in side.best if work.suite not in measured):
        yield Uncompared(
            side.label, work.label, f"{baseline.label} has no valid route{_instead(work.suite, baseline, ())}"
        )


def _instead(suite: str, side: Side, differing: Sequence[Sequence[str]]) -> str:
    """How a side's most similar valid route differs, or why its routes have no figure."""
    if differing:
        return f" for the same work ({'; '.join(sorted(differing, key=len)[0])})"
    of_suite = (run for runs in measurements(side.assessments) for run in runs if run.solo.route.suite == suite)
    why = next((value for run in of_suite if isinstance(value := value_of(run), str)), None)
    return f": it {why}" if why else ""
