"""Whether B is faster than A: a verdict for each solo measurement that both have, or the reason why there is none.

A solo measurement is one suite on one device by one adapter, with all its runs. One run on each side is enough for a
verdict if the noise floor of the machine is known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.schema import Device, LatencyLimits, NoiseFloor, Record, Result, Route, System
from mixmark.harness.contracts.text import Reason, differences
from mixmark.harness.judge import hosts
from mixmark.harness.judge.evidence import Measurement, is_solo
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.statistics.distributions import student_t
from mixmark.harness.judge.statistics.intervals import (
    CONFIDENCE,
    LOWEST_TAIL,
    Interval,
    logarithms,
    mean_interval,
    percentile,
    percentile_interval,
    sample_needed,
)
from mixmark.harness.judge.statistics.timestamps import latencies_ns

SpeedVerdict = Literal["faster", "slower", "same", "ambiguous"]
LEAST_DELTA = 0.01  # a smaller difference does not matter, however certain it is
SINGLE_RUN_CONFIDENCE = 0.99  # the blocks of one process do not show how the next process would differ
LEAST_PAIRS = 6
WIDEST_RATIO = 2.0  # an interval whose ends are further apart than this factor counts as unknown
MOST_RUNS = 100  # more than anyone would make
SCATTER = 1.96 * math.sqrt(2)  # standard deviations of a run in the 95 % quantile of the difference of two runs


@dataclass(frozen=True)
class SoloRun:
    """One run of a solo measurement: its record and the device that the record names."""

    record: Record
    device: Device
    measured: Measurement | None = None
    """None: the record has no timestamps."""
    state: str = ""
    """The settings of the device, such as its governor. A device with other settings counts as another device."""
    invalid: Reason | None = None
    """Why a rule found the record invalid, for example a wrong output."""
    software: Mapping[str, str] = field(default_factory=dict)
    """The versions of Mixmark and of the packages that the adapter's worker ran with, by name."""


@dataclass(frozen=True)
class Ratio:
    """B over A with its confidence interval; above 1, B is faster."""

    low: float
    estimate: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One solo measurement of both results. Without a ratio there is no verdict."""

    a: tuple[SoloRun, ...]
    """The runs of the baseline."""
    b: tuple[SoloRun, ...]
    """The runs of the candidate."""
    delta: float
    """δ: the verdict is faster or slower if the whole interval lies beyond ±δ. 0.01 is 1 %."""
    noise_floor: NoiseFloor | None = None
    """The noise floor that δ is taken from if it exceeds the least δ. None: none of this tier is known."""
    measure: str = ""
    """The figure that was compared: throughput, highest rate or speed of response."""
    ratio: Ratio | None = None
    verdict: SpeedVerdict | None = None
    reason: Reason | None = None
    """Why there is no ratio; with a ratio, a caveat."""
    differing: tuple[str, ...] = ()
    """What forbids to compare the two, by name and with both values."""

    @property
    def label(self) -> str:
        """The route and the scenario."""
        return _label((self.b or self.a)[0].record)

    @property
    def runs(self) -> tuple[int, int]:
        """The number of runs of the baseline and of the candidate."""
        return len(self.a), len(self.b)

    def proven_slower(self, by: float) -> bool:
        """Whether the whole interval lies below 1 − by, and beyond δ."""
        return self.verdict == "slower" and self.ratio is not None and self.ratio.high < 1 - by


def compare(
    a: Sequence[Judgement], b: Sequence[Judgement], names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, ...]:
    """Compares the baseline A with the candidate B; each is one result or several of one plan. Probes are left out.

    The noise floor of a measurement is the widest that the results know of its tier: a self-test at another tier says
    nothing about it.
    """
    known = [judgement.result.noise_floor for judgement in (*a, *b) if judgement.result.noise_floor is not None]
    pairs = _pairs(solo_measurements(a), solo_measurements(b))
    return tuple(_compared(before, after, known, names) for before, after in pairs)


def noise_floor(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The noise floor from pairs of measurements of the same thing: the 95 % quantile of their relative difference.

    Of up to 20 pairs that is the widest. None for fewer than six pairs, of which even the widest says little.
    """
    if len(pairs) < LEAST_PAIRS:
        return None
    apart = np.abs(np.diff(logarithms([value for pair in pairs for value in pair]).reshape(-1, 2)))
    return float(math.expm1(np.quantile(apart, 0.95, method="higher")))


