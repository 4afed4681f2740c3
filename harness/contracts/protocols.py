"""The protocols of plugins. A plugin has the members of its protocol; there is no base class and no decorator.

    Adapter   a vendor's software on its devices: discovers devices, opens a suite on a device
    Runner    a suite opened on a device: takes a feed, yields finished units
    Suite     a workload at one tier: feeds, graphs, weights, loop, cost model
    Session   graphs on an open device: what most vendors write; `GraphRunner` makes a Runner of it
    Meter     names the domains of an energy source and reads their raw samples
    Watcher   describes a vendor's accelerators and reads their state
    Format    writes a suite in files that other programs read
    Reporter  writes an assessment as text: in `judge.assessment`

The harness owns the clock. A plugin never times anything: the harness takes a timestamp for each array that a runner
yields, once it holds the array as a plain numpy array on the host.

These rules hold for all plugins:

- **Processes.** An adapter runs in a worker process, a new one for each phase and each device. The harness generates
  feeds and audits with separate suite objects, never with the object that it gives to the adapter. A meter, watcher
  or suite of another package than Mixmark runs in a process of its own, never where Mixmark measures and judges.
- **Threads.** One thread calls an adapter. If the concurrency of a runner is above 1, as many threads call the runner
  at the same time, and a session must support `put`, `run`, `get` and `state` from all threads.
- **Errors.** `Unsupported` means that a measurement is not attempted, with the reason; it is no failure. `MemoryError`,
  or an error whose text contains "out of memory", ends a search for the best batch and is recorded as out of memory.
  Any other exception becomes the error of the record, and the rest of the run continues, unless a disk is full.
- **Options** are strings, as in mixmark.toml. A plugin raises `UsageError` for an unknown option.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts import schema

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
"""The input of one call of a runner: a batch of samples, as C-contiguous arrays on the host, by the suite's names. The
arrays belong to the harness: a runner does not write into them, and copies any data that it needs after its last
yield."""
Feeds = Callable[[int], Feed]
"""Returns the feed of a nonce, an integer from 0 to 2⁶³ − 1. The same nonce always gives the same feed. Several threads
may call it at the same time."""
Tensor = Any
"""An adapter's handle on memory of its device. The memory is freed with the handle."""
State = Any
"""An adapter's handle on a graph's state, e.g. the KV cache."""


Value = int | float | str | bool | Sequence[int] | Sequence[str]
"""A value of a suite's config."""


@dataclass(frozen=True)
class Spec:
    """The shape and type of a tensor. dtype: `float` (the session's precision), or the name of a type of integers or
    `bool`. A str
    dimension is a symbolic axis, whose size follows the input arrays and may change from call to call."""

    shape: tuple[int | str, ...]
    dtype: str = "float"


class Weights(Protocol):
    """The weights of a suite: one copy for all of its graphs.

    Only `read` generates values or reads them from disk, so an adapter needs memory for one copy and one more tensor.
    Reading a tensor again gives the same values. One thread reads at a time.
    """

    def names(self) -> Sequence[str]:
        """The names of the public checkpoint's state dict."""

    def spec(self, name: str) -> Spec:
        """The shape of a tensor, without symbolic axes. Raises KeyError for an unknown name."""

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        """Fills `into`, a C-contiguous array of the spec's shape, and keeps no reference to it. The values are exact in
        the formats of the suite's weight class, unless they come from a checkpoint. Raises KeyError for an unknown
        name, ValueError for another shape, and OSError or MixmarkError if a checkpoint cannot be read."""


@dataclass(frozen=True)
class Graph:
    """A network without its weights.

    inputs, state, outputs: by name, in the order of the arguments and results. state: tensors of fixed shape that stay
    on the device between calls, such as a KV cache.
    module: builds the network on PyTorch's meta device. forward(*inputs, *state) returns the outputs as a tuple and
    writes the state in place.
    onnx: returns a serialised model whose initialisers are external and have the names of the state dict. The state's
    tensors follow the inputs, and their new values follow the outputs, each as `<name>.out`. A shipped or cached model
    needs no torch; otherwise `onnx` exports it, which takes minutes for a large network.
    """

    inputs: Mapping[str, Spec]
    state: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    module: Callable[[], nn.Module]
    onnx: Callable[[], bytes]


