"""Definitions of pipelines, published or in a user's TOML file with one table, and the placement of their stages.

[mine]
stages = [{ suite = "resnet50", samples = 4 }, { suite = "llm", device = "gpu:0" }]
deadline_s = { smoke = 2, edge = 30 }
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineStage, PipelineWork
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.schema import Device, Limits, Phase, Placement, Rate, Tier
from mixmark.harness.contracts.text import Reason
from mixmark.harness.contracts.toml import read_toml
from mixmark.harness.plan.bound import bound, fastest_routes
from mixmark.harness.plan.mixes import NS_PER_S, one_table, words_of
from mixmark.harness.plan.placement import Planner

if TYPE_CHECKING:
    from mixmark.harness.machine.setup import Suites

SHIPPED = Path(__file__).with_name("pipelines.toml")
PAGE = "docs/capabilities/pipelines.md shows one"
ENOUGH = 20
"""The pipelines that a window has time for, if the limits of the mix allow."""
USED = 0.5
"""The part of the deadline that the pipelines in flight take by Little's law, if more are than there are devices."""

COMPUTED = {"name", "deadline_ns", "carried"}
"""The fields of a pipeline and of its stages that no file gives."""


@dataclass(frozen=True)
class StageSuite:
    """What a pipeline needs to know of a suite."""

    continues: str
    """The suite whose output it continues. Empty: none."""
    batches: bool
    """Whether it takes several samples at once, as its offline scenario does."""


def stage_suites(suites: Suites) -> Mapping[str, StageSuite]:
    """All suites but the probe, which has no rate that counts."""
    return {
        each.name: StageSuite(suites.facts[each.name].continues, "offline" in each.scenarios)
        for each in suites.workloads
        if "probe" not in each.scenarios
    }


@cache
def published() -> Mapping[str, Mapping[str, Any]]:
    """The tables of the published pipelines by name."""
    return read_toml(SHIPPED, "the published pipelines")


def load(asked: str, tier: Tier, suites: Mapping[str, StageSuite]) -> Pipeline:
    """A published pipeline by its name, or another one from a file, whose name ends in .toml.

    suites: all suites by name. Raises UsageError for a pipeline that does not exist or cannot be read, has no deadline
    at the tier or one that is not above 0, has an unknown key, names an unknown suite, comes back to a suite, gives a
    suite more samples than it takes, or has a suite that does not follow the one that it continues.
    """
    if asked.endswith(".toml"):
        name, table = one_table(Path(asked), "the pipeline", PAGE)
        where = f"{asked}: "
        if name in published():
            raise UsageError(f"{where}the name {name} is reserved for a published pipeline", "choose another name")
    else:
        (name,) = choose_by_name("pipeline", [asked], published())
        table, where = published()[name], ""
    deadlines = table.get("deadline_s")
    if not isinstance(deadlines, dict) or tier not in deadlines:
        raise UsageError(
            f"{where}the pipeline {name} has no deadline at the tier {tier}", f"give deadline_s = {{ {tier} = … }}"
        )
    deadline_s = deadlines[tier]
    if type(deadline_s) not in (int, float) or not 1 / NS_PER_S <= deadline_s < 1e9:
        raise UsageError(f"{where}{name}.deadline_s.{tier} is {deadline_s!r}", "give seconds, above 0")
    facts = {key: value for key, value in table.items() if key != "deadline_s"}
    try:
        pipeline = Pipeline.model_validate({**facts, "name": name, "deadline_ns": round(deadline_s * NS_PER_S)})
    except ValidationError as error:
        raise UsageError(f"{where}{words_of(error)}", PAGE) from error
    if unknown := COMPUTED & set(table).union(*(stage.model_fields_set for stage in pipeline.stages)):
        raise UsageError(f"{where}the pipeline {name} has unknown keys: {', '.join(sorted(unknown))}", PAGE)
    choose_by_name(f"suite for pipeline {name}:", list(pipeline.samples), suites)
    return pipeline.model_copy(update={"stages": tuple(_carried(pipeline, suites, where))})


