"""A run as it is requested and prepared, and the machines that it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.devices import Found
from mixmark.harness.machine.setup import Suites, Workbench
from mixmark.harness.measure.executor import Executor
from mixmark.harness.plan.phases import Workload
from mixmark.harness.plan.placement import Objective
from mixmark.harness.worker.handle import Worker


class Machines:
    """Other machines that the command line names in place of this one. Their options are in the manifest."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """given: the values of its options, by their names."""
        self.given = given

    def check(self) -> None:
        """Raises UsageError if no machine can be measured by these options. Nothing is waited for yet."""

    def find_devices(self, adapters: Sequence[str], stack: ExitStack) -> Found:
        """The devices that the adapters reach there; all adapters if none is named. Nothing is measured. Raises
        MixmarkError if there is no machine."""
        raise NotImplementedError

    def open(self, run: PreparedRun, stack: ExitStack) -> MeasuredMachine:
        """Opens the machines, which are measured until the stack is closed. Raises MixmarkError if there is none."""
        raise NotImplementedError


OTHER_MACHINES = "leave the options that name other machines away"


@dataclass(frozen=True)
class RunRequest:
    """The options of `mixmark run` that choose the measurements. Their help texts describe them."""

    suites: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    tier: schema.Tier = "edge"
    precisions: tuple[schema.Precision, ...] = ()
    bits: schema.WeightClass | None = None
    """The weight class. None: 16, or that of the precisions."""
    all_routes: bool = False
    scenarios: tuple[schema.ScenarioName, ...] = ()
    rate: float | None = None
    """Arrivals per second; infinite: the highest rate that keeps the latency limits."""
    runs: int = 1
    preset: str = "quick"
    mix: str | None = None
    objective: Objective = "throughput"
    split_cpu: str | None = None
    experiments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The experiments that are asked for, by their names, with the values of their options."""
    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The sections of suites that other options stand for. Without --suite and --mix, only these are measured."""
    machines: Machines | None = None
    """The machines that are measured in place of this one."""
    weights: tuple[str, ...] = ()
    out: Path | None = None
    seed: int | None = None
    resume: Path | None = None
    timeout_s: float = 600
    config: Path | None = None

    @property
    def weight_class(self) -> schema.WeightClass:
        return self.bits or 16

    def check(self) -> None:
        """Raises UsageError if options contradict each other."""
        choose_by_name("precision", self.precisions, schema.BITS_PER_WEIGHT)
        if self.precisions and self.bits:
            raise UsageError("--precision and --bits both choose number formats", hint="leave one of them away")
        if self.rate is not None and "server" not in self.scenarios:
            raise UsageError("--rate applies only to the server scenario", hint="add --scenario server")


@dataclass(frozen=True)
class PreparedRun:
    """A run that can begin as soon as the machine is free."""

    request: RunRequest
    """With the tier and the seed of the run that is resumed, if any."""
    resumed: schema.Result | None
    config: Config
    suites: Suites
    workloads: tuple[Workload, ...]
    mix: schema.Mix | None
    folder: Path
    """The result folder."""
    experiments: Mapping[str, Any] = field(default_factory=dict)
    """What the experiments of the run prepared, by their names."""
    clean: Worker | None = None
    """See `Auditor`."""
    own: Mapping[str, Worker] = field(default_factory=dict)
    """See `Auditor`."""


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine or the machines that a run measures."""

    bench: Workbench
    devices: tuple[schema.Device, ...]
    """All devices that the meters cover, measured or not."""
    domains: tuple[schema.Domain, ...]
    absent: tuple[schema.Absent, ...]
    """The meters that cannot be read."""
    executor: Callable[[Path, Mapping[str, Mapping[str, Any]]], Executor]
    """Where the phases of a run are measured. Arguments: its result folder, and what it keeps of its experiments."""
