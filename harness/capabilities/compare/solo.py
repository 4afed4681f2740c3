"""Tests whether B is faster than A: a verdict for each solo measurement that both have, or the reason against one.

A solo measurement is one suite on one device by one adapter, with all its runs. One run on each side is enough for a
verdict if the noise floor of the machine is known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mixmark.harness.contracts.figures import Estimate, exponential
from mixmark.harness.contracts.schema import Device, LatencyLimits, NoiseFloor, Route, ScenarioName, Tier
from mixmark.harness.contracts.text import Reason, Unknown, differences, unnamed
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.evidence import is_solo
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.rules.interference import POWER_SAVING
from mixmark.harness.judge.solo import Solo, grouped, merged
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.judge.statistics.intervals import sample_needed
from mixmark.harness.judge.statistics.timestamps import latencies_ns

SpeedVerdict = Literal["faster", "slower", "same", "ambiguous"]
LEAST_DELTA = 0.01  # a smaller difference does not matter, however certain it is
SINGLE_RUN_CONFIDENCE = 0.99  # the blocks of one process do not show how the next process would differ
WIDEST_RATIO = 2.0  # an interval whose ends are further apart than this factor counts as unknown

ONE_RUN = (
    "one run on each side does not show how fresh processes differ: `mixmark run --runs 5` on both sides does, or "
    "`mixmark selftest --tier {}` measures the noise floor"
)


class Run(NamedTuple):
    """A run of a solo measurement, in the assessment of its result."""

    of: Assessment
    solo: Solo

    @property
    def device(self) -> Device:
        return next(device for device in self.of.result.devices if device.id == self.solo.route.device)


Runs = tuple[Run, ...]
"""All runs of one solo measurement, in one result or in several of one plan."""


@dataclass(frozen=True)
class SuiteWork:
    """The work of a solo measurement on any device. Only rates of the same work are compared with each other."""

    suite: str
    suite_version: str
    tier: Tier
    suite_options: tuple[tuple[str, str], ...]
    weights: str
    scenario: ScenarioName
    unit: str
    weight_class: int
    """16, 8 or 4 bits of a weight; fp32 is counted with the 16-bit formats."""

    @property
    def label(self) -> str:
        """llm, single-stream, 16-bit weights."""
        return f"{self.suite}, {self.scenario}, {self.weight_class}-bit weights"

    def facts(self) -> dict[str, object]:
        """The values by the names that reports show."""
        values = {**vars(self), "suite_options": dict(self.suite_options)}
        return {name.replace("_", " "): value for name, value in values.items()}


def work_of(solo: Solo) -> SuiteWork:
    route = solo.route
    return SuiteWork(
        route.suite,
        route.suite_version,
        route.tier,
        tuple(sorted(route.suite_options.items())),
        unnamed(route.weights),
        solo.scenario,
        solo.unit,
        route.weight_class,
    )


@dataclass(frozen=True)
class Uncompared:
    """A part of a result that could not be compared with the baseline."""

    label: str
    """The label of the result."""
    about: str
    """TX, MX, a suite or a solo measurement."""
    reason: Reason
    fails_gate: bool | None = None
    """Whether the result has no figure for a solo measurement of the baseline (true), or the two cannot be tested
    (false). None for everything else."""


@dataclass(frozen=True)
class Comparison:
    """One solo measurement that both results have."""

    label: str
    """The route and the scenario of the candidate."""
    route: Route
    scenario: ScenarioName
    runs: tuple[int, int]
    """The number of runs of the baseline and of the candidate."""
    independent: bool
    """Whether both sides have runs of two results or more. If not, the verdict is between these two sittings."""
    delta: float
    """δ: the verdict is faster or slower if the whole interval lies beyond ±δ. 0.01 is 1 %."""
    noise_floor: NoiseFloor | None
    """The noise floor that is in the error. None if the sides are independent, or none of this tier is known."""
    measure: str
    """The figure that was compared: throughput, highest rate or speed of response."""
    ratio: Estimate
    """B / A; above 1, B is faster."""
    verdict: SpeedVerdict
    reason: Reason | None
    """Why the verdict is ambiguous, or a caveat."""

    def proven_slower(self, fraction: float) -> bool:
        """Whether the whole interval lies below 1 − fraction, and beyond δ."""
        return self.verdict == "slower" and self.ratio.ends[1] < 1 - fraction

    def undecided(self, fraction: float) -> Reason | None:
        """Why it is not known whether B is slower by more than the fraction. None if it is known."""
        low, high = self.ratio.ends
        if self.runs == (1, 1) and self.noise_floor is None:
            return self.reason
        if low >= 1 - fraction or self.proven_slower(fraction):
            return None
        return f"the interval of its relative speed, {low:.3f} to {high:.3f}, reaches below {1 - fraction:g}"


def compare(
    a: Sequence[Assessment], b: Sequence[Assessment], labels: tuple[str, str] = ("A", "B")
) -> list[Comparison | Uncompared]:
    """Compares the baseline A with the candidate B; each is one result or several of one plan. Probes are left out.

    Runs of one result are of one sitting, and do not show how sittings differ; the noise floor is then in the error.
    """
    return [_compared(before, after, labels) for before, after in _pairs(measurements(a), measurements(b))]


def floor_between(a: Sequence[Assessment], b: Sequence[Assessment]) -> NoiseFloor | None:
    """The widest noise floor that the assessments of two sides know of their tier. None if none is known, or if each
    side has two results or more: their runs show how sittings differ."""
    if independent(a, b):
        return None
    of = [each.result for each in (*a, *b)]
    known = [each.noise_floor for each in of if each.noise_floor and each.noise_floor.tier == of[0].tier]
    return max(known, key=lambda floor: floor.fraction, default=None)


def independent(a: Sequence[Assessment], b: Sequence[Assessment]) -> bool:
    """Whether each side has two results or more."""
    return all(len({id(each) for each in side}) > 1 for side in (a, b))


def measurements(assessments: Sequence[Assessment]) -> list[Runs]:
    """The solo measurements of one result or of several, in their order. Probes and the mix are left out."""
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for of in assessments:
        known = {solo.key: solo for solo in of.runs}
        for key, solos in grouped(known[each.key] for each in of.result.records if is_solo(each)).items():
            found[key] += [Run(of, solo) for solo in solos]
    return list(map(tuple, found.values()))


def over(runs: Runs) -> Solo:
    """The measurement over its runs."""
    return merged([run.solo for run in runs])


def value_of(run: Run) -> float | Reason:
    """The figure of a run that is compared, more is better; or why it has none, in words that follow its name.

    The throughput of a server is the rate that it was offered. So its figure is the highest rate or, at a fixed rate,
    the inverse of the response time at the percentile of its limits.
    """
    solo = run.solo
    if solo.failure is not None:
        return f"has no figure: {solo.failure.kind}: {solo.failure.message}"
    if void := next((each for each in run.of.findings if each.voids and each.about == solo.key), None):
        return f"counts for nothing: {words(void)}"
    if solo.scenario != "server":
        return solo.speed if solo.units_per_s else "has no figure: the clock did not tick"
    if solo.is_highest_rate and solo.rate_per_s:
        return solo.rate_per_s
    times_ns, tail = latencies_ns(run.of.measured[solo.key].completions), _tail(solo)
    if response_ns := intervals.percentile(times_ns, tail):
        return 1e9 / response_ns
    return f"has no figure: p{tail * 100:g} needs {sample_needed(tail)} feeds, there are {len(times_ns)}"


def _measure(solo: Solo) -> str:
    """The name of the figure that is compared."""
    if solo.scenario != "server":
        return "throughput"
    return "highest rate" if solo.is_highest_rate else f"speed of response at p{_tail(solo) * 100:g}"


def _tail(solo: Solo) -> float:
    """The percentile of the response times that a server is compared by."""
    return solo.limits.percentile if solo.limits else intervals.LOWEST_TAIL


def figures(runs: Runs) -> list[float]:
    """The figure of each run that has one."""
    return [value for run in runs if not isinstance(value := value_of(run), str)]


def no_figure(runs: Runs, label: str) -> Reason | None:
    """The first run that has no figure, with the reason. None if each has one. label: of the result."""
    without = ((run.solo.key, value) for run in runs if isinstance(value := value_of(run), str))
    return next((f"{key} of {label} {reason}" for key, reason in without), None)


def problem(runs: Runs, label: str) -> Reason | None:
    """Why the runs have no common figure. None if they are runs of one thing, and each has a figure.

    The batch may differ: each run searches for it anew, so its choice is a part of what is measured.
    """
    setups = [{"adapter options": run.solo.route.options, **_software(run)} for run in runs]
    if mixed := dict.fromkeys(each for setup in setups for each in differences(setups[0], setup)):
        return f"the runs of {label} differ in {'; '.join(mixed)}"
    return no_figure(runs, label)


def caveat(sides: Sequence[Runs], labels: Sequence[str]) -> Reason | None:
    """What the interval of a ratio includes because the runs of a side chose different batches. None if they did
    not."""
    said = []
    for runs, label in zip(sides, labels, strict=True):
        batches = sorted({run.solo.batch for run in runs if run.solo.batch is not None})
        if len(batches) > 1:
            said.append(
                f"the runs of {label} chose batches of {', '.join(map(str, batches))}: each run searches for its best "
                "batch, and the interval includes how that choice scatters"
            )
    return "; ".join(said) or None


def verdict_of(ratio: Estimate, delta: float) -> SpeedVerdict:
    """The verdict by the whole interval: beyond ±δ or inside it, on the logarithm, so that A and B can be swapped."""
    edge = math.log1p(delta)
    low, high = map(math.log, ratio.ends)
    if low > edge:
        return "faster"
    if high < -edge:
        return "slower"
    return "same" if -edge <= low and high <= edge else "ambiguous"


def _work(run: Run) -> dict[str, object]:
    """What two runs must have in common to be tested. Adapters and their options may differ."""
    solo, device = run.solo, run.device
    flags = run.of.result.system_of(device.host).cpu_flags
    return {
        "device kind": device.kind,
        "device model": device.name or Unknown(),
        "instructions": ", ".join(flags) if device.kind == "cpu" else None,
        **work_of(solo).facts(),
        "precision": solo.route.precision,
        "rate": "max" if solo.is_highest_rate else solo.rate_per_s,
        "latency limits": _limits(solo.limits),
        "device state": _state(run),
    }


def _limits(limits: LatencyLimits | None) -> str:
    """The numbers of latency limits, without their source."""
    if limits is None:
        return "none"
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    values = ", ".join(f"{name} {value / 1e9:g} s" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {values}"


def _state(run: Run) -> str:
    """The governor, the quota and the power supply of a CPU; of an accelerator, the settings that its vendor's watcher
    disclosed under its id. A device with other settings counts as another device."""
    device = run.device
    system = run.of.result.system_of(device.host)
    if device.kind == "cpu":
        battery = "on battery" if system.power_source == "battery" else None
        profile = f"profile {system.power_profile}" if system.power_profile in POWER_SAVING else None
        return ", ".join(filter(None, (f"governor {system.governor}", system.quota_in_words, battery, profile)))
    for facts in system.accelerators:
        if facts.get("id") == device.local_id:
            return ", ".join(f"{name} {facts.get(name)}" for name in ("power_limit_mw", "ecc", "mig"))
    return ""


def _software(run: Run) -> dict[str, str]:
    """The versions of Mixmark and of the packages that the route's worker ran with, sorted by name."""
    versions = {"Mixmark": run.of.result.system.mixmark}
    if environment := run.of.result.environment_of(run.solo.route):
        versions |= {"Python": environment.python, **environment.packages, **environment.vendor}
    return dict(sorted(versions.items()))