def _carried(pipeline: Pipeline, suites: Mapping[str, StageSuite], where: str) -> Iterator[PipelineStage]:
    """The stages. Each knows whether it continues the output of the stage before."""
    before: PipelineStage | None = None
    for stage in pipeline.stages:
        suite = suites[stage.suite]
        if stage.samples > 1 and not suite.batches:
            raise UsageError(
                f"{where}{stage.suite} takes one sample at a time, not {stage.samples}", "give samples = 1"
            )
        if suite.continues and (before is None or before.suite != suite.continues):
            raise UsageError(
                f"{where}{stage.suite} continues {suite.continues}, which is not the stage before it",
                f"put {suite.continues} directly before {stage.suite}",
            )
        before = stage.model_copy(update={"carried": bool(suite.continues)})
        yield before


def refuse_unrunnable(pipeline: Pipeline, candidates: Sequence[Phase]) -> None:
    """Raises UsageError if none of the routes runs a stage, if no route runs it on the device that it names, or if
    there are too few devices for stages that run apart."""
    routes = [share.route for phase in candidates for share in phase.shares]
    if pipeline.apart and (count := len({route.device for route in routes})) < len(pipeline.stages):
        raise UsageError(
            f"each stage of the pipeline {pipeline.name} needs a device of its own, and this run measures {count}",
            "--split-cpu 2 makes two devices of the CPU",
        )
    for stage in pipeline.stages:
        able = list(dict.fromkeys(route.device for route in routes if route.suite == stage.suite))
        needs = f"a stage of the pipeline {pipeline.name}"
        if not able:
            raise UsageError(f"no device here runs {stage.suite}, {needs}", "mixmark devices shows what each one runs")
        if stage.device not in (None, *able):
            raise UsageError(
                f"the device {stage.device!r} does not run {stage.suite}, {needs}",
                f"devices that run it: {', '.join(able)}",
            )


@dataclass(frozen=True)
class Turn:
    """A way to run the pipeline that has the same minutes as the others."""

    name: str
    """What tells it from the run on all devices, whose name is empty."""
    placement: Placement
    work: PipelineWork


def turns(
    pipeline: Pipeline, units: Mapping[str, int], rates: Sequence[Rate], devices: Sequence[Device], plan: Planner
) -> list[Turn]:
    """How the pipeline is run by all devices, then its work in one feed, if a suite does that, and then the pipeline by
    the best single device, if there is a choice.

    units: in a feed of each suite. rates: of these suites alone. Raises MixmarkError if a suite has no rate, or if the
    stages do not fit into memory or have no devices of their own.
    """
    if missing := [suite for suite in pipeline.samples if suite not in {rate.suite for rate in rates}]:
        raise UsageError(f"no device has a solo rate of {', '.join(missing)}", "the solo records say why")
    stages = [rate for rate in rates if rate.suite in pipeline.suites]
    whole = [rate for rate in rates if rate.suite == pipeline.whole]
    single, _ = best_single({suite: units[suite] for suite in pipeline.suites}, stages, devices)
    of_single = [rate for rate in stages if _whole(rate.device, devices) == single]

    def turn(name: str, rates: Sequence[Rate], device: str | None = None, apart: bool = False) -> Turn:
        suites = tuple(suite for suite in pipeline.samples if suite in {rate.suite for rate in rates})
        own = {suite: units[suite] for suite in suites}
        fitted = fitting(pipeline, own, rates)
        placement = plan(own, roles(own, fitted) if apart else fitted)
        work = PipelineWork(
            suites=suites,
            units=tuple(own.values()),
            deadline_ns=pipeline.deadline_ns,
            in_flight=in_flight(placement.mixes_per_s, pipeline.deadline_ns / NS_PER_S, devices_used(placement)),
            carried=tuple(stage.suite for stage in pipeline.stages if stage.carried and stage.suite in suites),
            device=device,
        )
        return Turn(name, placement, work)

    found = [turn("", stages, apart=pipeline.apart)]
    if whole:
        found.append(turn("whole", whole))
    return [*found, turn("alone", of_single, single)] if single else found


