from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import geometric_mean
from typing import Any

from mixmark.harness.capabilities.ladder import blocks
from mixmark.harness.capabilities.ladder.levels import Ladder, ladder, unknown_due
from mixmark.harness.capabilities.ladder.load import (
    DEFAULT,
    LEVELS,
    Levels,
    Load,
    Served,
    due_ns,
    level_name,
    limits_of,
    load_at,
)
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted, percent
from mixmark.harness.contracts.schema import BY_PLAN, Absent, Phase, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.mixed_run import HOUR_S, run_of
from mixmark.harness.measure.executor import LocalExecutor, PhaseRequest, ServedByPolicy
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.request_queue import request_units
from mixmark.harness.measure.stages import Outlook, RunState, Steps, absent
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.experiments import Experiment, fact
from mixmark.reporters.document import Chart, Table


class LoadLadder(Experiment):
    name = "ladder"
    facts = (Levels, Served)

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Levels:
        return Levels(levels=given["levels"] or LEVELS.get(run.request.preset, DEFAULT))

    def next(self, state: RunState) -> Steps:
        """One level after the other, by the plan and by each other policy."""
        policies = (BY_PLAN, *fact(state.result, "policies", "policies", ()))
        known = {(served.load.level, served.policy) for served in _served(state.of(self.name))}
        missing: list[Absent] = []
        for level in state.asked(self.name, Levels).levels:
            waiting = [each for each in policies if (level, each) not in known]
            name = level_name(state.mix.name, level)
            if not waiting or state.is_absent(name):
                continue
            try:
                load = _load(state, level, name)
            except UsageError as error:
                missing.append(absent(name, error))
                continue
            return (*missing, self._phase(state, load, waiting[0]))
        return missing

    def _phase(self, state: RunState, load: Load, policy: str) -> Phase:
        name = key_of(f"load{round(load.level * 100)}" + ("" if policy == BY_PLAN else f"-{policy}"))
        limits = limits_of(load, state.plan, state.preset.mix)
        return state.experiment(self.name, Served(load=load, policy=policy), state.phase(name, limits=limits))

    def rounds(self, run: Outlook) -> int:
        levels = len(run.asked(self.name, Levels).levels)
        return levels * (1 + len(fact(run.result, "policies", "policies", ())))

    def idle_s(self, phase: Phase, run: Outlook) -> float:
        """Around the first level as long as a level lasts at least: the idle machine is a level of the ladder."""
        level_s = run.preset.mix.min_ns / SECOND if phase is run.of(self.name)[0] else 0.0
        return max(run.preset.idle_s, level_s)

    def prefix(self, phase: Phase) -> str:
        served = phase.told(Served)
        by = "" if served.policy == BY_PLAN else f" by {served.policy}"
        return f"at {percent(served.load.level)} load{by}"

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> ServedByPolicy:
        served = request.phase.told(Served)
        others = executor.prepared.get("policies", {})
        plugin = others.get(served.policy) or registry.find("policies")[served.policy]
        return ServedByPolicy(plugin, request, due_ns(served.load), served.load.request_units)

    def contradictions(self, result: Result) -> Iterator[str]:
        """The requests were due when their seed says."""
        for phase in (phase for phase in result.phases if phase.experiment == self.name):
            records = [record for record in result.records if record.phase == phase.name]
            if unknown := unknown_due(phase, records):
                yield f"{counted(unknown, 'feed')} of {phase.name} answered no request that arrived"

    def figures(self, judged: Assessment) -> Ladder | None:
        return ladder(judged)

    def lines(self, judged: Assessment, figures: Ladder) -> Iterable[tuple[str, str]]:
        return blocks.lines(figures, judged.result)

    def table(self, judged: Assessment, figures: Ladder) -> Table:
        return blocks.table(figures, judged.result)

    def charts(self, judged: Assessment, figures: Ladder) -> Iterable[Chart]:
        return blocks.charts_of(figures)


def _served(phases: Iterable[Phase]) -> list[Served]:
    return [phase.told(Served) for phase in phases]


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
