"""Measures the phases of a run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Policy
from mixmark.harness.contracts.schema import HOST_POOL, Device, Int64s, Share
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import experiments, mixed, solo
from mixmark.harness.measure.dispatch import Source
from mixmark.harness.measure.executor import (
    PhaseEvent,
    PhaseFacts,
    PhaseRequest,
    PhaseStarted,
    StageStarted,
    WindowOpens,
)
from mixmark.harness.measure.experiments import Attendant
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.phase import RESERVE, Part, attend
from mixmark.harness.measure.request_queue import RequestQueue, Table
from mixmark.harness.plan.placement import Planner, replanner
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import memory
from mixmark.harness.worker.plugin_process import PolicyProcess, end_all, policy_of


class OfPolicy(Attendant):
    """Keeps the process of a policy while a phase is measured."""

    def __init__(self, policy: Callable[[Table, Table], Policy]) -> None:
        self.policy = policy

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        if isinstance(self.policy, PolicyProcess):
            stack.callback(self.policy.end)
            pids.append(self.policy.pid)


class ServedByPolicy(OfPolicy):
    """Lets a policy assign the requests of a phase of the mix."""

    def __init__(
        self,
        plugin: Plugin,
        request: PhaseRequest,
        due_ns: Mapping[str, Int64s] | None = None,
        units: Mapping[str, int] | None = None,
    ) -> None:
        """due_ns, units: see `RequestQueue`. Raises PluginError."""
        assert request.mix is not None  # its requests are of the mix
        super().__init__(policy_of(plugin))
        self._limits = request.mix.limits
        self._due_ns, self._units = due_ns, units

    def source(self, plan: Planner) -> Source:
        return partial(RequestQueue, policy=self.policy, limits=self._limits, due_ns=self._due_ns, units=self._units)


@dataclass(frozen=True)
class LocalExecutor:
    """This machine. folder: of the result, to which logs and audited outputs are added."""

    equipment: Equipment
    folder: Path
    meters: Meters
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """What experiments prepared for the run, by their names."""
    experiments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the run keeps of its experiments: `Result.experiments`."""

    @property
    def metered(self) -> bool:
        return bool(self.meters.domains)

    @property
    def hosts(self) -> None:
        return None

    def measure(self, request: PhaseRequest, notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        self.meters.begin()
        self.meters.rest(request.idle_s)
        notify(PhaseStarted(request.phase))
        with ExitStack() as stack:
            facts = self._attended(request, notify, stack)
        yield facts
        self.meters.rest(request.idle_s)
        yield PhaseFacts(metering=self.meters.drain(request.phase.name))

    def _attended(self, request: PhaseRequest, notify: Callable[[PhaseEvent], None], stack: ExitStack) -> PhaseFacts:
        """stack: keeps what an experiment does until it is closed."""
        phase, pids = request.phase, list[int]()

        def staged(share: Share, stage: str) -> None:
            notify(StageStarted(share, stage))

        if phase.placement is None:
            opens = WindowOpens(phase)
            alone = attend(phase, self.equipment, self.folder, solo.drive, staged, (), lambda parts: notify(opens))
            return PhaseFacts(alone)
        planner = replanner(phase.placement, request.devices)
        attendant = Attendant()
        if phase.experiment:
            stage = experiments.installed()[phase.experiment]
            asked, prepared = self.experiments[stage.name], self.prepared.get(stage.name)
            attendant = stage.attendant(request, asked, prepared)
        mix = attendant.mix(request.mix)
        assert mix is not None  # a placement is of a mix
        drive = mixed.local_driver(mix, phase, planner, notify, attendant.source(planner))

        def on_ready(parts: Sequence[Part]) -> None:
            attendant.ready(stack, pids)
            self.meters.rest(request.idle_s, ready=True)
            notify(WindowOpens(phase))
            drive.on_ready(parts)

        def drive_phase(parts: Sequence[Part]) -> None:
            try:
                with attendant.window():
                    drive(parts)
            except MixmarkError:
                for part in parts:
                    part.draft.completions = None
                raise

        return PhaseFacts(attend(phase, self.equipment, self.folder, drive_phase, staged, pids, on_ready))

    def end_plugins(self) -> None:
        end_all()

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
        if HOST_POOL in sizes:
            sizes[HOST_POOL] = memory.available_bytes()
        return {pool: int(size * RESERVE) for pool, size in sizes.items()}
