"""What a plugin is. A plugin matches a shape; there is nothing to inherit, register or decorate.

    Adapter   a vendor's way onto its silicon: discovers devices, opens a suite on one
    Runner    a suite opened on a device: takes a feed, yields the units that it finishes
    Suite     a workload at one tier: feeds, graphs, weights, loop, cost model
    Session   graphs on an open device: what most vendors write; `GraphRunner` makes a Runner of it
    Meter     says what a source of energy readings covers, and reads its raw samples
    Watcher   says what a vendor's accelerators are, and what disturbs them
    Format    writes a suite in the files that other programs read
    Reporter  makes text of a judgement

The harness owns the clock. A plugin never times anything: each array that a runner yields is one
stamp, taken after the harness has it as a plain numpy array on the host.

What holds for all of them:

- **Processes.** An adapter lives in a worker process of its own: a fresh one for each phase and each device that it is
  measured on. What the harness feeds and judges with is never the suite object that the adapter was given.
- **Threads.** One thread calls an adapter, and one calls a session, unless its runner has more than one slot: then as
  many threads as it has slots call the runner at once, and a session must cope with `put`, `run`, `get` and `state`
  from all of them.
- **Errors.** `Unsupported` says that something was not attempted and why, and is no failure. `MemoryError`, or an error
  whose text says "out of memory", ends a search for the best batch and is told as such. Anything else that is raised
  becomes the error of the record, and the rest of the run goes on.
- **Options** are strings, as mixmark.toml gives them. A plugin raises `UsageError` for one that it does not know.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.schema import (
    Absent,
    ClockReason,
    Cost,
    Device,
    Domain,
    Gate,
    LatencyLimits,
    ScenarioName,
    UnitNames,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from mixmark.harness.judge.judgement import Judgement

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
"""The input of one call of a runner: a batch of samples, as C-contiguous arrays on the host by the names that the suite
gives them. It belongs to the harness: a runner reads it and writes nothing into it, and copies what it needs after its
last yield."""
Feeds = Callable[[int], Feed]
"""Gives the feed of a nonce, a whole number below 2⁶³: the same feed whenever it is asked for. Several threads may ask
at once."""
Tensor = Any
"""An adapter's own handle on memory of its device. The memory lives as long as the handle does."""
State = Any
"""An adapter's own handle on a graph's state, e.g. the KV cache."""


Value = int | float | str | bool | Sequence[int] | Sequence[str]
"""What a suite's config holds under a name."""


@dataclass(frozen=True)
class Spec:
    """The shape and type of a tensor. dtype `float` is the session's precision; the others are `int64`, `int32` and
    `uint8`. A str dimension is a symbolic axis: its size is that of the arrays that come in, and it may change from
    call to call."""

    shape: tuple[int | str, ...]
    dtype: str = "float"


class Weights(Protocol):
    """The weights of a suite: one copy for all of its graphs.

    Nothing is drawn or read from disk before `read` is called, so an adapter needs memory for its own copy and for one
    tensor at a time. Reading the same tensor again gives the same values. One thread reads at a time.
    """

    def names(self) -> Sequence[str]:
        """The names of the public checkpoint's state dict."""

    def spec(self, name: str) -> Spec:
        """The shape of a tensor, without symbolic axes. Raises KeyError for a name that there is not."""

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        """Fills `into`, a C-contiguous array of the spec's shape, which stays the caller's. The values are exact at
        four bits unless they come from a checkpoint. Raises KeyError, ValueError for another shape, and OSError or
        MixmarkError where a checkpoint cannot be read."""


@dataclass(frozen=True)
class Graph:
    """A network without its weights.

    inputs, state, outputs: by name, in the order of the arguments and results. state: tensors of fixed shape that live
    on the device between calls, such as a KV cache.
    module: builds the network on PyTorch's meta device. forward(*inputs, *state) returns the outputs as a tuple and
    writes the state in place.
    onnx: gives a serialised model whose initialisers are external and carry the names of the state dict; the state's
    tensors follow the inputs, and each comes back as an output `<name>.out` behind the outputs. It needs no torch once
    it is shipped or cached; otherwise it exports, which takes minutes for a large network.
    """

    inputs: Mapping[str, Spec]
    state: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    module: Callable[[], nn.Module]
    onnx: Callable[[], bytes]