class Session(Protocol):
    """Graphs on one open device.

    `put` and `run` may return before their work is done, and may leave errors to a later call; only `get` waits. The
    calls of one thread take effect in their order.
    """

    def put(self, array: Array) -> Tensor:
        """Copies an array of float32, int64, int32, int8, uint8 or bool to the device. float32 becomes the session's
        precision; the others keep their type. The caller does not write into the array until the next `get` has
        returned, so on a device that shares the host's memory the handle may be the array itself."""

    def state(self, graph: str) -> State:
        """Creates the state of a graph, all zeros, in the order of `Graph.state`. The session frees the memory once the
        suite has dropped the handle."""

    def run(self, graph: str, *inputs: Tensor, state: State | None = None) -> Sequence[Tensor]:
        """Runs a graph on handles in the order of `Graph.inputs` and returns handles in the order of `Graph.outputs`.
        It writes the state in place and does not change the inputs. The memory of an output is not reused while its
        handle is referenced: suites pass outputs on as inputs of the next call."""

    def get(self, tensor: Tensor) -> Array:
        """Waits for a tensor and copies it to the host, as float32, int32 or int64. The session does not write into the
        array afterwards."""


class Runner(Protocol):
    """One suite, loaded on one device.

    A runner may also be a `Preparer` or have `Helpers`: the harness checks whether it has their members.
    """

    @property
    def concurrency(self) -> int:
        """The number of feeds that the runner takes at the same time, from 1 to 64. In all scenarios but single-stream
        the harness calls the runner from as many threads. The number is constant while the runner is open."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What runs where: node placement, kernels, types. The harness reads it after loading, after the warm-up and
        after the window.

        `elsewhere` names work that does not run on the device, which makes the record invalid; it is empty or absent if
        the runner knows of none."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Computes a feed. Each yield is an array of the units that were just finished, one row a unit, as float32,
        int32 or int64 on the host; all yields of a feed together have `Suite.units(batch)` rows. A yielded array may be
        lazy and may be overwritten after the next yield: the harness converts and copies it before it takes the
        timestamp. The iterator may be closed before its end. One thread exhausts an iterator, not necessarily the
        thread that opened the runner. The memory of a feed is reused once its arrays are no longer referenced."""


@runtime_checkable
class Preparer(Protocol):
    """A runner whose shapes can be compiled or tuned outside of all timing."""

    def prepare(self, feed: Feed) -> None:
        """Prepares the runner for feeds of this shape. The harness calls it once for each batch size, before the first
        feed of that size, while nothing else runs. It may take as long as `--timeout`, the longest silence of a worker.
        The feed is never timed."""


@runtime_checkable
class Helpers(Protocol):
    """A runner that computes in processes other than the worker's children, such as a server that was running."""

    @property
    def processes(self) -> Sequence[int]:
        """The ids of the helper processes on the worker's host. The CPU time of these processes and of their children
        counts as the benchmark's. The harness reads the ids after the warm-up."""


@dataclass(frozen=True)
class Use:
    """The use of a runner. An adapter configures the runner for latency or for throughput accordingly."""

    scenario: schema.ScenarioName
    in_flight: int | None
    """The number of feeds in flight: 1 in single-stream. None if it is the runner's concurrency."""

    @classmethod
    def of(cls, scenario: schema.ScenarioName) -> Use:
        """The use that a scenario makes of a runner."""
        return cls(scenario, 1 if scenario == "single-stream" else None)


class Adapter(Protocol):
    """A vendor's software on its devices. The class is called with its options, a Mapping[str, str]."""

    name: str

    def discover(self) -> Iterable[schema.Device]:
        """The devices that this adapter reaches; none if the vendor's hardware is absent. It takes seconds at most and
        claims no memory of a device. Raises `PluginError("acme is not installed", "pip install acme")` if a package or
        library is missing."""

    def open(self, device: schema.Device, suite: Suite, precision: str, use: Use) -> AbstractContextManager[Runner]:
        """Loads a suite on a device. Leaving the context frees the memory, even while the runner is referenced. Several
        suites may be open at the same time in one worker. device: a discovered device, perhaps of another process.
        precision: one of `device.offers(suite.name)`. Raises `Unsupported("the reason")` if the adapter cannot run the
        suite."""


