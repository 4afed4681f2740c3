"""The base class of all facts; devices, and the routes by which a suite runs on them."""

from __future__ import annotations

import itertools
import re
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mixmark.harness.contracts.device_ids import host_of, local, meet, piece


class Fact(BaseModel):
    """The base class of everything that is written to a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


Int64s = npt.NDArray[np.int64]
LARGEST = 1 << 60
"""The upper limit of any stored integer: 36 years in ns, so that sums and differences of times fit into int64."""


Precision = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
BITS_PER_WEIGHT: dict[str, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
Tier = Literal["smoke", "edge", "server"]
ScenarioName = Literal["single-stream", "offline", "server", "mixed", "probe"]
"""How feeds are issued. Every record of a phase that runs a mix is `mixed`. A suite that measures the ceilings of a
device has the scenario `probe`: the runner's concurrency in feeds at a time, and no result of its own."""
WeightClass = Literal[16, 8, 4]
"""The bits of a weight. Only routes of one class are compared with each other; fp32 is in the class of 16 bits."""


def weight_class(precision: str) -> WeightClass:
    """The class of a precision: its bits of a weight, 16 for fp32."""
    bits = BITS_PER_WEIGHT[precision]
    return 16 if bits >= 16 else 8 if bits == 8 else 4


HOST_POOL = "host"
"""The `Device.memory_pool` of everything that draws on the host's memory."""
HOST_PROCESSOR = "cpu:0"
"""The `Device.id` of the host's processor, even if no adapter reaches it."""
HOST_NAME = r"[a-z0-9][a-z0-9-]{0,31}"
"""The pattern of a host's name."""
DEVICE_ID = rf"({HOST_NAME}/)?[a-z0-9]+:[A-Za-z0-9._-]+"
PART = re.compile(rf"{DEVICE_ID}(/\d{{1,4}}-of-[1-9]\d{{0,3}})?")
"""A name of silicon in `Device.parts`: a device's id, or a piece of it, such as `gpu:0/2-of-7`."""


class Device(Fact):
    """A piece of silicon, or a group or a slice of such pieces. Any number of adapters may reach it."""

    id: str = Field(pattern=f"^{DEVICE_ID}$")
    """The name of the physical part: `cpu:0`, `gpu:<uuid>`; with its host if a run has several: `host1/cpu:0`."""
    kind: Literal["cpu", "gpu", "npu", "asic", "simulated"]
    """Simulated: a software driver that computes on the host's processor. It is measured and shown, and takes part in a
    mixed run, which then has no score: its speed is that of no silicon."""
    name: str = ""
    """Its maker's name for it; for a group, that of one of its parts."""
    parts: tuple[str, ...] = ()
    """The silicon of a group, such as the ids of four GPUs, or of a slice, such as `gpu:<uuid>/2-of-7`. A mix uses each
    part once. Empty: the device is the part that its id names."""
    memory_pool: str
    """Devices with the same pool share memory; the host's pool is `host`. A group of devices with separate memories has
    a pool of its own."""
    memory_bytes: int | None = Field(default=None, gt=0)
    precisions: tuple[Precision, ...] = ()
    """The precisions that the device computes natively by this adapter, best first."""
    precisions_by_suite: dict[str, tuple[Precision, ...]] = {}
    """The precisions of suites for which they differ from `precisions`. An empty tuple: it cannot run the suite."""
    slice_of: str | None = None
    """The whole device of a slice. An adapter receives the whole device, in a process that is pinned to `cores`."""
    cores: tuple[int, ...] = ()
    """The hardware threads of a slice, as the operating system numbers them."""
    hosted: str = ""
    """The model of a hosted service, which has weights of its own. Its outputs cannot be audited and count in no score.
    Empty: the device runs the suite's network."""

    @field_validator("parts")
    @classmethod
    def _parts_are_apart(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        for part in parts:
            _, number, of = piece(part)
            if not PART.fullmatch(part) or not 1 <= number <= of:
                raise ValueError(f"{part} names no silicon, such as gpu:0 or gpu:0/1-of-2")
        for one, other in itertools.combinations(parts, 2):
            if meet(one, other):
                raise ValueError(f"{one} and {other} are the same silicon")
        return parts

    @property
    def silicon(self) -> frozenset[str]:
        """The names of the physical parts, or pieces of them, that the device consists of."""
        return frozenset(self.parts or (self.id,))

    def overlaps(self, other: Device) -> bool:
        """Whether both use some of the same silicon. Two slices of a processor overlap if they share a core."""
        if self.slice_of is not None and self.slice_of == other.slice_of:
            return self.id == other.id or not set(self.cores).isdisjoint(other.cores)
        return any(meet(mine, yours) for mine in self.whole.silicon for yours in other.whole.silicon)

    @property
    def on_host(self) -> bool:
        """Whether it is the host's processor, or a slice of it."""
        return self.kind == "cpu" and self.in_host_memory

    @property
    def in_host_memory(self) -> bool:
        """Whether the device draws on its host's memory."""
        return local(self.memory_pool) == HOST_POOL

    @property
    def host(self) -> str:
        """The name of its host; empty if the run has one host."""
        return host_of(self.id)

    def offers(self, suite: str) -> tuple[Precision, ...]:
        """The precisions in which the device computes a suite by this adapter, best first."""
        return self.precisions_by_suite.get(suite, self.precisions)

    @property
    def whole(self) -> Device:
        """The device that its adapter receives: for a slice, the whole device."""
        if self.slice_of is None:
            return self
        return self.model_copy(update={"id": self.slice_of, "slice_of": None, "cores": ()})


class Route(Fact):
    """A suite on a device by an adapter in a precision."""

    suite: str
    tier: Tier
    suite_version: str
    device: str
    adapter: str
    precision: Precision
    options: dict[str, str] = {}
    """The adapter's options, as configured."""
    suite_options: dict[str, str] = {}
    weights: str = "synthetic"
    """`synthetic`, a checkpoint's name and hash, or `hosted: ` and the model of a service."""

    @property
    def hosted(self) -> bool:
        """Whether it runs the model of a hosted service instead of the suite's."""
        return self.weights.startswith("hosted: ")

    @property
    def weight_class(self) -> WeightClass:
        return weight_class(self.precision)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The fields that distinguish it from the other routes of a run."""
        return self.suite, self.device, self.adapter, self.precision

    @property
    def label(self) -> str:
        return f"{self.suite} on {self.device} by {self.adapter} in {self.precision}"
