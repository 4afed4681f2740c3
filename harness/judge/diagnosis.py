"""What explains a mixed run: how near it came to the bound of its plan, and where the devices' time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.contracts.schema import Completions, Device, Finding, Mix, Placement, Rate, Result
from mixmark.harness.judge.findings import declare, found, invalid
from mixmark.harness.judge.mixed_run import HOUR_S, ScoredRun, device_time_ns
from mixmark.harness.judge.statistics.intervals import WIDEST
from mixmark.harness.judge.statistics.timestamps import in_flight_ns, most_in_flight, throughput_per_s
from mixmark.harness.plan.bound import EXACT, Bound, best_kind, bound, device_costs, verify
from mixmark.harness.plan.placement import Objective, replan

declare(
    "mix_complete",
    other_rate=invalid(
        "{phase}: the plan has {suite} on {device} at {planned_per_s:significant} units/s, and its solo record "
        "{measured_per_s:significant} units/s"
    ),
    no_rate=invalid(
        "{phase}: the plan has {suite} on {device} at {planned_per_s:significant} units/s, and no solo record that "
        "passed"
    ),
    unproven=invalid("{phase}: λ* is not proven: {why}"),
)


@dataclass(frozen=True)
class BestRate:
    """The best rate that a route of a plan reached, alone or in the mixed run."""

    rate: Rate
    units_per_s: Estimate
    """The rate with its 95 % interval."""
    in_mix: bool
    """Whether this is the rate in the mixed run, which exceeds the one alone by more than both intervals."""
    in_flight: float = 1.0
    """The fraction of the solo window with a feed in flight; in the rest feeds were made."""


@dataclass(frozen=True)
class RouteInMix:
    """The work of one device on one suite in a mixed run."""

    suite: str
    device: str
    planned: float
    """x: the fraction of the device's time that the plan gives to the suite."""
    units_per_s: float
    """While it worked on this suite, making feeds for as large a fraction of the time as alone."""
    solo_units_per_s: float | None
    """The rate that was planned with. None if the plan had no such route."""

    @property
    @figure
    def retained(self) -> float | None:
        """The rate in the mix over the solo rate: 1 means that the other devices do not disturb it."""
        return None if self.solo_units_per_s is None else self.units_per_s / self.solo_units_per_s


@dataclass(frozen=True)
class Diagnosis:
    """What explains one mixed run; none of it is ranked."""

    phase: str
    bound_per_hour: Estimate
    """λ*, from the best rate of each route of the plan in this run. Its half-width is the mean half-width of its rates,
    weighted by how much each matters: one slow minute makes many rates too low at once, so their errors do not
    cancel."""
    unproven: tuple[Finding, ...]
    """What is wrong with λ* or the plan; empty: the stored dual values prove them."""
    bound_is_estimate: bool
    """Whether λ* is no bound, because a device ran more than one feed at a time."""
    kappa: Estimate
    """κ = λ / λ*."""
    busy: Mapping[str, float]
    """The fraction of the window that each device had a feed in flight."""
    parts: tuple[RouteInMix, ...]
    best_kind: str
    """The kind of device whose devices alone would get most done. Empty if no kind runs every suite."""
    heterogeneity_gain: float | None
    """The measured λ over λ* of that kind of device. None if there is one kind of device, or no kind runs every
    suite."""
    plan: Placement = field(metadata=RAW)
    """The plan that the run began with."""
    other_plan: Placement | None
    """The plan for the other objective, from the same rates. None if not all power was known."""
    faster: tuple[RouteInMix, ...]
    """The parts that were faster in the mix than alone by more than both intervals. λ* has their rates in the mix."""

    def lowest_kappa(self, run: ScoredRun) -> float:
        """The low end of the interval of κ. If it is not known: κ with one timestamp less of the slowest suite."""
        return _lowest(run, self.bound_per_hour)

    def lowest_of_plan(self, run: ScoredRun) -> float:
        """`lowest_kappa` against the bound that was planned before the mix."""
        return _lowest(run, Estimate.within(self.plan.bound_per_s * HOUR_S, self.bound_per_hour.half_width))


@dataclass(frozen=True)
class _Planned:
    """What follows from a plan and the rates of its routes."""

    bound_per_hour: Estimate
    faster: Collection[tuple[str, str]]
    best_kind: str
    best_kind_per_hour: float
    other_plan: Placement | None


def diagnoses(
    result: Result,
    mix: Mix,
    runs: Sequence[ScoredRun],
    solo: Sequence[Rate],
    known: Mapping[str, Sequence[BestRate]],
) -> dict[str, Diagnosis]:
    """The diagnosis of each run, by its phase. Runs of equal plans share what follows from the plan.

    solo: the rates that the solo records measured. known: for each run, the best that the routes of its plan did.
    """
    plans = {phase.name: phase.placement for phase in result.phases if phase.placement is not None}
    planned: dict[tuple[str, tuple[float, ...]], _Planned] = {}
    diagnosed = {}
    for run in runs:
        plan = plans[run.phase]
        own = known[run.phase]
        key = plan.model_dump_json(), tuple(each.rate.units_per_s for each in own)
        if key not in planned:
            planned[key] = _planned(plan, result, mix, own)
        wrong = tuple(unproven(run.phase, plan, mix.units, result.devices, solo))
        diagnosed[run.phase] = _diagnosis(result, run, plan, planned[key], own, wrong)
    return diagnosed


