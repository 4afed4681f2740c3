"""Decides which phases a run measures next, from the results so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Limits, Phase, Result
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.rules import integrity
from mixmark.harness.plan.phases import RouteKey, confirmations, mixed, of_mix, routes_of, scales
from mixmark.harness.plan.placement import Objective, Planner, Power, place


def fastest_routes(evidence: Evidence, invalid: Collection[str]) -> tuple[Phase, ...]:
    """The phases that measure the fastest route of each suite on each device, by the screening runs. If that route
    failed or proved invalid, the next one is taken; a route that was measured needs no further phase.

    A route without a screening run counts with its measured speed; the only route of a suite on a device needs neither.
    invalid: the keys of the records that a rule of integrity found invalid.
    """
    result = evidence.result
    alone = [each for each in evidence.measured if each.is_solo]
    screenings = [each for each in evidence.measured if each.record.screening]
    speeds = {each.record.route.key: each.throughput_per_s or 0.0 for each in (*alone, *screenings)}
    failed = {
        record.route.key
        for record in result.records
        if record.error or record.key in invalid or (record.audit and not record.audit.passed)
    }
    planned = {phase.shares[0].route.key for phase in result.phases if phase.purpose != "screening"}
    wanted: set[RouteKey] = set()
    for routes in routes_of(result.candidates).values():
        left = [route for route in routes if route not in failed and (route in speeds or len(routes) == 1)]
        wanted.update(sorted(left, key=lambda route: speeds.get(route, 0.0))[-1:])
    wanted -= planned
    targets = {tuple(target) for _, *target in wanted}
    narrow = {(device, adapter) for device, adapter, bits in targets if BITS_PER_WEIGHT[bits] < 16}
    probed = [phase.shares[0].route for phase in result.candidates if phase.purpose == "probe"]
    targets |= {  # a probe of fewer than 16 bits measures no bandwidth
        (route.device, route.adapter, route.precision)
        for route in probed
        if (route.device, route.adapter) in narrow and BITS_PER_WEIGHT[route.precision] >= 16
    }
    return tuple(
        phase
        for phase in result.candidates
        for suite, *target in [phase.shares[0].route.key]
        if (suite, *target) in wanted
        or (phase.purpose == "probe" and (suite, *target) not in planned and tuple(target) in targets)
    )


def _next_scaling_phase(
    result: Result, limits: Limits, objective: Objective, pool_bytes: Mapping[str, int]
) -> tuple[Phase, ...]:
    """The next phase of the mix on a part of the hosts. A part that cannot run every suite has no phase."""
    assert result.mix is not None  # its caller saw to it
    hosts = list(dict.fromkeys(device.host for device in result.devices))
    known = {phase.name for phase in result.phases}
    evidence = gather(result)
    alone = solo_rates.solo(evidence, result.mix, integrity.invalid(integrity.findings(evidence)))
    power = solo_rates.power(result)
    for count in scales(result):
        devices = [device for device in result.devices if device.host in hosts[:count]]
        if (name := f"scaling{count}") in known:
            continue
        part_power = power and Power(
            {device.id: power.idle_watts[device.id] for device in devices}, power.rest_watts * count / len(hosts)
        )
        with suppress(MixmarkError):
            placement = place(
                result.mix.units,
                alone,
                devices,
                objective,
                pool_bytes=pool_bytes,
                host_fraction=solo_rates.host_fraction(evidence),
                power=part_power,
            )
            return (of_mix(result, placement, limits, name, "scaling", 1, pool_bytes),)
    return ()


def next_phases(
    result: Result,
    limits: Limits,
    runs: int,
    confirm: bool,
    objective: Objective,
    pool_bytes: Mapping[str, int],
) -> tuple[Phase, ...]:
    """The next phases of a run whose planned phases are all over: the routes that the screening runs chose, their
    confirmation runs, then the mixed phases one by one, then those on a part of the hosts. Empty: the run is over or
    has no mix. Raises MixmarkError if no plan can be made."""
    mix = result.mix
    planned = [phase.placement for phase in result.phases if phase.placement and phase.purpose == "mixed"]
    if mix is None:
        return ()
    if len(planned) >= runs:
        return _next_scaling_phase(result, limits, objective, pool_bytes) if scales(result) else ()
    if planned:  # runs of one plan can be compared
        return (mixed(result, planned[0], limits, len(planned) + 1, pool_bytes),)
    evidence = gather(result)
    invalid = integrity.invalid(integrity.findings(evidence))
    if phases := fastest_routes(evidence, invalid):
        return phases
    placement = place(
        mix.units,
        solo_rates.solo(evidence, mix, invalid),
        result.devices,
        objective,
        pool_bytes=pool_bytes,
        host_fraction=solo_rates.host_fraction(evidence),
        power=solo_rates.power(result),
    )
    if confirm and not any(phase.purpose == "confirmation" for phase in result.phases):
        return confirmations(result, placement)
    return (mixed(result, placement, limits, 1, pool_bytes),)


def planner(result: Result, objective: Objective) -> Planner:
    """The planner for replanning while a mixed phase runs. The suites are loaded, so memory is no constraint."""
    fixed: dict[str, Any] = {
        "host_fraction": solo_rates.host_fraction(gather(result)),
        "power": solo_rates.power(result),
    }
    return lambda units, now: place(units, now, result.devices, objective, **fixed)
