"""The base class of all facts; devices, and the routes of suites on devices."""

from __future__ import annotations

import itertools
import re
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mixmark.harness.contracts.device_ids import host_of, local, meet, piece
from mixmark.harness.contracts.text import Label, Sentence


class Fact(BaseModel):
    """The base class of the models in a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    ids: ClassVar[tuple[str, ...]] = ()
    """The fields of an experiment's fact that hold names of silicon. In a run over several hosts they begin with a
    host."""


Int64s = npt.NDArray[np.int64]
LARGEST = 1 << 60
"""The upper limit of any stored integer: 36 years in ns. Sums and differences of such times fit into int64."""


Precision = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "as-file"]
"""`as-file`: the types of weights that a model's file has. It is held to the gate of 16 bits."""
BITS_PER_WEIGHT: dict[str, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4, "as-file": 16}
Tier = Literal["smoke", "edge", "server"]
ScenarioName = Literal["single-stream", "offline", "server", "mixed", "probe"]
"""How feeds are issued. Every record of a phase that runs a mix is `mixed`. A suite that measures the ceilings of a
device has the scenario `probe`: as many feeds at a time as the runner's concurrency, and no rate that counts."""
WeightClass = Literal[16, 8, 4]
"""The bits of a weight. Routes are compared only within a class; fp32 is in the class of 16 bits."""


def weight_class(precision: str) -> WeightClass:
    """The class of a precision: the bits of a weight, 16 for fp32."""
    bits = BITS_PER_WEIGHT[precision]
    return 16 if bits >= 16 else 8 if bits == 8 else 4


HOST_POOL = "host"
"""The `Device.memory_pool` of devices that use the host's memory."""
HOST_PROCESSOR = "cpu:0"
"""The `Device.id` of the host's processor, even if no adapter reaches it."""
HOST_NAME = r"[a-z0-9][a-z0-9-]{0,31}"
"""The pattern of a host's name."""
DEVICE_ID = rf"({HOST_NAME}/)?[a-z0-9]{{1,32}}:[A-Za-z0-9._-]{{1,120}}"
PART = re.compile(rf"{DEVICE_ID}(/\d{{1,4}}-of-[1-9]\d{{0,3}})?")
"""A name of silicon in `Device.parts`: a device's id, or a piece of it, such as `gpu:0/2-of-7`."""


class Device(Fact):
    """A piece of silicon, or a group or a slice of such pieces. Any number of adapters may reach it."""

    id: str = Field(pattern=f"^{DEVICE_ID}$")
    """The name of the physical part, the same in every process and for all adapters that reach it: `cpu:0`, or
    `gpu:<uuid>` with the vendor's UUID, which `mixmark.gpu_id` finds by a PCI address. In a run on several hosts it
    begins with the host: `host1/cpu:0`."""
    kind: Literal["cpu", "gpu", "npu", "asic", "simulated"]
    """`cpu`, `gpu`, `npu`, `asic`, or `simulated` for a software driver that computes on the host's processor. Such a
    driver is measured and shown, but a mixed run with it has no score, because no silicon has its speed."""
    name: Label = ""
    """The maker's name; for a group, the name of one of its parts."""
    parts: tuple[Label, ...] = ()
    """The silicon of a group, such as the ids of four GPUs, or of a slice, such as `gpu:<uuid>/2-of-7`. A mix uses each
    part once. Empty if the device is the part that its id names."""
    memory_pool: Label
    """Devices with the same pool share memory; the host's pool is `host`. A group of devices with separate memories has
    a separate pool."""
    memory_bytes: int | None = Field(default=None, gt=0)
    """The size of that memory. A suite that does not fit is refused before it is loaded."""
    precisions: tuple[Precision, ...] = ()
    """The precisions that the device computes natively through this adapter, best first."""
    precisions_by_suite: dict[Label, tuple[Precision, ...]] = {}
    """The precisions of single suites, if they differ from `precisions`. An empty tuple if the device cannot run the
    suite."""
    slice_of: Label | None = None
    """Set by the harness: the whole device of a slice. An adapter receives the whole device, in a process pinned to
    `cores`."""
    cores: tuple[int, ...] = ()
    """Set by the harness: the hardware threads of a slice, as the operating system numbers them."""
    hosted: Label = ""
    """The model of a hosted service. The service has other weights, so its outputs cannot be audited and count in no
    score. Empty if the device runs the suite's network."""

    @field_validator("parts")
    @classmethod
    def _parts_are_apart(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        for part in parts:
            _, number, of = piece(part)
            if not PART.fullmatch(part) or not 1 <= number <= of:
                raise ValueError(f"{part} is not a name of silicon, such as gpu:0 or gpu:0/1-of-2")
        for one, other in itertools.combinations(parts, 2):
            if meet(one, other):
                raise ValueError(f"{one} and {other} are the same silicon")
        return parts

    @property
    def silicon(self) -> frozenset[str]:
        """The names of the physical parts and pieces of the device."""
        return frozenset(self.parts or (self.id,))

    def overlaps(self, other: Device) -> bool:
        """Whether the devices share silicon. Two slices of a processor overlap if they share a core."""
        if self.slice_of is not None and self.slice_of == other.slice_of:
            return self.id == other.id or not set(self.cores).isdisjoint(other.cores)
        return any(meet(mine, yours) for mine in self.whole.silicon for yours in other.whole.silicon)

    @property
    def on_host(self) -> bool:
        """Whether the device is the host's processor, or a slice of it."""
        return self.kind == "cpu" and self.in_host_memory

    @property
    def in_host_memory(self) -> bool:
        """Whether the device uses its host's memory."""
        return self.local_pool == HOST_POOL

    @property
    def host(self) -> str:
        """The name of the device's host; empty if the run has one host."""
        return host_of(self.id)

    @property
    def local_id(self) -> str:
        """The id without the host."""
        return local(self.id)

    @property
    def local_pool(self) -> str:
        """The memory pool without the host."""
        return local(self.memory_pool)

    def offers(self, suite: str) -> tuple[Precision, ...]:
        """The precisions of a suite on this device through this adapter, best first."""
        return self.precisions_by_suite.get(suite, self.precisions)

    @property
    def whole(self) -> Device:
        """The device that its adapter receives: for a slice, the whole device."""
        if self.slice_of is None:
            return self
        return self.model_copy(update={"id": self.slice_of, "slice_of": None, "cores": ()})


class Route(Fact):
    """A suite on a device by an adapter in a precision."""

    suite: Label
    tier: Tier
    suite_version: Label
    device: Label
    adapter: Label
    precision: Precision
    options: dict[Label, Sentence] = {}
    """The adapter's options, as configured."""
    suite_options: dict[Label, Sentence] = {}
    weights: Label = "synthetic"
    """`synthetic`, the name and hash of a checkpoint, or `hosted: ` and the model of a service."""

    @property
    def host(self) -> str:
        """The name of the device's host; empty if the run has one host."""
        return host_of(self.device)

    @property
    def hosted(self) -> bool:
        """Whether the route runs the model of a hosted service instead of the suite's model."""
        return self.weights.startswith("hosted: ")

    @property
    def weight_class(self) -> WeightClass:
        return weight_class(self.precision)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The fields that distinguish the routes of a run."""
        return self.suite, self.device, self.adapter, self.precision

    @property
    def label(self) -> str:
        return f"{self.suite} on {self.device} by {self.adapter} in {self.precision}"
