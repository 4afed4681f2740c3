"""The calls between a worker and its parent. `calls` says how a call becomes a line.

A worker's first line is its `Hello`. Then it takes the calls of its plugin's kind (`CALLS`), one after the other, and
replies in that order; only feeds that a runner has in flight at the same time may overtake each other. Meanwhile it
may call its parent (`ParentCalls`): `stage` while nothing is timed, and the calls of `Window` while feeds run.

`measure` opens a window and carries its seed, and `sealed` closes the window. The parent takes the time when `measure`
leaves and when `sealed` arrives. In between the worker may call `outputs_full` and `feed_finished`, and nothing else.

Arrays do not travel in lines: an argument names the file that the caller wrote, or that the worker is to write.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Annotated, Literal, Protocol

from pydantic import Field, JsonValue

from mixmark.harness import VERSION
from mixmark.harness.contracts import schema
from mixmark.harness.contracts.protocols import Meter, Watcher
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.registry import Kind
from mixmark.harness.worker.calls import Garbled, Later, Message, start_of

PACKAGES = """
    numpy torch triton onnxruntime onnxruntime-gpu onnx onnxscript openvino tensorrt safetensors
    intel-extension-for-pytorch mkl nvidia-ml-py nvidia-cublas-cu12 nvidia-cudnn-cu12 pydantic psutil
"""
"""The packages whose versions are disclosed."""
PROTOCOL = 14  # counted up whenever a call changes its meaning or its arguments
MAX_CONCURRENCY = 64

StageName = Literal[
    "loading",
    "preparing a batch size",
    "searching the best batch",
    "warming up",
    "searching the highest rate",
    "measuring",
    "auditing",
]
Digest = Annotated[str, Field(max_length=64)]
"""A SHA-256 or the start of one, in hexadecimal."""
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Incompatible(Exception):
    """The other interpreter lacks this version of Mixmark. The message completes a sentence: `has no Mixmark`."""


# --- the start of a worker --------------------------------------------------------------------------------------------


class Setup(Message):
    """What a worker is started with: an argument of its command line."""

    kind: Kind
    name: str
    """The name that the plugin gives itself."""
    spec: str = ""
    """`module:Class` or `file.py:Class`. If empty, the worker looks the name up in its own environment."""
    options: dict[str, str] = Field(default_factory=dict)
    cores: tuple[int, ...] = ()
    """The CPU cores to which the process is pinned before its plugin is loaded; empty: all cores."""


BOOTSTRAP = """
import json, os, sys, traceback
if cores := json.loads(sys.argv[2]).get("cores"):
    os.sched_setaffinity(0, cores)
try:
    from mixmark.harness.worker.child import main
except ImportError as error:
    traceback.print_exc()
    os.write(int(sys.argv[1]), json.dumps({"missing": error.name or str(error)}).encode() + b"\\n")
    sys.exit(1)
main()
"""
"""The code that a worker's interpreter is started with. It reports whether that interpreter has Mixmark. It pins the
process first, because numpy starts threads when it is imported."""


class Hello(Message):
    """The first line of a worker, sent before it loads its plugin."""

    mixmark: str
    """The version of Mixmark in its environment."""
    protocol: int
    python: str
    packages: dict[str, str]
    """The versions of the disclosed packages in its environment."""


def python_version() -> str:
    """The implementation and version of this interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def package_versions() -> dict[str, str]:
    """The versions of the disclosed packages in this interpreter's environment."""
    return {name: version for name in PACKAGES.split() if (version := _version(name))}


def _version(distribution: str) -> str | None:
    try:
        return plain(importlib.metadata.version(distribution), 40)
    except importlib.metadata.PackageNotFoundError:
        return None


def greeting(line: bytes) -> Hello:
    """Parses the first line of a worker. Raises Incompatible for another version of Mixmark or none, else Garbled.

    Versions are compared before the fields are validated, because another version's `Hello` may have other fields.
    """
    try:
        fields = json.loads(line)
        if "missing" in fields:
            module = str(fields["missing"])
            raise Incompatible("has no Mixmark" if module.startswith("mixmark") else f"lacks {module}")
        mixmark, protocol = str(fields["mixmark"])[:40], fields["protocol"]
        if (mixmark, protocol) != (VERSION, PROTOCOL):
            found = f"Mixmark {mixmark} with protocol {protocol!a:.20}"
            raise Incompatible(f"has {found}, but this is Mixmark {VERSION} with protocol {PROTOCOL}")
        return Hello.model_validate(fields)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Garbled(f"Hello was due: {start_of(line)}") from error


# --- what an adapter's worker does ------------------------------------------------------------------------------------


