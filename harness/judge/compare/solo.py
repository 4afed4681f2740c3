"""Whether B is faster than A: a verdict for each cell, from one run of each or several, or why there is none."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.schema import Device, LatencyLimits, NoiseFloor, Record, Result, Route, System
from mixmark.harness.judge import hosts
from mixmark.harness.judge.evidence import Measurement, is_cell
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

Verdict = Literal["faster", "slower", "same", "ambiguous"]
LEAST_DELTA = 0.01  # smaller differences do not matter, however sure they are
SINGLE_RUN_CONFIDENCE = 0.99  # the blocks of one process do not show how the next one would differ
LEAST_PAIRS = 6
WIDEST_RATIO = 2.0  # an interval whose ends are further apart than this factor is not known
MOST_RUNS = 100  # that a person would make
SCATTER = 1.96 * math.sqrt(2)  # how many standard deviations of a run the 95 % quantile of the difference of two is


@dataclass(frozen=True)
class Run:
    """One record of a route and the device that it names."""

    record: Record
    device: Device
    measured: Measurement | None = None
    """None: the record has no stamps."""
    state: tuple[tuple[str, str | None], ...] = ()
    """The settings of the device, by name: a device with other settings is another device."""
    invalid: str = ""
    """Why a rule found the record invalid, for example a wrong output; empty where none did."""
    software: tuple[tuple[str, str], ...] = ()
    """The versions of Mixmark and of what the adapter's workers ran in, by name."""


@dataclass(frozen=True)
class Ratio:
    """B over A with its confidence interval; above 1 where B is faster."""

    low: float
    estimate: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One cell of both. Without a ratio there is no verdict, and `reason` says why; with one, it is a caveat."""

    a: tuple[Run, ...]
    b: tuple[Run, ...]
    measure: str
    ratio: Ratio | None
    delta: float
    verdict: Verdict | None
    reason: str = ""
    floor: NoiseFloor | None = None
    """The noise floor that δ is taken from, if it is wider than the least δ. None: none of the cell's tier is known."""
    differing: tuple[str, ...] = ()
    """What forbids to compare the two, by name and with both values; `reason` has it as a sentence."""

    @property
    def label(self) -> str:
        record = (self.b or self.a)[0].record
        return f"{record.route.label}, {record.scenario}"

    def proven_slower(self, by: float) -> bool:
        """Whether the whole interval lies below 1 − by, and beyond δ."""
        return self.verdict == "slower" and self.ratio is not None and self.ratio.high < 1 - by


def compare(
    a: Sequence[Judgement], b: Sequence[Judgement], names: tuple[str, str] = ("A", "B")
) -> tuple[Comparison, ...]:
    """A is the baseline, B the candidate; each is a result or several of the same plan. Probes are left out.

    The noise floor of a cell is the widest that the results know of the cell's tier: a self-test at another tier says
    nothing about it.
    """
    known = [each.result.noise_floor for each in (*a, *b) if each.result.noise_floor is not None]
    return tuple(_compared(before, after, known, names) for before, after in _pairs(cells(a), cells(b)))


