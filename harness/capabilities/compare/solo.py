"""Tests whether B is faster than A: a verdict for each solo measurement that both have, or the reason against one.

A solo measurement is one suite on one device by one adapter, with all its runs. One run on each side is enough for a
verdict if the noise floor of the machine is known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mixmark.harness.contracts.figures import Estimate, exponential
from mixmark.harness.contracts.schema import (
    Device,
    Int64s,
    LatencyLimits,
    NoiseFloor,
    Result,
    Route,
    ScenarioName,
    System,
    Tier,
)
from mixmark.harness.contracts.text import Reason, Unknown, differences, unnamed
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.evidence import Measurement, is_solo
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.rules.interference import POWER_SAVING
from mixmark.harness.judge.solo import Solo, grouped, merged
from mixmark.harness.judge.statistics.intervals import (
    CONFIDENCE,
    LOWEST_TAIL,
    logarithms,
    mean_interval,
    percentile,
    sample_needed,
    student_t,
)
from mixmark.harness.judge.statistics.timestamps import latencies_ns

SpeedVerdict = Literal["faster", "slower", "same", "ambiguous"]
LEAST_DELTA = 0.01  # a smaller difference does not matter, however certain it is
SINGLE_RUN_CONFIDENCE = 0.99  # the blocks of one process do not show how the next process would differ
WIDEST_RATIO = 2.0  # an interval whose ends are further apart than this factor counts as unknown

ONE_RUN = (
    "one run on each side does not show how fresh processes differ: `mixmark run --runs 5` on both sides does, or "
    "`mixmark selftest --tier {}` measures the noise floor"
)


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
class SoloRun:
    """One run of a solo measurement, with everything that decides whether another run did the same work."""

    solo: Solo
    device: Device
    measured: Measurement | None = None
    """None if the record has no timestamps."""
    state: str = ""
    """The settings of the device, such as its governor. A device with other settings counts as another device."""
    void: Reason | None = None
    """Why the record counts for nothing, for example a wrong output."""
    software: Mapping[str, str] = field(default_factory=dict)
    """The versions of Mixmark and of the packages that the adapter's worker ran with, by name."""
    instructions: str = ""
    """The instruction-set extensions of the host. Hypervisors give different processors one name."""

    @property
    def figure(self) -> tuple[float | None, str]:
        """(the figure that is compared, its name), more is better; (None, the reason) if the record carries none.

        The throughput of a server is the rate that it was offered. So its figure is the highest rate or, at a fixed
        rate, the inverse of the response time at the percentile of its limits.
        """
        solo = self.solo
        if solo.failure is not None:
            return None, f"{solo.failure.kind}: {solo.failure.message}"
        if solo.scenario != "server":
            return (solo.speed, "throughput") if solo.units_per_s else (None, "the clock did not tick")
        if solo.is_highest_rate:
            return solo.rate_per_s, "highest rate"
        times_ns = self.latencies_ns
        response_ns = percentile(times_ns, self.tail)
        if not response_ns:
            needed = sample_needed(self.tail)
            return None, f"p{self.tail * 100:g} needs {needed} feeds, there are {len(times_ns)}"
        return 1e9 / response_ns, f"speed of response at p{self.tail * 100:g}"

    @property
    def tail(self) -> float:
        """The percentile of the response times that a server is compared by."""
        return self.solo.limits.percentile if self.solo.limits else LOWEST_TAIL

    @property
    def latencies_ns(self) -> Int64s:
        assert self.measured is not None  # it has no failure
        return latencies_ns(self.measured.completions)

    @property
    def no_figure(self) -> Reason | None:
        """Why the run has no figure to compare, in words that follow its name. None if it has one."""
        if self.void:
            return f"counts for nothing: {self.void}"
        value, why = self.figure
        return f"has no figure: {why}" if value is None else None


