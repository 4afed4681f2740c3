"""The phases whose feeds LoadGen issues, and the figures of its logs."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.loadgen.figures import KEYS, NAME, PLACE, SCENARIOS, LoadGenTest, Reported, Scenario
from mixmark.harness.capabilities.loadgen.loop import LOAD, under_loadgen
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Fact, Phase, Rate, Result, ServiceLimits
from mixmark.harness.judge.solo_rates import counts, observed
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant, Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState, Steps, absent
from mixmark.harness.plan.bound import fastest
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import install
from mixmark.harness.resources.files import DAMAGE, regular
from mixmark.harness.worker.messages import LoopChoice

FEWEST, MOST = 64, 20_000
"""Queries of a test. LoadGen estimates the 90th percentile of 64 or more."""
SLOWER = 10
"""A test is ended after so many times its expected time."""
MOST_BYTES = 64 << 20
"""The largest log that is read: a worker wrote it."""


class UnderLoadGen(Experiment):
    name = NAME
    needs_mix = False

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Path:
        """The folder of LoadGen's logs."""
        if importlib.util.find_spec("mlperf_loadgen") is None:
            raise UsageError("mlcommons-loadgen is not installed", install.command("loadgen"))
        if run.request.machines:
            raise UsageError("--loadgen runs on this machine alone", "leave --loadgen away")
        return run.folder / NAME

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        return Fact()

    def next(self, state: RunState) -> Steps:
        """The first test that has no phase, of the fastest route of each suite on each device."""
        alone = [each for each in state.evidence.measured if each.is_solo and counts(each, state.invalid)]
        pairs = [(rate, each) for each in alone if (rate := observed(each, ServiceLimits()))]
        best = fastest(pairs, lambda pair: (pair[0].suite, pair[0].device), lambda pair: pair[0].units_per_s)
        for (rate, each), scenario in product(best.values(), SCENARIOS):
            name = key_of(NAME, rate.suite, rate.device, scenario)
            if not state.is_absent(name, "experiment") and all(phase.name != name for phase in state.of(NAME)):
                try:
                    return (_phase(state, rate, rate.units_per_s / (each.record.feed_units or 1), scenario, name),)
                except MixmarkError as error:
                    return (absent(name, error, "experiment"),)
        return ()

    def rounds(self, run: Outlook) -> int:
        return len(run.routes) * len(SCENARIOS)

    def label(self, phase: Phase) -> str:
        return f"{phase.shares[0].route.suite} {self.prefix(phase)}"

    def prefix(self, phase: Phase) -> str:
        return f"under LoadGen, {phase.told(LoadGenTest).scenario}"

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: Path) -> Attendant:
        return UnderTest(request.phase, prepared / request.phase.name)


def _phase(state: RunState, rate: Rate, per_s: float, scenario: Scenario, name: str) -> Phase:
    """per_s: the feeds per second of the route alone. Raises MixmarkError if the route cannot be placed."""
    queries = min(MOST, max(FEWEST, math.ceil(per_s * state.preset.mix.min_ns / SECOND)))
    devices = [device for device in state.result.devices if device.id == rate.device]
    placement = state.planner(devices, None)({rate.suite: 1.0}, [rate])
    longest_ns = round(SLOWER * SECOND * (1 + queries / per_s / LOAD))
    limits = state.preset.mix.model_copy(update={"min_ns": 0, "max_ns": longest_ns, "min_feeds": queries})
    test = LoadGenTest(scenario=scenario, queries=queries, per_s=per_s)
    return state.experiment(NAME, test, state.phase(name, 1, placement, limits))


class UnderTest(Attendant):
    """The loop of one test in a worker, and the figures of its log."""

    def __init__(self, phase: Phase, folder: Path) -> None:
        """folder: for LoadGen's logs."""
        self._phase, self._folder = phase, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.txt").write_text(f"{PLACE}\n", "utf-8")

    def loop(self) -> LoopChoice:
        own = f"{under_loadgen.__module__}:{under_loadgen.__name__}"
        return LoopChoice(spec=own, arguments={**self._phase.facts, "folder": str(self._folder.resolve())})

    def found(self) -> Iterator[Reported]:
        with suppress(*DAMAGE, TypeError):
            yield reported(self._phase.name, self._folder)


def reported(phase: str, folder: Path) -> Reported:
    """The figures of LoadGen's detailed log. Raises an error of `DAMAGE` or TypeError if it has none."""
    entries = regular(folder / "mlperf_log_detail.txt", MOST_BYTES).decode().split(":::MLLOG")[1:]
    found = {entry["key"]: entry["value"] for entry in map(json.loads, entries)}
    figures = {name: found[key] for name, key in KEYS.items() if key in found}
    valid = found["result_validity"] == "VALID"
    return Reported(phase=phase, version=found["loadgen_version"], valid=valid, figures=figures)
