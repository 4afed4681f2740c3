"""The phases of a run: the routes that are measured, and for how long. Pure: nothing here touches the machine."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import rates
from harness.dispatch import Planner
from harness.errors import UsageError
from harness.judge import honest
from harness.judge.evidence import gather
from harness.judge.score import PROVISIONAL_FEEDS, STANDARD_MIX_NS
from harness.place import Objective, place
from harness.schema import (
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
)

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Way:
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
    weights: str = "drawn"


@dataclass(frozen=True)
class Preset:
    """How much to measure. quick: the native scenario of each suite; standard: its closed-loop ones.

    A server is measured where `--scenario server` asks for it: finding a rate takes many feeds.
    """

    name: str
    all_scenarios: bool
    limits: Limits
    mix: Limits
    """The limits of the mixed phase. The warm-up is that of each suite alone."""
    idle_s: float = 0.0
    """How long the meters read an idle machine, before and after each phase."""
    runs: int = 1
    """Mixed phases, each with fresh workers."""
    again: bool = True
    """Whether the routes that the plan chose are measured once more, so that no lucky rate decides the bound."""


def _limits(
    warmup_s: float,
    search_s: float,
    min_s: float,
    max_s: float,
    min_feeds: int,
    half_width: float | None = None,
    audits: int = 0,
) -> Limits:
    warmup_ns, search_ns, min_ns, max_ns = (int(seconds * SECOND) for seconds in (warmup_s, search_s, min_s, max_s))
    return Limits(
        warmup_ns=warmup_ns,
        search_ns=search_ns,
        min_ns=min_ns,
        max_ns=max_ns,
        min_feeds=min_feeds,
        half_width=half_width,
        audits=audits,
    )


PRESETS = {
    "quick": Preset(  # 45 s a cell together, one long feed excepted; the mix 4 minutes with loading and audits
        "quick", False, _limits(5, 12, 10, 28, 1, 0.05, 1), _limits(3, 0, 120, 120, 1, audits=1), 5, again=False
    ),
    "standard": Preset(
        "standard",
        True,
        _limits(10, 60, 30, 300, 3, 0.02, 3),
        _limits(10, 0, 120, STANDARD_MIX_NS / SECOND, PROVISIONAL_FEEDS, audits=3),
        10,
    ),
    "official": Preset(
        "official", True, _limits(10, 60, 30, 300, 3, 0.02, 30), _limits(60, 0, 240, 36_000, 100, audits=30), 60, runs=5
    ),
}
SMOKE = _limits(0.3, 1, 1, 5, 1, audits=1)  # the smoke tier is never ranked: it shows that everything works
SMOKE_MIX = _limits(0.3, 0, 5, 15, 1, audits=1)
SELFTEST = Preset("selftest", False, _limits(3, 0, 5, 10, 3), SMOKE_MIX)  # short and many: what repeats is the process
PROBING = _limits(0, 0, 1.5, 10, 2, audits=2)


def solo(
    ways: Sequence[Way],
    workloads: Sequence[Workload],
    tier: Tier,
    preset: Preset,
    precisions: Sequence[Precision] = (),
    scenarios: Sequence[ScenarioName] = (),
    probe: Workload | None = None,
    rate_per_s: float | None = None,
    runs: int = 1,
) -> tuple[Phase, ...]:
    """One phase a cell: for each way onto each device, the probe, every suite in turn, the probe again; and all
    of that `runs` times over, so that the runs of a cell lie as far apart as they can.

    A way runs each suite in the asked precisions that its device offers to that suite, or in the best one where none is
    asked; and in the asked scenarios that the suite has, or those of the preset. Raises UsageError where nothing is
    left to run.
    """
    phases: list[Phase] = []

    def add(way: Way, workload: Workload, precision: Precision, scenario: ScenarioName, run: int) -> None:
        route = Route(
            suite=workload.name,
            tier=tier,
            suite_version=workload.version,
            device=way.device.id,
            adapter=way.adapter,
            precision=precision,
            options=dict(way.options),
            suite_options=dict(workload.options),
            weights=workload.weights,
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

    for run, way in itertools.product(range(1, runs + 1), ways):
        chosen = {each.name: _precisions(way, each, precisions) for each in workloads}
        for precision in precisions or dict.fromkeys(one for several in chosen.values() for one in several):
            cells = [
                (workload, scenario)
                for workload in workloads
                for scenario in _scenarios(workload, preset, scenarios)
                if scenario != "probe" and precision in chosen[workload.name]
            ]
            alone = any("probe" in each.scenarios and precision in chosen[each.name] for each in workloads)
            probing = [probe] if probe and precision in way.device.offers(probe.name) else []
            for each in probing if cells else []:
                add(way, each, precision, "probe", run)
            for workload, scenario in cells:
                add(way, workload, precision, scenario, run)
            for each in probing if cells or alone else []:
                add(way, each, precision, "probe", run)
    if not phases:
        have = sorted({each for way in ways for workload in workloads for each in way.device.offers(workload.name)})
        raise UsageError(
            "nothing is left to run",
            hint=f"precisions here: {', '.join(have) or 'none'}; `mixmark suites` shows the scenarios of each suite",
        )
    return tuple(phases)


def _precisions(way: Way, workload: Workload, asked: Sequence[Precision]) -> Sequence[Precision]:
    """The precisions in which a way runs a suite: the asked ones that it offers, or its best one."""
    offered = way.device.offers(workload.name)
    return [each for each in asked if each in offered] if asked else offered[:1]


def _key(*words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower())


def _scenarios(workload: Workload, preset: Preset, asked: Sequence[ScenarioName]) -> Iterator[ScenarioName]:
    if asked:
        yield from (each for each in workload.scenarios if each in asked)
    else:
        closed = [each for each in workload.scenarios if each != "server"]
        yield from closed if preset.all_scenarios else closed[:1]


def again(result: Result, placement: Placement) -> tuple[Phase, ...]:
    """The phases that measure the routes of a plan alone once more, with the batch that was found."""
    used = {(suite, device) for suite, parts in placement.shares.items() for device in parts}
    phases = []
    for rate in placement.rates:
        if (rate.suite, rate.device) in used:
            share = _share_of(result, rate)
            name = f"again.{share.key}"
            limits = share.limits.model_copy(update={"search_ns": 0})
            share = share.model_copy(update={"key": name, "batch": rate.batch, "limits": limits})
            phases.append(Phase(name=name, purpose="again", tasks=(Task(device=rate.device, shares=(share,)),)))
    return tuple(phases)


def mixed(result: Result, placement: Placement, limits: Limits, run: int, pool_bytes: Mapping[str, int]) -> Phase:
    """The phase in which all devices run at once. It loads the routes that the plan uses and, for when rates change,
    those that also fit into memory."""
    used = {(suite, device) for suite, parts in placement.shares.items() for device in parts}
    pools = {device.id: device.memory_pool for device in result.devices}
    left = {pool: pool_bytes.get(pool, math.inf) for pool in pools.values()}
    shares: dict[str, list[Share]] = defaultdict(list)
    ordered = sorted(placement.rates, key=lambda rate: ((rate.suite, rate.device) not in used, -rate.units_per_s))
    for rate in ordered:
        pool, size = pools[rate.device], rate.memory_bytes or 0
        if (rate.suite, rate.device) not in used and size > left[pool]:
            continue
        left[pool] -= size
        share = _share_of(result, rate)
        route = share.route
        key = _key(f"mix{run}", route.suite, route.adapter, route.device, route.precision)
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
    return Phase(name=f"mix{run}", purpose="mixed", tasks=tasks, placement=placement)


def _share_of(result: Result, rate: Rate) -> Share:
    """The solo share of the route that has this rate."""
    for share in (share for phase in result.phases for task in phase.tasks for share in task.shares):
        route = share.route
        if (route.suite, route.device, route.adapter, route.precision) == (
            *(rate.suite, rate.device, rate.adapter),
            rate.precision,
        ):
            return share
    raise ValueError(f"nothing was planned of {rate.suite} on {rate.device} by {rate.adapter}")


def later(
    result: Result,
    limits: Limits,
    runs: int,
    measure_again: bool,
    objective: Objective,
    pool_bytes: Mapping[str, int],
) -> tuple[Phase, ...]:
    """What comes next of a run whose planned phases are all over: the chosen routes alone once more, then the mixed
    phases, one by one; nothing where there is no mix or all is done. Raises MixmarkError where no plan can be made."""
    mix = result.mix
    planned = [phase.placement for phase in result.phases if phase.placement]
    if mix is None or len(planned) >= runs:
        return ()
    if planned:  # runs of one plan can be compared
        return (mixed(result, planned[0], limits, len(planned) + 1, pool_bytes),)
    evidence = gather(result)
    placement = place(
        mix.units,
        rates.solo(evidence, mix, honest.invalid(honest.findings(evidence))),
        result.devices,
        objective,
        pool_bytes=pool_bytes,
        host_share=rates.host_share(evidence),
        power=rates.power(result),
    )
    if measure_again and not any(phase.purpose == "again" for phase in result.phases):
        return again(result, placement)
    return (mixed(result, placement, limits, 1, pool_bytes),)


def planner(result: Result, objective: Objective) -> Planner:
    """Plans anew while a mixed phase runs: over what is loaded, so that memory is no question any more."""
    fixed: dict[str, Any] = {"host_share": rates.host_share(gather(result)), "power": rates.power(result)}
    return lambda units, now: place(units, now, result.devices, objective, **fixed)