class Session(Protocol):
    """Graphs on one open device.

    `put` and `run` may return before their work is done and may put off errors; `get` is the only call that waits. The
    calls of one thread take effect in their order.
    """

    def put(self, array: Array) -> Tensor:
        """Copies an array of float32, int64, int32 or uint8 to the device; float32 becomes the session's precision
        there, and the others keep their type. The array stays the caller's, who does not write into it until the next
        `get` has returned; on a device that shares the host's memory, the handle may therefore be the array itself."""

    def state(self, graph: str) -> State:
        """Makes the state of a graph, all zeros, in the order of `Graph.state`. The session owns the memory and the
        suite holds the handle; it is free again once the handle is gone."""

    def run(self, graph: str, *inputs: Tensor, state: State | None = None) -> Sequence[Tensor]:
        """Runs a graph on handles in the order of `Graph.inputs` and returns handles in the order of `Graph.outputs`.
        It writes the state in place, and leaves the inputs as they are. An output's memory is not used again while
        somebody holds its handle: suites pass outputs on as inputs of the next call."""

    def get(self, tensor: Tensor) -> Array:
        """Waits for a tensor and copies it to the host, as float32, int32 or int64. The array is the caller's: nothing
        that the session does later may write into it."""


class Runner(Protocol):
    """One suite, loaded on one device.

    A runner may also be a `Preparer` or have `Helpers`: the harness looks whether those members are there.
    """

    @property
    def concurrency(self) -> int:
        """How many feeds the runner takes at once, from 1 to 64. In all scenarios but single-stream as many threads
        of the harness call the runner at the same time. It does not change while the runner is open."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What really runs where: node placement, kernels, types. Asked after loading, and again once the runner is
        warm and when the window is over.

        `elsewhere` names the work that does not run on the device, which makes the record invalid; it is empty or
        absent where the runner knows of none."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Computes a feed. Each yield holds the units that were just finished, one row a unit, as float32, int32 or
        int64 on the host; all yields of a feed together hold `Suite.units(batch)` rows. What is yielded may be lazy and
        may be written over after the next yield: the harness converts and copies it before it takes the stamp. The
        iterator may be closed before its end. One thread goes through one iterator; it need not be the one that opened
        the runner. The feed's memory is used again once nobody holds its arrays."""


@runtime_checkable
class Preparer(Protocol):
    """A runner whose shapes can be compiled or tuned outside of all timing."""

    def prepare(self, feed: Feed) -> None:
        """Makes the runner ready for feeds of this shape. The harness calls it once for every batch size, before the
        first feed of that size, while nothing else runs; it may take as long as a worker may be silent (`--timeout`).
        The feed is none of those that are timed."""


@runtime_checkable
class Helpers(Protocol):
    """A runner that works in processes which are no children of the worker, such as a server that was running."""

    @property
    def processes(self) -> Sequence[int]:
        """The ids of those processes on the worker's host. What they and their children use counts as the benchmark's
        own CPU time. Asked after the warm-up."""


@dataclass(frozen=True)
class Use:
    """What a runner will be used for, so that it can set itself up for latency or for throughput."""

    scenario: ScenarioName
    in_flight: int | None
    """How many feeds will be in flight at once: 1 in single-stream; None: as many as the runner has slots."""

    @classmethod
    def of(cls, scenario: ScenarioName) -> Use:
        """The use that a scenario makes of a runner."""
        return cls(scenario, 1 if scenario == "single-stream" else None)


