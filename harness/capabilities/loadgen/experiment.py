from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.loadgen.facts import NAME, SCENARIOS, LoadGenTest, Reported
from mixmark.harness.capabilities.loadgen.queries import LOAD, Queries, reported
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Fact, Mix, Phase, Rate, Result
from mixmark.harness.judge import solo_rates
from mixmark.harness.measure.dispatch import Loaded, Source
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant, Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState, Steps, absent
from mixmark.harness.plan.bound import fastest_routes
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import install

FEWEST, MOST = 64, 20_000
"""Queries of a test. LoadGen estimates the 90th percentile of 64 or more."""
SLOWER = 10
"""A test is cut off after so many times its expected time."""


class UnderLoadGen(Experiment):
    name = NAME
    needs_mix = False

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Path:
        """The result folder."""
        if importlib.util.find_spec("mlperf_loadgen") is None:
            raise UsageError("mlcommons-loadgen is not installed", install.command("loadgen"))
        if run.request.machines:
            raise UsageError("--loadgen runs on this machine alone", "leave --loadgen away")
        return run.folder

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        return Fact()

    def next(self, state: RunState) -> Steps:
        """The first test that has no phase, of the fastest route of each suite on each device."""
        measured = {each.record.route.suite for each in state.evidence.measured if each.record.scenario != "probe"}
        planned = {phase.name for phase in state.of(NAME)}
        for rate in _routes(state, measured):
            for scenario in SCENARIOS:
                name = key_of(NAME, rate.suite, rate.device, scenario)
                if name not in planned and not state.is_absent(name, "experiment"):
                    try:
                        return (_phase(state, rate, scenario, name),)
                    except MixmarkError as error:
                        return (absent(name, error, "experiment"),)
        return ()

    def rounds(self, run: Outlook) -> int:
        return len(run.routes) * len(SCENARIOS)

    def label(self, phase: Phase) -> str:
        test = phase.told(LoadGenTest)
        return f"{test.suite} under LoadGen, {test.scenario}"

    def prefix(self, phase: Phase) -> str:
        return f"under LoadGen, {phase.told(LoadGenTest).scenario}"

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: Path) -> Attendant:
        return Timed(request.phase, prepared / NAME / request.phase.name)


class Timed(Attendant):
    """A phase whose feeds are LoadGen's queries."""

    def __init__(self, phase: Phase, folder: Path) -> None:
        self._phase, self._folder, self._over = phase, folder, False
        self._queries: Queries | None = None

    def mix(self, mix: Mix | None) -> Mix:
        share = self._phase.shares[0]
        return Mix(name=NAME, tier=share.route.tier, units={share.route.suite: 1.0})

    def source(self, plan: Planner) -> Source:
        return self._made

    def _made(self, loaded: Loaded) -> Queries:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._queries = Queries(loaded, self._phase.told(LoadGenTest), self._folder)
        return self._queries

    @contextmanager
    def window(self) -> Iterator[None]:
        assert self._queries is not None  # the phase has begun
        try:
            yield
        except KeyboardInterrupt:
            self._queries.cut(wait=False)
            raise
        except BaseException:
            self._queries.cut()
            raise
        self._over = self._queries.cut()

    def found(self) -> Iterator[Reported]:
        with suppress(OSError, ValueError, KeyError):
            if self._over:
                yield reported(self._phase.name, self._folder)


def _routes(state: RunState, suites: set[str]) -> list[Rate]:
    """The fastest route of each suite on each device. Empty if nothing was measured."""
    if not suites:
        return []
    each_alone = Mix(name=NAME, tier=state.result.tier, units=dict.fromkeys(sorted(suites), 1.0))
    return [*fastest_routes(solo_rates.solo(state.evidence, each_alone, state.invalid))]


def _phase(state: RunState, rate: Rate, scenario: Any, name: str) -> Phase:
    """Raises MixmarkError if the route cannot be placed."""
    records = [each.record for each in state.evidence.measured if each.record.route.key == rate.key]
    feed_units = next((each.feed_units for each in records if each.feed_units and each.batch == rate.batch), None) or 1
    per_s = rate.units_per_s / feed_units
    queries = min(MOST, max(FEWEST, math.ceil(per_s * state.preset.mix.min_ns / SECOND)))
    devices = [device for device in state.result.devices if device.id == rate.device]
    placement = state.planner(devices, None)({rate.suite: 1.0}, [rate])
    longest_ns = round(SLOWER * SECOND * (1 + queries / per_s / LOAD))
    limits = state.preset.mix.model_copy(update={"min_ns": 0, "max_ns": longest_ns})
    test = LoadGenTest(suite=rate.suite, scenario=scenario, queries=queries, per_s=per_s)
    return state.experiment(NAME, test, state.phase(name, 1, placement, limits))