def floor_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The noise floor by pairs of measurements of the same thing: the 95 % quantile of how far they lie apart, which
    is the widest of up to 20 pairs. None under six, where even the widest says little."""
    if len(pairs) < LEAST_PAIRS:
        return None
    apart = np.abs(np.diff(logarithms([each for pair in pairs for each in pair]).reshape(-1, 2)))
    return float(math.expm1(np.quantile(apart, 0.95, method="higher")))


def floors(judgement: Judgement) -> dict[str, float | None]:
    """The noise floor by cell: runs 1 and 2 are a pair, 3 and 4 are, and so on."""
    cells: dict[str, dict[int, float]] = defaultdict(dict)
    for record in filter(is_cell, judgement.result.records):
        value, _ = figure(record, judgement.measured.get(record.key))
        if value:
            cells[f"{record.route.label}, {record.scenario}"][record.run] = value
    return {
        cell: floor_of([(runs[run], runs[run + 1]) for run in runs if run % 2 and run + 1 in runs])
        for cell, runs in cells.items()
    }


def verdict_of(ratio: Ratio, delta: float) -> Verdict:
    """The verdict by the whole interval: beyond ±δ or inside it, on the logarithm, so that A and B can be swapped."""
    edge = math.log1p(delta)
    low, high = math.log(ratio.low), math.log(ratio.high)
    if low > edge:
        return "faster"
    if high < -edge:
        return "slower"
    return "same" if -edge <= low and high <= edge else "ambiguous"


def unlike(a: Run, b: Run) -> tuple[str, ...]:
    """What forbids to compare the two, by name and with both values. Adapters and their options may differ."""
    told = (
        ("device kind", lambda run: run.device.kind),
        ("device model", lambda run: run.device.name),
        ("suite", lambda run: run.record.route.suite),
        ("suite version", lambda run: run.record.route.suite_version),
        ("suite options", lambda run: run.record.route.suite_options),
        ("tier", lambda run: run.record.route.tier),
        ("weights", lambda run: run.record.route.weights),
        ("precision", lambda run: run.record.route.precision),
        ("scenario", lambda run: run.record.scenario),
        ("rate", lambda run: "max" if run.record.rate_trials else run.record.rate_per_s),
        ("latency limits", lambda run: _limits(run.record.latency_limits)),
        ("unit", lambda run: run.record.unit),
        ("device state", lambda run: ", ".join(f"{name} {value}" for name, value in run.state)),
    )
    looks: Sequence[tuple[str, Callable[[Run], object]]] = told
    return tuple(f"{name}: {look(a)} and {look(b)}" for name, look in looks if look(a) != look(b))


def _limits(limits: LatencyLimits | None) -> str:
    """The numbers of latency limits; who set them does not matter."""
    if limits is None:
        return "none"
    named = (("first", limits.first_ns), ("per unit", limits.per_unit_ns), ("total", limits.total_ns))
    told = ", ".join(f"{name} {value / 1e9:g} s" for name, value in named if value is not None)
    return f"p{limits.percentile * 100:g} of {told}"


def figure(record: Record, measured: Measurement | None) -> tuple[float | None, str]:
    """(the figure that is compared, its name), more is better; None with the reason where the record carries none.

    A server's throughput is the rate that it was offered, so there it is the highest rate or, at a fixed one, the
    inverse of the response time at the percentile of its limits.
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
    a: tuple[Run, ...], b: tuple[Run, ...], known: Sequence[NoiseFloor], names: tuple[str, str]
) -> Comparison:
    tier = (b or a)[0].record.route.tier
    floor = max((each for each in known if each.tier == tier), key=lambda each: each.share, default=None)
    delta = max(floor.share if floor else 0.0, LEAST_DELTA)

    def refused(reason: str) -> Comparison:
        return Comparison(a, b, "", None, delta, None, reason, floor)

    if not a or not b:
        return refused(f"only in {names[0] if a else names[1]}")
    differing = dict.fromkeys(what for run in (*a, *b) for what in unlike(a[0], run))
    if differing:
        return replace(refused("not alike in " + "; ".join(differing)), differing=tuple(differing))
    measure, ratio, reason = ratio_between(a, b, names)
    if ratio is None:
        return Comparison(a, b, measure, None, delta, None, reason, floor)
    if len(a) == len(b) == 1 and floor is None:
        reason = (
            "one run on each side does not show how fresh processes differ: `mixmark run --runs 5` on both sides does, "
            f"or `mixmark selftest --tier {tier}` measures the noise floor"
        )
        return Comparison(a, b, measure, ratio, delta, "ambiguous", reason)
    verdict = verdict_of(ratio, delta)
    if verdict == "ambiguous":
        single = len(a) == len(b) == 1
        scatter = math.log1p(floor.share) / SCATTER if single and floor else spread_of(_figures(a), _figures(b))
        told = runs_that_would_tell(scatter, abs(math.log(ratio.estimate)) - math.log1p(delta))
        reason = "; ".join(filter(None, (told, reason)))
    return Comparison(a, b, measure, ratio, delta, verdict, reason, floor)