def _planned(plan: Placement, result: Result, mix: Mix, known: Sequence[BestRate]) -> _Planned:
    limit = _bound(plan, mix, known, result.devices)
    kind, alone_per_s = best_kind(mix.units, [each.rate for each in known], result.devices)
    return _Planned(
        bound_per_hour=Estimate.within(limit.mixes_per_s * HOUR_S, _half_width(limit, known)),
        faster={(each.rate.suite, each.rate.device) for each in known if each.in_mix},
        best_kind=kind,
        best_kind_per_hour=alone_per_s * HOUR_S,
        other_plan=None if plan.rest_watts is None else _other(plan, mix, result),
    )


def unproven(
    phase: str, plan: Placement, units: Mapping[str, float], devices: Sequence[Device], solo: Sequence[Rate]
) -> Iterator[Finding]:
    """What is wrong with the plan of a phase and its λ*: the stored dual values do not prove them, or its rates are not
    the rates of the solo records. Higher rates would understate what was reached, and lower ones overstate what the
    devices gain together."""
    if why := verify(plan, units, devices):
        yield found("mix_complete.unproven", phase=phase, why=why)
    measured = {(rate.suite, rate.device, rate.adapter, rate.precision, rate.batch): rate.units_per_s for rate in solo}
    for rate in plan.rates:
        per_s = measured.get((rate.suite, rate.device, rate.adapter, rate.precision, rate.batch))
        part = {"phase": phase, "suite": rate.suite, "device": rate.device}
        if per_s is None:
            yield found("mix_complete.no_rate", **part, planned_per_s=rate.units_per_s)
        elif not math.isclose(per_s, rate.units_per_s, rel_tol=EXACT):
            rates = {"planned_per_s": rate.units_per_s, "measured_per_s": per_s}
            yield found("mix_complete.other_rate", **part, **rates)


def _other(plan: Placement, mix: Mix, result: Result) -> Placement | None:
    objective: Objective = "efficiency" if plan.objective == "throughput" else "throughput"
    try:
        return replan(plan, mix.units, result.devices, objective)
    except MixmarkError:  # a power that efficiency would need is not known
        return None


def _diagnosis(
    result: Result,
    run: ScoredRun,
    plan: Placement,
    planned: _Planned,
    known: Sequence[BestRate],
    wrong: tuple[Finding, ...],
) -> Diagnosis:
    records = [record for record in result.records if record.phase == run.phase]
    window_ns = run.begin_ns, run.end_ns
    of_device: dict[str, list[Completions]] = defaultdict(list)
    for record in records:
        if record.completions is not None:
            of_device[record.route.device].append(record.completions)
    busy_ns = {device: in_flight_ns(*each, inside=window_ns) for device, each in of_device.items()}
    solo = {(rate.suite, rate.device): rate.units_per_s for rate in plan.rates}
    in_flight = {(each.rate.suite, each.rate.device): each.in_flight for each in known}
    took_ns = device_time_ns(records)
    parts = []
    for record in records:
        route = record.route
        if record.completions is not None and (speed := throughput_per_s(record.completions, took_ns[record.key])):
            given = plan.fractions.get(route.suite, {}).get(route.device, 0.0)
            pair = route.suite, route.device
            parts.append(RouteInMix(*pair, given, speed * in_flight.get(pair, 1.0), solo.get(pair)))
    kinds, alone = len({device.kind for device in result.devices}), planned.best_kind_per_hour
    measured, (lowest, highest) = run.mixes_per_hour, planned.bound_per_hour.ends
    return Diagnosis(
        phase=run.phase,
        bound_per_hour=planned.bound_per_hour,
        unproven=wrong,
        bound_is_estimate=any(most_in_flight(*each, inside=window_ns) > 1 for each in of_device.values()),
        kappa=Estimate(
            measured.estimate / planned.bound_per_hour.estimate,
            None if measured.low is None else measured.low / highest,
            None if measured.high is None else measured.high / lowest,
        ),
        busy={device.id: busy_ns.get(device.id, 0) / run.length_ns for device in result.devices},
        parts=tuple(parts),
        best_kind=planned.best_kind,
        heterogeneity_gain=measured.estimate / alone if kinds > 1 and alone else None,
        plan=plan,
        other_plan=planned.other_plan,
        faster=tuple(part for part in parts if (part.suite, part.device) in planned.faster),
    )


def _bound(plan: Placement, mix: Mix, known: Sequence[BestRate], devices: Sequence[Device]) -> Bound:
    """λ* of the plan. If the mixed run replaced a rate, λ* of the new rates."""
    if any(each.in_mix for each in known):
        with suppress(MixmarkError):  # a plan that lacks a suite is not proven anyway
            return bound(mix.units, [each.rate for each in known], devices)
    return Bound(plan.bound_per_s, plan.bound_fractions, plan.suite_prices, plan.device_prices)


def _half_width(limit: Bound, known: Sequence[BestRate]) -> float:
    """The mean of the half-widths of the rates, weighted by how much λ* changes with each."""
    half_widths = {(each.rate.suite, each.rate.device): each.units_per_s.half_width or 0.0 for each in known}
    costs = device_costs(limit.device_prices)
    mean = math.fsum(
        part * costs.get(device, 0.0) / limit.mixes_per_s * half_widths.get((suite, device), 0.0)
        for suite, parts in limit.fractions.items()
        for device, part in parts.items()
    )
    return min(WIDEST, max(0.0, mean))  # the dual values of a plan that is not proven may be anything


def _lowest(run: ScoredRun, bound_per_hour: Estimate) -> float:
    pace = run.mixes_per_hour
    low = pace.estimate * (1 - run.coarseness) if pace.low is None else pace.low
    return low / bound_per_hour.ends[1]
