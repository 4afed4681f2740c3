"""The messages between a worker and its parent: one model for each request and each reply, one line of JSON each.

A worker's first line is its `Hello`. For each request the worker sends any number of `Stage` messages and then the
reply, or `Failed` in its place. Replies come in the order of the requests, but feeds that a runner has in flight at the
same time may overtake each other. While feeds run the worker may send `OutputsFull`; the parent sends a `SamplingKey`
at once.

`Measure` opens a window and carries its seed; `Sealed` closes it. Between the two the worker may send `OutputsFull` and
`FeedFinished`, and nothing else. The parent takes the time when `Measure` leaves and when `Sealed` arrives.

Arrays do not travel in messages: a message names a file that the sender wrote or that the receiver is to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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

PROTOCOL = 8  # counted up whenever a message changes its meaning or its fields
MAX_CONCURRENCY = 64
LONGEST_BYTES = 16 << 20  # a longer line is an error, so that a worker cannot fill its parent's memory

StageName = Literal[
    "loading",
    "preparing a batch size",
    "searching the best batch",
    "warming up",
    "searching the highest rate",
    "measuring",
    "auditing",
]


class Garbled(ValueError):
    """A line that is not a message."""


class Incompatible(Exception):
    """The other interpreter lacks this version of Mixmark. The message completes a sentence: `has no Mixmark`."""


class Message(BaseModel):
    """One line of the protocol. Messages are frozen, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Setup(Message):
    """What a worker is started with: an argument of its command line."""

    kind: Literal["adapters", "meters"]
    name: str
    """The name that the plugin gives itself."""
    spec: str = ""
    """`module:Class` or `file.py:Class`. Empty: the worker looks the name up in its own environment."""
    origin: str = ""
    """The distribution in which the parent found the spec."""
    options: dict[str, str] = {}
    cores: tuple[int, ...] = ()
    """The CPU cores to which the process is pinned before its plugin is loaded; empty: all cores."""


class SuiteChoice(Message):
    """What a worker builds a suite from."""

    name: str
    spec: str
    tier: Tier
    options: dict[str, str] = {}


# --- from the worker --------------------------------------------------------------------------------------------------


class Hello(Message):
    """The first line of a worker, sent before it loads its plugin."""

    mixmark: str
    """The version of Mixmark in its environment."""
    protocol: int
    python: str
    packages: dict[str, str]
    """The versions of the disclosed packages in its environment."""
    origin: str
    """`built in`, the plugin's distribution and version, or `command line`; empty: the worker has no such plugin."""
    spec: str
    source: str
    """The file or package whose code was hashed; empty: not found."""
    sha256: str
    """The SHA-256 of that code."""


class Missing(Message):
    """Sent in place of `Hello` if the interpreter lacks a module that a worker needs."""

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
"""The code that a worker's interpreter is started with. It reports whether that interpreter has Mixmark. It pins the
process first, because numpy starts threads when it is imported."""


class Reply(Message):
    """The worker's reply to a request."""


class Stage(Message):
    """What the worker begins to do; sent between a request and its reply."""

    name: StageName


class InWindow(Message):
    """What a worker may send while feeds run. key: the share that it is about."""

    key: str


class OutputsFull(InWindow):
    """The outputs of a share exceed their memory. The parent sends the `SamplingKey` that decides which ones stay."""

    done: int
    """The number of finished feeds."""
    commitment: str
    """The commitment to their outputs."""


class FeedFinished(InWindow):
    """A feed of a window is finished. Sent only if `Measure` asks for it."""

    serial: int = Field(ge=0)
    digest: str = Field(max_length=64)
    """The digest of the output, in hexadecimal."""


class Sealed(InWindow):
    """Closes a window. No feed and no output can be added to it afterwards."""

    commitment: str = Field(max_length=64)
    """The commitment to all outputs of the window, which must match those handed over later; empty: none are kept."""


class Failed(Message):
    """Sent in place of a reply."""

    failure: Failure
    misuse: bool = False
    """Whether the plugin raised a UsageError: the configuration is wrong."""


