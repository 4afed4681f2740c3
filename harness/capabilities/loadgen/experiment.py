"""LoadGen's queries as the feeds of a phase: its own thread issues them, and a device gets them in that order."""

from __future__ import annotations

import array
import importlib.util
import json
import math
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.loadgen.figures import NAME, PERCENTILES, SCENARIOS, LoadGenTest, Reported, Scenario
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Fact, Mix, Phase, Rate, Result, ServiceLimits
from mixmark.harness.judge.solo_rates import counts, observed
from mixmark.harness.measure.dispatch import Handed, Loaded, Source, WorkSource
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant, Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState, Steps, absent
from mixmark.harness.plan.bound import fastest
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import install
from mixmark.harness.resources import clock

FEWEST, MOST = 64, 20_000
"""Queries of a test. LoadGen estimates the 90th percentile of 64 or more."""
SLOWER = 10
"""A test is cut off after so many times its expected time."""
LOAD = 0.7
"""The arrivals of the server over the rate of the route alone."""
FEEDS_IN_LIMIT = 10
"""The limit of a query's latency in the server scenario, in feeds."""
PATIENCE_S = 0.1
"""How long an idle device waits for a query at a time."""
FIGURES = {f"p{each}": f"result_{each}.00_percentile_latency_ns" for each in PERCENTILES}
FIGURES["rate"] = "result_samples_per_second"


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
        return Queries(request.phase, prepared / request.phase.name)


def _phase(state: RunState, rate: Rate, per_s: float, scenario: Scenario, name: str) -> Phase:
    """per_s: the feeds per second of the route alone. Raises MixmarkError if the route cannot be placed."""
    queries = min(MOST, max(FEWEST, math.ceil(per_s * state.preset.mix.min_ns / SECOND)))
    devices = [device for device in state.result.devices if device.id == rate.device]
    placement = state.planner(devices, None)({rate.suite: 1.0}, [rate])
    longest_ns = round(SLOWER * SECOND * (1 + queries / per_s / LOAD))
    limits = state.preset.mix.model_copy(update={"min_ns": 0, "max_ns": longest_ns})
    test = LoadGenTest(scenario=scenario, queries=queries, per_s=per_s)
    return state.experiment(NAME, test, state.phase(name, 1, placement, limits))


class Queries(Attendant, WorkSource):
    """The queries of one test on one device, which are the feeds of a phase."""

    def __init__(self, phase: Phase, folder: Path) -> None:
        """folder: for LoadGen's logs."""
        self._phase, self._folder, self._route = phase, folder, phase.shares[0].route
        self._issued: queue.SimpleQueue[Handed] = queue.SimpleQueue()
        self._unanswered: dict[int, Handed] = {}
        self._held, self._cut_off = 0, False
        self._loadgen: Any = importlib.import_module("mlperf_loadgen")
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def mix(self, mix: Mix | None) -> Mix:
        return Mix(name=NAME, tier=self._route.tier, units={self._route.suite: 1.0})

    def source(self, plan: Planner) -> Source:
        return self._loaded

    def _loaded(self, loaded: Loaded) -> WorkSource:
        WorkSource.__init__(self, loaded)
        return self

    @contextmanager
    def window(self) -> Iterator[None]:
        """Cuts off a test that is not over. LoadGen runs one at a time, and issues a server's queries when they are
        due."""
        try:
            yield
        finally:
            if self._thread.is_alive():
                self.lost("", 0)
                self._thread.join()

    def found(self) -> Iterator[Reported]:
        with suppress(OSError, ValueError, KeyError):
            if not self._cut_off:
                yield reported(self._phase.name, self._folder)

    def begin(self, begin_ns: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def next(self, device: str, now_ns: int) -> Handed | None:
        try:
            handed = clock.get(self._issued, 0 if self._held else PATIENCE_S)
        except queue.Empty:
            return None
        self._held += 1
        return handed

    def committed(self, handed: Handed, digest: str) -> None:
        self._answer(handed.request, digest)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        self._held -= 1
        self._finished[handed.suite] += units

    def lost(self, device: str, now_ns: int) -> None:
        """Answers what is left and what LoadGen still issues, so that it returns."""
        self._cut_off = True
        for sample in list(self._unanswered):
            self._answer(sample, "")

    def _unfinished_s(self, now_ns: int) -> dict[str, float]:
        return {}

    def surplus(self, now_ns: int) -> float:
        """1 until the test is over, then 0."""
        return float(self._thread.is_alive())

    def _answer(self, sample: int, digest: str) -> None:
        if self._unanswered.pop(sample, None):
            response = array.array("B", bytes.fromhex(digest))
            told = self._loadgen.QuerySampleResponse(sample, *response.buffer_info())
            self._loadgen.QuerySamplesComplete([told])

    def _issue(self, samples: list[Any]) -> None:
        """Is called by LoadGen with each query."""
        now_ns = clock.now_ns()
        handed = {sample.id: Handed(self._route.suite, now_ns, sample.id) for sample in samples}
        self._unanswered |= handed
        for sample, each in handed.items():
            self._answer(sample, "") if self._cut_off else self._issued.put(each)

    def _run(self) -> None:
        test, loadgen = self._phase.told(LoadGenTest), self._loadgen
        settings, log = loadgen.TestSettings(), loadgen.LogSettings()
        settings.scenario = getattr(loadgen.TestScenario, test.scenario)
        settings.min_query_count, settings.min_duration_ms = test.queries, 0
        settings.performance_issue_unique = True
        settings.accuracy_log_probability, settings.accuracy_log_sampling_target = 1.0, test.queries
        settings.offline_expected_qps, settings.server_target_qps = test.per_s, LOAD * test.per_s
        settings.server_target_latency_ns = round(FEEDS_IN_LIMIT * SECOND / test.per_s)
        log.log_output.outdir, log.enable_trace = str(self._folder), False
        system = loadgen.ConstructSUT(self._issue, lambda: None)
        library = loadgen.ConstructQSL(test.queries, test.queries, lambda samples: None, lambda samples: None)
        loadgen.StartTestWithLogSettings(system, library, settings, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)


def reported(phase: str, folder: Path) -> Reported:
    """The figures of LoadGen's detailed log. Raises OSError, ValueError or KeyError if it has none."""
    entries = (folder / "mlperf_log_detail.txt").read_text("utf-8").split(":::MLLOG")[1:]
    found = {entry["key"]: entry["value"] for entry in map(json.loads, entries)}
    figures = {name: found[key] for name, key in FIGURES.items() if key in found}
    valid = found["result_validity"] == "VALID"
    return Reported(phase=phase, version=found["loadgen_version"], valid=valid, figures=figures)
