"""Rates for the plan: of the screening runs, to choose routes, and of the solo measurements, to place the mix.

A plan needs the rate and the watts of each route, the idle power, and the host time of accelerators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Mix, Rate, Result, ScenarioName, ServiceLimits
from mixmark.harness.judge.diagnosis import BestRate
from mixmark.harness.judge.energy.total import device_watts, total
from mixmark.harness.judge.evidence import Evidence, Measurement, by_machine
from mixmark.harness.judge.mixed_run import HOUR_S
from mixmark.harness.judge.solo import Solo
from mixmark.harness.judge.statistics.intervals import WIDEST
from mixmark.harness.judge.statistics.timestamps import rate_per_s
from mixmark.harness.plan.bound import bound, each_once, fastest
from mixmark.harness.plan.equals import equals
from mixmark.harness.plan.phases import RouteKey
from mixmark.harness.plan.placement import Power

UNSURE = 0.05
"""The half-width of a rate whose interval is not known, as a fraction: what the preset quick aims at."""
COARSE = WIDEST
"""The half-width of a quick check's rate."""


def tried_per_s(measured: Iterable[Measurement]) -> dict[tuple[RouteKey, ScenarioName], float]:
    """The units per second of each route that was tried in a scenario: the median of its solo measurements; without
    any, of its screening run. 0: the clock did not tick."""
    screened, alone = defaultdict[Any, list[float]](list), defaultdict[Any, list[float]](list)
    for each in measured:
        if each.record.screening or each.is_solo:
            runs = screened if each.record.screening else alone
            runs[each.record.route.key, each.record.scenario].append(each.throughput_per_s or 0.0)
    return {key: median(rates) for key, rates in (screened | alone).items()}


def alone(evidence: Evidence, mix: Mix, invalid: Collection[str]) -> tuple[BestRate, ...]:
    """The best solo rate of every route of the mix's suites with its interval, from feeds within the limits of the mix.

    invalid: keys of records that are invalid by an integrity rule; neither they nor records that failed their audit
    count. If confirmation runs measured routes once more for the plan, only these runs count.
    """
    once_more = {phase.name for phase in evidence.result.phases if phase.purpose == "confirmation"}
    once_more &= {record.phase for record in evidence.result.records}
    full = (each for each in evidence.measured if not each.record.screening)
    full = (each for each in full if not once_more or each.record.phase in once_more)
    return _rated(evidence.result, full, mix, invalid)


def planned(evidence: Evidence, mix: Mix, invalid: Collection[str]) -> tuple[BestRate, ...]:
    """The rates that the plan is made of: of the audited quick checks if the score comes first, else as in `alone`."""
    checks = [each for each in evidence.measured if each.record.screening and not each.record.cut_off]
    return _rated(evidence.result, checks, mix, invalid) if checks else alone(evidence, mix, invalid)


def lenders(result: Result) -> dict[tuple[str, str], str]:
    """The equal device that was measured in place of a device, by the suites and devices without a record of their own
    outside of the mix. Of several it is the last one: the next one is tried if one has no rate."""
    tried = dict.fromkeys(each.route.key[:2] for each in result.records if each.scenario != "mixed")
    equal = equals(result) if result.candidates else {}
    alike = ((suite, device, id) for suite, device in tried for id in equal.get(device, ()))
    return {(suite, id): device for suite, device, id in alike if (suite, id) not in tried}


def _of_equals(result: Result, rates: Iterable[Rate]) -> Iterator[tuple[Rate, Rate]]:
    """Rates, each with the rate that it stands for: of the route on an equal device that was not measured."""
    offered, known = {phase.shares[0].route.key for phase in result.candidates}, defaultdict[Any, list[Rate]](list)
    for rate in rates:
        known[rate.key[:2]].append(rate)
    for pair, device in lenders(result).items():
        for rate in known[pair[0], device]:
            own = rate.model_copy(update={"device": pair[1]})
            if own.key in offered:
                yield rate, own


def _rated(result: Result, measured: Iterable[Measurement], mix: Mix, invalid: Collection[str]) -> tuple[BestRate, ...]:
    """The best rate of every route, of these measurements, also for equal devices."""
    rated: list[BestRate] = []
    for each in measured:
        record = each.record
        if record.scenario in ("mixed", "server") or record.route.suite not in mix.units or not counts(each, invalid):
            continue
        if rate := observed(each, mix.limits.get(record.route.suite, ServiceLimits())):
            half_width = each.interval.half_width if each.interval else None
            unsure = COARSE if record.screening else UNSURE if half_width is None else half_width
            within = Estimate.within(rate.units_per_s, unsure)
            begin_ns, end_ns = each.bracket_ns
            in_flight = each.in_flight_ns / (end_ns - begin_ns) if end_ns > begin_ns else 1.0
            rated.append(BestRate(rate, within, in_flight))
    best = fastest(rated, lambda best: best.rate.key, lambda best: best.rate.units_per_s)
    lent = _of_equals(result, [each.rate for each in best.values()])
    return (*best.values(), *(replace(best[rate.key], rate=own) for rate, own in lent))


