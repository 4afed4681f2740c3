"""Decides which phases a run measures next, from the results so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product, takewhile
from statistics import geometric_mean
from typing import Any

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.numbers import percent
from mixmark.harness.contracts.schema import (
    BITS_PER_WEIGHT,
    BY_PLAN,
    Absent,
    Limits,
    Mix,
    Phase,
    Placement,
    Record,
    Result,
    Share,
)
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge import disturbance, screening, solo_rates
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.mixed_run import HOUR_S, run_of
from mixmark.harness.judge.rules import integrity
from mixmark.harness.plan.load import load_at, request_units
from mixmark.harness.plan.phases import (
    RouteKey,
    by_policy,
    capped,
    confirmations,
    mixed,
    of_mix,
    routes_of,
    scales,
    screening_phase,
    served,
    with_a_loss,
)
from mixmark.harness.plan.placement import Objective, Planner, Power, place
from mixmark.harness.plan.presets import SECOND

REPEATS_S = {"smoke": 8, "edge": 60, "server": 300}
"""The most seconds that repeated screening runs take in a weight class, for each device of the run, by tier."""


def close_routes(evidence: Evidence, invalid: Collection[str]) -> tuple[Phase, ...]:
    """One more screening run of each route that may be the fastest of its suite on its device, in turns. Empty: each
    suite has its fastest route, or too little of REPEATS_S is left.

    invalid: the keys of the records that a rule of integrity found invalid.
    """
    result = evidence.result
    ran = [record for record in result.records if record.screening]
    took_ns = {record.key: _took_ns(record, evidence.limits[record.key]) for record in ran}
    again_ns = {record.route.key: took_ns[record.key] for record in ran}
    repeated = takewhile(lambda record: record.run > 1, reversed(ran))  # a weight class begins with first runs
    left_ns = REPEATS_S[result.tier] * SECOND * len(result.devices) - sum(took_ns[record.key] for record in repeated)
    phases: list[Phase] = []
    for shares, rates in _screened(evidence, invalid):
        routes = screening.contenders(rates)
        if len(routes) > 1 and (turn_ns := sum(again_ns[route] for route in routes)) <= left_ns:
            left_ns -= turn_ns
            phases += [screening_phase(shares[route], len(rates[route]) + 1) for route in routes]
    return tuple(phases)


def _took_ns(record: Record, limits: Limits) -> int:
    """The time of a screening run, without the start of its worker."""
    search_ns = limits.search_ns if record.trials else 0
    return (record.load_ns or 0) + limits.warmup_ns + search_ns + limits.max_ns


def _screened(
    evidence: Evidence, invalid: Collection[str]
) -> Iterator[tuple[Mapping[RouteKey, Share], Mapping[RouteKey, Sequence[float]]]]:
    """For each suite on each device, the candidates' shares of its routes, and the units per second of the screening
    runs of those that neither failed nor proved invalid. The only route of a suite on a device needs no screening run,
    and has a rate of 0."""
    failed = {
        record.route.key
        for record in evidence.result.records
        if record.error or record.key in invalid or (record.audit and not record.audit.passed)
    }
    rates = screening.rates_per_s(evidence.measured)
    for shares in routes_of(evidence.result.candidates).values():
        known = rates if len(shares) > 1 else dict.fromkeys(shares, (0.0,))
        if left := {route: known[route] for route in shares if route in known and route not in failed}:
            yield shares, left


def fastest_routes(evidence: Evidence, invalid: Collection[str]) -> tuple[Phase, ...]:
    """The phases that measure the fastest route of each suite on each device, by the medians of the screening runs. If
    that route failed or proved invalid, the next one is taken; a route that was measured needs no further phase.

    invalid: the keys of the records that a rule of integrity found invalid.
    """
    result = evidence.result
    planned = {phase.shares[0].route.key for phase in result.phases if phase.purpose != "screening"}
    wanted = {screening.contenders(rates)[0] for _, rates in _screened(evidence, invalid)} - planned
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
    assert result.mix is not None  # the caller has checked it
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


class LevelImpossible(MixmarkError):
    """A level of load or a drill that cannot be. `absent` says why, and the run goes on without it."""

    def __init__(self, absent: Absent) -> None:
        super().__init__(absent.reason)
        self.absent = absent


def _behind(result: Result, rounds: int) -> str | None:
    """The first policy that ran the mix less often than the plan did."""
    runs = Counter(phase.policy for phase in result.phases if phase.purpose == "policy")
    return next((policy for policy in result.policies if runs[policy] < rounds), None)


def _next_level(
    result: Result, limits: Limits, placement: Placement, pool_bytes: Mapping[str, int]
) -> tuple[Phase, ...]:
    """The next load that is served, by each policy in turn. Raises LevelImpossible."""
    mix = result.mix
    assert mix is not None  # the caller has checked it
    known = {(phase.load.level, phase.policy) for phase in result.phases if phase.load}
    left_out = {each.name for each in result.absent if each.kind == "mix"}
    for level, policy in product(result.levels, (BY_PLAN, *result.policies)):
        name = f"{mix.name} at {percent(level)}"
        if (level, policy) in known or name in left_out:
            continue
        quanta = {
            (record.route.suite, record.route.device): record.feed_units
            for record in result.records
            if record.scenario == "mixed" and record.feed_units
        }
        first = next((record for record in result.records if record.scenario == "mixed" and record.seed), None)
        try:
            rate_per_s = _rate_per_s(result, mix)
            if first is None or first.seed is None or not rate_per_s:
                raise UsageError("the mixed runs have no rate of which it would be a share")
            seed = seeds.derived(first.seed, name)
            load = load_at(level, rate_per_s, mix.units, request_units(quanta), limits, seed)
        except UsageError as error:
            reason = f"{error}; {error.hint}".removesuffix("; ")
            raise LevelImpossible(Absent(kind="mix", name=name, reason=reason)) from error
        return (served(result, placement, limits, load, policy, pool_bytes),)
    return ()


DRILL = "the drill"


def _known(result: Result, purpose: str, name: str) -> bool:
    """Whether a phase of the purpose was planned, or was found impossible by this name."""
    absent = any(each.kind == "mix" and each.name == name for each in result.absent)
    return absent or any(phase.purpose == purpose for phase in result.phases)


def _drill(result: Result, limits: Limits, placement: Placement, pool_bytes: Mapping[str, int]) -> Phase:
    """Raises LevelImpossible."""
    try:
        return with_a_loss(result, placement, limits, pool_bytes)
    except UsageError as error:
        raise LevelImpossible(Absent(kind="mix", name=DRILL, reason=f"{error}; {error.hint}")) from error


def _rate_per_s(result: Result, mix: Mix) -> float | None:
    """The mixes per second of the mixed runs, their geometric mean. None: a run has none."""
    doubts = integrity.findings(gather(result))
    runs = [run_of(result, mix, phase, doubts) for phase in result.phases if phase.purpose == "mixed"]
    rates = [run.mixes_per_hour.estimate / HOUR_S if run and not run.problems else 0.0 for run in runs]
    return geometric_mean(rates) if rates and min(rates) > 0 else None


def next_phases(
    result: Result,
    limits: Limits,
    runs: int,
    confirm: bool,
    objective: Objective,
    pool_bytes: Mapping[str, int],
) -> tuple[Phase, ...]:
    """The next phases of a run whose planned phases are all over: first further screening runs of close routes, then
    the routes that the screening runs chose, then their confirmation runs, then the mixed phases one by one, each with
    those by other policies, then the loads, the drill, those with less power, and the phases on a part of the hosts.
    Empty: the run is over or has no mix. Raises LevelImpossible, or another MixmarkError if no plan can be made."""
    mix = result.mix
    planned = [phase.placement for phase in result.phases if phase.placement and phase.purpose == "mixed"]
    if mix is None:
        return ()
    if planned and (policy := _behind(result, len(planned))):  # in turns, so that all have the same minutes
        run = 1 + sum(phase.purpose == "policy" and phase.policy == policy for phase in result.phases)
        return (by_policy(result, planned[0], limits, policy, run, pool_bytes),)
    if len(planned) >= runs:
        if phases := _next_level(result, limits, planned[0], pool_bytes):
            return phases
        if result.drills and not _known(result, "drill", DRILL):
            return (_drill(result, limits, planned[0], pool_bytes),)
        if caps := [cap for cap in result.caps if cap not in {phase.cap for phase in result.phases}]:
            return (capped(result, planned[0], limits, caps[0], pool_bytes),)
        return _next_scaling_phase(result, limits, objective, pool_bytes) if scales(result) else ()
    if planned:  # runs of one plan can be compared
        return (mixed(result, planned[0], limits, len(planned) + 1, pool_bytes),)
    evidence = gather(result)
    invalid = integrity.invalid(integrity.findings(evidence))
    if phases := close_routes(evidence, invalid) or fastest_routes(evidence, invalid):
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


def repeated(result: Result, most: int) -> tuple[tuple[str, Reason], ...]:
    """The disturbed mixed runs, at most so many, that one more run each makes up for: (phase, why it is disturbed)."""
    return tuple(disturbance.mixed_runs(gather(result)).items())[:most]


def planner(result: Result, objective: Objective) -> Planner:
    """The planner for replanning while a mixed phase runs. The suites are loaded, so memory is no constraint."""
    fixed: dict[str, Any] = {
        "host_fraction": solo_rates.host_fraction(gather(result)),
        "power": solo_rates.power(result),
    }
    return lambda units, now: place(units, now, result.devices, objective, **fixed)