def noise_floors(judgement: Judgement) -> dict[str, float | None]:
    """The noise floor of each solo measurement, by its label: runs 1 and 2 are a pair, runs 3 and 4 are, and so on."""
    runs_of: dict[str, dict[int, float]] = defaultdict(dict)
    for record in filter(is_solo, judgement.result.records):
        value, _ = compared_figure(record, judgement.measured.get(record.key))
        if value:
            runs_of[_label(record)][record.run] = value
    return {
        label: noise_floor([(runs[run], runs[run + 1]) for run in runs if run % 2 and run + 1 in runs])
        for label, runs in runs_of.items()
    }


def _label(record: Record) -> str:
    return f"{record.route.label}, {record.scenario}"


def machine_noise_floor(judgement: Judgement) -> NoiseFloor | None:
    """The largest of the floors; None if no solo measurement has one."""
    known = [floor for floor in noise_floors(judgement).values() if floor is not None]
    result = judgement.result
    return NoiseFloor(fraction=max(known), tier=result.tier, created_utc=result.created_utc) if known else None


def verdict_of(ratio: Ratio, delta: float) -> SpeedVerdict:
    """The verdict by the whole interval: beyond ±δ or inside it, on the logarithm, so that A and B can be swapped."""
    edge = math.log1p(delta)
    low, high = math.log(ratio.low), math.log(ratio.high)
    if low > edge:
        return "faster"
    if high < -edge:
        return "slower"
    return "same" if -edge <= low and high <= edge else "ambiguous"


def different_work(a: SoloRun, b: SoloRun) -> tuple[str, ...]:
    """What forbids to compare the two, by name and with both values. Adapters and their options may differ."""
    return differences(_work(a), _work(b))


def _work(run: SoloRun) -> dict[str, object]:
    record, route = run.record, run.record.route
    return {
        "device kind": run.device.kind,
        "device model": run.device.name,
        "suite": route.suite,
        "suite version": route.suite_version,
        "suite options": route.suite_options,
        "tier": route.tier,
        "weights": route.weights,
        "precision": route.precision,
        "scenario": record.scenario,
        "rate": "max" if record.rate_trials else record.rate_per_s,
        "latency limits": _limits(record.latency_limits),
        "unit": record.unit,
        "device state": run.state,
    }