@dataclass(frozen=True)
class SoloMeasurement:
    """One suite on one device by one adapter, with all its runs in one result or in several of one plan."""

    result: str
    """The label of the result: A, B, …"""
    runs: tuple[SoloRun, ...]
    solo: Solo
    """The measurement over its runs."""

    @property
    def label(self) -> str:
        """The route and the scenario."""
        return f"{self.solo.route.label}, {self.solo.scenario}"

    @property
    def problem(self) -> Reason | None:
        """Why the runs have no common figure. None if they are runs of one thing, and each has a figure."""
        if mixed := dict.fromkeys(difference for run in self.runs for difference in different_setup(self.runs[0], run)):
            return f"the runs of {self.result} differ in {'; '.join(mixed)}"
        return self.no_figure

    @property
    def no_figure(self) -> Reason | None:
        """The first of its runs that has no figure, with the reason. None if each has one."""
        without = ((run.solo.key, reason) for run in self.runs if (reason := run.no_figure))
        return next((f"{key} of {self.result} {reason}" for key, reason in without), None)

    @property
    def figures(self) -> list[float]:
        """The figure of each run, if there is no problem."""
        return [value for run in self.runs if (value := run.figure[0]) is not None]

    @property
    def caveat(self) -> Reason | None:
        """What the reader must know if the runs chose different batches. None if they did not."""
        batches = sorted({run.solo.batch for run in self.runs if run.solo.batch is not None})
        if len(batches) < 2:
            return None
        chosen = f"the runs of {self.result} chose batches of {', '.join(map(str, batches))}"
        return f"{chosen}: each run searches for its best batch, and the interval includes how that choice scatters"


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
    delta: float
    """δ: the verdict is faster or slower if the whole interval lies beyond ±δ. 0.01 is 1 %."""
    noise_floor: NoiseFloor | None
    """The noise floor that δ is taken from if it exceeds the least δ. None if none of this tier is known."""
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
    a: Sequence[Assessment], b: Sequence[Assessment], names: tuple[str, str] = ("A", "B")
) -> list[Comparison | Uncompared]:
    """Compares the baseline A with the candidate B; each is one result or several of one plan. Probes are left out.

    The noise floor of a measurement is the widest that the results know of its tier: a self-test at another tier says
    nothing about it.
    """
    known = [assessment.result.noise_floor for assessment in (*a, *b) if assessment.result.noise_floor is not None]
    pairs = _pairs(solo_measurements(a, names[0]), solo_measurements(b, names[1]))
    return [_compared(before, after, known, names[1]) for before, after in pairs]


def verdict_of(ratio: Estimate, delta: float) -> SpeedVerdict:
    """The verdict by the whole interval: beyond ±δ or inside it, on the logarithm, so that A and B can be swapped."""
    edge = math.log1p(delta)
    low, high = map(math.log, ratio.ends)
    if low > edge:
        return "faster"
    if high < -edge:
        return "slower"
    return "same" if -edge <= low and high <= edge else "ambiguous"


def different_work(a: SoloRun, b: SoloRun) -> tuple[str, ...]:
    """What forbids to compare the two, by name and with both values. Adapters and their options may differ."""
    return differences(_work(a), _work(b))


def _work(run: SoloRun) -> dict[str, object]:
    return {
        "device kind": run.device.kind,
        "device model": run.device.name or Unknown(),
        "instructions": run.instructions if run.device.kind == "cpu" else None,
        **work_of(run.solo).facts(),
        "precision": run.solo.route.precision,
        "rate": "max" if run.solo.is_highest_rate else run.solo.rate_per_s,
        "latency limits": _limits(run.solo.limits),
        "device state": run.state,
    }