def ratio_between(
    a: tuple[Run, ...], b: tuple[Run, ...], names: tuple[str, str] = ("A", "B")
) -> tuple[str, Ratio | None, str]:
    """(the name of the figure that is compared, B / A with its interval, why there is none or a caveat).

    The caller has seen to it that both did the same work; that the runs of each side are runs of one thing is seen to
    here.
    """
    for side, runs in zip(names, (a, b), strict=True):
        if mixed := dict.fromkeys(what for run in runs for what in not_the_same(runs[0], run)):
            return "", None, f"the runs of {side} are not of one thing: {'; '.join(mixed)}"
        for run in runs:
            if why := no_figure(run):
                return "", None, f"{run.record.key} of {side} {why}"
    _, measure = figure(b[0].record, b[0].measured)
    if len(a) == len(b) == 1:
        ratio, reason = _ratio_of_single_runs(a[0], b[0], names)
    else:
        ratio, reason = ratio_of_runs(_figures(a), _figures(b)), ""
    if ratio is None:
        return measure, None, reason
    if ratio.high > WIDEST_RATIO * ratio.low:
        reason = f"the interval is not known: its ends are more than a factor of {WIDEST_RATIO:g} apart"
        return measure, None, reason
    return measure, ratio, "; ".join(filter(None, map(_searched, names, (a, b))))


def no_figure(run: Run) -> str:
    """Why a run has no figure that could be compared, in words that follow its name; empty where it has one."""
    if run.invalid:
        return f"is invalid: {run.invalid}"
    value, why = figure(run.record, run.measured)
    return f"has no figure: {why}" if value is None else ""


def not_the_same(a: Run, b: Run) -> tuple[str, ...]:
    """What keeps two records of one side from being runs of the same thing, by name and with both values.

    The batch is not among it. Where it is searched for, each run searches anew, and what it finds is a part of what
    is measured; the caveat of the comparison says so.
    """
    before, after = dict(a.software), dict(b.software)
    told: list[tuple[str, object, object]] = [("adapter options", a.record.route.options, b.record.route.options)]
    told += [(name, before.get(name), after.get(name)) for name in {**before, **after}]
    return tuple(f"{name}: {first} and {second}" for name, first, second in told if first != second)


def _searched(side: str, runs: Sequence[Run]) -> str:
    """The caveat that runs of a side chose different batches; empty where they did not."""
    batches = sorted({run.record.batch for run in runs if run.record.batch is not None})
    if len(batches) < 2:
        return ""
    return (
        f"the runs of {side} chose batches of {', '.join(map(str, batches))}: each searches for its best one, and the "
        "interval holds how the choice scatters"
    )


def _figures(runs: Sequence[Run]) -> list[float]:
    """The figures of runs that all have one."""
    return [value for run in runs if (value := figure(run.record, run.measured)[0]) is not None]


def spread_of(*sides: Sequence[float]) -> float:
    """The standard deviation of the logarithm of a run's figure, pooled over the sides."""
    logs = [logarithms(side) for side in sides]
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in logs)
    return math.sqrt(squares / max(1, sum(len(side) - 1 for side in logs)))


def runs_that_would_tell(spread: float, gap: float) -> str:
    """About how many runs on each side would put the whole interval on one side of δ, in words.

    spread: the standard deviation of the logarithm of a run's figure. gap: how far the logarithm of the ratio lies
    beyond δ; below 0 it lies within δ, and as many runs would show that the two are the same.
    """
    distance = abs(gap)
    for runs in range(2, MOST_RUNS + 1):
        if student_t(2 * runs - 2, CONFIDENCE) * spread * math.sqrt(2 / runs) < distance:
            return f"about {runs} runs on each side would tell"
    return f"even {MOST_RUNS} runs on each side would hardly tell"