class Discovered(Reply):
    devices: tuple[Device, ...]
    vendor: dict[str, str] = {}
    """The versions of drivers, firmware and runtimes from the adapter's `disclose`."""


class Opened(Reply):
    load_ns: int = Field(ge=0)
    needed_bytes: int = Field(ge=0)
    """The memory budgeted for weights, state and runtime at batch 1."""
    facts: dict[str, str]
    concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)
    """The number of feeds that the runner takes at once."""


class Prepared(Reply):
    batch: int = Field(ge=1)
    trials: tuple[Trial, ...] = ()
    search_ended_by: SearchEnd | None = None
    rate_per_s: float | None = Field(default=None, gt=0)
    rate_trials: tuple[RateTrial, ...] = ()
    facts: dict[str, str]
    processes: tuple[int, ...] = ()
    """The ids of processes that work for the runner and are not descendants of the worker."""


class Begun(Reply):
    pass


class Measured(Reply):
    pass


class Fed(Reply):
    """One feed is finished."""

    key: str
    serial: int
    issued_ns: int
    yields: list[int]
    """For each yield its timestamp in ns and the number of units that it finished, in turn."""
    digest: str
    """The digest of the output, in hexadecimal."""


class HandedOver(Reply):
    facts: dict[str, str]


class OutputsCompared(Reply):
    feeds: tuple[int, ...]
    values: tuple[float, ...]
    """The gate's metric of each feed."""
    problem: str
    """Why an output could not be compared; empty: all were."""
    software: dict[str, str]
    """The versions of Python, numpy and torch in the process."""


class RunnerChecked(Reply):
    """What `worker.runner_check` saw of a runner."""

    types: tuple[str, ...]
    """The types of the yielded values, without repetition, as in `numpy.ndarray`."""
    yields: int
    """The number of yields of one feed."""
    feed_ns: int
    """The time of that feed, conversions included."""
    converting_ns: int
    """The part of it in which yielded values were converted to arrays on the host."""
    overwritten: int
    """The number of yielded arrays that changed while later feeds ran."""
    closing_ns: int
    """The time to close a feed's iterator after its first yield."""


class Closed(Reply):
    pass


class Covered(Reply):
    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]


class Readings(Reply):
    samples: tuple[tuple[float, int | None], ...]
    """For each sample its value and the source's own timestamp, as in `contracts.protocols.Sample`."""
    cpu_ns: int
    """The process's CPU time for all reads so far."""


# --- from the parent --------------------------------------------------------------------------------------------------

ReplyT = TypeVar("ReplyT", bound=Reply)


class Request(Message, Generic[ReplyT]):
    """A message of the parent. Its type parameter is the type of the reply. key: the share that it is about."""

    doing: ClassVar[str]
    """What the worker does until it sends a stage, for the message about a hang or a death."""

    @classmethod
    def reply_type(cls) -> type[ReplyT]:
        metadata = cast(Any, cls.__mro__[1]).__pydantic_generic_metadata__
        return cast(type[ReplyT], metadata["args"][0])


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
    """A suite that needs more memory is refused before it is loaded; None: no limit."""
    reference: bool = False
    """Whether to open the suite's reference, for an audit, in place of the suite."""


class Prepare(Request[Prepared]):
    """Finds the best batch and the highest rate if none is given, and warms up."""

    doing = "making feeds"
    key: str
    scenario: ScenarioName
    batch: int | None
    """None: find the best one."""
    rate_per_s: float | None = None
    """The arrival rate of the server scenario; None: find the highest one."""
    seed: int
    """The seed of the feeds that are run meanwhile, which no window has."""
    limits: Limits


class Begin(Request[Begun]):
    """Prepares the window, once the worker is warm: makes the pool of its feeds."""

    doing = "making feeds"
    key: str
    pool: int
    """The seed of the suite's pool."""
    ahead: bool = False
    """Whether the next feed is made while another one runs."""