class Adapter(Protocol):
    """A vendor's way onto its silicon. The class is called with its options, a Mapping[str, str]."""

    name: str

    def discover(self) -> Iterable[Device]:
        """The devices that this adapter reaches, within seconds and without claiming their memory; none where the
        vendor's hardware is absent. Raises PluginError where something that it needs is not installed."""

    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> AbstractContextManager[Runner]:
        """Loads a suite on a device; leaving the context gives the memory back, even while somebody holds the runner.
        Several suites may be open at once in one worker. device: one of those discovered, perhaps in another process.
        precision: one of `device.offers(suite.name)`. Raises `Unsupported` where the adapter cannot run it."""


@runtime_checkable
class Discloses(Protocol):
    """An adapter that tells the versions of its vendor's software; one without this method discloses its packages."""

    def disclose(self) -> Mapping[str, str]:
        """Versions of the driver, firmware and runtime, as `{"Acme driver": "4.2"}`. Called once, in the worker, after
        `discover`. Texts are cut at 200 characters; what it raises is disclosed in place of the versions."""


class Suite(Protocol):
    """One workload at one tier. The class is called with (tier, options), and raises `Unsupported` for a tier that it
    lacks.

    options: `weights`, the path of a checkpoint, is the only one that the built-in suites know.
    """

    name: str
    version: str
    unit: str
    """What one row of an output is, in the singular: token, image."""
    unit_names: UnitNames
    """How reports write the unit and its times."""
    scenarios: Sequence[str]
    """The scenarios that the suite can be asked for, its native one first."""
    tier: str
    options: Mapping[str, str]
    """What the class was called with."""
    latency: LatencyLimits | None
    """What a server must keep at this tier; None: the suite has no server scenario."""

    @property
    def config(self) -> Mapping[str, Value]:
        """The numbers of the network at this tier, under the names of the public checkpoint's config.json. A dot stands
        where the file nests, and behind the name of a part that has a file of its own (`unet.in_channels`). An engine
        that brings its own network builds it from them."""

    def weights(self) -> Weights:
        """The weights of all graphs. Cheap: nothing is drawn or read yet."""

    def graphs(self) -> Mapping[str, Graph]:
        """The networks by name. Cheap: nothing is built or exported yet."""

    def feeds(self, batch: int, seed: int) -> Feeds:
        """Feeds of `batch` samples each, by their nonces. The same seed and nonce give the same feed on every platform,
        and any other two give feeds that share nothing from which an output could be told.

        Where drawing a whole feed anew is expensive, the suite makes a pool from the seed, at this call, and alters it
        by the nonce: making a feed must take little next to running it. Several threads do not call at once."""

    def units(self, batch: int) -> int:
        """How many units one feed holds, all of its yields together."""

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """The suite's own loop over a session: a generator that yields what `Session.get` returned, one row a unit. It
        keeps nothing between feeds, so several threads may be in it at once."""

    def gate(self, precision: str) -> Gate | None:
        """What the audit asks of each output that was computed at the declared precision, at this tier and with these
        weights; None: it is not audited."""

    def reference(self) -> Suite:
        """What the auditor runs in fp32 on a feed of this suite, which then also holds the `output`, all its yields
        joined: the suite itself where its own output is the reference."""

    def quality(self, output: Array, reference: Array) -> float:
        """The gate's metric for the worst unit of a feed: 0 is the reference itself, smaller is better. Both arguments
        are a feed's yields joined. Raises WrongOutput for a shape, a dtype or values that no honest run has."""

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """FLOPs and bytes of each yield of one feed, in order; pure arithmetic, no torch."""


@dataclass(frozen=True)
class Sample:
    """One raw reading. value: joules of a counter, or watts. at_ns: on CLOCK_MONOTONIC of the harness's host, from a
    source that stamps its own values; None: the harness stamps it before and after the read."""

    value: float
    at_ns: int | None = None


