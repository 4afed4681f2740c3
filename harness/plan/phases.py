"""The phases of a run: the routes that are measured, and for how long. Pure: nothing here touches the machine."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import (
    BITS_PER_WEIGHT,
    MIXES,
    Absent,
    Device,
    Limits,
    Phase,
    Placement,
    Precision,
    Purpose,
    Rate,
    Result,
    Route,
    ScenarioName,
    Share,
    Task,
    Tier,
    WeightClass,
    weight_class,
)
from mixmark.harness.plan.bound import sharing
from mixmark.harness.plan.presets import OUT_OF_CACHE, PROBING, SCREENING, SMOKE, SMOKE_SCREENING, Preset

RouteKey = tuple[str, str, str, str]
"""See `Route.key`."""


@dataclass(frozen=True)
class Target:
    """A device as one adapter sees it."""

    device: Device
    adapter: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Workload:
    """What planning needs to know of a suite."""

    name: str
    version: str
    scenarios: Sequence[ScenarioName]
    options: Mapping[str, str] = field(default_factory=dict)
    weights: str = "synthetic"


def solo(
    targets: Sequence[Target],
    workloads: Sequence[Workload],
    tier: Tier,
    preset: Preset,
    precisions: Sequence[Precision] = (),
    scenarios: Sequence[ScenarioName] = (),
    probe: Workload | None = None,
    rate_per_s: float | None = None,
    runs: int = 1,
    bits: WeightClass = 16,
) -> tuple[Phase, ...]:
    """One phase a cell: for each way onto each device, the probe, every suite in turn, the probe again; and all
    of that `runs` times over, so that the runs of a cell lie as far apart as they can.

    A way runs each suite in the asked precisions that its device offers to that suite; where none is asked, in the best
    one of each weight class of at least so many `bits`. It runs it in the asked scenarios that the suite has, or those
    of the preset. Raises UsageError where nothing is left to run.
    """
    phases: list[Phase] = []

    def add(target: Target, workload: Workload, precision: Precision, scenario: ScenarioName, run: int) -> None:
        route = Route(
            suite=workload.name,
            tier=tier,
            suite_version=workload.version,
            device=target.device.id,
            adapter=target.adapter,
            precision=precision,
            options=dict(target.options),
            suite_options=_ceiling(target.device, workload, precision)
            if scenario == "probe"
            else dict(workload.options),
            weights=f"hosted: {target.device.hosted}" if target.device.hosted else workload.weights,
        )
        key = _key(f"{len(phases):03d}", route.suite, route.adapter, route.device, precision, scenario)
        limits = PROBING if scenario == "probe" else SMOKE if tier == "smoke" else preset.limits
        share = Share(
            key=key,
            route=route,
            scenario=scenario,
            batch=None if scenario == "offline" else 1,
            rate_per_s=rate_per_s if scenario == "server" else None,
            run=run,
            limits=limits,
        )
        purpose: Purpose = "probe" if scenario == "probe" else "solo"
        phases.append(Phase(name=key, purpose=purpose, tasks=(Task(device=route.device, shares=(share,)),)))

    for run, target in itertools.product(range(1, runs + 1), targets):
        chosen = {each.name: _precisions(target, each, precisions, bits) for each in workloads}
        measured = precisions or dict.fromkeys(one for several in chosen.values() for one in several)
        streams = [each for each in target.device.offers(probe.name) if BITS_PER_WEIGHT[each] >= 16] if probe else []
        if probe and streams and any(chosen.values()) and all(BITS_PER_WEIGHT[each] < 16 for each in measured):
            add(target, probe, streams[0], "probe", run)  # those of fewer bits tell no bandwidth
        for precision in measured:
            cells = [
                (workload, scenario)
                for workload in workloads
                for scenario in _scenarios(workload, preset, scenarios)
                if scenario != "probe" and precision in chosen[workload.name]
            ]
            alone = any("probe" in each.scenarios and precision in chosen[each.name] for each in workloads)
            probing = [probe] if probe and precision in target.device.offers(probe.name) else []
            for each in probing if cells else []:
                add(target, each, precision, "probe", run)
            for workload, scenario in cells:
                add(target, workload, precision, scenario, run)
            for each in probing if cells or alone else []:
                add(target, each, precision, "probe", run)
    if not phases:
        have = sorted(
            {each for target in targets for workload in workloads for each in target.device.offers(workload.name)}
        )
        hint = f"precisions here: {', '.join(have) or 'none'}; `mixmark suites` shows the scenarios of each suite"
        if have and not precisions and (most := max(map(weight_class, have))) < bits:
            hint = f"the devices compute in {', '.join(have)}; --bits {most} uses that"
        raise UsageError("nothing is left to run", hint)
    return tuple(phases)


def _ceiling(device: Device, probe: Workload, precision: Precision) -> dict[str, str]:
    """The options of a probe: it is told the bits of a weight, and to stream nothing where the matrices that exceed the
    cache take more than a quarter of the memory in fp32, in which the reference holds them."""
    options = {**probe.options, "bits": str(BITS_PER_WEIGHT[precision])} if "cache_bytes" in probe.options else {}
    needed_bytes = OUT_OF_CACHE * int(options.get("cache_bytes", 0)) * 32 / BITS_PER_WEIGHT[precision]
    if device.memory_bytes and needed_bytes > device.memory_bytes / 4:
        options["cache_bytes"] = "0"
    return {**probe.options, **options}


def _precisions(
    target: Target, workload: Workload, asked: Sequence[Precision], bits: WeightClass
) -> Sequence[Precision]:
    """The precisions in which a way runs a suite: the asked ones that it offers, or the best one of each weight class
    of at least so many bits."""
    offered = target.device.offers(workload.name)
    if asked:
        return [each for each in asked if each in offered]
    best: dict[WeightClass, Precision] = {}
    for each in offered:
        best.setdefault(weight_class(each), each)
    return [each for its_class, each in best.items() if its_class >= bits]


def screening_phases(candidates: Sequence[Phase], known: Sequence[Phase] = ()) -> tuple[Phase, ...]:
    """A screening run for each route of a suite on a device that has several routes, suite by suite.

    known: the phases that were planned before; their routes need no screening run any more.
    """
    before = {phase.shares[0].route.key for phase in known}
    screenings = []
    for routes in routes_of(candidates).values():
        for share in routes.values() if len(routes) > 1 else ():
            if share.route.key not in before:
                limits = SMOKE_SCREENING if share.route.tier == "smoke" else SCREENING
                update = {"key": f"screening.{share.key}", "limits": limits}
                if share.scenario == "server":  # a rate of arrivals takes minutes to find
                    update |= {"scenario": "single-stream", "rate_per_s": None}
                screening = share.model_copy(update=update)
                task = Task(device=screening.route.device, shares=(screening,))
                screenings.append(Phase(name=screening.key, purpose="screening", tasks=(task,)))
    return tuple(screenings)


def routes_of(candidates: Sequence[Phase]) -> Mapping[tuple[str, str], Mapping[RouteKey, Share]]:
    """For each suite on each device, its routes, each with its first share."""
    found: dict[tuple[str, str], dict[RouteKey, Share]] = defaultdict(dict)
    for share in (phase.shares[0] for phase in candidates if phase.purpose == "solo"):
        found[share.route.suite, share.route.device].setdefault(share.route.key, share)
    return found


def left_out(targets: Sequence[Target], candidates: Sequence[Phase], bits: WeightClass) -> Iterator[Absent]:
    """The devices that no route uses since their formats have fewer bits than the run's weight class."""
    used = {phase.shares[0].route.device for phase in candidates}
    for id in dict.fromkeys(target.device.id for target in targets if target.device.id not in used):
        devices = [target.device for target in targets if target.device.id == id]
        several = [each.precisions_by_suite.values() for each in devices]
        offered = {one for each in devices for one in each.precisions}.union(*(one for each in several for one in each))
        if classes := [weight_class(each) for each in offered]:
            reason = f"it computes in {', '.join(sorted(offered))}, below {bits} bits; --bits {max(classes)} uses it"
            yield Absent(kind="device", name=id, reason=reason)


