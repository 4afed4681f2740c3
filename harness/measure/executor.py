"""What measures the phases of a run: this machine (`measure.local_executor`), or other machines, by a capability."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Protocol

from mixmark.harness.contracts.schema import Connection, Device, Fact, Metering, Mix, Phase, Record, Share
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.worker.calls import P, T


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
    metering: Metering | None = None
    found: Sequence[Fact] = ()
    """What the experiment of the phase found out."""


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


class HostCalls(Protocol):
    """The hosts of a run over several, on which an experiment calls the methods of its `on_host`."""

    @property
    def present(self) -> Sequence[str]:
        """The names of the hosts that are not lost."""

    def ask(self, method: Callable[Concatenate[Any, P], T], host: str, *args: P.args, **arguments: P.kwargs) -> T:
        """Calls a method on a host. Arguments and reply have the run's names. Raises MixmarkError if there is no
        reply."""


class Executor(Protocol):
    """The machine or the machines that a run measures."""

    @property
    def metered(self) -> bool:
        """Whether there is a meter."""

    @property
    def meters(self) -> Meters | None:
        """The meters of this machine. None if the hosts read their own."""

    @property
    def hosts(self) -> HostCalls | None:
        """None: this machine alone is measured."""

    def rounds(self, phases: Sequence[Phase]) -> Iterable[Sequence[Phase]]:
        """The phases in the order to measure them. Those of a round share no silicon and go on at the same time."""

    def measure(self, requests: Sequence[PhaseRequest], notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        """Measures the phases of a round. Yields all records at once as soon as it is over, since the idle reading that
        follows may be interrupted, and then the readings of the meters, if there are any. On KeyboardInterrupt, which
        passes through, the workers are gone."""

    def end_plugins(self) -> None:
        """Ends the processes of all plugins until the next phase, so that none runs while outputs are drawn."""

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """How many bytes may be filled of each memory pool whose size is known."""
