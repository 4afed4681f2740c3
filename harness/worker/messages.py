"""The messages between a worker and its parent: one model for each request and each answer, one line of JSON a message.

A worker's first line is its `Hello`. The parent sends a request; the worker sends any number of `Stage` messages and
then the request's own answer, or a `Failed` in its place. While it runs feeds it may also ask a `Question`, which the
parent replies to at once. Answers come in the order of the requests, but for feeds that a runner with several slots has
in flight, which may overtake each other.

Arrays do not travel in messages: both sides name a file that the other one reads or writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import (
    Absent,
    Device,
    Domain,
    Failure,
    Limits,
    Precision,
    RateTrial,
    ScenarioName,
    SearchEnd,
    Tier,
    Trial,
)

PROTOCOL = 5  # counted up whenever a message changes its meaning or its fields
LONGEST_BYTES = 16 << 20  # a longer line is taken for garbage, so that a worker cannot fill its parent's memory

StageName = Literal[
    "loading",
    "preparing a batch size",
    "searching the best batch",
    "warming up",
    "searching the highest rate",
    "measuring",
    "measured",
    "auditing",
]


class Garbled(ValueError):
    """A line that is no message."""


class Incompatible(Exception):
    """The interpreter cannot run a worker of this Mixmark. The message says what it has, as in `X has no Mixmark`."""


class Message(BaseModel):
    """What one line holds. Messages do not change, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Setup(Message):
    """What a worker is started with, on its command line."""

    kind: Literal["adapters", "meters"]
    name: str
    """The name that the plugin gives itself."""
    spec: str = ""
    """`module:Class` or `file.py:Class`; empty: the worker looks the name up in its own interpreter's environment."""
    origin: str = ""
    """Where the parent found the spec."""
    options: dict[str, str] = {}
    cores: tuple[int, ...] = ()
    """The CPU cores that the process is pinned to before its plugin is loaded; empty: it may run on any."""


class SuiteChoice(Message):
    """A suite at a tier, as a worker builds it."""

    name: str
    spec: str
    tier: Tier
    options: dict[str, str] = {}


# --- what a worker says -----------------------------------------------------------------------------------------------


class Hello(Message):
    """The first line of a worker, before it loads its plugin."""

    mixmark: str
    """The version of Mixmark that its interpreter has."""
    protocol: int
    python: str
    packages: dict[str, str]
    """The versions of the packages that results disclose, in the worker's environment."""
    origin: str
    """`built in`, the distribution and version that the plugin comes from, or `command line`; empty where the worker's
    interpreter has none of this name."""
    spec: str
    source: str
    """What the plugin's code was read from; empty where that cannot be found."""
    sha256: str
    """The SHA-256 of it."""


class Missing(Message):
    """Stands in place of `Hello` where the interpreter lacks a module that a worker needs."""

    module: str


BOOTSTRAP = """
import json, os, sys, traceback
if cores := json.loads(sys.argv[2]).get("cores"):
    os.sched_setaffinity(0, cores)
try:
    from mixmark.harness.worker.child import main
except ImportError as error:
    traceback.print_exc()
    os.write(int(sys.argv[1]), json.dumps({"Missing": {"module": error.name or str(error)}}).encode() + b"\\n")
    sys.exit(1)
main()
"""
"""What a worker's interpreter is started with: whether it has a Mixmark is part of what it says. The process is pinned
first, because numpy starts threads when it is imported."""


class Answer(Message):
    """A message of the worker that ends a request."""


class Stage(Message):
    """What the worker begins to do; sent between a request and its answer."""

    name: StageName
    seal: str | None = None
    """With `measured`: the hash of the outputs that the window had. What is handed over later must have the same."""


class Question(Message):
    """What the worker asks while it runs feeds, and the parent replies to at once. key: the share that it is about."""

    key: str


class Outgrown(Question):
    """The outputs take more memory than is given to them: which of them stay? The reply is a `Key`."""

    done: int
    """How many feeds are finished."""
    seal: str
    """The hash of the digests of their outputs."""


