"""A whole run: its hosts, their software, clocks and connections, and everything that was planned and measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.schema.device import HOST_NAME, Device, Tier, WeightClass
from mixmark.harness.contracts.schema.energy import Domain, Metering
from mixmark.harness.contracts.schema.fact import LARGEST, Fact
from mixmark.harness.contracts.schema.plan import Mix, Phase
from mixmark.harness.contracts.schema.record import Absent, Record

# History of SCHEMA: 1 first shape; 2 a phase says its purpose, a probe is a scenario, what is absent has a kind,
# the conditions of accelerators are the same for every vendor, each record has its window's seed; 3 a noise floor has a
# tier and a date, a suite says what its units are called in a sentence; 4 a run has a weight class, and may rank its
# routes by screening runs before it measures the best of them; 5 a device may be a hosted service, and a record says
# what went wrong when its suites were closed; 6 a run may have several hosts, each with its clock and its traffic;
# 7 fields in the terms of the field, the hashes of a finished run in SHA256SUMS.
SCHEMA: Literal[7] = 7


class UnitNames(Fact):
    """How reports write the unit of a suite and the times that its units take."""

    short: str = Field(min_length=1)
    """The unit in a rate: `tok` in 3.96 tok/s."""
    work: str = Field(min_length=1)
    """What the units of a mix are called in a sentence: `LLM tokens`, `pictures classified`."""
    first_unit: str = "Time to first unit"
    """The time from a feed's issue to its first unit, for suites whose feeds yield several times."""
    per_unit: str = "Time per unit"
    """The mean time of a feed's further units."""


class NoiseFloor(Fact):
    """How far two measurements of the same thing differ on this machine, as `mixmark selftest` measured it."""

    fraction: float = Field(ge=0)
    """95 % of the pairs differ by at most this: 0.02 is 2 %."""
    tier: Tier
    created_utc: str
    """When the self-test began."""


class SuiteFacts(Fact):
    """What a report needs to know of a suite that a run could use; a result discloses it, so a reporter loads none."""

    name: str
    version: str
    unit: str
    """One piece of the suite's work, in the singular: token, image."""
    unit_names: UnitNames


class Environment(Fact):
    """The software that an adapter's workers run in, as they tell it: it may differ from this process's."""

    origin: str
    """`built in`, the distribution and version that the adapter comes from, or `command line`."""
    spec: str
    """The adapter's class, as `module:Class` or `file.py:Class`, without a folder."""
    source: str = ""
    """What its code was read from: the RECORD of its distribution, which lists all files by hash, or its module's file.
    Empty where that was not found."""
    sha256: str = ""
    """The SHA-256 of the source."""
    python: str
    mixmark: str
    packages: dict[str, str] = {}
    vendor: dict[str, str] = {}
    """Versions of drivers, firmware and runtimes that the adapter disclosed."""


class System(Fact):
    """The machine, its software and its settings. None where the machine does not say."""

    cpu_model: str | None
    cpu_cores: int | None
    cpu_threads: int | None
    cpu_flags: tuple[str, ...] = ()
    """The instruction-set extensions that matter here."""
    microcode: str | None
    firmware: str | None
    governor: str | None
    clock_max_mhz: float | None
    memory_bytes: int | None
    swap_bytes: int | None
    caches: dict[str, str] = {}
    kernel: str
    operating_system: str | None
    virtualization: str | None
    container: str | None
    cgroup_limits: dict[str, str] = {}
    accelerators: tuple[dict[str, str], ...] = ()
    """Model, driver, firmware, power limit and clocks per device, as its vendor's library reports them."""
    python: str
    packages: dict[str, str] = {}
    """The packages of the process that ran the harness. Each adapter's own are in `Result.environments`."""
    environment: dict[str, str] = {}
    """The environment variables of a fixed list."""
    mixmark: str
    git_commit: str | None


class Hosts(Fact):
    """Hosts that are equal but for their names: the same machine, software and settings."""

    names: tuple[Annotated[str, Field(pattern=f"^{HOST_NAME}$")], ...] = Field(min_length=1)
    """What each of them is called."""
    system: System


