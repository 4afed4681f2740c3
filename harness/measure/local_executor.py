"""Measures the phases of a run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import HOST_POOL, Device, Phase, Share
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import executor, experiments, mixed, solo
from mixmark.harness.measure.experiments import Attendant
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.phase import RESERVE, Part, attend
from mixmark.harness.plan.placement import replanner
from mixmark.harness.resources import memory
from mixmark.harness.worker.plugin_process import end_all


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

    def rounds(self, phases: Sequence[Phase]) -> Iterator[Sequence[Phase]]:
        return ((phase,) for phase in phases)

    def measure(
        self, requests: Sequence[executor.PhaseRequest], notify: Callable[[executor.PhaseEvent], None]
    ) -> Iterator[executor.PhaseFacts]:
        [request] = requests
        self.meters.begin()
        self.meters.rest(request.idle_s)
        notify(executor.PhaseStarted(request.phase))
        with ExitStack() as stack:
            facts = self._attended(request, notify, stack)
        yield facts
        self.meters.rest(request.idle_s)
        yield executor.PhaseFacts(metering=self.meters.drain(request.phase.name))

    def _attended(
        self, request: executor.PhaseRequest, notify: Callable[[executor.PhaseEvent], None], stack: ExitStack
    ) -> executor.PhaseFacts:
        """stack: keeps what an experiment does until it is closed."""
        phase, pids = request.phase, list[int]()

        def staged(share: Share, stage: str) -> None:
            notify(executor.StageStarted(share, stage))

        attendant = Attendant()
        if phase.experiment:
            stage = experiments.installed()[phase.experiment]
            asked, prepared = self.experiments[stage.name], self.prepared.get(stage.name)
            attendant = stage.attendant(request, asked, prepared)
        loop = attendant.loop()
        if phase.placement is None or loop:
            opens, alone = executor.WindowOpens(phase), partial(solo.drive, loop=loop)
            records = attend(phase, self.equipment, self.folder, alone, staged, (), lambda parts: notify(opens))
            return executor.PhaseFacts(records, found=tuple(attendant.found()))
        planner = replanner(phase.placement, request.devices)
        mix = attendant.mix(request.mix)
        assert mix is not None  # a placement is of a mix
        drive = mixed.local_driver(mix, phase, planner, notify, attendant.source(planner))

        def on_ready(parts: Sequence[Part]) -> None:
            attendant.ready(stack, pids)
            self.meters.rest(request.idle_s, ready=True)
            notify(executor.WindowOpens(phase))
            drive.on_ready(parts)

        def drive_phase(parts: Sequence[Part]) -> None:
            try:
                with attendant.window():
                    drive(parts)
            except MixmarkError:
                for part in parts:
                    part.draft.completions = None
                raise

        records = attend(phase, self.equipment, self.folder, drive_phase, staged, pids, on_ready)
        return executor.PhaseFacts(records, found=tuple(attendant.found()))

    def end_plugins(self) -> None:
        end_all()

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
        if HOST_POOL in sizes:
            sizes[HOST_POOL] = memory.available_bytes()
        return {pool: int(size * RESERVE) for pool, size in sizes.items()}