class SuiteChoice(Message):
    """What a worker builds a suite from."""

    name: str
    spec: str
    tier: schema.Tier
    options: dict[str, str] = Field(default_factory=dict)
    weight_class: schema.WeightClass = 16


class Discovered(Message):
    devices: tuple[schema.Device, ...]
    vendor: dict[str, str] = Field(default_factory=dict)
    """The versions of drivers, firmware and runtimes from the adapter's `disclose`."""


class Opened(Message):
    load_ns: Natural
    needed_bytes: Natural
    """The memory budgeted for weights, state and runtime at batch 1."""
    facts: dict[str, str]
    concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)
    """The number of feeds that the runner takes at once."""


class Prepared(Message):
    batch: Positive
    trials: tuple[schema.Trial, ...] = ()
    search_ended_by: schema.SearchEnd | None = None
    rate_per_s: float | None = Field(default=None, gt=0)
    rate_trials: tuple[schema.RateTrial, ...] = ()
    feed_ns: Natural
    """The longest time of a feed of the warm-up, which breaks off its last one."""
    facts: dict[str, str]
    processes: tuple[int, ...] = ()
    """The ids of processes that work for the runner and are not descendants of the worker."""


class Fed(Message):
    """One feed is finished."""

    key: str
    serial: int
    yields: list[int]
    """For each yield its timestamp in ns and the number of units that it finished, in turn."""
    digest: str
    """The digest of the output, in hexadecimal."""
    carried_ns: Natural
    """The time to read the output that the feed continues, and to write its own for the next stage."""


class OutputsCompared(Message):
    feeds: tuple[int, ...]
    values: tuple[float, ...]
    """The gate's metric of each feed."""
    problem: str
    """Why an output could not be compared; empty: all were."""
    software: dict[str, str]
    """The versions of Python, numpy and torch in the process."""


class BrokenOff(Message):
    """What `load_generator.break_off` saw of a runner."""

    closing_ns: int
    """The time to close a feed's iterator after its first yield."""


class Measured(Message):
    """What a suite measured of itself before a run, by its method `measured`.

    Only a suite of Mixmark has it. It runs in an auditor of its own, which imports what the suite's `imports` says and
    reads the suite's files before the code of a plugin runs. It raises UsageError for files that it cannot use."""

    options: dict[str, str]
    """The options of the suite in the result, in place of those that it was given. With them alone it knows its units,
    costs and gates. No path is among them."""
    weights: str
    """The label of the weights."""
    scenarios: tuple[str, ...]
    files: dict[str, str] = Field(default_factory=dict)
    """The SHA-256 of each file that the suite reads, by its path. No result has it; other hosts need the same files."""
    precisions: tuple[schema.Precision, ...] = ()
    """The only precisions that the suite has. Empty: whatever a device offers."""


class LoopChoice(Message):
    """A loop of a capability, which issues the feeds of a window in place of the worker's own loops."""

    spec: str
    """`module:function`. The function has the parameters runner, feeds, threads, new_log and pool of
    `load_generator.closed_loop`, and those of `arguments`."""
    arguments: dict[str, JsonValue]


