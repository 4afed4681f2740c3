"""The messages between the leading process and the agent of a host: one line of JSON each.

The agent serves one request after the other. It sends the reply, or a worker's message `Failed` in its place. `Ping`,
`BeginMix` and `GrantWork` are no requests: they reach the agent while it serves one. All ids in messages are those of
the agent's own host, and all timestamps are those of its clock.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import Phase, Rate, ServiceLimits, System, Tier
from mixmark.harness.contracts.text import Reason
from mixmark.harness.discover.devices import Found
from mixmark.harness.measure.dispatch import Grant
from mixmark.harness.plan.phases import Workload
from mixmark.harness.worker import isolation
from mixmark.harness.worker.messages import Covered, Failed, Garbled, Incompatible, Message, StageName

# --- from the leading process to the agent ----------------------------------------------------------------------------


class DescribeHost(Message):
    """Asks for the devices and the software of the host. It is the first request. The reply is `HostDescription`."""

    adapters: tuple[str, ...]
    """The adapters that the command line names; empty: all."""
    tier: Tier
    weights: tuple[str, ...]
    """SUITE=PATH each: a checkpoint that lies at the same path on every host."""
    split_cpu: str | None
    seed: int | None
    timeout_s: float
    measures: bool
    """Whether phases will be measured: then no other run may use the host."""
    run: str = ""
    """Identifies the run. The first agent of a run on a machine takes the machine's lock."""
    leader: str = ""
    """The machine of the leading process, as in `HostDescription.machine`: that process has its lock."""


class OpenMeters(Message):
    """Asks the host to open its meters. The reply is a worker's message, `Covered`."""


class FreeMemory(Message):
    """Asks how many bytes of each memory pool may be filled. The reply is `MemoryPools`."""


class MeasureIdle(Message):
    """Asks the meters to go on reading while nothing runs. The reply is `IdleMeasured`."""

    seconds: float
    begins: bool
    """Whether a phase follows: the meters begin to keep samples now."""


class MeasurePhase(Message):
    """Asks for the measurement of this host's tasks of a phase. The reply is `PhaseMeasured`."""

    phase: Phase
    """With the tasks of this host. The placement of a mix holds only its rates."""
    service: dict[str, ServiceLimits]
    """The time limits of the feeds of each suite of a mix."""
    host_fraction: float
    """See `Placement.host_fraction`."""


class ReadMeters(Message):
    """Asks for the samples of the meters since the phase began. The reply is `MeterSamples`."""

    phase: str


class GrantWork(Message):
    """The part of a mix that the host may do from now on. It replaces the previous grant."""

    grant: Grant
    lasts_ns: int | None
    """How long the phase lasted, if it is over."""


class BeginMix(GrantWork):
    """Begins a mixed phase on all hosts, with the first grant."""

    problem: Reason | None = None
    """Why the phase cannot begin: the routes that all hosts together have loaded do not make a mix."""


class Ping(Message):
    """The reply, `Pong`, comes at once, also while a request is served."""

    sent_ns: int


# --- from the agent to the leading process ----------------------------------------------------------------------------


class Arrived(Message):
    """The first line of an agent."""

    mixmark: str
    code: str
    """The SHA-256 over the files of Mixmark there, each with its own hash."""


class HostDescription(Message):
    found: Found
    system: System
    suites: tuple[Workload, ...]
    machine: str
    """The same for all agents on one machine, and for no others: `machine.identity`."""


class MemoryPools(Message):
    pool_bytes: dict[str, int]


class IdleMeasured(Message):
    pass


class StageBegun(Message):
    """A new stage of a share's worker: the worker's message `Stage`, with the share."""

    key: str
    stage: StageName


class MixReady(Message):
    """All workers of a mixed phase are loaded and warm, and wait for `BeginMix`."""

    rates: tuple[Rate, ...]
    """The rate of each loaded pair of suite and device."""
    quanta: tuple[Annotated[int, Field(gt=0)], ...]
    """The units of a feed of each."""
    concurrency: dict[str, Annotated[int, Field(gt=0)]]
    """The number of feeds that each device runs at a time."""


class MixProgress(Message):
    """The part of a mix that the host has done so far, as in `dispatch.Tally`."""

    finished: dict[str, Annotated[float, Field(ge=0)]]
    handed_out: dict[str, Annotated[float, Field(ge=0)]]
    paces: dict[str, dict[str, Annotated[float, Field(gt=0)]]]
    """The rate of each device at each suite, relative to its solo rate."""
    unfinished_s: dict[str, Annotated[float, Field(ge=0)]]
    feeds: dict[str, Annotated[int, Field(ge=0)]]
    """The finished feeds of each suite."""
    running: dict[str, str]
    """The suite that each device runs; empty while the device waits."""


class FilePart(Message):
    """A part of a file. The parts of a file come in order, before the reply that holds its hash."""

    name: str
    """`<key>.npz`, `<key>.outputs.npz` and `<phase>.energy.npz` as in a result folder; `<name>.log` of a worker."""
    base64: str


class PhaseMeasured(Message):
    records: tuple[dict[str, Any], ...]
    """The fields of each `Record`, without its timestamps, which came in a file."""
    sha256: dict[str, str]
    """The hash of each file of timestamps and outputs."""
    sent_bytes: int = Field(ge=0)
    """The bytes that the agent sent while the phase was measured."""
    received_bytes: int = Field(ge=0)


class MeterSamples(Message):
    metering: dict[str, Any] | None
    """The fields of the `Metering`, without its samples, which came in a file. None if the host reads no meter."""
    sha256: dict[str, str]


class Pong(Message):
    sent_ns: int
    """The timestamp of the ping."""
    theirs_ns: int = Field(ge=-(1 << 62), le=1 << 62)
    """The agent's clock when the ping came."""


MESSAGES: dict[str, type[Message]] = {
    message.__name__: message
    for message in (
        *(DescribeHost, OpenMeters, FreeMemory, MeasureIdle, MeasurePhase, ReadMeters, GrantWork, BeginMix, Ping),
        *(HostDescription, Covered, MemoryPools, IdleMeasured, StageBegun, MixReady, MixProgress, FilePart),
        *(PhaseMeasured, MeterSamples, Pong, Failed),
    )
}
"""All messages but `Arrived`, by their names."""


def arrived() -> Arrived:
    """The first message of an agent of this installation."""
    return Arrived(mixmark=VERSION, code=isolation.own_code())


def arrival(line: bytes) -> Arrived:
    """Parses the first line of an agent. Raises Garbled if it is no `Arrived`, and Incompatible if another Mixmark sent
    it. Versions are compared first, because the message of another Mixmark may have other fields."""
    try:
        fields = json.loads(line)["Arrived"]
        version, code = str(fields["mixmark"])[:40], str(fields["code"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Garbled(
            f"its first line is {line[:40].decode(errors='replace')!a}, as if a login or a start of Python printed it"
        ) from error
    own = arrived()
    if version != own.mixmark:
        raise Incompatible(f"has Mixmark {version}, and this host {own.mixmark}")
    if code != own.code:
        raise Incompatible(f"has other files of Mixmark {version} than this host")
    return own
