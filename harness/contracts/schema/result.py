"""A whole run: its hosts, their software, clocks and connections, its plan and its measurements."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, JsonValue, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.device_ids import host_of, on
from mixmark.harness.contracts.schema.device import HOST_NAME, LARGEST, Device, Fact, Int64s, Route, Tier, WeightClass
from mixmark.harness.contracts.schema.plan import Mix, Phase
from mixmark.harness.contracts.schema.record import Absent, Found, PowerSource, Record
from mixmark.harness.contracts.text import Key, Label, Sentence

SCHEMA: Literal[10] = 10
Boundary = Literal["wall", "node", "devices"]


class UnitNames(Fact):
    """The words of reports for the unit of a suite and for the times of its units."""

    short: Label = Field(min_length=1)
    """The unit in a rate: `tok` in 3.96 tok/s. The rate of one that ends with ` s` is shown as × real time."""
    work: Label = Field(min_length=1)
    """The units of a mix in a sentence: `LLM tokens`, `images classified`."""
    first_unit: Label = "Time to first unit"
    """The time from a feed's issue to its first unit, for suites whose feeds yield several times."""
    per_unit: Label = "Time per unit"
    """The mean time of a feed's further units."""
    taken_in: int | None = Field(default=None, gt=0)
    """The units that a feed takes in before its first one: the tokens of a prompt."""


class NoiseFloor(Fact):
    """How far two measurements of the same thing differ on this machine, if that was measured."""

    fraction: float = Field(ge=0)
    """The 95th percentile of the difference between two measurements: 0.02 is 2 %."""
    tier: Tier
    created_utc: Label
    """When the self-test began, in UTC."""


class SuiteFacts(Fact):
    """A suite that a run could use, disclosed in the result so that reporters need not load the suite."""

    name: Label
    version: Label
    unit: Label
    unit_names: UnitNames
    continues: Label = ""
    """The suite whose output it can continue. Empty: none."""


BUILT_IN = "built in"
"""The origin of Mixmark's own adapters, if the command's own interpreter runs them."""