class AdapterCalls(Protocol):
    """key: the share that a call is about."""

    def discover(self) -> Discovered:
        """The devices that the adapter reaches."""

    def open(
        self,
        *,
        key: str,
        device: schema.Device,
        suite: SuiteChoice,
        precision: schema.Precision,
        scenario: schema.ScenarioName,
        free_bytes: int | None,
        reference: bool = False,
    ) -> Opened:
        """Loads a suite on a device, or for an audit the suite's reference. free_bytes: a suite that needs more memory
        is refused before it is loaded; None means no limit."""

    def measured(self, *, suite: SuiteChoice) -> Measured:
        """What a suite measures of itself before a run."""

    def prepare(
        self,
        *,
        key: str,
        scenario: schema.ScenarioName,
        batch: int | None,
        seed: int,
        limits: schema.Limits,
        rate_per_s: float | None = None,
    ) -> Prepared:
        """Warms up, after a search for the best batch and for the highest arrival rate of a server if None is given.
        seed: of the feeds meanwhile, which occur in no window."""

    def begin(self, *, key: str, pool: int, ahead: bool = False, loop: LoopChoice | None = None) -> None:
        """Prepares the window, once the worker is warm: makes the pool of its feeds. pool: the seed of the pool. ahead:
        whether the next feed is made while another one runs. loop: issues the feeds in place of the worker's own."""

    def measure(self, *, key: str, seed: int, limits: schema.Limits, out: str, report_feeds: bool = False) -> None:
        """Opens a window, runs a closed or an open loop in it, or the loop of `begin`, and calls `sealed` before it
        replies.

        seed: what the nonces of the feeds are derived from, with the outputs before; in an open loop the seed of the
        arrivals. In an open loop and if `report_feeds`, the secrets of `reveal` take its place for the feeds. out: the
        file for the timestamps, in the columns of `Completions`. report_feeds: whether to call `feed_finished`, and
        `first_yielded` for feeds of several yields.
        """

    def reveal(self, *, key: str, turn: Natural, secret: int) -> Later[None]:
        """A turn has come. turn and secret: see `seeds.secret`. There is no reply."""

    def feed(self, *, key: str, serial: int, nonce: int, take: str = "", give: str = "") -> Later[Fed]:
        """Runs a feed. The next call may begin before it is finished. take: the file with the output that the feed
        continues. give: the file for the feed's own output. Empty: none."""

    def hand_over(self, *, key: str, outputs: str) -> dict[str, str]:
        """Writes the outputs of the window to a file, in the form of `Outputs.save`. Returns the runner's facts."""

    def compare_outputs(
        self, *, key: str, batch: int, pool: int, seeds: dict[int, int], outputs: str, sha256: str
    ) -> OutputsCompared:
        """Compares outputs in a file with the outputs of the open reference. pool: the seed of the pool of their feeds.
        seeds: for the number of each feed to compare, what its nonce is derived from. sha256: the hash of the file,
        which the worker compares with the bytes that it reads."""

    def break_off(self, *, key: str, seed: int) -> BrokenOff:
        """Closes a feed early, for the conformance kit. seed: of the feeds."""

    def close(self) -> None:
        """Closes everything that is open."""


# --- what the workers of other plugins do -----------------------------------------------------------------------------


class PluginCalls(Protocol):
    def load(self) -> bool:
        """Loads the class. Returns whether the plugin is used only if mixmark.toml has a section for it."""


class MeterCalls(PluginCalls, Meter, Protocol):
    """The methods of the protocol."""


class WatcherCalls(PluginCalls, Watcher, Protocol):
    """The methods of the protocol."""


class SuiteDescription(Message):
    """The facts of a suite's class."""

    version: str
    unit: str
    unit_names: schema.UnitNames
    scenarios: tuple[str, ...]
    continues: str
    """The suite whose output it continues. Empty: none."""
    summary: str
    """The first line of its docstring."""


class SuiteCalls(Protocol):
    def describe(self) -> SuiteDescription: ...

    def build(self, *, suite: SuiteChoice) -> schema.LatencyLimits | None:
        """Builds the suite. Returns its latency limits."""

    def units(self, *, suite: SuiteChoice, batch: int) -> int: ...

    def costs(self, *, suite: SuiteChoice, precision: schema.Precision, batch: int) -> tuple[schema.Cost, ...]: ...

    def gate(self, *, suite: SuiteChoice, precision: schema.Precision) -> schema.Gate | None: ...

    def check_weights(self, *, suite: SuiteChoice) -> tuple[str, tuple[str, ...]]:
        """Reads every weight once. Returns the label of the checkpoint, and its tensors that the suite does not use.
        Raises UsageError if a weight cannot be read, or is NaN or infinite."""


# --- what the parent does ---------------------------------------------------------------------------------------------


class Window:
    """What a worker may call while feeds run. This class has no open window: each of its methods raises Garbled. The
    parent replies to `outputs_full` alone."""

    def outputs_full(self, *, key: str, done: int, commitment: str) -> int:
        """The outputs of a share exceed their memory. Returns the sampling key that decides which ones stay. done: the
        number of finished feeds. commitment: to their outputs."""
        raise Garbled("outputs_full came outside of a window")

    def first_yielded(self, *, key: str, serial: Natural, units: Positive, digest: Digest) -> None:
        """A feed of several yields has its first. units: in that yield. digest: of its bytes. In a solo measurement
        only if `measure` asked for it."""
        raise Garbled("first_yielded came outside of a window")

    def feed_finished(self, *, key: str, serial: Natural, digest: Digest) -> None:
        """A feed is finished. digest: of the output. Only if `measure` asked for it."""
        raise Garbled("feed_finished came outside of a window")

    def sealed(self, *, key: str, commitment: Digest) -> None:
        """Closes the window: no feed and no output can be added to it afterwards. commitment: to all outputs of the
        window, which must match the outputs handed over later; empty: none are kept."""
        raise Garbled("sealed came outside of a window")


class ParentCalls(Window):
    def stage(self, *, name: StageName) -> None:
        """What the worker begins to do."""
