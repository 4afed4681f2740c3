"""Where the phases of a run are measured: on this machine, or on the hosts of a cluster (`measure.cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mixmark.harness.contracts.schema import HOST_POOL, Connection, Device, Metering, Mix, Phase, Record, Share
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed as mix
from mixmark.harness.measure import solo
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.mixed import Snapshot
from mixmark.harness.measure.phase import RESERVE, attend
from mixmark.harness.plan.placement import Planner
from mixmark.harness.worker.process import memory


@dataclass(frozen=True)
class Order:
    """A phase that is to be measured."""

    phase: Phase
    idle_s: float
    """How long the meters read machines that do nothing, before and after it."""
    mix: Mix | None
    """The mix of a phase that has a placement."""
    planner: Callable[[], Planner]
    """Makes what plans anew while a mixed phase runs."""
    started: Callable[[], None] = field(default=lambda: None)
    """Told when the first workers are started."""
    stage: Callable[[Share, str], None] = field(default=lambda share, stage: None)
    """Told what the worker of a share does."""
    mixing: Callable[[Snapshot], None] = field(default=lambda snapshot: None)
    """Gets a snapshot of a mixed phase now and then."""
    keep: Callable[[Sequence[Record], Sequence[Connection]], None] = field(default=lambda records, connections: None)
    """Gets all records of the phase at once, as soon as it is over: what comes later may be interrupted."""


class Site(Protocol):
    """The machine or the machines that a run measures."""

    @property
    def metered(self) -> bool:
        """Whether there is a meter."""

    def measure(self, order: Order) -> Metering | None:
        """Measures a phase, and returns what the meters read meanwhile; None where there is none. KeyboardInterrupt
        passes through: the workers are gone then, and nothing was kept."""

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """How many bytes may be filled of each memory pool whose size is known."""

    def current_power(self) -> CurrentPower | None:
        """The power of the moment; None where it is not known."""


@dataclass(frozen=True)
class Here:
    """This machine. folder: of the result, to which logs and the outputs that will be audited are added."""

    equipment: Equipment
    folder: Path
    meters: Meters

    @property
    def metered(self) -> bool:
        return bool(self.meters.domains)

    def measure(self, order: Order) -> Metering | None:
        self.meters.begin()
        self.meters.rest(order.idle_s)
        order.started()
        order.keep(self.attended(order), ())
        self.meters.rest(order.idle_s)
        return self.meters.drain(order.phase.name)

    def attended(self, order: Order) -> list[Record]:
        """The records of a phase of which this machine is the only host."""
        phase, about = order.phase, (self.equipment, self.folder)
        if phase.placement is None:
            return attend(phase, *about, solo.drive, order.stage, self.meters.pids)
        assert order.mix is not None  # its placement is of a mix
        drive = mix.alone(order.mix, phase, order.planner(), order.mixing)
        return attend(phase, *about, drive, order.stage, self.meters.pids, drive.ready)

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
        if HOST_POOL in sizes:
            sizes[HOST_POOL] = memory.available_bytes()
        return {pool: int(size * RESERVE) for pool, size in sizes.items()}

    def current_power(self) -> CurrentPower | None:
        return self.meters.current_power()