@runtime_checkable
class Discloses(Protocol):
    """An adapter that discloses the versions of its vendor's software, beside those of its packages."""

    def disclose(self) -> Mapping[str, str]:
        """Versions of the driver, firmware and runtime, as `{"Acme driver": "4.2"}`. Called once, in the worker, after
        `discover`. Texts are cut at 200 characters; an exception is disclosed in place of the versions."""


class Suite(Protocol):
    """One workload at one tier, with weights of one class.

    The class is called with (tier, options, weight_class), and raises `Unsupported` for an unknown tier, and for a
    weight class that it does not have; every suite has class 16. options: every
    built-in suite but the probe knows `weights`, the path of a checkpoint.
    """

    name: str
    version: str
    unit: str
    """The noun for one row of an output, in the singular: token, image."""
    unit_names: schema.UnitNames
    """How reports write the unit and its times."""
    scenarios: Sequence[str]
    """The scenarios that the suite supports, its native one first."""
    tier: str
    options: Mapping[str, str]
    """The options that the class was called with."""
    weight_class: schema.WeightClass
    """The weight class of the precision that is measured. An fp32 reference of int8 has the weights of class 8."""
    latency: schema.LatencyLimits | None
    """The latency limits of the server scenario at this tier. None if the suite has no server scenario."""

    @property
    def config(self) -> Mapping[str, Value]:
        """The numbers of the network at this tier, under the names of the public checkpoint's config.json. A dot
        separates nested names, and the name of a part with a separate file from the part's values (`unet.in_channels`).
        An engine that implements the network itself builds it from these numbers."""

    def weights(self) -> Weights:
        """The weights of all graphs. Cheap: no value is generated or read yet."""

    def graphs(self) -> Mapping[str, Graph]:
        """The networks by name. Cheap: nothing is built or exported yet."""

    def feeds(self, batch: int, seed: int) -> Feeds:
        """Feeds of `batch` samples, by their nonces. The same seed and nonce give the same feed on every platform.
        No output can be predicted from feeds of other seeds or nonces.

        If drawing a whole feed is expensive, this call draws a pool from the seed, and the nonce alters it: generating
        a feed must take little time compared with running it. One thread calls at a time."""

    def units(self, batch: int) -> int:
        """The number of units of one feed, all of its yields together."""

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """The suite's loop over a session: a generator that yields arrays from `Session.get`, one row a unit. It keeps
        no state between feeds, so several threads may run it at the same time."""

    def gate(self, precision: str) -> schema.Gate | None:
        """The largest difference from the reference that the audit allows at the declared precision, this tier and
        these weights. None if outputs are not audited."""

    def reference(self) -> Suite:
        """The suite that the auditor runs in fp32 on a feed of this suite, with the feed's joined yields added to it as
        `output`. It is this suite itself if the output in fp32 is the reference."""

    def quality(self, output: Array, reference: Array) -> float:
        """The gate's metric for the worst unit of a feed: 0 is the reference itself, smaller is better. Both arguments
        are the joined yields of a feed. Raises WrongOutput for a shape, a dtype or values that no correct run has."""

    def costs(self, precision: str, batch: int) -> Sequence[schema.Cost]:
        """FLOPs and bytes of each yield of one feed, in order; pure arithmetic, no torch."""


@runtime_checkable
class Continues(Protocol):
    """A suite that continues the output of another one, as decoding does with a prefill."""

    continues: str
    """The name of the other suite. Alone, this suite draws what it would be given."""

    def given(self, output: Array) -> Feed:
        """The arrays of a feed that an output of the other suite replaces. output: the joined yields of a feed of one
        sample. Raises WrongOutput if it is no such output."""


@runtime_checkable
class OwnReference(Protocol):
    """A suite whose reference needs no network on PyTorch."""

    def open_reference(self) -> AbstractContextManager[Runner]:
        """The reference in fp32 on the CPU, in the auditor's process, as a runner that takes the feeds of an audit."""


@dataclass(frozen=True)
class Sample:
    """One raw reading. value: joules of a counter, or watts. at_ns: the source's timestamp, on CLOCK_MONOTONIC of the
    harness's host. None if the harness takes the times before and after the read."""

    value: float
    at_ns: int | None = None


