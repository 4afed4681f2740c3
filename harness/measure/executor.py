"""Measures the phases of a run on this machine; `measure.cluster` does the same on the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mixmark.harness.contracts.schema import HOST_POOL, Connection, Device, Metering, Mix, Phase, Record, Share
from mixmark.harness.discover import power_caps
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.discover.power_caps import Control
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed, solo
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.measure.phase import RESERVE, Part, attend
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.process import memory


@dataclass(frozen=True)
class PhaseRequest:
    """A phase to be measured, and the callbacks that report its progress."""

    phase: Phase
    idle_s: float
    """How long the meters read idle machines, before and after the phase."""
    mix: Mix | None
    """The mix of a phase that has a placement."""
    planner: Callable[[], Planner]
    """Makes the planner that replans while a mixed phase runs."""
    started: Callable[[], None] = field(default=lambda: None)
    """Is called when the first workers are started."""
    stage: Callable[[Share, str], None] = field(default=lambda share, stage: None)
    """Gets the stage of a share's worker."""
    mixing: Callable[[MixSnapshot], None] = field(default=lambda snapshot: None)
    """Gets a snapshot of a mixed phase now and then."""
    keep: Callable[[Sequence[Record], Sequence[Connection]], None] = field(default=lambda records, connections: None)
    """Gets all records of the phase at once, as soon as it is over: idle readings that follow may be interrupted."""


class Executor(Protocol):
    """The machine or the machines that a run measures."""

    @property
    def metered(self) -> bool:
        """Whether there is a meter."""

    def measure(self, request: PhaseRequest) -> Metering | None:
        """Measures a phase, and returns the readings of the meters meanwhile; None without a meter. On
        KeyboardInterrupt, which passes through, the workers are gone and nothing was kept."""

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """How many bytes may be filled of each memory pool whose size is known."""

    def current_power(self) -> CurrentPower | None:
        """The power at this moment. None: it is not known."""


@dataclass(frozen=True)
class LocalExecutor:
    """This machine. folder: of the result, to which logs and audited outputs are added."""

    equipment: Equipment
    folder: Path
    meters: Meters
    policies: Mapping[str, Plugin] = field(default_factory=dict)
    """The policies that phases of the mix name."""
    power: Sequence[Control] = ()
    """The limits of power that phases with a cap lower."""

    @property
    def metered(self) -> bool:
        return bool(self.meters.domains)

    def measure(self, request: PhaseRequest) -> Metering | None:
        self.meters.begin()
        self.meters.rest(request.idle_s)
        request.started()
        with ExitStack() as stack:
            request.keep(self._attended(request, stack), ())
        self.meters.rest(request.idle_s)
        return self.meters.drain(request.phase.name)

    def _attended(self, request: PhaseRequest, stack: ExitStack) -> list[Record]:
        """stack: keeps a cap of the power until it is closed."""
        phase = request.phase
        if phase.placement is None:
            return attend(phase, self.equipment, self.folder, solo.drive, request.stage, self.meters.pids)
        assert request.mix is not None  # a placement is of a mix
        policy = self.policies[phase.policy].load() if phase.purpose in ("policy", "load") else None
        drive = mixed.local_driver(request.mix, phase, request.planner(), request.mixing, policy)

        def on_ready(parts: Sequence[Part]) -> None:
            if phase.cap:
                stack.enter_context(power_caps.lowered(self.power, phase.cap))
            self.meters.rest(request.idle_s, ready=True)
            drive.on_ready(parts)

        return attend(phase, self.equipment, self.folder, drive, request.stage, self.meters.pids, on_ready)

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
        if HOST_POOL in sizes:
            sizes[HOST_POOL] = memory.available_bytes()
        return {pool: int(size * RESERVE) for pool, size in sizes.items()}

    def current_power(self) -> CurrentPower | None:
        return self.meters.current_power()