def digest_of_code(code: Mapping[str, str]) -> str:
    """One SHA-256 over `Result.code`, as `sha256sum` writes it."""
    lines = (f"{sha256}  {path}\n" for path, sha256 in sorted(code.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Environment(Fact):
    """The software of an adapter's workers, which may differ from that of the harness's process. The harness computes
    origin, spec, source and sha256 before a worker starts; the workers report the rest."""

    origin: Label
    """`built in`, the adapter's distribution and version, `command line` or `configuration`. It ends with `another
    interpreter` if the configuration names an interpreter: what runs there is that interpreter's word."""
    spec: Label
    """The adapter's class, as `module:Class` or `file.py:Class`, without a folder. Empty: not found in the other
    interpreter."""
    source: Label = ""
    """The file that `sha256` was computed from: the RECORD of the distribution, which lists all files by hash, or the
    module's file. Empty if no file was found, and for an adapter of Mixmark, whose files `Result.code` lists."""
    sha256: Label = ""
    """The SHA-256 of the source."""
    python: Label
    mixmark: Label
    packages: dict[Label, Label] = {}
    vendor: dict[Label, Label] = {}
    """Versions of drivers, firmware and runtimes that the adapter disclosed."""


class System(Fact):
    """The machine, its software and its settings. A value is None if the machine does not report it."""

    cpu_model: Label | None
    cpu_cores: int | None
    cpu_threads: int | None
    cpu_quota: float | None = None
    """The CPU time that the control groups of the run may use, in CPUs, if that is less than its hardware threads
    have. None if there is no such quota."""
    cpu_flags: tuple[Label, ...] = ()
    """The instruction-set extensions that affect the speed of the suites."""
    microcode: Label | None
    firmware: Label | None
    governor: Label | None
    power_source: PowerSource | None = None
    """What supplied the machine when the run began."""
    power_profile: Label | None = None
    """The platform's power profile, as `low-power`, or else the processor's energy preference, as `balance_power`."""
    clock_max_mhz: float | None
    memory_bytes: int | None
    swap_bytes: int | None
    caches: dict[Label, Label] = {}
    kernel: Label
    operating_system: Label | None
    virtualization: Label | None
    container: Label | None
    cgroup_limits: dict[Label, Label] = {}
    accelerators: tuple[dict[Label, Label], ...] = ()
    """Model, driver, firmware, power limit and clocks per device, as its vendor's library reports them."""
    python: Label
    packages: dict[Label, Label] = {}
    """The packages of the harness's process. `Result.environments` has the packages of each adapter."""
    environment: dict[Label, Label] = {}
    """The environment variables of a fixed list."""
    mixmark: Label
    git_commit: Label | None

    @property
    def quota_in_words(self) -> str | None:
        """`1 of 2 CPUs by quota`; None if there is no quota."""
        return f"{self.cpu_quota:g} of {self.cpu_threads or 'all'} CPUs by quota" if self.cpu_quota else None


class Hosts(Fact):
    """Hosts that differ only in their names: the same machine, software and settings."""

    names: tuple[Annotated[str, Field(pattern=f"^{HOST_NAME}$")], ...] = Field(min_length=1)
    """The names of the hosts."""
    machines: int | None = Field(default=None, ge=0)
    """How many machines the hosts are, if several share one; a machine counts with its first host. None if each host is
    a machine."""
    system: System

    @property
    def count(self) -> int:
        """The number of machines."""
        return len(self.names) if self.machines is None else self.machines


class Clock(Fact):
    """The offset of another host's monotonic clock from the leading host's, estimated by round trips:
    other clock − leading clock = offset_ns + drift · (leading clock − at_ns)."""

    at_ns: int
    """The middle of the estimate's interval, on the leading host's clock."""
    offset_ns: int
    """How far the other clock was ahead at `at_ns`."""
    drift: float
    """The growth of the offset per unit of the leading host's time."""
    bound_ns: int = Field(ge=0, le=LARGEST)
    """The largest possible error of the offset, by the round trips."""
    pings: int = Field(ge=1)
    """The number of round trips."""


class Connection(Fact):
    """The connection between the leading host and another host during a phase."""

    phase: Key
    host: str = Field(pattern=f"^{HOST_NAME}$")
    """The name of the other host."""
    clock: Clock
    """The estimate that moved the host's timestamps of this phase onto the run's clock."""
    sent_bytes: int = Field(ge=0)
    """Bytes from the other host to the leading host during the measurement of the phase, counted by the other host."""
    received_bytes: int = Field(ge=0)
    """Bytes from the leading host to the other host in the same time."""
    unled_ns: int = Field(default=0, ge=0, le=LARGEST)
    """The longest time in which the other host got no work of a mixed phase, beyond the time for which it had some: the
    leading process stood still."""


Severity = Literal["note", "warning", "pending", "invalid"]
"""pending: the run ended before the audit that would tell; what it is about counts for nothing either way."""


class Finding(Fact):
    """What a rule found in a result, as values: `judge.findings` has the words."""

    code: str
    """The name of the rule, or `rule.case` if the rule can find several things."""
    severity: Severity
    about: str
    """The key of a record, the name of a phase, the id of a device or a host, or `run`."""
    values: Mapping[str, SkipValidation[FindingValue]] = Field(default_factory=dict)
    """What was found: texts, ids, numbers with the unit in the name, and other findings."""

    @property
    def rule(self) -> str:
        return self.code.partition(".")[0]

    @property
    def voids(self) -> bool:
        """Whether the record, phase or run that the finding is about does not count."""
        return self.severity in ("pending", "invalid")


FindingValue = str | int | float | tuple[str, ...] | tuple[int, int] | tuple[Finding, ...]
Finding.model_rebuild()


class Domain(Fact):
    """A source of energy or power readings, and its coverage."""

    id: str = Field(pattern=r"^[A-Za-z0-9:._/-]{1,200}$")
    """The name of the source, unique in the run: `acme/npu:acme0`."""
    meter: Label
    """The name of the meter."""
    covers: tuple[Label, ...] = Field(min_length=1)
    """The ids of devices, and names of other parts: `memory`, or `node` for the whole machine."""
    boundary: Boundary
    """What a sum of such sources leaves out: `devices`, `node` behind the power supply, or `wall` before it."""
    quantity: Literal["energy", "power"]
    """What the raw samples are: `energy` in joules of a counter, or `power` in watts."""
    method: Literal["counter", "integrated", "external", "modelled"]
    """How the joules come about."""
    wrap_joules: float | None = Field(default=None, gt=0)
    """The joules at which a counter starts again at zero. None if it does not wrap within any run."""
    averaging_ns: int | None = Field(default=None, ge=0)
    """The averaging time of a power reading; a window needs 40 of these times. None if the source does not report
    it."""
    accuracy: float | None = Field(default=None, gt=0)
    """The accuracy that the maker declares: 0.01 is 1 %."""
    supply_watts: float | None = Field(default=None, gt=0)
    """The most that the supply can take, as its user declares: a bound of the readings, and never one of them."""
    parent: Label | None = None
    """The domain that contains this one."""
    source: Label
    """The interface and its documentation."""

    @property
    def hosts(self) -> frozenset[str]:
        """The names of the hosts that it covers. One empty name if the run has one host."""
        return frozenset(map(host_of, self.covers))

    @model_validator(mode="after")
    def _nothing_inside_sees_the_wall(self) -> Domain:
        if self.boundary == "wall" and self.method != "external":
            raise ValueError(f"domain {self.id} has the boundary wall, but {self.method} reads inside the machine")
        return self


@dataclass(frozen=True, eq=False)
class Samples:
    """The raw readings of one domain, in order: columns of equal length, which may be empty.

    before_ns, after_ns: the times before and after each read, on the run's clock; both are the source's timestamp if it
    has one. values: float64, joules of a counter, with its wraps and resets, or watts.
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

    phase: Key
    """The name of the phase, and the stem of the raw file."""
    begin_ns: int
    end_ns: int
    cpu_ns: int = Field(ge=0)
    """CPU time of the sampling threads."""
    idle_ns: tuple[tuple[int, int], ...] = ()
    """The intervals without any worker: before the phase's workers were started, and after they had ended."""
    ready_ns: tuple[int, int] | None = None
    """The interval after all suites of a phase with a mix were loaded and before the first feed. None if there was
    none."""
    samples: Annotated[Mapping[str, Samples], SkipValidation, SkipJsonSchema(), Field(exclude=True)] = {}
    """The samples by domain, stored beside result.json as raw/<phase>.energy.npz."""
    lost: dict[Label, Sentence] = {}
    """Why a domain could not be read until the end of the phase, by domain."""
    reading_age_ns: dict[Label, int] = {}
    """The least age of a source's timestamp when its reading was received, by domain."""


class Result(Fact):
    """A whole run."""

    schema_version: Literal[10] = SCHEMA
    created_utc: Label
    seed: int | None = Field(default=None, ge=0)
    """The seed that the user gave, which makes all feeds predictable. None if each window drew a seed."""
    tier: Tier
    preset: Label
    command: tuple[Sentence, ...] = ()
    bits: WeightClass | None = None
    """The smallest weight class of a route. None if the precisions were given by name."""
    phases: tuple[Phase, ...] = ()
    """The planned phases. A share without a record was not reached."""
    candidates: tuple[Phase, ...] = ()
    """The phases of all routes, if only the fastest are measured: theirs are added to `phases`. Empty if every route is
    measured."""
    system: System
    """The machine; with several hosts, the first host."""
    hosts: tuple[Hosts, ...] = ()
    """All hosts, if there are several or another machine leads the run. Empty if this machine is the only host."""
    devices: tuple[Device, ...]
    code: dict[Label, Label] = {}
    """The SHA-256 of each file of Mixmark that measures, by its path (`mixmark/suites/weights.py`), as the run read the
    file before its first plugin ran. All hosts have the same files."""
    environments: dict[Label, Environment] = {}
    """The software of each adapter's workers, by the name of the adapter; by `host2/torch` for a host whose software
    differs from the first host's."""
    absent: tuple[Absent, ...] = ()
    """Adapters, devices, meters, suites, the mix and sections of the configuration that the run could not use."""
    noise_floor: NoiseFloor | None = None
    """The noise floor of this machine at the run's tier, as known when the run began. None if it was not measured."""
    domains: tuple[Domain, ...] = ()
    """The sampled domains. Sources that could not be read are in `absent`."""
    mix: Mix | None = None
    """The mix of the run. None if the run has no mixed phase."""
    objective: Literal["throughput", "efficiency"] = "throughput"
    """The objective of the plan of the mixed phases."""
    experiments: dict[Label, dict[Label, JsonValue]] = {}
    """The experiments that the run was asked for, by their names, with what each keeps of its options."""
    suites: tuple[SuiteFacts, ...] = ()
    """All suites that loaded, also unused ones."""
    records: tuple[Record, ...]
    found: tuple[Found, ...] = ()
    """What experiments found out, in the order in which they did."""
    meterings: tuple[Metering, ...] = ()
    connections: tuple[Connection, ...] = ()
    """One connection for each phase and each of its hosts besides this machine."""
    live: Annotated[bool, SkipJsonSchema(), Field(exclude=True)] = False
    """Whether another process was still running the run when `store.open` read it."""
    finished: bool
    """False if the run was interrupted; `--resume` continues it."""
    begun: tuple[Key, ...] = ()
    """The phases whose windows were opened, in that order. A phase that was ended before it had a record, and was
    measured again, stands here twice."""
    resumed: tuple[int, ...] = ()
    """The number of records at each resumption. The clock may have restarted there."""

    @property
    def seed_given(self) -> bool:
        return self.seed is not None

    @property
    def groups(self) -> tuple[Hosts, ...]:
        """All hosts, equal ones once. A run on this machine alone has one host, whose name is empty."""
        return self.hosts or (Hosts.model_construct(names=("",), system=self.system),)

    @property
    def systems(self) -> dict[str, System]:
        """The system of each host by its name."""
        return {name: group.system for group in self.groups for name in group.names}

    @property
    def machine(self) -> System:
        """All machines together: the first host's system with the processors, cores, threads and memory of all. A sum
        is None if one of them does not report its part."""
        systems = [group.system for group in self.groups for _ in range(group.count)]
        models = Counter(each.cpu_model for each in systems if each.cpu_model)
        processors = ", ".join(f"{count} × {model}" if count > 1 else model for model, count in models.items())
        parts = {
            name: [getattr(each, name) for each in systems] for name in ("cpu_cores", "cpu_threads", "memory_bytes")
        }
        sums = {name: None if None in known else sum(known) for name, known in parts.items()}
        quotas = [each.cpu_quota or each.cpu_threads or 0 for each in systems]
        sums["cpu_quota"] = sum(quotas) if any(each.cpu_quota for each in systems) else None
        return self.system.model_copy(update={"cpu_model": processors or self.system.cpu_model, **sums})

    def system_of(self, host: str) -> System:
        """The system of a host; the first host's if the result does not list it."""
        return self.systems.get(host, self.system)

    def environment_of(self, route: Route) -> Environment | None:
        """The software of a route's workers."""
        return self.environments.get(on(route.host, route.adapter)) or self.environments.get(route.adapter)

    def ran_built_in(self, route: Route) -> bool:
        """Whether a route's adapter was Mixmark's own code in the command's own interpreter."""
        environment = self.environment_of(route)
        return environment is not None and environment.origin == BUILT_IN

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Result:
        keys = [record.key for record in self.records]
        if len(set(keys)) != len(keys):
            raise ValueError("two records have the same key")
        return self