class Clock(Fact):
    """Where another host's monotonic clock stands against that of the host that leads the run, as
    `measure.cluster.clocks` finds it: offset = theirs - ours = offset_ns + drift · (ours - at_ns)."""

    at_ns: int
    """The middle of the time in which it was looked at, on our clock."""
    offset_ns: int
    """How far the other clock was ahead of ours then."""
    drift: float
    """By how much the offset grows in a unit of our time."""
    bound_ns: int = Field(ge=0, le=LARGEST)
    """The largest error that the messages leave open."""
    pings: int = Field(ge=1)
    """How many messages went there and back."""


class Connection(Fact):
    """How the host that leads a run and another one reached each other during a phase."""

    phase: str = Field(pattern=r"^[a-z0-9.-]+$")
    host: str = Field(pattern=f"^{HOST_NAME}$")
    """The name of the other host."""
    clock: Clock
    """By which the host's stamps of this phase were moved onto the run's clock."""
    sent_bytes: int = Field(ge=0)
    """What the host sent to the leading one while the phase was measured, as it counted on its side of the stream."""
    received_bytes: int = Field(ge=0)
    """What it received from the leading one meanwhile."""


class Finding(Fact):
    """What a rule found in a result."""

    rule: str
    severity: Literal["note", "warning", "invalid"]
    about: str
    message: str


class Result(Fact):
    """A whole run."""

    schema_version: Literal[7] = SCHEMA
    created_utc: str
    seed: int | None = Field(default=None, ge=0)
    """The seed that the user gave, who could know every feed beforehand. None: each window drew its own."""
    tier: Tier
    preset: str
    command: tuple[str, ...] = ()
    bits: WeightClass | None = None
    """The fewest bits of a weight that a route might have. None: the precisions were given by name."""
    phases: tuple[Phase, ...] = ()
    """The phases as planned. A share without a record was not reached."""
    candidates: tuple[Phase, ...] = ()
    """The phases of all routes, where screening runs decide which of them are measured: those are added to `phases`
    when the
    screening runs are over. Empty where every route is measured."""
    system: System
    """The machine; where there are several hosts, the first one."""
    hosts: tuple[Hosts, ...] = ()
    """All hosts, where they are several or another machine leads the run. Empty: the run has one host, this machine."""
    devices: tuple[Device, ...]
    environments: dict[str, Environment] = {}
    """The software that each adapter's workers ran in, by the name of the adapter; `host2/torch` where that of a host
    differs from the first host's."""
    absent: tuple[Absent, ...] = ()
    """What could not be used: adapters, devices, meters, suites, the mix, sections of the configuration."""
    noise_floor: NoiseFloor | None = None
    """The noise floor of this machine at the run's tier, as known when the run began. None: not measured."""
    domains: tuple[Domain, ...] = ()
    """The domains that were sampled. What could not be read is in `absent`."""
    mix: Mix | None = None
    """The mix that the run ends with. None: it has no mixed phase."""
    objective: Literal["throughput", "efficiency"] = "throughput"
    """The objective of the plan of the mixed phases."""
    scaling: bool = False
    """Whether the mix is also run on the first 1, 2, 4, … of several hosts."""
    suites: tuple[SuiteFacts, ...] = ()
    """All suites that loaded, whether the run uses them or not."""
    records: tuple[Record, ...]
    meterings: tuple[Metering, ...] = ()
    connections: tuple[Connection, ...] = ()
    """One for each phase and each host that took part in it, where there are hosts besides this machine."""
    live: Annotated[bool, SkipJsonSchema(), Field(exclude=True)] = False
    """Whether the run goes on in another process now; `store.open` finds it out."""
    finished: bool
    """False where the run was interrupted; `--resume` goes on."""
    resumed: tuple[int, ...] = ()
    """How many records there were each time the run was resumed: the clock may have begun anew there."""

    @property
    def seed_given(self) -> bool:
        return self.seed is not None

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Result:
        keys = [record.key for record in self.records]
        if len(set(keys)) != len(keys):
            raise ValueError("two records have the same key")
        return self