class Failed(Message):
    """Stands in place of an answer."""

    failure: Failure
    misuse: bool = False
    """Whether the plugin says that the configuration is wrong: it raised a UsageError."""


class Discovered(Answer):
    devices: tuple[Device, ...]
    vendor: dict[str, str] = {}
    """Versions of drivers, firmware and runtimes, as the adapter's `disclose` tells them."""


class Opened(Answer):
    load_ns: int
    needed_bytes: int
    """The memory budgeted for weights, state and runtime at batch 1."""
    facts: dict[str, str]
    concurrency: int
    """How many feeds the runner takes at once."""


class Prepared(Answer):
    batch: int
    trials: tuple[Trial, ...] = ()
    search_ended_by: SearchEnd | None = None
    rate_per_s: float | None = None
    rate_trials: tuple[RateTrial, ...] = ()
    facts: dict[str, str]
    processes: tuple[int, ...] = ()
    """The processes that work for the runner and are not the worker's children."""


class Begun(Answer):
    pass


class Measured(Answer):
    ended_by: Literal["precision", "cap", "time"]


class Fed(Answer):
    """One feed is finished."""

    key: str
    serial: int
    issued_ns: int
    marks: list[int]
    """Each stamp in ns, followed by the units that were finished then."""
    digest: str
    """The digest of the answer in hexadecimal."""


class HandedOver(Answer):
    facts: dict[str, str]


class Audited(Answer):
    feeds: tuple[int, ...]
    values: tuple[float, ...]
    """The gate's metric of each feed."""
    problem: str
    """Why an answer could not be compared; empty where all could."""
    code: dict[str, str]
    """The SHA-256 of each file of Mixmark and of the suite that the process ran, by its path."""
    software: dict[str, str]
    """The versions of Python, numpy and torch that it ran them with."""


class Examined(Answer):
    """What `worker.runner_check` saw of a runner."""

    kinds: tuple[str, ...]
    yields: int
    feed_ns: int
    converting_ns: int
    overwritten: int
    closing_ns: int


class Closed(Answer):
    pass


class Covered(Answer):
    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]


class Readings(Answer):
    samples: tuple[tuple[float, int | None], ...]
    """Each sample's value and the source's own stamp, as in `contracts.Sample`."""
    cpu_ns: int
    """The CPU time of all reads so far."""


# --- what a worker is asked -------------------------------------------------------------------------------------------

AnswerT = TypeVar("AnswerT", bound=Answer)


class Request(Message, Generic[AnswerT]):
    """A message of the parent. Its type parameter is the type of its answer.

    key: the share that the request is about, which is the name of what was opened for it.
    """

    doing: ClassVar[str]
    """What the worker does until it names a stage, for the message of a hang or a death."""

    @classmethod
    def answered_by(cls) -> type[AnswerT]:
        metadata = cast(Any, cls.__mro__[1]).__pydantic_generic_metadata__
        return cast(type[AnswerT], metadata["args"][0])


class Discover(Request[Discovered]):
    """Asks for the devices that the adapter reaches."""

    doing = "discovering devices"


class Open(Request[Opened]):
    """Loads a suite on a device."""

    doing = "opening a suite"
    key: str
    device: Device
    suite: SuiteChoice
    precision: Precision
    scenario: ScenarioName
    free_bytes: int | None
    """A suite that needs more is refused before it is loaded; None: there is no limit."""
    reference: bool = False
    """Whether the auditor's reference is opened in place of the suite itself."""


class Prepare(Request[Prepared]):
    """Finds the best batch and the highest rate where they are asked for, and warms up."""

    doing = "making feeds"
    key: str
    scenario: ScenarioName
    batch: int | None
    """None: search the best one."""
    rate_per_s: float | None = None
    """The arrival rate of a server; None: search the highest one."""
    seed: int
    """The seed of the feeds that are run meanwhile, none of which is timed."""
    limits: Limits