class Measure(Request[Measured]):
    """Opens a window and runs a closed or an open loop in it. The worker sends `Sealed` before it replies."""

    doing = "measuring"
    key: str
    seed: int
    """The seed of the window, from which the arrivals and, with the outputs, the nonces of the feeds are derived."""
    limits: Limits
    report_feeds: bool = False
    """Whether to send `FeedFinished` at the end of each feed."""
    out: str
    """The file to write the timestamps to: the columns of `Completions`."""


class Feed(Request[Fed]):
    """Runs a feed."""

    doing = "running a feed"
    key: str
    serial: int
    nonce: int


class HandOver(Request[HandedOver]):
    """Writes the outputs of the window to a file, in the form of `outputs.Outputs.save`."""

    doing = "handing over its outputs"
    key: str
    outputs: str


class CompareOutputs(Request[OutputsCompared]):
    """Compares the outputs in a file with those of the open reference."""

    doing = "making feeds"
    key: str
    batch: int
    seed: int
    """The seed of the window from which the outputs are."""
    outputs: str
    sha256: str
    """The hash of the file. The worker compares it with the bytes that it reads."""


class CheckRunner(Request[RunnerChecked]):
    """Checks what the runner yields, for the conformance kit."""

    doing = "checking what a runner yields"
    key: str
    seed: int
    """The seed of the feeds."""


class Close(Request[Closed]):
    """Closes everything that is open."""

    doing = "closing its suites"


class Cover(Request[Covered]):
    """Asks a meter for its domains."""

    doing = "listing its domains"
    devices: tuple[Device, ...]


class Read(Request[Readings]):
    """Asks a meter for its samples since the last time."""

    doing = "reading"
    domain: Domain


class SamplingKey(Message):
    """The parent's reaction to `OutputsFull`. It overtakes the requests that the worker has not begun."""

    key: int


# --- the line ---------------------------------------------------------------------------------------------------------

MESSAGES: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        *(Hello, Missing, Stage, OutputsFull, FeedFinished, Sealed, Failed),
        *(Discovered, Opened, Prepared, Begun, Measured, Fed, HandedOver, OutputsCompared, RunnerChecked, Closed),
        *(Discover, Open, Prepare, Begin, Measure, Feed, HandOver, CompareOutputs, CheckRunner, Close),
        *(Covered, Readings, Cover, Read),
        SamplingKey,
    )
}


def write(message: Message) -> bytes:
    """A message as one line. Raises ValueError for a number that is not finite."""
    return json.dumps({type(message).__name__: message.model_dump(mode="json")}, allow_nan=False).encode() + b"\n"


def read(line: bytes, kinds: Mapping[str, type[Message]] = MESSAGES) -> Message:
    """Parses a line as a message of one of these kinds. Raises Garbled."""
    try:
        ((name, body),) = json.loads(line).items()
        return kinds[name].model_validate(body)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        cause = "a field is wrong" if isinstance(error, ValidationError) else "not a message"
        raise Garbled(f"{cause}: {_start(line)}") from error


def greeting(line: bytes) -> Hello:
    """Parses the first line of a worker. Raises Incompatible for another version of Mixmark or none, else Garbled.

    Versions are compared before the fields are validated, because another version's `Hello` may have other fields.
    """
    try:
        ((name, body),) = json.loads(line).items()
        if name == "Missing":
            module = str(body["module"])
            raise Incompatible("has no Mixmark" if module.startswith("mixmark") else f"lacks {module}")
        if name != "Hello":
            raise Garbled(f"Hello was due, but {str(name)[:40]!a} came")
        mixmark, protocol = str(body["mixmark"])[:40], body["protocol"]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise error if isinstance(error, Garbled) else Garbled(f"Hello was due: {_start(line)}") from error
    if (mixmark, protocol) != (VERSION, PROTOCOL):
        theirs = f"Mixmark {mixmark} with protocol {protocol!a:.20}"
        raise Incompatible(f"has {theirs}, but this is Mixmark {VERSION} with protocol {PROTOCOL}")
    hello = read(line)
    assert isinstance(hello, Hello)
    return hello


def _start(line: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in line[:80].decode(errors="replace"))