def only_in(label: str) -> Reason:
    return f"only in {label}"


def _compared(a: Runs | None, b: Runs | None, labels: tuple[str, str]) -> Comparison | Uncompared:
    if not a or not b:
        alone, label = (a, labels[0]) if a else (b or (), labels[1])
        fails = not problem(a, label) if a else None
        return Uncompared(labels[1], label_of(alone), only_in(label), fails)
    lacks, missing = problem(a, labels[0]), no_figure(b, labels[1])
    if missing and not lacks:
        return Uncompared(labels[1], label_of(a), missing, fails_gate=True)
    first = _work(a[0])
    if differing := dict.fromkeys(each for run in (*a[1:], *b) for each in differences(first, _work(run))):
        fails = not lacks and _target(a) != _target(b)
        return Uncompared(labels[1], label_of(a), f"not alike in {'; '.join(differing)}", fails)
    ratio = lacks or problem(b, labels[1]) or ratio_between(a, b, labels)
    if isinstance(ratio, str):
        return Uncompared(labels[1], label_of(b), ratio, fails_gate=False)
    solo = b[0].solo
    tier = solo.route.tier
    sides = [run.of for run in a], [run.of for run in b]
    floor = floor_between(*sides)
    verdict, reason = verdict_of(ratio, LEAST_DELTA), caveat((a, b), labels)
    if len(a) == len(b) == 1 and floor is None:
        verdict, reason = "ambiguous", ONE_RUN.format(tier)
    return Comparison(
        label=label_of(b),
        route=solo.route,
        scenario=solo.scenario,
        runs=(len(a), len(b)),
        independent=independent(*sides),
        delta=LEAST_DELTA,
        noise_floor=floor,
        measure=_measure(solo),
        ratio=ratio,
        verdict=verdict,
        reason=reason,
    )


