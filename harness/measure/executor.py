"""Measures the phases of a run on this machine; `measure.cluster` does the same on the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Policy
from mixmark.harness.contracts.schema import (
    BY_PLAN,
    HOST_POOL,
    Absent,
    Connection,
    Device,
    Found,
    Metering,
    Mix,
    PathRecord,
    Phase,
    Record,
    Share,
)
from mixmark.harness.discover import power_caps
from mixmark.harness.discover.power_caps import Control
from mixmark.harness.discover.setup import Equipment
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed, paths, solo
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.measure.paths import SteadyCopies
from mixmark.harness.measure.phase import RESERVE, Part, attend
from mixmark.harness.measure.request_queue import Table
from mixmark.harness.measure.stages import BESIDE
from mixmark.harness.plan.placement import replanner
from mixmark.harness.plugins import experiments
from mixmark.harness.plugins.experiments import Attendant
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import memory
from mixmark.harness.worker.plugin_process import PolicyProcess, policy_of


@dataclass(frozen=True)
class PhaseRequest:
    """A phase to be measured."""

    phase: Phase
    idle_s: float
    """How long the meters read idle machines, before and after the phase."""
    mix: Mix | None
    """The mix of the run. None if it has none."""
    devices: Sequence[Device]
    """All devices of the run."""


@dataclass(frozen=True)
class PhaseFacts:
    """What was found out about a phase."""

    records: Sequence[Record] = ()
    connections: Sequence[Connection] = ()
    paths: Sequence[PathRecord | Absent] = ()
    found: Sequence[Found | Absent] = ()
    """What the experiment of the phase found out."""
    metering: Metering | None = None


@dataclass(frozen=True)
class PhaseStarted:
    """The first workers of a phase are started."""

    phase: Phase


@dataclass(frozen=True)
class WindowOpens:
    """The workers of a phase are loaded and warm. No seed of a window has left this process yet."""

    phase: Phase


@dataclass(frozen=True)
class StageStarted:
    """The worker of a share begins a stage, such as loading."""

    share: Share
    stage: str


PhaseEvent = PhaseStarted | StageStarted | WindowOpens | MixSnapshot
"""What happens while a phase is measured. Snapshots of a mixed phase follow each other."""


class Executor(Protocol):
    """The machine or the machines that a run measures."""

    @property
    def metered(self) -> bool:
        """Whether there is a meter."""

    def measure(self, request: PhaseRequest, notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        """Measures a phase. Yields all its records at once as soon as it is over, since the idle reading that follows
        may be interrupted, and then the readings of the meters, if there are any. On KeyboardInterrupt, which passes
        through, the workers are gone."""

    def measure_paths(self, known: Sequence[PathRecord | Absent]) -> Iterator[PathRecord | Metering | Absent]:
        """Measures the paths between memories that are not known yet, one after the other. A path that cannot be
        measured is yielded with its reason."""

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """How many bytes may be filled of each memory pool whose size is known."""

    def current_power(self) -> CurrentPower | None:
        """The power at this moment. None if it is not known."""


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
        """stack: keeps a cap of the power, and the processes of a policy and of copies, until it is closed."""
        phase, pids = request.phase, [*self.meters.pids]
        copies: SteadyCopies | None = None
        found: list[PathRecord | Absent] = []

        def staged(share: Share, stage: str) -> None:
            notify(StageStarted(share, stage))

        if phase.placement is None:
            opens = WindowOpens(phase)
            alone = attend(phase, self.equipment, self.folder, solo.drive, staged, pids, lambda parts: notify(opens))
            return PhaseFacts(alone)
        chooses = phase.load is not None or phase.policy != BY_PLAN
        policy = self.policy(phase.policy, stack, pids) if chooses else None
        planner = replanner(phase.placement, request.devices)
        attendant = Attendant()
        if phase.experiment:
            attendant = experiments.installed()[phase.experiment].attendant(phase, self)
        mix = attendant.mix(request.mix)
        assert mix is not None  # the run has one, or the experiment
        drive = mixed.local_driver(mix, phase, planner, notify, policy, attendant.source(planner))

        def on_ready(parts: Sequence[Part]) -> None:
            nonlocal copies
            if phase.copies:
                try:
                    copies, pid = stack.enter_context(paths.beside(phase.copies))
                    pids.append(pid)
                except MixmarkError as error:  # the path's failure, and not that of the suites
                    found.append(Absent(kind="path", name=BESIDE, reason=str(error)))
            attendant.ready(stack, pids)
            if phase.cap:
                stack.enter_context(power_caps.lowered(self.power, phase.cap))
            self.meters.rest(request.idle_s, ready=True)
            notify(WindowOpens(phase))
            drive.on_ready(parts)

        def drive_phase(parts: Sequence[Part]) -> None:
            try:
                with copies.going_on() if copies else nullcontext(), attendant.window():
                    drive(parts)
                power_caps.check_lowered(self.power if phase.cap else (), phase.cap or 1)
            except MixmarkError:
                for part in parts:
                    part.draft.completions = None
                raise

        records = attend(phase, self.equipment, self.folder, drive_phase, staged, pids, on_ready)
        window_ns = next((each.parent_window_ns for each in records if each.parent_window_ns), None)
        if copies and window_ns:
            found.append(copies.record(phase.name, *window_ns))
        own = tuple(
            each
            if isinstance(each, Absent)
            else Found(experiment=phase.experiment, phase=phase.name, facts=each.model_dump(mode="json"))
            for each in attendant.found(records)
        )
        return PhaseFacts(records, paths=found, found=own)

    def policy(self, name: str, stack: ExitStack, pids: list[int]) -> Callable[[Table, Table], Policy]:
        """Makes a policy of the run. Its process, if it has one, ends with the stack, and pids gets its id. Raises
        PluginError."""
        policy = policy_of(self.policies[name])
        if isinstance(policy, PolicyProcess):
            stack.callback(policy.end)
            pids.append(policy.pid)
        return policy

    def measure_paths(self, known: Sequence[PathRecord | Absent]) -> Iterator[PathRecord | Metering | Absent]:
        return paths.measure(known, meters=self.meters)

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        sizes = {device.memory_pool: device.memory_bytes for device in devices if device.memory_bytes}
        if HOST_POOL in sizes:
            sizes[HOST_POOL] = memory.available_bytes()
        return {pool: int(size * RESERVE) for pool, size in sizes.items()}

    def current_power(self) -> CurrentPower | None:
        return self.meters.current_power()