def carried(before: Result, bits: WeightClass, candidates: tuple[Phase, ...], all_routes: bool) -> Result:
    """The begin of a run of another weight class, with what a run of a higher one measured of its routes alone.

    candidates: the phases of all routes of the new class, those of the higher ones among them. all_routes: whether all
    of them are measured, and not only the fastest by their screening runs.
    """
    phases = tuple(phase for phase in before.phases if phase.purpose not in ("confirmation", *MIXES))
    names, known = {phase.name for phase in phases}, {phase.shares[0].route.key for phase in phases}
    used = {("device", phase.shares[0].route.device) for phase in candidates}
    fresh = tuple(phase for phase in candidates if phase.shares[0].route.key not in known)
    return before.model_copy(
        update={
            "bits": bits,
            "phases": (*phases, *(fresh if all_routes else screening_phases(candidates, phases))),
            "candidates": () if all_routes else candidates,
            "records": tuple(record for record in before.records if record.phase in names),
            "meterings": tuple(each for each in before.meterings if each.phase in names),
            "absent": tuple(
                each for each in before.absent if each.kind != "mix" and (each.kind, each.name) not in used
            ),
            "finished": False,
        }
    )


def _key(*words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower())


def _scenarios(workload: Workload, preset: Preset, asked: Sequence[ScenarioName]) -> Iterator[ScenarioName]:
    if asked:
        yield from (each for each in workload.scenarios if each in asked)
    else:
        closed = [each for each in workload.scenarios if each != "server"]
        yield from closed if preset.all_scenarios else closed[:1]