def label_of(runs: Runs) -> str:
    """The route and the scenario."""
    return f"{runs[0].solo.route.label}, {runs[0].solo.scenario}"


def ratio_between(a: Runs, b: Runs, labels: tuple[str, str]) -> Estimate | Reason:
    """B / A with its interval, or why the interval is not known.

    The caller makes sure that both did the same work and that neither has a problem.
    """
    single = len(a) == len(b) == 1
    known = floor_between([run.of for run in a], [run.of for run in b])
    floor = known.fraction if known else 0.0
    ratio = _ratio_of_single_runs(a[0], b[0], labels) if single else ratio_of_runs(figures(a), figures(b), floor)
    if single and isinstance(ratio, Estimate):
        ratio = ratio.ratio(Estimate(1.0, 1 / (1 + floor), 1 + floor))
    if isinstance(ratio, Estimate) and ratio.is_vague(WIDEST_RATIO):
        return f"the interval is not known: its ends are more than a factor of {WIDEST_RATIO:g} apart"
    return ratio


def ratio_of_runs(a: Sequence[float], b: Sequence[float], floor: float = 0.0) -> Estimate:
    """The ratio of geometric means, with Welch's t-interval (95 %) on the logarithms: Biometrika 34, 1947. floor: a
    noise floor, which is added to the standard error in squares.

    A side of a single run is assumed to scatter as the other side does. Raises ValueError if both have a single run.
    """
    logs = [intervals.logarithms(side) for side in (a, b)]
    if max(len(a), len(b)) < 2:
        raise ValueError("two single runs do not show how runs scatter")
    of_mean = [float(side.var(ddof=1)) / len(side) if len(side) > 1 else None for side in logs]
    known = [(part, len(side) - 1) for part, side in zip(of_mean, logs, strict=True) if part is not None]
    if len(known) == 1:
        [(part, df)] = known
        error = math.sqrt(part * (df + 1) + part)
        freedom = float(df)
    else:
        total = sum(part for part, _ in known)
        error = math.sqrt(total)
        freedom = total**2 / sum(part**2 / df for part, df in known) if total else 1.0
    middle = float(logs[1].mean() - logs[0].mean())
    half = intervals.student_t(freedom, intervals.CONFIDENCE) * math.hypot(error, math.log1p(floor))
    return exponential(middle, float(half))


