"""The calls between the leading process and the agent of a host. `worker.calls` says how a call becomes a line.

An agent's first line says which Mixmark it is of. Then it takes the calls of `AgentCalls`, one after the other, and
replies in that order; only `ping` and `grant` are served at once, also while another call is. Meanwhile it calls the
leading process (`LeaderCalls`), which never replies. All ids are the names that the agent's own host uses, and all
timestamps are of its clock: the leading process translates them (`names`).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field, PlainSerializer

from mixmark.harness import VERSION
from mixmark.harness.capabilities.hosts.dispatcher import Grant, Tally
from mixmark.harness.contracts.schema import Absent, Domain, Phase, ServiceLimits, System, Tier, digest_of_code
from mixmark.harness.contracts.text import Reason
from mixmark.harness.machine.devices import Found
from mixmark.harness.measure.mixed import LoadedSuites
from mixmark.harness.plan.phases import Workload
from mixmark.harness.worker import sealed
from mixmark.harness.worker.calls import Garbled, Message, start_of
from mixmark.harness.worker.messages import Incompatible, Natural, StageName

PART_BYTES = 4 << 20  # of a file in one message
Nanoseconds = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]


def _by_pair(name: str) -> tuple[BeforeValidator, PlainSerializer]:
    """Sends a dataclass whose field of this name is a mapping by suite and device. JSON has no such keys, so the field
    travels as a list of [suite, device, value]."""

    def restored(value: Any) -> Any:
        if not isinstance(value, dict):  # the sender's own object
            return value
        return value | {name: {(suite, device): item for suite, device, item in value[name]}}

    def sent(value: Any) -> dict[str, Any]:
        return {**vars(value), name: [(*pair, item) for pair, item in getattr(value, name).items()]}

    return BeforeValidator(restored), PlainSerializer(sent)


# --- what an agent does -----------------------------------------------------------------------------------------------


class HostQuery(Message):
    """What is looked for on each host; by default its devices, which need no suite and no seed."""

    adapters: tuple[str, ...] = ()
    """The adapters that the command line names; empty: all."""
    tier: Tier = "smoke"
    weights: tuple[str, ...] = ()
    """SUITE=PATH each: a checkpoint that lies at the same path on every host."""
    suites: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The options of the suites that have sections of their own here. A path in them is the same on every host."""
    files: dict[str, dict[str, str]] = Field(default_factory=dict)
    """For some suites the SHA-256 of each file that they read, by its path: the host must have the same."""
    split_cpu: str | None = None
    seed: int | None = None
    timeout_s: float = 600
    """The limit on a worker, as `mixmark run --timeout`."""
    measures: bool = False
    """Whether phases will be measured: then no other run may use the host."""
    run: str = ""
    """Identifies the run. The first agent of a run on a machine takes the machine's lock."""
    leader: str = ""
    """The machine of the leading process, as in `HostDescription.machine`: that process has its lock."""


class HostDescription(Message):
    found: Found
    system: System
    suites: tuple[Workload, ...]
    machine: str
    """Identifies the machine, as `machine_lock.identity` does."""


class PhaseMeasured(Message):
    records: tuple[dict[str, Any], ...]
    """The fields of each `Record` but its timestamps, which are in a file."""
    sha256: dict[str, str]
    """The hash of each file of timestamps and outputs."""
    sent_bytes: Natural
    """The bytes that the agent sent while the phase was measured."""
    received_bytes: Natural


class MeterSamples(Message):
    metering: dict[str, Any] | None
    """The fields of the `Metering` but its samples, which are in a file. None if the host reads no meter."""
    sha256: dict[str, str]


class AgentCalls(Protocol):
    """What each agent does. It also takes the calls of installed experiments (`Experiment.on_host`)."""

    def describe_host(self, *, query: HostQuery) -> HostDescription:
        """Finds the devices and the software of the host. It is the first call."""

    def open_meters(self) -> tuple[Domain | Absent, ...]:
        """Opens the meters of the host. Returns what they cover, and the sources that cannot be read."""

    def free_memory(self) -> dict[str, int]:
        """How many bytes of each memory pool may be filled."""

    def end_plugins(self) -> None:
        """Ends the processes of all plugins until the next phase."""

    def measure_idle(self, *, seconds: float, begins: bool) -> None:
        """Lets the meters read an idle host. begins: a phase follows, so the meters begin to keep samples."""

    def measure_phase(self, *, phase: Phase, service: dict[str, ServiceLimits]) -> PhaseMeasured:
        """Measures the host's tasks of a phase. The files of the phase arrive before the reply.

        phase: with the tasks of this host; the placement of a mix has only its rates. service: the time limits of a
        feed of each suite of a mix.
        """

    def read_meters(self, *, phase: str) -> MeterSamples:
        """The samples of the meters since the phase began."""

    def grant(self, *, grant: Grant, ends_ns: Nanoseconds, problem: Reason | None = None) -> None:
        """The part of a mix that the host may do from now on. The first grant begins the mixed phase, and each replaces
        the previous one. ends_ns: when the phase ends, on the host's clock: one moment for all hosts, first the latest
        possible one. problem: why the phase cannot begin: the routes that all hosts together have loaded do not make a
        mix."""

    def ping(self, *, sent_ns: int) -> tuple[int, Nanoseconds]:
        """Returns sent_ns and the agent's clock when the ping arrived."""


# --- what the leading process does ------------------------------------------------------------------------------------


class PhaseReports(Protocol):
    """What an agent reports while it measures a phase."""

    def stage(self, *, key: str, name: StageName) -> None:
        """The stage of the worker of a share."""

    def mix_ready(self, *, loaded: Annotated[LoadedSuites, *_by_pair("quanta")]) -> None:
        """All workers of a mixed phase are loaded and warm, and wait for the first grant."""

    def mix_progress(self, *, tally: Annotated[Tally, *_by_pair("paces")]) -> None:
        """The part of a mix that the host has done so far. Replaces the previous one."""


class LeaderCalls(PhaseReports, Protocol):
    def file_part(self, *, name: str, base64: str) -> None:
        """The next part of a file: `<key>.npz`, `<key>.handed.npz` and `<phase>.energy.npz` as in a result folder, and
        `<name>.log` of a worker."""


# --- the start of an agent --------------------------------------------------------------------------------------------


def arrival() -> bytes:
    """The first line of an agent of this installation: the version, and the SHA-256 over the files of Mixmark there."""
    return json.dumps({"mixmark": VERSION, "code": digest_of_code(sealed.own().files)}).encode() + b"\n"


def check_arrival(line: bytes) -> None:
    """Raises Garbled if a line is not the first one of an agent, and Incompatible if another Mixmark sent it."""
    try:
        fields = json.loads(line)
        version, code = str(fields["mixmark"])[:40], str(fields["code"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Garbled(
            f"its first line is {start_of(line)[:40]!r}, as if a login or a start of Python printed it"
        ) from error
    if (version, code) != (VERSION, digest_of_code(sealed.own().files)):
        raise Incompatible(f"has Mixmark {version} with other files than Mixmark {VERSION} of this host")
