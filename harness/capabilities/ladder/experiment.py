from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from mixmark.harness.capabilities.ladder.load import DEFAULT, Levels, Load, due_ns, level_name, limits_of, load_at
from mixmark.harness.capabilities.serving.attendant import ServedByPolicy
from mixmark.harness.capabilities.serving.contract import BY_PLAN
from mixmark.harness.capabilities.serving.request_queue import request_units
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import percent
from mixmark.harness.contracts.schema import Absent, Phase, Result
from mixmark.harness.judge.mixed_run import HOUR_S, run_of
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState, Steps, absent
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import registry


class LoadLadder(Experiment):
    name = "ladder"

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Levels:
        return Levels(levels=given["levels"] or DEFAULT)

    def next(self, state: RunState) -> Steps:
        """One level after the other."""
        known = {phase.told(Load).level for phase in state.of(self.name)}
        missing: list[Absent] = []
        for level in state.asked(self.name, Levels).levels:
            name = level_name(state.mix.name, level)
            if level in known or state.is_absent(name):
                continue
            try:
                load = _load(state, level, name)
            except UsageError as error:
                missing.append(absent(name, error))
                continue
            limits = limits_of(load, state.plan, state.preset.mix)
            phase = state.phase(f"load{round(level * 100)}", limits=limits)
            return (*missing, state.experiment(self.name, load, phase))
        return missing

    def rounds(self, run: Outlook) -> int:
        return len(run.asked(self.name, Levels).levels)

    def idle_s(self, phase: Phase, run: Outlook) -> float:
        """Around the first level as long as a level lasts at least: the idle machine is a level of the ladder."""
        level_s = run.preset.mix.min_ns / SECOND if phase is run.of(self.name)[0] else 0.0
        return max(run.preset.idle_s, level_s)

    def prefix(self, phase: Phase) -> str:
        return f"at {percent(phase.told(Load).level)} load"

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: None) -> ServedByPolicy:
        load = request.phase.told(Load)
        return ServedByPolicy(registry.find("policies")[BY_PLAN], request, due_ns(load), load.request_units)


def _load(state: RunState, level: float, name: str) -> Load:
    """Raises UsageError if the level cannot be served."""
    records = [record for record in state.result.records if record.scenario == "mixed"]
    seed = next((record.seed for record in records if record.seed), None)
    rate_per_s = _rate_per_s(state)
    if seed is None or not rate_per_s:
        raise UsageError("the mixed runs have no rate, so a level has no meaning")
    quanta = {(each.route.suite, each.route.device): each.feed_units for each in records if each.feed_units}
    units = request_units(quanta)
    return load_at(level, rate_per_s, state.mix.units, units, state.preset.mix, seeds.derived(seed, name))


def _rate_per_s(state: RunState) -> float | None:
    """The geometric mean of the mixed phases' mixes per second. None if one of them has no rate."""
    runs = [run_of(state.result, state.mix, phase, state.doubts) for phase in state.mixed]
    rates = [run.mixes_per_hour.estimate / HOUR_S if run and not run.problems else 0.0 for run in runs]
    return geometric_mean(rates) if rates and min(rates) > 0 else None
