from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mixmark.harness.capabilities.paths import beside, between_hosts, blocks, measuring
from mixmark.harness.capabilities.paths.facts import NAME, CopyWork, Moves, PathRecord, measured
from mixmark.harness.capabilities.paths.figures import PathFigures, paths
from mixmark.harness.contracts.schema import Absent, Fact, Found, Metering, Phase, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.measure.executor import Executor, LocalExecutor, PhaseRequest
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.stages import RunState, Steps
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins.experiments import Attendant, Experiment
from mixmark.reporters.document import Block, Table

PATH_S = 40.0  # of a path on a slow machine, alone and against the way back


class MeasurePaths(Experiment):
    name = NAME
    facts = (Moves, CopyWork, PathRecord)
    needs_mix = False
    first = "the paths between memories"

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Fact:
        plugins = [run.suites.plugins[each.name] for each in run.workloads]
        return Moves(moves=tuple(measuring.moves(plugins, run.request.tier)))

    def before_s(self, result: Result, metered: bool) -> float:
        """Each device, the processor too, has about four paths."""
        duties_s = len(measuring.DUTIES) * measuring.DUTY_NS / SECOND if metered else 0.0
        return 4 * len(result.devices) * (PATH_S + duties_s)

    def before(self, result: Result, executor: Executor) -> Iterator[Fact | Metering | Absent]:
        absent = (each for each in result.absent if each.kind == "path")
        known: list[PathRecord | Absent] = [*measured(result), *absent]
        if executor.hosts:
            yield from between_hosts.measure_all(executor.hosts, known)
        else:
            yield from measuring.measure(known, meters=executor.meters)

    def on_host(self) -> object:
        return between_hosts.OnHost()

    def next(self, state: RunState) -> Steps:
        return beside.planned(state)

    def prefix(self, phase: Phase) -> str:
        return "in the mix beside copies"

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> Attendant:
        return beside.Copying(request.phase)

    def said(self, found: Found) -> str:
        record = PathRecord.model_validate(found.facts)
        name = f"{record.path.id} beside the mix" if record.beside else record.key
        wrong = record.fault and f"a wrong copy ({record.fault.kind})"
        return f"path {name}: {record.failure.message if record.failure else wrong or 'measured'}"

    def figures(self, judged: Assessment) -> tuple[PathFigures, ...] | None:
        return paths(judged.result, judged.solos, judged.score, judged.doubts) or None

    def table(self, judged: Assessment, figures: tuple[PathFigures, ...]) -> Table:
        return blocks.table(figures)

    def section(self, judged: Assessment, figures: tuple[PathFigures, ...]) -> Iterable[Block]:
        return blocks.in_full(judged.result, figures)