def ratio_of_runs(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of geometric means, with Welch's t-interval (95 %) on the logarithms: Biometrika 34, 1947.

    A side of a single run is taken to scatter as the other one does. Raises ValueError where both have one.
    """
    logs = [logarithms(side) for side in (a, b)]
    if max(len(a), len(b)) < 2:
        raise ValueError("two single runs do not tell how runs scatter")
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


def _ratio_of_single_runs(a: Run, b: Run, names: tuple[str, str]) -> tuple[Ratio | None, str]:
    """The ratio from the blocks of both windows or, for a server's response times, from the order statistics."""
    if a.record.scenario != "server":
        before, after = _interval(a), _interval(b)
        if before is None or after is None:
            side = names[1] if before else names[0]
            return None, f"the window of {side} has no interval (it is short or not steady): several runs are needed"
        return ratio_of_windows(before, after), ""
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
    return Ratio(first[0] / second[1], middle_a / middle_b, first[1] / second[0]), ""


def _interval(run: Run) -> Interval | None:
    """The interval of the throughput of one window, at the confidence of a ratio of single runs."""
    seen = run.measured.window if run.measured else None
    if seen is None or not seen.steady:
        return None
    return mean_interval(seen.blocks.rates_per_s, SINGLE_RUN_CONFIDENCE)


def ratio_of_windows(a: Interval, b: Interval) -> Ratio:
    """The ratio of two throughputs. Logarithms are linear near the mean, so relative half-widths add in squares."""
    half = math.hypot(a.half_width, b.half_width)
    return _exponential(math.log(b.estimate / a.estimate), -half, half)


def _exponential(middle: float, below: float, above: float) -> Ratio:
    """A ratio from logarithms, the bounds relative to the middle. Bounds too wide for a float end at e^±700."""
    low, high = (math.exp(min(max(middle + off, -700), 700)) for off in (below, above))
    return Ratio(low, math.exp(middle), high)


def cells(judgements: Sequence[Judgement]) -> list[tuple[Run, ...]]:
    """The runs of each cell, in the order of the results. Probes and the mix are no cells."""
    found: dict[Hashable, list[Run]] = defaultdict(list)
    for judgement in judgements:
        result = judgement.result
        devices = {device.id: device for device in result.devices}
        seen: dict[Hashable, int] = defaultdict(int)
        invalid = {each.about: each.message for each in judgement.findings if each.severity == "invalid"}
        for record in result.records:
            if not is_cell(record):
                continue
            device = devices[record.route.device]
            state = _state(hosts.system(result, device.host), device)
            why = invalid.get(record.key, "") if record.completions else ""
            measured = judgement.measured.get(record.key)
            run = Run(record, device, measured, state, why, _software(result, record.route))
            key = (_cell(run), record.run)
            found[(_cell(run), seen[key])].append(run)  # the same cell again in one run is another phase of the plan
            seen[key] += 1
    return [tuple(runs) for runs in found.values()]


def _state(system: System, device: Device) -> tuple[tuple[str, str | None], ...]:
    """The governor of a CPU; of an accelerator, what its vendor's watcher disclosed under its id."""
    if device.kind == "cpu":
        return (("governor", system.governor),)
    for facts in system.accelerators:
        if facts.get("id") == local(device.id):
            return tuple((name, facts.get(name)) for name in ("power_limit_mw", "ecc", "mig"))
    return ()


def _software(result: Result, route: Route) -> tuple[tuple[str, str], ...]:
    """The versions of what measured and of what ran."""
    told = {"Mixmark": result.system.mixmark}
    if ran := hosts.environment(result, route):
        told |= {"Python": ran.python, **ran.packages, **ran.vendor}
    return tuple(sorted(told.items()))


def _cell(run: Run) -> Hashable:
    record = run.record
    return record.route.suite, record.route.adapter, record.route.device, record.route.precision, record.scenario


def _cell_elsewhere(run: Run) -> Hashable:
    record = run.record
    return record.route.suite, record.route.adapter, run.device.kind, record.route.precision, record.scenario


def _target(run: Run) -> Hashable:
    return run.record.route.suite, run.record.route.adapter


def _pairs(a: list[tuple[Run, ...]], b: list[tuple[Run, ...]]) -> Iterator[tuple[tuple[Run, ...], tuple[Run, ...]]]:
    """Pairs the same cell on the same device, else on another machine's device, else what is refused by name."""
    a, b = list(a), list(b)
    for alike in (_cell, _cell_elsewhere, _target):
        for before in list(a):
            for after in b:
                if alike(before[0]) == alike(after[0]):
                    yield before, after
                    a.remove(before)
                    b.remove(after)
                    break
    yield from ((before, ()) for before in a)
    yield from (((), after) for after in b)
