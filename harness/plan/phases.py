"""Plans the phases of a run: the measured routes, and their time limits."""

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
LARGE_BYTES = 16 << 30
"""The memory from which a GPU has the larger probe at edge."""


@dataclass(frozen=True)
class Target:
    """A device as one adapter sees it."""

    device: Device
    adapter: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Workload:
    """The facts of a suite that planning needs."""

    name: str
    version: str
    scenarios: Sequence[ScenarioName]
    options: Mapping[str, str] = field(default_factory=dict)
    weights: str = "synthetic"
    precisions: Sequence[Precision] = ()
    """The only precisions that the suite has. Empty: whatever a device offers."""

    def offered(self, device: Device) -> Sequence[Precision]:
        """The precisions of the suite on a device, best first. The suite of a section has those of its plugin."""
        found = device.offers(self.options.get("plugin", self.name))
        return [each for each in found if each in (self.precisions or found)]


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
    """A phase for each solo measurement: for each target the probe, every suite in turn, and the probe again. This
    sequence is repeated `runs` times, so that the runs of a measurement are far apart.

    A target runs each suite in the requested precisions that its device offers; by default in the best precision of
    each weight class of at least `bits`. It runs the requested scenarios that the suite has; by default the scenarios
    of the preset. Raises UsageError if nothing is left to run.
    """
    phases: list[Phase] = []
    for run, target in itertools.product(range(1, runs + 1), targets):
        for workload, precision, scenario in _measurements(
            target, workloads, preset, precisions, scenarios, probe, bits
        ):
            probing = scenario == "probe"
            route = _route(target, workload, tier, precision, probing)
            key = key_of(f"{len(phases):03d}", route.suite, route.adapter, route.device, precision, scenario)
            share = Share(
                key=key,
                route=route,
                scenario=scenario,
                batch=None if scenario == "offline" else 1,
                rate_per_s=rate_per_s if scenario == "server" else None,
                run=run,
                limits=PROBING if probing else SMOKE if tier == "smoke" else preset.limits,
            )
            phases.append(of_share(share, "probe" if probing else "solo"))
    if not phases:
        raise _nothing_to_run(targets, workloads, precisions, bits)
    return tuple(phases)


def _measurements(
    target: Target,
    workloads: Sequence[Workload],
    preset: Preset,
    precisions: Sequence[Precision],
    scenarios: Sequence[ScenarioName],
    probe: Workload | None,
    bits: WeightClass,
) -> Iterator[tuple[Workload, Precision, ScenarioName]]:
    """The solo measurements of a target, in order."""
    chosen = {workload.name: _precisions(target, workload, precisions, bits) for workload in workloads}
    measured = precisions or dict.fromkeys(itertools.chain.from_iterable(chosen.values()))
    probed = target.device.offers(probe.name) if probe else ()
    wide = [precision for precision in probed if BITS_PER_WEIGHT[precision] >= 16]
    if probe and wide and any(chosen.values()) and all(BITS_PER_WEIGHT[precision] < 16 for precision in measured):
        yield probe, wide[0], "probe"  # a probe in fewer bits measures no bandwidth
    for precision in measured:
        runnable = [workload for workload in workloads if precision in chosen[workload.name]]
        measurements = [
            (workload, precision, scenario)
            for workload in runnable
            for scenario in _scenarios(workload, preset, scenarios)
            if scenario != "probe"
        ]
        if probe and precision in probed and measurements:
            yield probe, precision, "probe"
        yield from measurements
        if probe and precision in probed and (measurements or any("probe" in each.scenarios for each in runnable)):
            yield probe, precision, "probe"


def _route(target: Target, workload: Workload, tier: Tier, precision: Precision, probing: bool) -> Route:
    hosted = target.device.hosted
    return Route(
        suite=workload.name,
        tier=tier,
        suite_version=workload.version,
        device=target.device.id,
        adapter=target.adapter,
        precision=precision,
        options=dict(target.options),
        suite_options=_probe_options(target.device, workload, precision, tier) if probing else dict(workload.options),
        weights=f"hosted: {hosted}" if hosted else workload.weights,
    )


def _nothing_to_run(
    targets: Sequence[Target], workloads: Sequence[Workload], precisions: Sequence[Precision], bits: WeightClass
) -> UsageError:
    offered = sorted(
        {precision for target in targets for workload in workloads for precision in workload.offered(target.device)}
    )
    hint = f"precisions here: {', '.join(offered) or 'none'}; see `mixmark devices` and `mixmark suites`"
    if offered and not precisions and (most := max(map(weight_class, offered))) < bits:
        hint = f"the devices compute in {', '.join(offered)}; --bits {most} uses that"
    return UsageError("nothing is left to run", hint)


