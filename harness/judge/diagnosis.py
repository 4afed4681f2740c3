"""What explains a mixed run: how near it came to the bound of its plan, and where the devices' time went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mixmark.harness.contracts.figures import RAW, Estimate, figure
from mixmark.harness.contracts.schema import Completions, Device, Finding, Mix, Placement, Rate, Result
from mixmark.harness.judge.findings import declare, found, invalid
from mixmark.harness.judge.mixed_run import HOUR_S, ScoredRun, device_time_ns
from mixmark.harness.judge.roofline import farthest
from mixmark.harness.judge.statistics.intervals import WIDEST
from mixmark.harness.judge.statistics.timestamps import in_flight_ns, most_in_flight, throughput_per_s
from mixmark.harness.plan.bound import EXACT, Bound, best_kind, bound, device_costs, verify

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
    """The best solo rate of a route."""

    rate: Rate
    units_per_s: Estimate
    """The rate with its 95 % interval."""
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
    """λ*, from the solo rate of each route of the plan; until a route was measured alone, from its quick check. Its
    half-width is the mean half-width of these rates, weighted by how much each matters: one slow minute makes many
    rates too low at once, so their errors do not cancel. Half of what the probes of the run differ by is added in
    squares."""
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

    @property
    def planned_per_hour(self) -> float:
        """The mixes per hour of the plan, by the solo rates."""
        return self.bound_per_hour.estimate * self.plan.mixes_per_s / self.plan.bound_per_s

    def lowest_kappa(self, run: ScoredRun) -> float:
        """The low end of the interval of κ. If it is not known: κ with one timestamp less of the slowest suite."""
        pace = run.mixes_per_hour
        low = pace.estimate * (1 - run.coarseness) if pace.low is None else pace.low
        return low / self.bound_per_hour.ends[1]


def diagnoses(
    result: Result, mix: Mix, runs: Sequence[ScoredRun], checked: Sequence[BestRate], alone: Sequence[BestRate]
) -> dict[str, Diagnosis]:
    """The diagnosis of each run, by its phase. checked: the measured rates that the plan is to be made of. alone: the
    rates that the solo records measured; the same, unless the score came first."""
    plans = {phase.name: phase.placement for phase in result.phases if phase.placement is not None}
    return {run.phase: _diagnosis(result, mix, run, plans[run.phase], checked, alone) for run in runs}


def unproven(
    phase: str, plan: Placement, units: Mapping[str, float], devices: Sequence[Device], solo: Sequence[Rate]
) -> Iterator[Finding]:
    """What is wrong with the plan of a phase and its λ*: the stored dual values do not prove them, or its rates are not
    the rates of the solo records. Higher rates would understate what was reached, and lower ones overstate what the
    devices gain together."""
    if why := verify(plan, units, devices):
        yield found("mix_complete.unproven", phase=phase, why=why)
    measured = {(rate.key, rate.batch): rate.units_per_s for rate in solo}
    for rate in plan.rates:
        per_s = measured.get((rate.key, rate.batch))
        part = {"phase": phase, "suite": rate.suite, "device": rate.device}
        if per_s is None:
            yield found("mix_complete.no_rate", **part, planned_per_s=rate.units_per_s)
        elif not math.isclose(per_s, rate.units_per_s, rel_tol=EXACT):
            rates = {"planned_per_s": rate.units_per_s, "measured_per_s": per_s}
            yield found("mix_complete.other_rate", **part, **rates)


def _diagnosis(
    result: Result, mix: Mix, run: ScoredRun, plan: Placement, checked: Sequence[BestRate], alone: Sequence[BestRate]
) -> Diagnosis:
    records = [record for record in result.records if record.phase == run.phase]
    window_ns = run.begin_ns, run.end_ns
    of_device: dict[str, list[Completions]] = defaultdict(list)
    for record in records:
        if record.completions is not None:
            of_device[record.route.device].append(record.completions)
    busy_ns = {device: in_flight_ns(*each, inside=window_ns) for device, each in of_device.items()}
    planned = {(rate.suite, rate.device): rate for rate in plan.rates}
    routes = {rate.key for rate in plan.rates}
    known = {(each.rate.suite, each.rate.device): each for each in (*checked, *alone) if each.rate.key in routes}
    proof = Bound(plan.bound_per_s, plan.bound_fractions, plan.suite_prices, plan.device_prices)
    if checked != alone:
        planned |= {pair: each.rate for pair, each in known.items()}
        proof = bound(mix.units, [*planned.values()], result.devices)
    took_ns = device_time_ns(records)
    parts = []
    for record in records:
        route = record.route
        if record.completions is not None and (speed := throughput_per_s(record.completions, took_ns[record.key])):
            given = plan.fractions.get(route.suite, {}).get(route.device, 0.0)
            pair = route.suite, route.device
            in_flight = known[pair].in_flight if pair in known else 1.0
            alone_per_s = planned[pair].units_per_s if pair in planned else None
            parts.append(RouteInMix(*pair, given, speed * in_flight, alone_per_s))
    kind, kind_per_s = best_kind(mix.units, [*planned.values()], result.devices)
    gains = kind_per_s and len({device.kind for device in result.devices}) > 1
    most = Estimate.within(proof.mixes_per_s * HOUR_S, _half_width(proof, known, farthest(result.records) / 2))
    measured, (lowest, highest) = run.mixes_per_hour, most.ends
    return Diagnosis(
        phase=run.phase,
        bound_per_hour=most,
        unproven=tuple(unproven(run.phase, plan, mix.units, result.devices, [each.rate for each in checked])),
        bound_is_estimate=any(most_in_flight(*each, inside=window_ns) > 1 for each in of_device.values()),
        kappa=Estimate(
            measured.estimate / most.estimate,
            None if measured.low is None else measured.low / highest,
            None if measured.high is None else measured.high / lowest,
        ),
        busy={device.id: busy_ns.get(device.id, 0) / run.length_ns for device in result.devices},
        parts=tuple(parts),
        best_kind=kind,
        heterogeneity_gain=measured.estimate / (kind_per_s * HOUR_S) if gains else None,
        plan=plan,
    )


def _half_width(proof: Bound, known: Mapping[tuple[str, str], BestRate], drift: float) -> float:
    """The mean of the half-widths of the rates, weighted by how much λ* changes with each. drift: of the machine, as
    its probes show it; added in squares."""
    costs = device_costs(proof.device_prices)
    mean = math.fsum(
        part * costs.get(device, 0.0) / proof.mixes_per_s * (known[suite, device].units_per_s.half_width or 0.0)
        for suite, parts in proof.fractions.items()
        for device, part in parts.items()
        if (suite, device) in known
    )
    return min(
        WIDEST, math.hypot(max(0.0, mean), drift)
    )  # the dual values of a plan that is not proven may be anything
