"""The messages between the process that leads a run and the agent of a host: one line of JSON each.

The agent works off requests one after the other and sends an answer to each, or `Refused` in its place. `Ping`,
`Begin` and `Granted` are no requests: they reach it while it works. Names in all messages are those of the agent's own
host, and stamps are those of its clock.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import (
    Absent,
    Device,
    Domain,
    Environment,
    Phase,
    Rate,
    ServiceLimits,
    System,
    Tier,
)
from mixmark.harness.worker import isolation
from mixmark.harness.worker.messages import Incompatible, Message, StageName

PROTOCOL = 1  # counted up whenever a message changes its meaning or its fields


# --- what the agent is asked ------------------------------------------------------------------------------------------


class Look(Message):
    """Asks for the devices of the host. It is the first request. Answered by `Seen`."""

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
    leader: str = ""
    """The machine of the leading process, as in `Seen.machine`: that one holds its lock."""


class Cover(Message):
    """Asks the host to open its meters. Answered by `Covered`."""


class Room(Message):
    """Asks how many bytes may be filled of each memory pool. Answered by `Roomy`."""


class Rest(Message):
    """Asks the meters to go on reading while nothing runs. Answered by `Rested`."""

    seconds: float
    begins: bool
    """Whether the meters begin to keep samples now: it stands before a phase."""


class Attend(Message):
    """Asks for the measurement of a phase, or of this host's tasks of it. Answered by `Attended`."""

    phase: Phase
    """With the tasks of this host. Of the plan of a mix it holds the rates only."""
    service: dict[str, ServiceLimits]
    """How long the feeds of each suite of a mix may take."""
    host_fraction: float
    """See `Placement.host_fraction`."""


class Drain(Message):
    """Asks for what the meters read since the phase began. Answered by `Drained`."""

    phase: str


class Begin(Message):
    """The phase begins now, on all hosts: what this one does of a mix, as in `dispatch.Grant`."""

    units: dict[str, float]
    credit: dict[str, float]
    lasts_ns: int | None
    """How long the phase lasts from when it began; None: that is told later."""
    problem: str = ""
    """Why it cannot begin: what all hosts have loaded makes no mix. Empty: it begins."""


class Granted(Begin):
    """Takes the place of what was granted before."""


class Ping(Message):
    """Answered by `Pong` at once, whatever the agent does."""

    sent_ns: int


# --- what the agent says ----------------------------------------------------------------------------------------------


class Arrived(Message):
    """The first line of an agent."""

    mixmark: str
    protocol: int
    code: str
    """The SHA-256 over the files of Mixmark there, each with its own hash."""


class TargetOn(Message):
    """A device as one adapter sees it."""

    device: Device
    adapter: str
    options: dict[str, str]


class SuiteThere(Message):
    """A suite as the host has it."""

    name: str
    version: str
    weights: str


class Seen(Message):
    targets: tuple[TargetOn, ...]
    absent: tuple[Absent, ...]
    environments: dict[str, Environment]
    system: System
    suites: tuple[SuiteThere, ...]
    machine: str
    """The same for all agents that run on the same machine since it was started, and for no others."""


class Covered(Message):
    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]


class Roomy(Message):
    pool_bytes: dict[str, int]


class Rested(Message):
    pass


class Staged(Message):
    """What the worker of a share begins to do."""

    key: str
    stage: StageName


class Ready(Message):
    """All workers of a mixed phase are loaded and warm, and wait for `Begin`."""

    rates: tuple[Rate, ...]
    """The rates of what is loaded."""
    quanta: tuple[Annotated[int, Field(gt=0)], ...]
    """The units of a feed of each."""
    concurrency: dict[str, Annotated[int, Field(gt=0)]]
    """The number of feeds that each device runs at a time."""


class Tallied(Message):
    """What the host has done of a mix so far, as in `dispatch.Tally`."""

    finished: dict[str, Annotated[float, Field(ge=0)]]
    handed_out: dict[str, Annotated[float, Field(ge=0)]]
    paces: tuple[tuple[str, str, Annotated[float, Field(gt=0)]], ...]
    """Suite, device, pace."""
    feeds: dict[str, Annotated[int, Field(ge=0)]]
    """The finished feeds of each suite."""
    running: dict[str, str]
    """The suite that each device runs; empty where it waits."""


class Blob(Message):
    """A part of a file. The parts of a file come in order, before the answer that speaks of it."""

    name: str
    """`<key>.npz`, `<key>.answers.npz` and `<phase>.energy.npz` as in a result folder; `<name>.log` of a worker."""
    base64: str


class Attended(Message):
    records: tuple[dict[str, Any], ...]
    """The fields of each `Record`, without its stamps, which came in a file."""
    sha256: dict[str, str]
    """The hash of each file of them."""
    sent_bytes: int = Field(ge=0)
    """What the agent sent to the leading process while the phase was measured."""
    received_bytes: int = Field(ge=0)


class Drained(Message):
    metering: dict[str, Any] | None
    """The fields of the `Metering`, without its samples, which came in a file. None where the host reads no meter."""
    sha256: dict[str, str]


class Pong(Message):
    sent_ns: int
    """The stamp of the ping."""
    theirs_ns: int = Field(ge=-(1 << 62), le=1 << 62)
    """The agent's clock when it came."""


class Refused(Message):
    """Stands in place of an answer: what the agent could not do, and why."""

    message: str
    hint: str = ""


MESSAGES: dict[str, type[Message]] = {
    each.__name__: each
    for each in (
        *(Look, Cover, Room, Rest, Attend, Drain, Begin, Granted, Ping),
        *(Arrived, Seen, Covered, Roomy, Rested, Staged, Ready, Tallied, Blob, Attended, Drained, Pong, Refused),
    )
}


def arrived() -> Arrived:
    """What an agent of this installation says first."""
    return Arrived(mixmark=VERSION, protocol=PROTOCOL, code=isolation.own_code())


def check_arrival(line: bytes) -> None:
    """Raises Incompatible where the first line of an agent is not that of the same Mixmark. Another version may have
    other fields."""
    try:
        ((name, body),) = json.loads(line).items()
        told = str(body["mixmark"])[:40], str(body["protocol"])[:20], str(body["code"])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise Incompatible("does not say which Mixmark it has") from error
    own = arrived()
    if name != "Arrived" or told[:2] != (own.mixmark, str(own.protocol)):
        raise Incompatible(f"has Mixmark {told[0]} with protocol {told[1]}, and this host {VERSION} with {PROTOCOL}")
    if told[2] != own.code:
        raise Incompatible(f"has other files of Mixmark {VERSION} than this host")