def confirmations(result: Result, placement: Placement) -> tuple[Phase, ...]:
    """The phases that measure the routes of a plan alone once more, with the batch that was found."""
    used = {(suite, device) for suite, parts in placement.fractions.items() for device in parts}
    phases = []
    for rate in placement.rates:
        if (rate.suite, rate.device) in used:
            share = _share_of(result, rate)
            name = f"confirmation.{share.key}"
            limits = share.limits.model_copy(update={"search_ns": 0})
            share = share.model_copy(update={"key": name, "batch": rate.batch, "limits": limits})
            phases.append(Phase(name=name, purpose="confirmation", tasks=(Task(device=rate.device, shares=(share,)),)))
    return tuple(phases)


def mixed(result: Result, placement: Placement, limits: Limits, run: int, pool_bytes: Mapping[str, int]) -> Phase:
    """The phase in which all devices run at once: see `of_mix`."""
    return of_mix(result, placement, limits, f"mix{run}", "mixed", run, pool_bytes)


def of_mix(
    result: Result,
    placement: Placement,
    limits: Limits,
    name: str,
    purpose: Purpose,
    run: int,
    pool_bytes: Mapping[str, int],
) -> Phase:
    """A phase of the mix. It loads the routes that the plan uses and, for when rates change, those that also fit into
    memory, on devices that share no silicon with one that is loaded."""
    used = {(suite, device) for suite, parts in placement.fractions.items() for device in parts}
    pools = {device.id: device.memory_pool for device in result.devices}
    left = {pool: pool_bytes.get(pool, math.inf) for pool in pools.values()}
    shared = sharing(result.devices)
    shares: dict[str, list[Share]] = defaultdict(list)
    ordered = sorted(placement.rates, key=lambda rate: ((rate.suite, rate.device) not in used, -rate.units_per_s))
    for rate in ordered:
        pool, size = pools[rate.device], rate.memory_bytes or 0
        if (rate.suite, rate.device) not in used and size > left[pool]:
            continue
        if not shared.get(rate.device, set()).isdisjoint(shares):
            continue
        left[pool] -= size
        share = _share_of(result, rate)
        route = share.route
        key = _key(name, route.suite, route.adapter, route.device, route.precision)
        update = {
            "key": key,
            "scenario": "mixed",
            "batch": rate.batch,
            "run": run,
            "limits": limits,
            "rate_per_s": None,
        }
        shares[rate.device].append(share.model_copy(update=update))
    tasks = tuple(Task(device=device, shares=tuple(each)) for device, each in shares.items())
    return Phase(name=name, purpose=purpose, tasks=tasks, placement=placement)


def scales(result: Result) -> tuple[int, ...]:
    """On how many of the first hosts the mix is run by itself, where that is asked for: 1, 2, 4, … but not all."""
    hosts = len({device.host for device in result.devices})
    return tuple(1 << power for power in range(hosts.bit_length()) if 1 << power < hosts) if result.scaling else ()


def _share_of(result: Result, rate: Rate) -> Share:
    """The solo share of the route that has this rate."""
    for share in (share for phase in result.phases if phase.purpose == "solo" for share in phase.shares):
        if share.route.key == (rate.suite, rate.device, rate.adapter, rate.precision):
            return share
    raise ValueError(f"nothing was planned of {rate.suite} on {rate.device} by {rate.adapter}")