def _ratio_of_single_runs(a: Run, b: Run, labels: tuple[str, str]) -> Estimate | Reason:
    """The ratio from the blocks of both windows of a closed loop."""
    if a.solo.scenario == "server":
        return "one run of a server gives no interval: several runs are needed"
    before, after = _interval(a), _interval(b)
    if before is None or after is None:
        lacking = labels[0] if before is None else labels[1]
        return f"the window of {lacking} has no interval (it is short or not steady): several runs are needed"
    return after.ratio(before)


def _interval(run: Run) -> Estimate | None:
    """The interval of the throughput of one window, at the confidence of a ratio of single runs."""
    measured = run.of.measured.get(run.solo.key)
    window = measured.window if measured else None
    return (
        intervals.mean_interval(window.blocks.rates_per_s, SINGLE_RUN_CONFIDENCE) if window and window.steady else None
    )


def _target(runs: Runs) -> Hashable:
    """What was measured, on any device of a kind."""
    route = runs[0].solo.route
    return route.suite, route.adapter, route.precision, runs[0].solo.scenario, runs[0].device.kind


def _pairs(a: Sequence[Runs], b: Sequence[Runs]) -> Iterator[tuple[Runs | None, Runs | None]]:
    """Pairs the same measurement on the same device, then on another device of its kind, then any of the same suite by
    the same adapter, which are refused by name. A measurement without a partner is paired with none."""
    a, b = list(a), list(b)
    for key in (
        lambda runs: (_target(runs), runs[0].solo.route.device),
        _target,
        lambda runs: (runs[0].solo.route.suite, runs[0].solo.route.adapter),
    ):
        for before in list(a):
            for after in b:
                if key(before) == key(after):
                    yield before, after
                    a.remove(before)
                    b.remove(after)
                    break
    yield from ((before, None) for before in a)
    yield from ((None, after) for after in b)
