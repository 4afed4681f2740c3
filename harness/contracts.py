"""What a plugin is. Match a shape; nothing to inherit, register or decorate.

    Adapter   a vendor's way onto its silicon: discovers devices, opens a suite on one
    Runner    a suite opened on a device: feed in, units out
    Suite     a workload at one tier: feeds, graphs, weights, loop, cost
    Session   graphs on an open device: what most vendors write; `GraphRunner` makes a Runner of it
    Meter     what a source of energy readings covers, and its raw samples
    Reporter  Result -> text

The harness owns the clock. A plugin never times anything: each array that a runner yields is one
stamp, taken after the harness has it as a plain numpy array on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.schema import Absent, Cost, Device, Domain, Gate, LatencyLimits, Result

if TYPE_CHECKING:
    from torch import nn

Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
Tensor = Any
"""An adapter's own handle on memory of its device."""
State = Any
"""An adapter's own handle on a graph's state, e.g. the KV cache."""


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
    scenarios: Sequence[str]
    """What it can be asked for, its native scenario first."""
    tier: str
    latency: LatencyLimits | None
    """What a server must keep at this tier; None: the suite has no server scenario."""

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