class Meter(Protocol):
    """A source of energy readings. The class is called with its options, a Mapping[str, str]. A meter unwraps and
    integrates nothing.

    A class with `needs_section = True` is asked only where mixmark.toml has a [meter.NAME]. One thread of the harness's
    own process reads it, or a process of the interpreter that its section names.
    """

    name: str

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain | Absent]:
        """The sources that can be read and what each covers, and those that cannot be, with the command that would make
        them readable."""

    def read(self, domain: Domain) -> Sequence[Sample]:
        """The samples since the last call, in the order of time. Raises OSError or MixmarkError where the source is
        gone."""


@dataclass(frozen=True)
class AcceleratorState:
    """One accelerator at one instant. None: the vendor's library does not tell."""

    id: str
    """The device's id, as the vendor's adapters name it: `gpu:<uuid>`."""
    reasons: Sequence[ClockReason] | None = None
    """Why the clock is not higher now."""
    clock_mhz: int | None = None
    """The clock of the units that compute."""
    temperature_c: int | None = None
    power_cap_mw: int | None = None
    """The power limit in force, in milliwatts."""
    pids: Sequence[int] | None = None
    """The processes that compute on it, numbered as the library numbers them; empty where it lists none."""
    utilization_pct: int | None = None
    """The share of the library's last sampling interval, up to a second, in which something computed, in percent."""


@dataclass(frozen=True)
class Check:
    """One thing that `mixmark doctor` looked at: how it stands, and the command that changes it.

    An `ok` check may have a command too: nothing is wrong, but results made with and without it differ.
    """

    name: str
    state: Literal["ok", "warn", "unknown"]
    message: str
    fix: str = ""
    """A line of shell; empty where no command changes it."""


class Watcher(Protocol):
    """What a vendor's accelerators are and what disturbs them; built without arguments, in the harness's own process.

    It is built and called in threads of the harness, one call at a time, but not always in the same thread. Building it
    and `disclose` and `checks` may take 30 seconds each, `read` 5 seconds. A watcher that takes longer, raises, or
    outputs something else is not called again, and the result says why. It yields nothing where the vendor's driver is
    absent.
    """

    name: str

    def disclose(self) -> Iterable[Mapping[str, str]]:
        """The facts of each accelerator that never change during a run: model, driver, firmware, limits.

        `id`, the device's id, joins them with a device. `compare` looks at `power_limit_mw`, `ecc` and `mig`. Nothing
        may name one copy of a machine, but for the id.
        """

    def read(self) -> Iterable[AcceleratorState]:
        """The state of each accelerator now. It is called about once a second while a worker measures, so it must be
        cheap: the harness calls it less often where it takes more than 5 ms of CPU time."""

    def checks(self) -> Iterable[Check]:
        """What `mixmark doctor` says about each accelerator's settings. A check's name begins with the accelerator."""

    def close(self) -> None:
        """Releases the vendor's library. It is the last call."""


class Format(Protocol):
    """Writes a suite in the files that other programs read, such as safetensors."""

    def __call__(self, suite: Suite, precision: str, folder: Path) -> None:
        """Writes the suite's weights at the precision, one tensor at a time, into an empty folder. Raises Unsupported
        for what the format cannot hold."""


class Reporter(Protocol):
    """Makes text of a judgement; a pure function."""

    def __call__(self, judgement: Judgement) -> str: ...


@dataclass(frozen=True)
class GraphRunner:
    """A Runner for adapters that run graphs: the suite's own loop over their session."""

    suite: Suite
    session: Session
    concurrency: int
    facts: Mapping[str, str]

    def prepare(self, feed: Feed) -> None:
        """Runs a feed as far as its second yield, by which every graph has seen every shape that it will see: a
        language model's prefill and one step of its decoding. A feed of a single yield is left to the harness, which
        counts the first feed of no shape."""
        if sum(cost.yields for cost in self.suite.costs("fp32", 1)) > 1:
            for _ in itertools.islice(self(feed), 2):
                pass

    def __call__(self, feed: Feed) -> Iterator[Array]:
        return self.suite.infer(self.session, feed)