class Begin(Request[Begun]):
    """The window begins: makes what its feeds are made from. It comes once the worker is warm."""

    doing = "making feeds"
    key: str
    pool: int
    """The seed of the suite's pool."""
    seed: int | None
    """The seed of the window, from which with the outputs the nonces of the feeds follow, and the arrivals; None: each
    nonce comes with the request for its feed."""
    ahead: bool = False
    """Whether the next feed is made while one runs, in a closed loop and where nonces come one by one."""


class Measure(Request[Measured]):
    """Runs a closed or an open loop."""

    doing = "measuring"
    key: str
    limits: Limits
    out: str
    """The file that the stamps are left in: the columns of `Completions`."""


class Feed(Request[Fed]):
    """Runs a feed."""

    doing = "running a feed"
    key: str
    serial: int
    nonce: int


class HandOver(Request[HandedOver]):
    """Leaves the outputs to the feeds in a file, as `outputs.Outputs.save` writes it."""

    doing = "handing over its outputs"
    key: str
    outputs: str


class Audit(Request[Audited]):
    """Compares the outputs in a file with those of the reference that is open."""

    doing = "making feeds"
    key: str
    batch: int
    seed: int
    """The seed of the window that the outputs are said to belong to."""
    outputs: str


class Examine(Request[Examined]):
    """Looks at what the runner yields, for the conformance kit."""

    doing = "examining what a runner yields"
    key: str
    seed: int
    """The seed of the feeds."""


class Close(Request[Closed]):
    """Closes everything that is open."""

    doing = "closing its suites"


class Cover(Request[Covered]):
    """Asks a meter what it covers."""

    doing = "saying what it covers"
    devices: tuple[Device, ...]


class Read(Request[Readings]):
    """Asks a meter for its samples since the last time."""

    doing = "reading"
    domain: Domain


class Reply(Message):
    """What the parent replies to a question. It overtakes the requests that the worker has not begun."""


class Key(Reply):
    key: int


# --- the line ---------------------------------------------------------------------------------------------------------

MESSAGES: dict[str, type[Message]] = {
    each.__name__: each
    for each in (
        *(Hello, Missing, Stage, Outgrown, Failed),
        *(Discovered, Opened, Prepared, Begun, Measured, Fed, HandedOver, Audited, Examined, Closed),
        *(Discover, Open, Prepare, Begin, Measure, Feed, HandOver, Audit, Examine, Close),
        *(Covered, Readings, Cover, Read),
        Key,
    )
}


def write(message: Message) -> bytes:
    """A message as one line. Raises ValueError for a number that is not finite."""
    return json.dumps({type(message).__name__: message.model_dump(mode="json")}, allow_nan=False).encode() + b"\n"


def read(line: bytes, messages: Mapping[str, type[Message]] = MESSAGES) -> Message:
    """The message of a line, which is one of those. Raises Garbled for anything else."""
    try:
        ((name, body),) = json.loads(line).items()
        return messages[name].model_validate(body)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        cause = "a field is wrong" if isinstance(error, ValidationError) else "it is no message"
        raise Garbled(f"{cause}: {_start(line)}") from error


def greeting(line: bytes) -> Hello:
    """The first line of a worker. Raises Incompatible for another Mixmark or none, Garbled for anything else.

    Versions are looked at before the rest: the Hello of another version may have other fields.
    """
    try:
        ((name, body),) = json.loads(line).items()
        if name == "Missing":
            module = str(body["module"])
            raise Incompatible("has no Mixmark" if module.startswith("mixmark") else f"lacks {module}")
        if name != "Hello":
            raise Garbled(f"a greeting was due, {str(name)[:40]!a} came")
        told = str(body["mixmark"])[:40], body["protocol"]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise error if isinstance(error, Garbled) else Garbled(f"a greeting was due: {_start(line)}") from error
    if told != (VERSION, PROTOCOL):
        theirs = f"Mixmark {told[0]} with protocol {told[1]!a:.20}"
        raise Incompatible(f"has {theirs}, but this is Mixmark {VERSION} with protocol {PROTOCOL}")
    hello = read(line)
    assert isinstance(hello, Hello)
    return hello


def _start(line: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in line[:80].decode(errors="replace"))