def _limits(limits: LatencyLimits | None) -> str:
    """The numbers of latency limits, without their source."""
    if limits is None:
        return "none"
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    values = ", ".join(f"{name} {value / 1e9:g} s" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {values}"


def compared_figure(record: Record, measured: Measurement | None) -> tuple[float | None, str]:
    """(the figure that is compared, its name), more is better; (None, the reason) if the record carries none.

    The throughput of a server is the rate that it was offered. So its figure is the highest rate or, at a fixed rate,
    the inverse of the response time at the percentile of its limits.
    """
    if measured is None:
        assert record.error is not None  # a record has one or the other
        return None, f"{record.error.kind}: {record.error.message}"
    if record.scenario == "server":
        if record.rate_trials:
            return record.rate_per_s, "highest rate"
        q = record.latency_limits.percentile if record.latency_limits else LOWEST_TAIL
        times_ns = latencies_ns(measured.completions)
        response_ns = percentile(times_ns, q)
        if not response_ns:
            return None, f"p{q * 100:g} needs {sample_needed(q)} feeds, there are {len(times_ns)}"
        return 1e9 / response_ns, f"speed of response at p{q * 100:g}"
    rate_per_s = measured.throughput_per_s
    return rate_per_s, "throughput" if rate_per_s else "the clock did not tick"


def _compared(
    a: tuple[SoloRun, ...], b: tuple[SoloRun, ...], known: Sequence[NoiseFloor], names: tuple[str, str]
) -> Comparison:
    tier = (b or a)[0].record.route.tier
    floor = max((known_floor for known_floor in known if known_floor.tier == tier), key=_share, default=None)
    delta = max(floor.fraction if floor else 0.0, LEAST_DELTA)
    found = Comparison(a, b, delta, floor)
    if not a or not b:
        return replace(found, reason=f"only in {names[0] if a else names[1]}")
    differing = tuple(dict.fromkeys(difference for run in (*a, *b) for difference in different_work(a[0], run)))
    if differing:
        return replace(found, reason="not alike in " + "; ".join(differing), differing=differing)
    measure, ratio, reason = ratio_between(a, b, names)
    found = replace(found, measure=measure, ratio=ratio, reason=reason)
    if ratio is None:
        return found
    single = found.runs == (1, 1)
    if single and floor is None:
        reason = (
            "one run on each side does not show how fresh processes differ: `mixmark run --runs 5` on both sides does, "
            f"or `mixmark selftest --tier {tier}` measures the noise floor"
        )
        return replace(found, verdict="ambiguous", reason=reason)
    verdict = verdict_of(ratio, delta)
    if verdict == "ambiguous":
        scatter = math.log1p(floor.fraction) / SCATTER if single and floor else spread_of(_figures(a), _figures(b))
        needed = runs_that_would_tell(scatter, abs(math.log(ratio.estimate)) - math.log1p(delta))
        reason = "; ".join(filter(None, (needed, reason)))
    return replace(found, verdict=verdict, reason=reason)


def _share(floor: NoiseFloor) -> float:
    return floor.fraction


def ratio_between(
    a: tuple[SoloRun, ...], b: tuple[SoloRun, ...], names: tuple[str, str] = ("A", "B")
) -> tuple[str, Ratio | None, Reason | None]:
    """(the name of the compared figure, B / A with its interval, why there is none or a caveat).

    The caller makes sure that both did the same work. This function makes sure that the runs of each side are runs of
    one thing.
    """
    for side, runs in zip(names, (a, b), strict=True):
        if mixed := dict.fromkeys(difference for run in runs for difference in different_setup(runs[0], run)):
            return "", None, f"the runs of {side} are not of one thing: {'; '.join(mixed)}"
        for run in runs:
            if why := no_figure(run):
                return "", None, f"{run.record.key} of {side} {why}"
    _, measure = compared_figure(b[0].record, b[0].measured)
    if len(a) == len(b) == 1:
        ratio, reason = _ratio_of_single_runs(a[0], b[0], names)
        if ratio is None:
            return measure, None, reason
    else:
        ratio = ratio_of_runs(_figures(a), _figures(b))
    if ratio.high > WIDEST_RATIO * ratio.low:
        reason = f"the interval is not known: its ends are more than a factor of {WIDEST_RATIO:g} apart"
        return measure, None, reason
    return measure, ratio, "; ".join(filter(None, map(_searched, names, (a, b)))) or None


def no_figure(run: SoloRun) -> Reason | None:
    """Why a run has no figure to compare, in words that follow its name. None: it has one."""
    if run.invalid:
        return f"is invalid: {run.invalid}"
    value, why = compared_figure(run.record, run.measured)
    return f"has no figure: {why}" if value is None else None


def different_setup(a: SoloRun, b: SoloRun) -> tuple[str, ...]:
    """What keeps two records of one side from being runs of the same thing, by name and with both values.

    The batch may differ: each run searches for it anew, so its choice is a part of what is measured. The caveat of the
    comparison says so.
    """
    return differences(
        {"adapter options": a.record.route.options, **a.software},
        {"adapter options": b.record.route.options, **b.software},
    )


def _searched(side: str, runs: Sequence[SoloRun]) -> Reason | None:
    """The caveat that runs of a side chose different batches. None: they did not."""
    batches = sorted({run.record.batch for run in runs if run.record.batch is not None})
    if len(batches) < 2:
        return None
    return (
        f"the runs of {side} chose batches of {', '.join(map(str, batches))}: each searches for its best one, and the "
        "interval holds how the choice scatters"
    )


def _figures(runs: Sequence[SoloRun]) -> list[float]:
    """The figures of runs that all have one."""
    return [value for run in runs if (value := compared_figure(run.record, run.measured)[0]) is not None]


def spread_of(*sides: Sequence[float]) -> float:
    """The standard deviation of the logarithm of a run's figure, pooled over the sides."""
    logs = [logarithms(side) for side in sides]
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    return math.sqrt(squares / max(1, sum(len(side) - 1 for side in logs)))


def runs_that_would_tell(spread: float, gap: float) -> str:
    """The number of runs on each side that would put the whole interval on one side of δ, in words.

    spread: the standard deviation of the logarithm of a run's figure. gap: the distance of the ratio's logarithm from
    δ; below 0 it lies within δ, and as many runs would show that the two are the same.
    """
    distance = abs(gap)
    for runs in range(2, MOST_RUNS + 1):
        if student_t(2 * runs - 2, CONFIDENCE) * spread * math.sqrt(2 / runs) < distance:
            return f"about {runs} runs on each side would tell"
    return f"even {MOST_RUNS} runs on each side would hardly tell"


def ratio_of_runs(a: Sequence[float], b: Sequence[float]) -> Ratio:
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
    return _exponential(middle, -half, half)


def _ratio_of_single_runs(a: SoloRun, b: SoloRun, names: tuple[str, str]) -> tuple[Ratio, None] | tuple[None, Reason]:
    """The ratio from the blocks of both windows or, for a server's response times, from the order statistics."""
    if a.record.scenario != "server":
        before, after = _interval(a), _interval(b)
        if before is None or after is None:
            side = names[1] if before else names[0]
            return None, f"the window of {side} has no interval (it is short or not steady): several runs are needed"
        return ratio_of_windows(before, after), None
    if a.record.rate_trials or b.record.rate_trials:
        return None, "a highest rate has no interval within one run: several runs are needed"
    limits = a.record.latency_limits
    q = limits.percentile if limits else LOWEST_TAIL
    bounds = []
    for run in (a, b):
        assert run.measured is not None  # it has a figure
        times_ns = latencies_ns(run.measured.completions)
        bounds.append((percentile_interval(times_ns, q), percentile(times_ns, q)))
    (first, middle_a), (second, middle_b) = bounds
    if first is None or second is None or not middle_a or not middle_b or not first[0] or not second[0]:
        return None, f"too few feeds for an interval of p{q * 100:g}"
    return Ratio(first[0] / second[1], middle_a / middle_b, first[1] / second[0]), None


def _interval(run: SoloRun) -> Interval | None:
    """The interval of the throughput of one window, at the confidence of a ratio of single runs."""
    window = run.measured.window if run.measured else None
    if window is None or not window.steady:
        return None
    return mean_interval(window.blocks.rates_per_s, SINGLE_RUN_CONFIDENCE)


def ratio_of_windows(a: Interval, b: Interval) -> Ratio:
    """The ratio of two throughputs. Logarithms are linear near the mean, so relative half-widths add in squares."""
    half = math.hypot(a.half_width, b.half_width)
    return _exponential(math.log(b.estimate / a.estimate), -half, half)


def _exponential(middle: float, below: float, above: float) -> Ratio:
    """A ratio from logarithms, the bounds relative to the middle. Bounds too wide for a float end at e^±700."""
    low, high = (math.exp(min(max(middle + off, -700), 700)) for off in (below, above))
    return Ratio(low, math.exp(middle), high)


def solo_measurements(judgements: Sequence[Judgement]) -> list[tuple[SoloRun, ...]]:
    """The runs of each solo measurement, in the order of the results. Probes and the mix are left out."""
    found: dict[Hashable, list[SoloRun]] = defaultdict(list)
    for judgement in judgements:
        result = judgement.result
        devices = {device.id: device for device in result.devices}
        seen: dict[Hashable, int] = defaultdict(int)
        invalid = {finding.about: finding.message for finding in judgement.findings if finding.severity == "invalid"}
        for record in filter(is_solo, result.records):
            device = devices[record.route.device]
            run = SoloRun(
                record,
                device,
                judgement.measured.get(record.key),
                _state(hosts.system(result, device.host), device),
                invalid.get(record.key) if record.completions else None,
                _software(result, record.route),
            )
            measurement = _target(run), record.route.device
            found[measurement, seen[measurement, record.run]].append(run)
            seen[measurement, record.run] += 1  # the same one again in one run is another phase of the plan
    return [tuple(runs) for runs in found.values()]


def _state(system: System, device: Device) -> str:
    """The governor of a CPU; of an accelerator, the settings that its vendor's watcher disclosed under its id."""
    if device.kind == "cpu":
        return f"governor {system.governor}"
    for facts in system.accelerators:
        if facts.get("id") == local(device.id):
            return ", ".join(f"{name} {facts.get(name)}" for name in ("power_limit_mw", "ecc", "mig"))
    return ""


def _software(result: Result, route: Route) -> dict[str, str]:
    """The versions of Mixmark and of the packages that the route's worker ran with, sorted by name."""
    versions = {"Mixmark": result.system.mixmark}
    if environment := hosts.environment(result, route):
        versions |= {"Python": environment.python, **environment.packages, **environment.vendor}
    return dict(sorted(versions.items()))


def _target(run: SoloRun) -> Hashable:
    record, route = run.record, run.record.route
    return route.suite, route.adapter, route.precision, record.scenario


def _pairs(
    a: Sequence[tuple[SoloRun, ...]], b: Sequence[tuple[SoloRun, ...]]
) -> Iterator[tuple[tuple[SoloRun, ...], tuple[SoloRun, ...]]]:
    """Pairs the same measurement on the same device, then on another device of its kind, then any of the same suite by
    the same adapter, which are refused by name. A measurement without a partner is paired with none."""
    a, b = list(a), list(b)
    for key in (
        lambda run: (_target(run), run.record.route.device),
        lambda run: (_target(run), run.device.kind),
        lambda run: (run.record.route.suite, run.record.route.adapter),
    ):
        for before in list(a):
            for after in b:
                if key(before[0]) == key(after[0]):
                    yield before, after
                    a.remove(before)
                    b.remove(after)
                    break
    yield from ((before, ()) for before in a)
    yield from (((), after) for after in b)