def solo(evidence: Evidence, mix: Mix, invalid: Collection[str]) -> tuple[Rate, ...]:
    """The rates of `alone` without their intervals."""
    return tuple(best.rate for best in alone(evidence, mix, invalid))


def counts(each: Measurement, invalid: Collection[str]) -> bool:
    """Whether its rate may be planned with. invalid: as in `alone`."""
    return each.key not in invalid and each.record.audited


def observed(each: Measurement, limits: ServiceLimits) -> Rate | None:
    """The rate of one measurement. None if no unit came from a feed within its limits, or the clock did not tick."""
    record, route, result = each.record, each.record.route, each.result
    units_per_s = rate_per_s(record, limits)
    if not units_per_s:
        return None
    device = next((device for device in result.devices if device.id == route.device), None)
    return Rate(
        suite=route.suite,
        device=route.device,
        adapter=route.adapter,
        precision=route.precision,
        batch=record.batch or 1,
        units_per_s=units_per_s,
        watts=device_watts(result, record.phase, device, *each.window_ns) if device else None,
        memory_bytes=record.peak_pss_bytes if device and device.in_host_memory else record.needed_bytes,
    )


def hardware_limit_per_hour(result: Result, solos: Sequence[Solo]) -> Estimate | None:
    """The best mixes per hour if each route reached its roofline; the low end is by the median passes of the probes.
    None without a mix, or if a suite has no fraction."""
    best = _limit_per_hour(result, solos, lambda each: each.roofline_fraction)
    low = _limit_per_hour(result, solos, lambda each: each.roofline_typical)
    return None if best is None else Estimate(best, low, best)


def _limit_per_hour(result: Result, solos: Iterable[Solo], reached: Callable[[Solo], float | None]) -> float | None:
    if (mix := result.mix) is None:
        return None
    limits = [
        Rate(
            suite=each.route.suite,
            device=each.route.device,
            adapter=each.route.adapter,
            precision=each.route.precision,
            batch=1,
            units_per_s=each.speed / fraction,
        )
        for each in solos
        if each.counts and (fraction := reached(each)) and each.route.suite in mix.units
    ]
    if mix.units.keys() - {rate.suite for rate in limits}:
        return None
    limits += [own for _, own in _of_equals(result, limits)]
    return bound(mix.units, limits, result.devices).mixes_per_s * HOUR_S


def power(result: Result) -> Power | None:
    """The power of all machines while nothing runs, from the pauses around the phases.

    None if a device has no meter of its own.
    """
    found = [_power(own) for own in {id(own): own for own in by_machine(result).values()}.values()]
    known = [own for own in found if own is not None]
    idle_watts = {id: watts for own in known for id, watts in own.idle_watts.items()}
    return Power(idle_watts, sum(own.rest_watts for own in known)) if len(known) == len(found) else None


def _power(result: Result) -> Power | None:
    """The power of one machine while nothing runs."""
    idle: dict[str, list[float]] = defaultdict(list)
    rest: list[float] = []
    for metering in result.meterings:
        for begin_ns, end_ns in metering.idle_ns:
            each = {
                device.id: device_watts(result, metering.phase, device, begin_ns, end_ns) for device in result.devices
            }
            known = {id: watts for id, watts in each.items() if watts is not None}
            for id, watts in known.items():
                idle[id].append(watts)
            whole = total(result, metering.phase, begin_ns, end_ns)
            once = [device.id for device in each_once(result.devices)]
            if whole.joules is not None:
                known_watts = sum(known.get(id, 0.0) for id in once)
                rest.append(max(0.0, whole.joules * 1e9 / (end_ns - begin_ns) - known_watts))
    if not all(device.id in idle for device in result.devices):
        return None
    return Power({id: median(watts) for id, watts in idle.items()}, median(rest) if rest else 0.0)


def host_fraction(evidence: Evidence) -> float:
    """The fraction of the host's CPU time that the worker of an accelerator uses: the largest of the solo records."""
    kinds = {device.id: device.kind for device in evidence.result.devices}
    fractions = [0.0]
    for each in evidence.measured:
        if each.record.scenario == "mixed" or kinds.get(each.record.route.device, "cpu") == "cpu":
            continue
        own = [
            block.own_ns / ((block.end_ns - block.begin_ns) * block.cpus)
            for block in each.watched
            if block.own_ns is not None and block.cpus
        ]
        fractions += [median(own)] if own else []
    return min(1.0, max(fractions))