def _probe_options(device: Device, probe: Workload, precision: Precision, tier: Tier) -> dict[str, str]:
    """The options of a probe: the bits of a weight and the size of the cache. The size is 0, so that the probe streams
    nothing, if matrices larger than the cache need more than a quarter of the memory in the reference's fp32. A GPU
    with much memory has larger matrices at edge: products of 2048 rows reach a third of an H100."""
    options = {**probe.options, "bits": str(BITS_PER_WEIGHT[precision])} if "cache_bytes" in probe.options else {}
    needed_bytes = OUT_OF_CACHE * int(options.get("cache_bytes", 0)) * 32 / BITS_PER_WEIGHT[precision]
    if device.memory_bytes and needed_bytes > device.memory_bytes / 4:
        options["cache_bytes"] = "0"
    if tier == "edge" and device.kind == "gpu" and (device.memory_bytes or 0) >= LARGE_BYTES:
        options["size"] = "large"
    return {**probe.options, **options}


def _precisions(
    target: Target, workload: Workload, asked: Sequence[Precision], bits: WeightClass
) -> Sequence[Precision]:
    """The requested precisions that a target offers for a suite; by default the best precision of each weight class of
    at least `bits`."""
    offered = workload.offered(target.device)
    if asked:
        return [each for each in asked if each in offered]
    best: dict[WeightClass, Precision] = {}
    for each in offered:
        best.setdefault(weight_class(each), each)
    return [each for its_class, each in best.items() if its_class >= bits]


def screening_phase(share: Share, named: str = "screening", audits: int = 0) -> Phase:
    """The screening run of a candidate's share. named: what the name begins with. audits: if there are any, feeds
    are finished and outputs are audited."""
    limits = (SMOKE_SCREENING if share.route.tier == "smoke" else SCREENING).model_copy(update={"audits": audits})
    update = {"key": f"{named}.{share.key}", "limits": limits, "scenario": screened_as(share), "rate_per_s": None}
    return of_share(share.model_copy(update=update), "screening")


def screened_as(share: Share) -> ScenarioName:
    """The scenario of its screening run: a search for the arrival rate takes minutes."""
    return "single-stream" if share.scenario == "server" else share.scenario


def routes_of(candidates: Sequence[Phase]) -> Mapping[tuple[str, str], Mapping[RouteKey, Share]]:
    """The routes of each suite on each device, with the first share of each route."""
    found: dict[tuple[str, str], dict[RouteKey, Share]] = defaultdict(dict)
    for share in (phase.shares[0] for phase in candidates if phase.purpose == "solo"):
        found[share.route.suite, share.route.device].setdefault(share.route.key, share)
    return found


def left_out(targets: Sequence[Target], candidates: Sequence[Phase], bits: WeightClass) -> Iterator[Absent]:
    """The devices without a route, because their precisions have fewer bits than the run's weight class."""
    used = {phase.shares[0].route.device for phase in candidates}
    offered: dict[str, set[Precision]] = defaultdict(set)
    for device in (target.device for target in targets if target.device.id not in used):
        offered[device.id].update(device.precisions, *device.precisions_by_suite.values())
    for id, precisions in offered.items():
        if classes := [weight_class(precision) for precision in precisions]:
            reason = f"it computes in {', '.join(sorted(precisions))}, below {bits} bits; --bits {max(classes)} uses it"
            yield Absent(kind="device", name=id, reason=reason)


def of_share(share: Share, purpose: Purpose) -> Phase:
    """The phase that measures a share alone, and has its name."""
    return Phase(name=share.key, purpose=purpose, tasks=(Task(device=share.route.device, shares=(share,)),))


def key_of(*words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower())


def _scenarios(workload: Workload, preset: Preset, asked: Sequence[ScenarioName]) -> Iterator[ScenarioName]:
    if asked:
        yield from (each for each in workload.scenarios if each in asked)
    else:
        closed = [each for each in workload.scenarios if each != "server"]
        yield from closed if preset.all_scenarios else closed[:1]


def confirmations(result: Result, placement: Placement) -> tuple[Phase, ...]:
    """The phases that repeat the solo measurements of the placement's routes, with the same batch."""
    used = {(suite, device) for suite, parts in placement.fractions.items() for device in parts}
    phases = []
    for rate in placement.rates:
        if (rate.suite, rate.device) in used:
            share = share_of(result, rate)
            limits = share.limits.model_copy(update={"search_ns": 0})
            update = {"key": f"confirmation.{share.key}", "batch": rate.batch, "limits": limits}
            phases.append(of_share(share.model_copy(update=update), "confirmation"))
    return tuple(phases)


def of_mix(
    result: Result, placement: Placement, limits: Limits, name: str, run: int, pool_bytes: Mapping[str, int]
) -> Phase:
    """A mixed phase. It loads the routes of the placement and, in case rates change, other routes
    that fit into memory, except on devices that share silicon with a loaded device."""
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
        share = share_of(result, rate)
        route = share.route
        key = key_of(name, route.suite, route.adapter, route.device, route.precision)
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
    return Phase(name=name, purpose="mixed", tasks=tasks, placement=placement)


def share_of(result: Result, rate: Rate) -> Share:
    """The solo share of the route with this rate, planned or to come."""
    phases = (*result.phases, *result.candidates)
    for share in (share for phase in phases if phase.purpose == "solo" for share in phase.shares):
        if share.route.key == rate.key:
            return share
    raise ValueError(f"no solo phase measures {rate.suite} on {rate.device} by {rate.adapter}")
