from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mixmark.harness.capabilities.paths import measuring, on_hosts
from mixmark.harness.capabilities.paths.facts import NAME, PathRecord, measured
from mixmark.harness.contracts.schema import Absent, Fact, Metering, Result
from mixmark.harness.measure.executor import Executor
from mixmark.harness.measure.experiments import Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook
from mixmark.harness.plan.presets import SECOND

PATH_S = 20.0  # of a path on a slow machine


class MeasurePaths(Experiment):
    name = NAME
    needs_mix = False
    first = "the paths between memories"

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        return Fact()

    def rounds(self, run: Outlook) -> int:
        return 0

    def before_s(self, result: Result, metered: bool) -> float:
        """Each device, the processor too, has about four paths."""
        duties_s = len(measuring.DUTIES) * measuring.DUTY_NS / SECOND if metered else 0.0
        return 4 * len(result.devices) * (PATH_S + duties_s)

    def before(self, result: Result, executor: Executor) -> Iterator[Fact | Metering | Absent]:
        absent = (each for each in result.absent if each.kind == "path")
        known: list[PathRecord | Absent] = [*measured(result), *absent]
        if executor.hosts:
            yield from on_hosts.measure_all(executor.hosts, known)
        else:
            yield from measuring.measure(known, executor.meters)

    def on_host(self) -> object:
        return on_hosts.OnHost()
