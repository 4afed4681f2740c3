"""A whole run: its hosts, their software, clocks and connections, and everything that was planned and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.schema.device import HOST_NAME, LARGEST, Device, Fact, Int64s, Tier, WeightClass
from mixmark.harness.contracts.schema.plan import HIGHEST_LEVEL, Mix, Phase, PowerLimit
from mixmark.harness.contracts.schema.record import Absent, Record

SCHEMA: Literal[8] = 8
Boundary = Literal["wall", "node", "devices"]


class UnitNames(Fact):
    """How reports write the unit of a suite and the times that its units take."""

    short: str = Field(min_length=1)
    """The unit in a rate: `tok` in 3.96 tok/s."""
    work: str = Field(min_length=1)
    """The units of a mix in a sentence: `LLM tokens`, `pictures classified`."""
    first_unit: str = "Time to first unit"
    """The time from a feed's issue to its first unit, for suites whose feeds yield several times."""
    per_unit: str = "Time per unit"
    """The mean time of a feed's further units."""


class NoiseFloor(Fact):
    """How far two measurements of the same thing differ on this machine, as `mixmark selftest` measured it."""

    fraction: float = Field(ge=0)
    """The difference that 95 % of the pairs do not exceed: 0.02 is 2 %."""
    tier: Tier
    created_utc: str
    """The time at which the self-test began."""


class SuiteFacts(Fact):
    """A suite that a run could use, disclosed in the result so that a reporter need not load it."""

    name: str
    version: str
    unit: str
    """One piece of the suite's work, in the singular: token, image."""
    unit_names: UnitNames


class Environment(Fact):
    """The software in which an adapter's workers run, as they report it. It may differ from this process's."""

    origin: str
    """`built in`, the distribution and version that the adapter comes from, or `command line`."""
    spec: str
    """The adapter's class, as `module:Class` or `file.py:Class`, without a folder."""
    source: str = ""
    """The file from which `sha256` was computed: the RECORD of the distribution, which lists all files by hash, or the
    module's file. Empty: no file was found."""
    sha256: str = ""
    """The SHA-256 of the source."""
    python: str
    mixmark: str
    packages: dict[str, str] = {}
    vendor: dict[str, str] = {}
    """Versions of drivers, firmware and runtimes that the adapter disclosed."""


class System(Fact):
    """The machine, its software and its settings. None: the machine does not report the value."""

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
    """The packages of the process that ran the harness. Those of each adapter are in `Result.environments`."""
    environment: dict[str, str] = {}
    """The environment variables of a fixed list."""
    mixmark: str
    git_commit: str | None


class Hosts(Fact):
    """Hosts that differ only in their names: the same machine, software and settings."""

    names: tuple[Annotated[str, Field(pattern=f"^{HOST_NAME}$")], ...] = Field(min_length=1)
    """The names of the hosts."""
    system: System


class Clock(Fact):
    """The offset of another host's monotonic clock from the clock of the leading host, as `measure.cluster.clocks`
    estimates it: offset = theirs - ours = offset_ns + drift · (ours - at_ns)."""

    at_ns: int
    """The middle of the estimate's interval, on the leading host's clock."""
    offset_ns: int
    """How far the other clock was ahead at that time."""
    drift: float
    """The growth of the offset per unit of the leading host's time."""
    bound_ns: int = Field(ge=0, le=LARGEST)
    """The largest error of the offset that the round trips allow."""
    pings: int = Field(ge=1)
    """The number of round trips."""


class Connection(Fact):
    """The connection between the leading host and another host during a phase."""

    phase: str = Field(pattern=r"^[a-z0-9.-]+$")
    host: str = Field(pattern=f"^{HOST_NAME}$")
    """The name of the other host."""
    clock: Clock
    """The estimate by which the host's timestamps of this phase were moved onto the run's clock."""
    sent_bytes: int = Field(ge=0)
    """What the host sent to the leading host while the phase was measured, counted on the host's side."""
    received_bytes: int = Field(ge=0)
    """What the host received from the leading host in that time."""


Severity = Literal["note", "warning", "pending", "invalid"]
"""pending: the run ended before the audit that would tell; what it is about counts for nothing either way."""
FindingValue = str | int | float | tuple[str, ...] | tuple[int, int]


class Finding(Fact):
    """What a rule found in a result, as values: `judge.findings` has the words."""

    code: str
    """The name of the rule, or `rule.case` if the rule can find several things."""
    severity: Severity
    about: str
    """The key of a record, the name of a phase, the id of a device or a host, or `run`."""
    values: Mapping[str, SkipValidation[FindingValue]] = Field(default_factory=dict)
    """What was found: texts, ids, and numbers with the unit in the name."""

    @property
    def rule(self) -> str:
        return self.code.partition(".")[0]

    @property
    def voids(self) -> bool:
        """Whether what it is about counts for nothing."""
        return self.severity in ("pending", "invalid")


class Domain(Fact):
    """A source of energy or power readings, and what it covers."""

    id: str = Field(pattern=r"^[A-Za-z0-9:._/-]+$")
    meter: str
    covers: tuple[str, ...] = Field(min_length=1)
    """The ids of devices, and names of other parts: `memory`, or `node` for the whole machine."""
    boundary: Boundary
    quantity: Literal["energy", "power"]
    """What the raw samples are: a counter in joules, or watts."""
    method: Literal["counter", "integrated", "external", "modelled"]
    wrap_joules: float | None = Field(default=None, gt=0)
    """The joules at which a counter starts again at zero. None: it does not wrap within any run."""
    averaging_ns: int | None = Field(default=None, ge=0)
    """The time over which a power reading is an average. None: the source does not say."""
    accuracy: float | None = Field(default=None, gt=0)
    """The accuracy that the maker declares: 0.01 is 1 %."""
    parent: str | None = None
    """The domain that contains this one."""
    source: str
    """The interface and its documentation."""

    @model_validator(mode="after")
    def _nothing_inside_sees_the_wall(self) -> Domain:
        if self.boundary == "wall" and self.method != "external":
            raise ValueError(f"domain {self.id} is read by {self.method} inside the machine, and claims the wall")
        return self


