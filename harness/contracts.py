"""What a plugin is. Match a shape; nothing to inherit, register or decorate.

    Adapter   a vendor's way onto its silicon: discovers devices, opens a suite on one
    Runner    a suite opened on a device: feed in, units out
    Suite     a workload at one tier: feeds, graphs, weights, loop, cost
    Session   graphs on an open device: what most vendors write; `GraphRunner` makes a Runner of it
    Meter     what a source of energy readings covers, and its raw samples
    Watcher   what a vendor's accelerators are, and what disturbs them
    Reporter  Result -> text

The harness owns the clock. A plugin never times anything: each array that a runner yields is one
stamp, taken after the harness has it as a plain numpy array on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from harness.schema import Absent, ClockReason, Cost, Device, Domain, Gate, LatencyLimits, Result, UnitNames

if TYPE_CHECKING:
    from torch import nn

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
Tensor = Any
"""An adapter's own handle on memory of its device."""
State = Any
"""An adapter's own handle on a graph's state, e.g. the KV cache."""


Value = int | float | str | bool | Sequence[int] | Sequence[str]
"""What a suite's config holds under a name."""


@dataclass(frozen=True)
class Spec:
    """dtype `float` is the session's precision, else `int64`; a str dimension is a symbolic axis."""

    shape: tuple[int | str, ...]
    dtype: str = "float"


class Weights(Protocol):
    """One copy for all graphs of a suite; names are those of the public checkpoint's state dict."""

    def names(self) -> Sequence[str]: ...
    def spec(self, name: str) -> Spec: ...
    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        """Fills `into`, which has the spec's shape. Values are exact at four bits unless they come from a file."""


@dataclass(frozen=True)
class Graph:
    """A network without its weights.

    `module` builds it on the meta device; forward(*inputs, *state) returns the outputs and writes the
    state in place. `onnx` gives a serialised model whose initialisers are external and carry the names of
    the state dict; the state's tensors follow the inputs, and each comes back as an output `<name>.out`
    behind the outputs. It needs no torch once it is shipped or cached.
    """

    inputs: Mapping[str, Spec]
    state: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    module: Callable[[], nn.Module]
    onnx: Callable[[], bytes]


class Session(Protocol):
    """Graphs on one open device."""

    def put(self, array: Array) -> Tensor: ...
    def state(self, graph: str) -> State:
        """Fresh and zeroed; the session owns the memory, the suite holds the handle."""

    def run(self, graph: str, *inputs: Tensor, state: State | None = None) -> Sequence[Tensor]: ...
    def get(self, tensor: Tensor) -> Array:
        """The only call that waits; memory that nobody overwrites. float32, int32 or int64."""


class Runner(Protocol):
    """One suite, loaded on one device."""

    @property
    def slots(self) -> int:
        """Feeds it can keep in flight; threads of the harness call it."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What really runs where: node placement, kernels, dtype. Asked again once it is warm.

        `elsewhere` names what of the work does not run on the device, which makes the record invalid; empty or absent
        where nothing is known to."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Each yield is the units just finished, on the host; len() counts them."""


class Adapter(Protocol):
    """A vendor's way onto its silicon; built with its options, a Mapping[str, str]."""

    name: str

    def discover(self) -> Iterable[Device]:
        """Cheap; yields nothing where the vendor's hardware is absent."""

    def open(self, device: Device, suite: Suite, precision: str) -> AbstractContextManager[Runner]:
        """Raises `Unsupported` where it cannot."""


class Suite(Protocol):
    """One workload at one tier; built with (tier, options), raises `Unsupported` for a tier it lacks.

    options: `weights`, the path of a checkpoint, is the only one that the built-in suites know.
    """

    name: str
    version: str
    unit: str
    """One piece of its work, in the singular: token, image."""
    unit_names: UnitNames
    """How reports write the unit and its times."""
    scenarios: Sequence[str]
    """What it can be asked for, its native scenario first."""
    tier: str
    latency: LatencyLimits | None
    """What a server must keep at this tier; None: the suite has no server scenario."""

    @property
    def config(self) -> Mapping[str, Value]:
        """The numbers of the network at this tier, under the names of the public checkpoint's config.json. A dot stands
        where the file nests, and behind the name of a part that has a file of its own (`unet.in_channels`). An engine
        that brings its own network builds it from them."""

    def weights(self) -> Weights: ...
    def graphs(self) -> Mapping[str, Graph]: ...
    def feeds(self, batch: int, seed: int) -> Iterator[Feed]:
        """Endless, from a pool made at the first `next`; each one altered so that no two are alike."""

    def units(self, batch: int) -> int:
        """Of one feed, all its yields together."""

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]: ...
    def gate(self, precision: str) -> Gate | None:
        """What the audit asks of each answer that was computed at the declared precision, at this tier and of these
        weights; None: it is not audited."""

    def reference(self) -> Suite:
        """What the auditor runs in fp32 on a feed of this suite, which then also holds the `answer`, all its yields
        joined: the suite itself where its own answer is the reference."""

    def quality(self, answer: Array, reference: Array) -> float:
        """The gate's metric, of the worst unit of a feed: 0 is the reference itself, smaller is better. Both are a
        feed's yields joined. Raises WrongAnswer for a shape, a dtype or values that no honest run has."""

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """Of each yield of one feed, in order; pure arithmetic, no torch."""


@dataclass(frozen=True)
class Sample:
    """value: joules of a counter, or watts. at_ns: on CLOCK_MONOTONIC, from a source that stamps its own values;
    None: the harness stamps it around the read."""

    value: float
    at_ns: int | None = None


class Meter(Protocol):
    """A source of energy readings; built with its options, a Mapping[str, str]. It unwraps and integrates nothing.

    A class with `needs_section = True` is asked only where mixmark.toml has a [meter.NAME]. One thread reads it.
    """

    name: str

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain | Absent]:
        """What each source covers, and what is missing with the command that would make it readable."""

    def read(self, domain: Domain) -> Sequence[Sample]:
        """Since the last call. Raises OSError or MixmarkError where the source is gone."""


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
    answers something else is not called again, and the result says why. It yields nothing where the vendor's driver is
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


class Reporter(Protocol):
    def __call__(self, result: Result) -> str: ...


@dataclass(frozen=True)
class GraphRunner:
    """A Runner for adapters that run graphs: the suite's own loop over their session."""

    suite: Suite
    session: Session
    slots: int
    facts: Mapping[str, str]

    def __call__(self, feed: Feed) -> Iterator[Array]:
        return self.suite.infer(self.session, feed)