def roles(units: Mapping[str, int], rates: Sequence[Rate]) -> list[Rate]:
    """The rates of each device for its only stage, so that the slowest stage is as fast as it can be: an integer
    program. Raises UsageError if the devices cannot run every stage so."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    suites, devices = list(units), list(dict.fromkeys(rate.device for rate in rates))
    per_s = np.zeros((len(suites), len(devices)))
    for rate in rates:
        row, column = suites.index(rate.suite), devices.index(rate.device)
        per_s[row, column] = max(per_s[row, column], rate.units_per_s / units[rate.suite])
    # The variables are x[stage, device], 1 if it is the device's stage, and the rate of the slowest stage.
    by_stage = np.kron(np.eye(len(suites)), np.ones(len(devices))) * per_s.ravel()
    stage_rates = np.hstack((by_stage, -np.ones((len(suites), 1))))
    one_stage = np.hstack((np.tile(np.eye(len(devices)), len(suites)), np.zeros((len(devices), 1))))
    solved = milp(
        np.append(np.zeros(per_s.size), -1.0),
        constraints=(LinearConstraint(stage_rates, lb=0.0), LinearConstraint(one_stage, ub=1.0)),
        bounds=Bounds(0.0, np.append(np.where(per_s.ravel() > 0, 1.0, 0.0), np.inf)),
        integrality=np.append(np.ones(per_s.size), 0.0),
    )
    if solved.x is None or solved.x[-1] <= 0:
        raise UsageError(
            "the devices cannot run every stage within the deadline if each runs one only",
            "leave apart away, or allow more time",
        )
    chosen = solved.x[:-1].reshape(per_s.shape) > 0.5
    return [rate for rate in rates if chosen[suites.index(rate.suite), devices.index(rate.device)]]


def fitting(pipeline: Pipeline, units: Mapping[str, int], rates: Sequence[Rate]) -> list[Rate]:
    """The rates at which a stage keeps the deadline if all other stages have their fastest device. The fastest rate of
    each stage is always among them."""
    seconds = fastest_s(units, rates)
    spare_s = max(0.0, pipeline.deadline_ns / NS_PER_S - math.fsum(seconds.values()))
    return [rate for rate in rates if units[rate.suite] / rate.units_per_s <= seconds[rate.suite] + spare_s]


def fastest_s(units: Mapping[str, int], rates: Sequence[Rate]) -> dict[str, float]:
    """The seconds of each stage alone on its fastest device. Their sum is the critical path."""
    seconds: dict[str, float] = {}
    for rate in rates:
        took_s = units[rate.suite] / rate.units_per_s
        seconds[rate.suite] = min(took_s, seconds.get(rate.suite, took_s))
    return seconds


def best_single(
    units: Mapping[str, int], rates: Sequence[Rate], devices: Sequence[Device]
) -> tuple[str | None, Reason | None]:
    """The device that alone runs the most pipelines per second, or why there is none to compare with. The slices of a
    device count as the device, so that splitting it gains nothing."""
    own: dict[str, list[Rate]] = defaultdict(list)
    for rate in fastest_routes(rates):
        own[_whole(rate.device, devices)].append(rate)
    able = {id: each for id, each in own.items() if {rate.suite for rate in each} == set(units)}
    if len(own) < 2:
        (only,), slices = own, len({rate.device for rate in rates})
        return None, f"there is no device beside {only}" + (f", whose {slices} slices ran the stages" * (slices > 1))
    if not able:
        return None, "no single device runs every stage"
    mix_units = dict(units)
    return max(able, key=lambda id: bound(mix_units, able[id], devices).mixes_per_s), None


def _whole(id: str, devices: Sequence[Device]) -> str:
    """The device that this one is a slice of, or itself."""
    return next((device.whole.id for device in devices if device.id == id), id)


def devices_used(placement: Placement) -> int:
    return len({id for parts in placement.fractions.values() for id, part in parts.items() if part})


def in_flight(per_s: float, deadline_s: float, devices: int) -> int:
    """The number of pipelines under way at once: one for each device, if the deadline has room for them, and one that
    waits, if USED of the deadline has.

    By Little's law n pipelines in flight at a rate of λ take n / λ each. per_s: λ by the plan.
    """
    room = per_s * deadline_s
    return max(1, min(devices, int(room)), min(devices + 1, int(USED * room)))


def limits_of(placement: Placement, limits: Limits) -> Limits:
    """The limits of a phase: time for ENOUGH pipelines, within the limits of the mix."""
    needed_ns = int(ENOUGH / placement.mixes_per_s * NS_PER_S)
    return limits.model_copy(update={"min_ns": min(limits.max_ns, max(limits.min_ns, needed_ns))})