@dataclass(frozen=True, eq=False)
class Samples:
    """The raw readings of one domain, in order: columns of equal length.

    before_ns, after_ns: the times before and after each read, on the run's clock. Both are equal if the source has
    timestamps of its own.
    values: float64, joules of a counter, with its wraps and resets, or watts. Columns may be empty.
    """

    before_ns: Int64s
    after_ns: Int64s
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, dtype in (("before_ns", np.int64), ("after_ns", np.int64), ("values", np.float64)):
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            if column.ndim != 1 or len(column) != len(self.before_ns):
                raise ValueError("samples are columns of equal length")
            if not (np.abs(column.astype(np.float64)) < LARGEST).all():  # also false for NaN
                raise ValueError(f"{name} is beyond any run")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if (self.after_ns < self.before_ns).any() or (np.diff(self.before_ns) < 0).any():
            raise ValueError("time runs backwards between samples")


class Metering(Fact):
    """The samples of all meters during one phase."""

    phase: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The name of the phase, and the stem of the raw file."""
    begin_ns: int
    end_ns: int
    cpu_ns: int = Field(ge=0)
    """CPU time of the sampling threads."""
    idle_ns: tuple[tuple[int, int], ...] = ()
    """The intervals without any worker: before the phase's workers were started, and after they had ended."""
    ready_ns: tuple[int, int] | None = None
    """The interval in which all suites of a phase of a mix were loaded and nothing was asked. None: there was none."""
    samples: Annotated[Mapping[str, Samples], SkipValidation, SkipJsonSchema(), Field(exclude=True)] = {}
    """The samples by domain. They are stored beside result.json as raw/<phase>.energy.npz."""
    lost: dict[str, str] = {}
    """The reasons why domains could not be read until the end of the phase."""
    reading_age_ns: dict[str, int] = {}
    """The least age of a source's own timestamp when its reading was seen, by domain."""


class Result(Fact):
    """A whole run."""

    schema_version: Literal[8] = SCHEMA
    created_utc: str
    seed: int | None = Field(default=None, ge=0)
    """The seed that the user gave, from which all feeds can be predicted. None: each window drew its own seed."""
    tier: Tier
    preset: str
    command: tuple[str, ...] = ()
    bits: WeightClass | None = None
    """The least weight class of a route. None: the precisions were given by name."""
    phases: tuple[Phase, ...] = ()
    """The planned phases. A share without a record was not reached."""
    candidates: tuple[Phase, ...] = ()
    """The phases of all routes, if screening runs decide which of them are measured: the chosen ones are added to
    `phases` after the screening runs. Empty: every route is measured."""
    system: System
    """The machine; with several hosts, the first one."""
    hosts: tuple[Hosts, ...] = ()
    """All hosts, if there are several or another machine leads the run. Empty: the run has one host, this machine."""
    devices: tuple[Device, ...]
    environments: dict[str, Environment] = {}
    """The software of each adapter's workers, by the name of the adapter; `host2/torch` if that of a host differs from
    the first host's."""
    absent: tuple[Absent, ...] = ()
    """Everything that could not be used: adapters, devices, meters, suites, the mix, sections of the configuration."""
    noise_floor: NoiseFloor | None = None
    """The noise floor of this machine at the run's tier, as known when the run began. None: not measured."""
    domains: tuple[Domain, ...] = ()
    """The domains that were sampled. Sources that could not be read are in `absent`."""
    mix: Mix | None = None
    """The mix of the run. None: the run has no mixed phase."""
    objective: Literal["throughput", "efficiency"] = "throughput"
    """The objective of the plan of the mixed phases."""
    scaling: bool = False
    """Whether the mix is also run on the first 1, 2, 4, … of several hosts."""
    levels: tuple[Annotated[float, Field(gt=0, le=HIGHEST_LEVEL)], ...] = ()
    """The loads at which the mix is also served, as shares of the rate of the mixed runs."""
    drills: bool = False
    """Whether the mix is also run while its busiest device is taken away and given back."""
    caps: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    """The shares of `power_limits` at which the mix is also run."""
    power_limits: tuple[PowerLimit, ...] = ()
    """The limits of power that the run lowers for that. Empty: it lowers none."""
    policies: tuple[str, ...] = ()
    """The policies by which the mix is also run and served, to compare them with the plan."""
    suites: tuple[SuiteFacts, ...] = ()
    """All suites that loaded, whether the run uses them or not."""
    records: tuple[Record, ...]
    meterings: tuple[Metering, ...] = ()
    connections: tuple[Connection, ...] = ()
    """One for each phase and each host of the phase besides this machine."""
    live: Annotated[bool, SkipJsonSchema(), Field(exclude=True)] = False
    """Whether another process is running the run now, as `store.open` found."""
    finished: bool
    """False: the run was interrupted; `--resume` continues it."""
    resumed: tuple[int, ...] = ()
    """The number of records at each resumption. After one, the clock may have started again."""

    @property
    def seed_given(self) -> bool:
        return self.seed is not None

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Result:
        keys = [record.key for record in self.records]
        if len(set(keys)) != len(keys):
            raise ValueError("two records have the same key")
        return self