PATIENCE_S = 2.0
"""The longest time of one read. A meter that takes longer is given up, so no result holds such a reading."""
ABSURD = 1e15
"""Joules or watts that no meter reports: more than all machines of the world use together."""


class Meter(Protocol):
    """A source of energy readings. The class is called with its options, a Mapping[str, str]. A meter returns raw
    values: it unwraps no counter and integrates no power.

    A class with `needs_section = True` is used only if mixmark.toml has a section [meter.NAME]. One thread reads the
    meter, in a process of its own or of the interpreter that its section names.
    """

    name: str

    def domains(self, devices: Iterable[schema.Device]) -> Iterable[schema.Domain | schema.Absent]:
        """The domains that can be read and their coverage, and the sources that cannot be read, with the command that
        would make them readable."""

    def read(self, domain: schema.Domain) -> Sequence[Sample]:
        """The samples since the last call, in chronological order. Raises OSError or MixmarkError if the source is
        lost."""


@dataclass(frozen=True)
class AcceleratorState:
    """One accelerator at one instant. A value is None if the vendor's library does not report it."""

    id: str
    """The device's id, as the vendor's adapters name it: `gpu:<uuid>`."""
    reasons: Sequence[schema.ClockReason] | None = None
    """Why the clock is not higher."""
    clock_mhz: int | None = None
    """The clock of the compute units."""
    temperature_c: int | None = None
    power_cap_mw: int | None = None
    """The power limit in force, in milliwatts."""
    pids: Sequence[int] | None = None
    """The ids of the processes that compute on the accelerator, as the library reports them. A watcher's own process
    computes nothing there."""
    utilization_pct: int | None = None
    """The time that the accelerator computed, in percent of the library's last sampling interval of up to a second."""


@dataclass(frozen=True)
class Check:
    """A setting or condition that `mixmark doctor` checked, and the command that changes it.

    An `ok` check may have a command if results with and without the change differ.
    """

    name: str
    state: Literal["ok", "warn", "unknown"]
    message: str
    fix: str = ""
    """A line of shell; empty if no command changes the setting."""


class Watcher(Protocol):
    """Describes a vendor's accelerators and reads their state. The class is called without arguments.

    The harness makes one call at a time, but not always from the same thread. The constructor, `disclose` and `checks`
    may take 30 seconds each, `read` 5 seconds. A watcher that takes longer, raises an error or
    returns values of other types is not called again, and the result names the reason. All methods return nothing if
    the vendor's driver is absent.
    """

    name: str

    def disclose(self) -> Iterable[Mapping[str, str]]:
        """The facts of each accelerator that never change during a run: model, driver, firmware, limits.

        `id` is the device's id. `mixmark compare` compares `power_limit_mw`, `ecc` and `mig`. No fact but the id may
        identify one copy of a machine.
        """

    def read(self) -> Iterable[AcceleratorState]:
        """The current state of each accelerator. The harness calls it about once a second while a worker measures, and
        less often if it takes more than 5 ms of CPU time."""

    def checks(self) -> Iterable[Check]:
        """The checks of `mixmark doctor` on the accelerators' settings. A check's name begins with the accelerator."""

    def close(self) -> None:
        """Releases the vendor's library. It is the last call."""


class Format(Protocol):
    """Writes a suite in files that other programs read, such as safetensors."""

    def __call__(self, suite: Suite, precision: str) -> Callable[[Path], None]:
        """Returns a function that writes the suite's weights at the precision, one tensor at a time, into an empty
        folder. Raises Unsupported, before anything is written, if the format cannot represent the suite or the
        precision."""


@dataclass(frozen=True)
class GraphRunner:
    """A Runner for adapters that run graphs: the suite's loop over the adapter's session."""

    suite: Suite
    session: Session
    concurrency: int
    facts: Mapping[str, str]

    def prepare(self, feed: Feed) -> None:
        """Runs a feed up to its second yield, so that every graph has run with every shape: a language model's prefill
        and one decoding step. It does nothing for a feed with a single yield, because the harness never times the first
        feed of a shape."""
        if sum(cost.yields for cost in self.suite.costs("fp32", 1)) > 1:
            for _ in itertools.islice(self(feed), 2):
                pass

    def __call__(self, feed: Feed) -> Iterator[Array]:
        return self.suite.infer(self.session, feed)