def _limits(limits: LatencyLimits | None) -> str:
    """The numbers of latency limits, without their source."""
    if limits is None:
        return "none"
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    values = ", ".join(f"{name} {value / 1e9:g} s" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {values}"


def _compared(
    a: SoloMeasurement | None, b: SoloMeasurement | None, known: Sequence[NoiseFloor], candidate: str
) -> Comparison | Uncompared:
    if a is None or b is None:
        [alone] = filter(None, (a, b))
        fails = None if a is None else not a.problem
        return Uncompared(candidate, alone.label, f"only in {alone.result}", fails)
    if b.no_figure and not a.problem:
        return Uncompared(candidate, a.label, b.no_figure, fails_gate=True)
    unlike = (difference for run in (*a.runs[1:], *b.runs) for difference in different_work(a.runs[0], run))
    if differing := tuple(dict.fromkeys(unlike)):
        fails = not a.problem and _target(a) != _target(b)
        return Uncompared(candidate, a.label, f"not alike in {'; '.join(differing)}", fails)
    ratio = a.problem or b.problem or ratio_between(a, b)
    if isinstance(ratio, str):
        return Uncompared(candidate, b.label, ratio, fails_gate=False)
    floors = [floor for floor in known if floor.tier == b.solo.route.tier]
    floor = max(floors, key=lambda floor: floor.fraction, default=None)
    delta = max(floor.fraction if floor else 0.0, LEAST_DELTA)
    verdict, reason = verdict_of(ratio, delta), caveat(a, b)
    if len(a.runs) == len(b.runs) == 1 and floor is None:
        verdict, reason = "ambiguous", ONE_RUN.format(b.solo.route.tier)
    return Comparison(
        label=b.label,
        route=b.solo.route,
        scenario=b.solo.scenario,
        runs=(len(a.runs), len(b.runs)),
        delta=delta,
        noise_floor=floor,
        measure=b.runs[0].figure[1],
        ratio=ratio,
        verdict=verdict,
        reason=reason,
    )


def caveat(a: SoloMeasurement, b: SoloMeasurement) -> Reason | None:
    """What the interval of a ratio leaves out or includes. None if there is nothing to say."""
    return "; ".join(filter(None, (a.caveat, b.caveat))) or None


def ratio_between(a: SoloMeasurement, b: SoloMeasurement) -> Estimate | Reason:
    """B / A with its interval, or why the interval is not known.

    The caller makes sure that both did the same work and that neither has a problem.
    """
    single = len(a.runs) == len(b.runs) == 1
    ratio = _ratio_of_single_runs(a, b) if single else ratio_of_runs(a.figures, b.figures)
    if isinstance(ratio, Estimate) and ratio.is_vague(WIDEST_RATIO):
        return f"the interval is not known: its ends are more than a factor of {WIDEST_RATIO:g} apart"
    return ratio


def different_setup(a: SoloRun, b: SoloRun) -> tuple[str, ...]:
    """What keeps two records of one side from being runs of the same thing, by name and with both values.

    The batch may differ: each run searches for it anew, so its choice is a part of what is measured. The caveat of the
    comparison says so.
    """
    return differences(
        {"adapter options": a.solo.route.options, **a.software},
        {"adapter options": b.solo.route.options, **b.software},
    )


def ratio_of_runs(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """The ratio of geometric means, with Welch's t-interval (95 %) on the logarithms: Biometrika 34, 1947.

    A side of a single run is assumed to scatter as the other side does. Raises ValueError if both have a single run.
    """
    logs = [logarithms(side) for side in (a, b)]
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
    half = student_t(freedom, CONFIDENCE) * error
    return exponential(middle, float(half))


def _ratio_of_single_runs(a: SoloMeasurement, b: SoloMeasurement) -> Estimate | Reason:
    """The ratio from the blocks of both windows of a closed loop."""
    if a.solo.scenario == "server":
        return "one run of a server gives no interval: several runs are needed"
    before, after = _interval(a.runs[0]), _interval(b.runs[0])
    if before is None or after is None:
        lacking = a if before is None else b
        return f"the window of {lacking.result} has no interval (it is short or not steady): several runs are needed"
    return after.ratio(before)


def _interval(run: SoloRun) -> Estimate | None:
    """The interval of the throughput of one window, at the confidence of a ratio of single runs."""
    window = run.measured.window if run.measured else None
    return mean_interval(window.blocks.rates_per_s, SINGLE_RUN_CONFIDENCE) if window and window.steady else None


def solo_measurements(assessments: Sequence[Assessment], label: str = "A") -> list[SoloMeasurement]:
    """The solo measurements of one result or of several, in their order. Probes and the mix are left out."""
    found: dict[Hashable, list[SoloRun]] = defaultdict(list)
    for assessment in assessments:
        result = assessment.result
        devices = {device.id: device for device in result.devices}
        void = {finding.about: words(finding) for finding in assessment.findings if finding.voids}
        known = {solo.key: solo for solo in assessment.runs}
        for measurement, solos in grouped(known[each.key] for each in result.records if is_solo(each)).items():
            for solo in solos:
                device = devices[solo.route.device]
                system = result.system_of(device.host)
                run = SoloRun(
                    solo,
                    device,
                    assessment.measured.get(solo.key),
                    _state(system, device),
                    None if solo.failure else void.get(solo.key),
                    _software(result, solo.route),
                    ", ".join(system.cpu_flags),
                )
                found[measurement].append(run)
    return [SoloMeasurement(label, tuple(runs), merged([run.solo for run in runs])) for runs in found.values()]


def _state(system: System, device: Device) -> str:
    """The governor, the quota and the power supply of a CPU; of an accelerator, the settings that its vendor's watcher
    disclosed under its id."""
    if device.kind == "cpu":
        battery = "on battery" if system.power_source == "battery" else None
        profile = f"profile {system.power_profile}" if system.power_profile in POWER_SAVING else None
        return ", ".join(filter(None, (f"governor {system.governor}", system.quota_in_words, battery, profile)))
    for facts in system.accelerators:
        if facts.get("id") == device.local_id:
            return ", ".join(f"{name} {facts.get(name)}" for name in ("power_limit_mw", "ecc", "mig"))
    return ""


def _software(result: Result, route: Route) -> dict[str, str]:
    """The versions of Mixmark and of the packages that the route's worker ran with, sorted by name."""
    versions = {"Mixmark": result.system.mixmark}
    if environment := result.environment_of(route):
        versions |= {"Python": environment.python, **environment.packages, **environment.vendor}
    return dict(sorted(versions.items()))


def _target(measurement: SoloMeasurement) -> Hashable:
    """What was measured, on any device of a kind."""
    solo = measurement.solo
    device = measurement.runs[0].device.kind
    return solo.route.suite, solo.route.adapter, solo.route.precision, solo.scenario, device


def _pairs(
    a: Sequence[SoloMeasurement], b: Sequence[SoloMeasurement]
) -> Iterator[tuple[SoloMeasurement | None, SoloMeasurement | None]]:
    """Pairs the same measurement on the same device, then on another device of its kind, then any of the same suite by
    the same adapter, which are refused by name. A measurement without a partner is paired with none."""
    a, b = list(a), list(b)
    for key in (
        lambda measurement: (_target(measurement), measurement.solo.route.device),
        _target,
        lambda measurement: (measurement.solo.route.suite, measurement.solo.route.adapter),
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
