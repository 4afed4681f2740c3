"""The facts of a run: frozen, checked on construction, units in names, unknown is None and never 0.

Conclusions (throughput, percentiles, findings, scores) are functions of these facts and live in `harness/judge`; none
is stored. All times are integer nanoseconds on CLOCK_MONOTONIC of the machine that leads the run. What another host
stamped was moved onto that clock, within the bound of the host's `Connection`.

Where a run has several hosts, each has a name, and what belongs to a host is named with it: the device `host1/cpu:0`,
the memory pool `host1/host`, the energy domain `host1/rapl:package-0`, which covers `host1/node`.
"""

# History of SCHEMA: 1 first shape; 2 a phase says its purpose, a probe is a scenario, what is absent has a kind,
# the conditions of accelerators are the same for every vendor, each record has its window's seed; 3 a noise floor has a
# tier and a date, a suite says what its units are called in a sentence; 4 a run has a weight class, and may rank its
# routes by screening runs before it measures the best of them; 5 a device may be a hosted service, and a record says
# what went wrong when its suites were closed; 6 a run may have several hosts, each with its clock and its traffic.

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.device_ids import host_of, local, meet, piece

SCHEMA: Literal[6] = 6

Precision = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
BITS_PER_WEIGHT: dict[str, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}

Tier = Literal["smoke", "edge", "server"]
ScenarioName = Literal["single-stream", "offline", "server", "mixed", "probe"]
"""How feeds are issued. Every record of a phase that runs a mix is `mixed`. A suite that measures the ceilings of a
device has the scenario `probe`: as many feeds at a time as the runner has slots, and no result of its own."""
Purpose = Literal["probe", "screening", "solo", "confirmation", "mixed", "scaling"]
"""Why a phase is run: to measure ceilings, to rank a route by a screening run of a few seconds, to measure a route
alone, to
measure a route that the plan chose alone once more, to run the mix, or to run the mix on the first 1, 2, 4, … of
several hosts, which shows how the rate grows with the hosts."""
MIXES: tuple[Purpose, ...] = ("mixed", "scaling")
"""The purposes of the phases that run a mix by a plan."""
WeightClass = Literal[16, 8, 4]
"""The bits of a weight by which routes are compared with each other; fp32 counts with the 16-bit formats."""
Int64s = npt.NDArray[np.int64]
HOST_POOL = "host"
"""The `Device.memory_pool` of everything that draws on the host's memory."""
HOST_PROCESSOR = "cpu:0"
"""The `Device.id` of the host's processor, also where no adapter reaches it."""
NOT_ASKED, NO_GATE, HOSTED = "not asked for", "the suite has no gate", "a hosted service has weights of its own"
"""The reasons for which a record is not audited that are no fault."""
DIGEST_BYTES = 16
"""The length of the digest of an output."""
LARGEST = 1 << 60
"""The upper limit of any stored integer: 36 years in ns, so that sums and differences of stamps stay inside int64."""


class Fact(BaseModel):
    """Base of everything that is written to a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


def weight_class(precision: str) -> WeightClass:
    """The class of a precision: its bits of a weight, fp32 counted with the 16-bit formats."""
    bits = BITS_PER_WEIGHT[precision]
    return 16 if bits >= 16 else 8 if bits == 8 else 4


HOST_NAME = r"[a-z0-9][a-z0-9-]{0,31}"
"""How a host may be called."""
DEVICE_ID = rf"({HOST_NAME}/)?[a-z0-9]+:[A-Za-z0-9._-]+"
PART = re.compile(rf"{DEVICE_ID}(/\d{{1,4}}-of-[1-9]\d{{0,3}})?")
"""A name of silicon in `Device.parts`: a device's id, or one of so many pieces of it."""


class Device(Fact):
    """A piece of silicon, or a group or a slice of such pieces, however many software routes reach it."""

    id: str = Field(pattern=f"^{DEVICE_ID}$")
    """Names the physical part: `cpu:0`, `gpu:<uuid>`; with its host where a run has several: `host1/cpu:0`."""
    kind: Literal["cpu", "gpu", "npu", "asic"]
    name: str = ""
    """What its maker calls it; of a group, what one of its parts is called."""
    parts: tuple[str, ...] = ()
    """The silicon of a group, e.g. the ids of four GPUs, or of a slice, e.g. `gpu:<uuid>/2-of-7`. A mix uses it once.
    Empty: the device is the part that its id names."""
    memory_pool: str
    """Devices with the same pool draw on the same memory; the host's is `host`. A group over memories of their own has
    a pool of its own."""
    memory_bytes: int | None = Field(default=None, gt=0)
    precisions: tuple[Precision, ...] = ()
    """What the silicon computes natively by this route, best first."""
    precisions_by_suite: dict[str, tuple[Precision, ...]] = {}
    """The precisions of single suites, where they differ from `precisions`. An empty tuple: it cannot run the suite."""
    slice_of: str | None = None
    """The device that this one is a part of: an adapter is given that one, in a process that is pinned to `cores`."""
    cores: tuple[int, ...] = ()
    """The hardware threads of a slice, as the operating system numbers them."""
    hosted: str = ""
    """The model of a hosted service, which has weights of its own. Its outputs cannot be audited, and none of them is
    in a score. Empty: the device runs what the suite gives it."""

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
        """Whether both use some of the same silicon. Two slices of one processor do where they share a core."""
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
        """The name of its host; empty where the run has one host."""
        return host_of(self.id)

    def offers(self, suite: str) -> tuple[Precision, ...]:
        """The precisions in which the device computes a suite by this route, best first."""
        return self.precisions_by_suite.get(suite, self.precisions)

    @property
    def whole(self) -> Device:
        """The device as its adapter knows it: for a slice, the device that it is a part of."""
        if self.slice_of is None:
            return self
        return self.model_copy(update={"id": self.slice_of, "slice_of": None, "cores": ()})


class Route(Fact):
    """One way to run one suite on one device."""

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
    """`synthetic`, made by the suite's generator, the checkpoint's name and hash, or `hosted: ` and a service's
    model."""

    @property
    def hosted(self) -> bool:
        """Whether it runs a model that a hosted service has, and not the suite's."""
        return self.weights.startswith("hosted: ")

    @property
    def weight_class(self) -> WeightClass:
        return weight_class(self.precision)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from the other routes of a run."""
        return self.suite, self.device, self.adapter, self.precision

    @property
    def label(self) -> str:
        return f"{self.suite} on {self.device} by {self.adapter} in {self.precision}"


class LatencyLimits(Fact):
    """The latencies that a server must keep at the percentile, from when a feed was due. None: no such limit."""

    percentile: float = Field(gt=0, lt=1)
    first_ns: int | None = Field(default=None, gt=0)
    """The limit of the time until the first unit: an LLM's time to first token."""
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit of the mean time between units of a feed: an LLM's time per output token."""
    total_ns: int | None = Field(default=None, gt=0)
    source: str


class Gate(Fact):
    """The error that no audited feed may exceed."""

    metric: str
    """The name of the error with its unit. It is 0 for the fp32 reference itself; larger is worse."""
    at_most: float = Field(gt=0)
    samples: int = Field(default=1, gt=0)
    """The minimum number of samples of an audit. A feed of one sample could pass by luck."""


class Limits(Fact):
    """How long a share may take, in nanoseconds."""

    warmup_ns: int = Field(ge=0)
    search_ns: int = Field(ge=0)
    """The time of all trials of the search for the best batch or the highest rate together. Preparing a batch size and
    its first feed are not counted."""
    min_ns: int = Field(ge=0)
    """The window ends once this has passed, `min_feeds` are done and the half-width is reached."""
    max_ns: int = Field(ge=0)
    """The window also ends once this has passed and one feed is done."""
    min_feeds: int = Field(ge=1)
    half_width: float | None = Field(default=None, gt=0)
    """The half-width that the 95 % confidence interval of a closed loop's throughput must reach, as a share of it.
    None: not asked for."""
    audits: int = Field(default=0, ge=0)
    """The minimum number of feeds whose outputs are compared with the reference. 0: no audit is asked for."""
    screening: bool = False
    """Whether the last feed of each lane is broken off once `max_ns` has passed and it has shown its pace."""


class Share(Fact):
    """One suite's part of a task."""

    key: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The key of the record that this share becomes."""
    route: Route
    scenario: ScenarioName
    batch: int | None = Field(default=None, gt=0)
    """The samples in a feed. None: the best batch is searched for."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """The arrival rate of a server in feeds per second. None: the highest rate that keeps the latency limits is
    searched for."""
    run: int = Field(default=1, ge=1)
    limits: Limits


class Task(Fact):
    """A device and its shares of the work. Each adapter that they use on it is one worker process."""

    device: str
    shares: tuple[Share, ...] = Field(min_length=1)


class Phase(Fact):
    """The tasks that run at the same time. A solo measurement is a phase of one task with one share."""

    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    purpose: Purpose
    tasks: tuple[Task, ...] = Field(min_length=1)
    placement: Placement | None = None
    """The plan by which the shares of a phase of a mix were chosen; None for any other purpose."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares of all tasks."""
        return tuple(share for task in self.tasks for share in task.shares)

    @model_validator(mode="after")
    def _each_device_once(self) -> Phase:
        devices = [task.device for task in self.tasks]
        if len(set(devices)) != len(devices):
            raise ValueError(f"phase {self.name} uses a device twice: {', '.join(devices)}")
        return self

    @model_validator(mode="after")
    def _a_mix_is_planned(self) -> Phase:
        if (self.purpose in MIXES) != (self.placement is not None):
            raise ValueError(
                f"phase {self.name} is {self.purpose}: a phase of a mix has a placement, and no other has one"
            )
        return self


@dataclass(frozen=True)
class Completion:
    """One finished feed."""

    due_ns: int
    """When the feed should have been issued. It equals issued_ns in a closed loop."""
    issued_ns: int
    marks: tuple[tuple[int, int], ...]
    """(stamp in ns, units finished) of each yield."""

    @property
    def done_ns(self) -> int:
        return self.marks[-1][0]


@dataclass(frozen=True, eq=False)
class Completions:
    """The raw stamps of a record as columns, one row per feed that finished, in the order of their issue.

    due_ns, issued_ns: [feeds]. ends: [feeds], the index behind a feed's last mark.
    marks_ns, units: [marks], a stamp and the units it finished.
    Raises ValueError where a feed has no mark, time runs backwards inside a feed or from issue to issue, units are not
    positive, or a number is beyond any run.
    """

    due_ns: Int64s
    issued_ns: Int64s
    ends: Int64s
    marks_ns: Int64s
    units: Int64s

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            column = np.ascontiguousarray(getattr(self, name), dtype=np.int64)
            if column.ndim != 1:
                raise ValueError(f"{name} must be one-dimensional")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
            if (np.abs(column.astype(np.float64)) >= LARGEST).any():
                raise ValueError(f"{name} is beyond any run")
        feeds = len(self.issued_ns)
        if feeds == 0:
            raise ValueError("no feed finished")
        if len(self.due_ns) != feeds or len(self.ends) != feeds or len(self.units) != len(self.marks_ns):
            raise ValueError("columns differ in length")
        starts = self.starts
        if self.ends[-1] != len(self.marks_ns) or (self.ends <= starts).any():
            raise ValueError("a feed has no mark")
        if (self.units <= 0).any():
            raise ValueError("a mark without units")
        if self.units.sum(dtype=np.float64) >= LARGEST:
            raise ValueError("units are beyond any run")
        if (self.marks_ns[starts] < self.issued_ns).any() or (self.issued_ns < self.due_ns).any():
            raise ValueError("time runs backwards")
        if (np.diff(self.issued_ns) < 0).any():
            raise ValueError("feeds are not in the order of their issue")
        steps = np.diff(self.marks_ns)
        steps[starts[1:] - 1] = 0  # from one feed to the next anything goes: they may overlap
        if (steps < 0).any():
            raise ValueError("time runs backwards inside a feed")

    @property
    def starts(self) -> Int64s:
        """[feeds], the index of a feed's first mark."""
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1]))

    def __len__(self) -> int:
        return len(self.issued_ns)

    def __iter__(self) -> Iterator[Completion]:
        for due, issued, start, end in zip(self.due_ns, self.issued_ns, self.starts, self.ends, strict=True):
            marks = zip(self.marks_ns[start:end].tolist(), self.units[start:end].tolist(), strict=True)
            yield Completion(int(due), int(issued), tuple(marks))


class Cost(Fact):
    """What one yield of a feed takes at the least, by analysis: minimal algorithm, weights read once.

    A feed's costs are a tuple of these in the order of its yields: prefill, then decode for 127 yields.
    """

    name: str
    flops: float = Field(ge=0)
    """Floating-point operations; a multiplication and an addition count one each."""
    bytes: float = Field(ge=0)
    yields: int = Field(default=1, gt=0)
    """How many consecutive yields cost this much each."""
    least_flops: float | None = Field(default=None, ge=0)
    """The fewest operations of any algorithm in use, where those are fewer: Winograd's F(4×4, 3×3) needs a quarter of
    the multiplications of a convolution. No honest engine needs fewer. None: `flops`."""
    streamed_bytes: float = Field(default=0, ge=0)
    """The part of `bytes` that must come from memory even with a cache a quarter its size: weights, each read once in a
    pass, but not the popular rows of a table, which a cache holds."""


SearchEnd = Literal["no gain", "memory", "time", "long feeds"]
"""What ended the growth of the batch in a search: two sizes in turn were no faster, a larger one does not fit into
memory or into the search's time, or its feeds would last longer than 0.5 s."""


class Trial(Fact):
    """The fastest turn of a batch size in the search for the best one. It is stored and counts in no figure."""

    batch: int = Field(gt=0)
    units: int = Field(gt=0)
    elapsed_ns: int = Field(gt=0)


class RateTrial(Fact):
    """One step of the search for the highest rate that a server sustains."""

    rate_per_s: float = Field(gt=0)
    feeds: int = Field(ge=0)
    """The number of feeds that finished; 0 if the queue grew until the trial was given up."""
    kept: bool
    """Whether the latency limits were kept."""


class Failure(Fact):
    """Why there is no number."""

    kind: Literal[
        "refused",
        "unsupported",
        "raised",
        "crashed",
        "out of memory",
        "hung",
        "overloaded",
        "wrong output",
        "no result",
    ]
    """Why it failed. What was `refused` or `unsupported` was not attempted; the others were attempted and failed."""
    message: str
    hint: str = ""

    @property
    def attempted(self) -> bool:
        return self.kind not in ("refused", "unsupported")


ClockReason = Literal[
    "idle",
    "clock setting",
    "synchronised clocks",
    "power cap",
    "thermal limit",
    "thermal protection",
    "power supply protection",
    "hardware protection",
]
"""Why an accelerator's clock is not higher. `clock setting`: a user chose the clock. `synchronised clocks`: it follows
those of other accelerators. `thermal limit`: the driver lowers it to stay below a temperature. `thermal protection`:
the hardware lowers it because it is too hot. `hardware protection`: the hardware lowers it for heat, current or its
supply, and the vendor does not say for which."""
PROTECTIVE: tuple[ClockReason, ...] = (
    *("hardware protection", "thermal limit", "thermal protection", "power supply protection"),
)
"""The reasons that no user chose: the accelerator slows down to protect itself."""


class AcceleratorConditions(Fact):
    """An accelerator at the end of an interval, as its vendor's watcher tells; None where it does not."""

    id: str
    """The device's id, `gpu:<uuid>`."""
    reasons: tuple[ClockReason, ...] | None = None
    """Why its clock is not higher."""
    clock_mhz: int | None = Field(default=None, ge=0)
    temperature_c: int | None = None
    power_cap_mw: int | None = Field(default=None, ge=0)
    foreign_pids: tuple[int, ...] | None = None
    """Processes that compute on it and are not ours; None also where the driver counts in another process namespace."""
    own_listed: bool | None = None
    """Whether the driver lists a process of ours among those that compute on it; None also where it lists none."""
    utilization_pct: int | None = Field(default=None, ge=0, le=100)
    """The share of the driver's last sampling interval, up to a second, in which something computed, in percent."""


class Audit(Fact):
    """Outputs of the timed window, compared with the fp32 reference on the same feeds."""

    gate: Gate
    finished: int = Field(ge=0)
    """The number of feeds whose outputs were kept. The audited ones were drawn from them."""
    feeds: tuple[int, ...] = ()
    """The numbers of the audited feeds, counted from 0 in the order in which they were asked for."""
    values: tuple[float, ...] = ()
    """The error of each audited feed, in the gate's metric."""
    device: str = HOST_PROCESSOR
    """The device on which the reference ran."""
    disagreement: float | None = Field(default=None, ge=0)
    """How far the error of the first feed differs if the reference runs on the CPU; None where it ran there anyway."""
    elapsed_ns: int = Field(default=0, ge=0)
    problem: str = ""
    """Why an output could not even be compared."""
    code: str = ""
    """The SHA-256 over the files of Mixmark and of the suite that the auditor's process ran, each with its own hash."""
    software: dict[str, str] = {}
    """The versions of Python, numpy and torch that the reference ran with."""

    @property
    def passed(self) -> bool:
        return bool(self.values) and not self.problem and max(self.values) <= self.gate.at_most


class Conditions(Fact):
    """How the machine fared during one interval (block) of a record, or the canary that ran in it.

    Counters are increases over the interval. None where the machine does not say, and where a counter went backwards.
    """

    begin_ns: int
    end_ns: int
    cpus: int | None = Field(default=None, gt=0)
    """Hardware threads online that the run may use."""
    busy_ns: int | None = Field(default=None, ge=0)
    """CPU time of all processes on these, interrupts included, steal time excluded."""
    own_ns: int | None = Field(default=None, ge=0)
    """CPU time of the workers, their children, and the harness."""
    stolen_ns: int | None = Field(default=None, ge=0)
    """CPU time that the hypervisor gave to others."""
    throttled_periods: int | None = Field(default=None, ge=0)
    """The number of periods in which our cgroup or one above it had used up its CPU quota."""
    throttled_ns: int | None = Field(default=None, ge=0)
    cpu_stall_ns: int | None = Field(default=None, ge=0)
    """The time during which some task, ours or not, waited for a CPU."""
    memory_stall_ns: int | None = Field(default=None, ge=0)
    """The time during which some task, ours or not, waited for memory."""
    involuntary_switches: int | None = Field(default=None, ge=0)
    """How often a thread of the workers was taken off its CPU while it had work."""
    major_faults: int | None = Field(default=None, ge=0)
    """The number of pages that the workers had to read from disk and wait for."""
    swapped_in_pages: int | None = Field(default=None, ge=0)
    swapped_out_pages: int | None = Field(default=None, ge=0)
    clock_mean_mhz: float | None = Field(default=None, gt=0)
    """The mean clock of the CPUs at the end of the interval, weighted by how busy each one was."""
    clock_min_mhz: float | None = Field(default=None, gt=0)
    """The clock of the slowest CPU that was busy for most of the interval."""
    thermal_throttles: int | None = Field(default=None, ge=0)
    """The sum of the increases of the CPUs' thermal throttle counters."""
    temperature_c: float | None = None
    """The reading of the hottest sensor of the CPU."""
    stopped_processes: int | None = Field(default=None, ge=0)
    """Processes of the workers that a signal or a debugger had stopped, at the end of the interval or meanwhile."""
    strayed_threads: int | None = Field(default=None, ge=0)
    """Threads of workers that are pinned to the cores of a slice which may run on other cores, at the end of the
    interval. None also where no worker is pinned."""
    received_bytes: int | None = Field(default=None, ge=0)
    """What all network interfaces but the loopback received, for whomever, in this process's network namespace."""
    sent_bytes: int | None = Field(default=None, ge=0)
    """What they sent."""
    clock_step_ns: int | None = None
    """How far the wall clock moved against CLOCK_MONOTONIC: it was set, or the machine slept."""
    accelerators: tuple[AcceleratorConditions, ...] = ()
    canary_ns: tuple[int, ...] = ()
    """The durations of a fixed loop. An interval that has them contains nothing else."""

    @model_validator(mode="after")
    def _time_passes(self) -> Conditions:
        if self.end_ns <= self.begin_ns:
            raise ValueError("an interval that does not last")
        return self


class Absent(Fact):
    """Something that cannot be used in a run, and why."""

    kind: Literal["adapter", "device", "meter", "watcher", "suite", "mix", "configuration", "host"]
    name: str
    """The thing's own name. A section of mixmark.toml that nothing uses is named as it stands there."""
    reason: str
    covers: tuple[str, ...] = ()
    """What an energy source that the machine announces and that cannot be read would cover. The energy boundary
    `devices` has no joules while nothing else covers it."""

    @property
    def label(self) -> str:
        """The thing as a reader is told of it: a device and a section of the configuration need no kind before them."""
        return self.name if self.kind in ("device", "configuration") else f"{self.kind} {self.name}"


class Record(Fact):
    """What happened to one share of one task: completions or an error, never both."""

    key: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The record's name, unique in the run, and the stem of its raw file."""
    phase: str
    route: Route
    scenario: ScenarioName
    unit: str
    batch: int | None = Field(default=None, gt=0)
    costs: tuple[Cost, ...] = ()
    """The costs of the yields of one feed, in their order."""
    facts: dict[str, str] = {}
    """What ran where, in the adapter's words."""
    concurrency: int = Field(default=1, gt=0)
    """The number of feeds that the runner may have in flight at once in all scenarios but single-stream."""
    load_ns: int | None = Field(default=None, ge=0)
    needed_bytes: int | None = Field(default=None, ge=0)
    """The memory that was budgeted for weights, state and runtime at batch 1."""
    peak_pss_bytes: int | None = Field(default=None, ge=0)
    """The peak of the proportional set size of the worker's process tree, loading included."""
    trials: tuple[Trial, ...] = ()
    search_ended_by: SearchEnd | None = None
    """Why the search for the best batch tried no larger one. None: no batch was searched for."""
    seed: int | None = Field(default=None, ge=0)
    """The seed of the window, drawn when it began: its feeds and its arrivals follow from it. None: it never began."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """The arrival rate of a server in feeds per second."""
    rate_trials: tuple[RateTrial, ...] = ()
    latency_limits: LatencyLimits | None = None
    run: int = Field(default=1, ge=1)
    """The number of the run, from 1. Each run of a share has a fresh process."""
    ended_by: Literal["precision", "cap", "time"] | None = None
    """What ended the window: it was precise enough, the longest time was reached, or no half-width was asked for."""
    feed_units: int | None = Field(default=None, gt=0)
    """The number of units in each feed."""
    screening: bool = False
    """Whether this is the screening run of a route, which ranks it among the others and is no result. Its last feed may
    have
    been broken off, so that it lacks units."""
    bracket_ns: tuple[int, int] | None = None
    """The begin and end of the window, or of the dispatching of a mixed phase, on the parent's clock."""
    feed_overhead_ns: int | None = Field(default=None, ge=0)
    """The time from one feed to the next that making a feed and keeping an output take, as the parent measured it after
    the window of a closed loop."""
    skew_ns: int | None = None
    """In a mixed phase, the largest distance of a stamp from the time between the feed's request and its output.
    Below 0: no stamp lay outside."""
    audit: Audit | None = None
    """The audit of the outputs. None: `unaudited` says why there is none."""
    unaudited: str = ""
    conditions: tuple[Conditions, ...] = ()
    """The canary before the workers started, the blocks while they measured, and the canary after they had ended."""
    left_behind: tuple[str, ...] = ()
    """The names of processes that lived on when the workers of the phase had ended, and were killed."""
    helpers: tuple[str, ...] = ()
    """The names of processes outside of the workers' trees that work for the runners of the phase. They live on."""
    unclosed: Failure | None = None
    """What went wrong when the worker closed its suites, after the measurement. None: nothing."""
    unwatched: tuple[Absent, ...] = ()
    """The vendors' watchers that failed meanwhile: their accelerators' conditions are missing from there on."""
    completions: Annotated[Completions | None, SkipValidation, SkipJsonSchema(), Field(exclude=True)] = None
    """The raw stamps. They are stored beside result.json as raw/<key>.npz."""
    error: Failure | None = None
    cut_short: Failure | None = None
    """What ended this part of a mixed phase early. Feeds that had finished are kept."""

    @model_validator(mode="after")
    def _completions_xor_error(self) -> Record:
        if (self.completions is None) == (self.error is None):
            raise ValueError(f"record {self.key} needs completions or an error, and not both")
        return self


Boundary = Literal["wall", "node", "devices"]


class Domain(Fact):
    """What one source of energy or power readings covers."""

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

    before_ns, after_ns: the times before and after each read, on the run's clock. A source that stamps its own values
    has both equal.
    values: float64, joules of a counter (as read: wraps and resets are still in them) or watts. May be empty.
    """

    before_ns: Int64s
    after_ns: Int64s
    values: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, dtype in (("before_ns", np.int64), ("after_ns", np.int64), ("values", np.float64)):
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            if column.ndim != 1 or len(column) != len(self.before_ns):
                raise ValueError("samples are columns of equal length")
            if not (np.abs(column.astype(np.float64)) < LARGEST).all():  # nor is one that is not finite
                raise ValueError(f"{name} is beyond any run")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if (self.after_ns < self.before_ns).any() or (np.diff(self.before_ns) < 0).any():
            raise ValueError("time runs backwards between samples")


class Metering(Fact):
    """What the meters read during one phase."""

    phase: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The name of the phase, and the stem of the raw file."""
    begin_ns: int
    end_ns: int
    cpu_ns: int = Field(ge=0)
    """CPU time of the sampling threads."""
    idle_ns: tuple[tuple[int, int], ...] = ()
    """The intervals without any worker: before the phase's workers were started, and after they had ended."""
    samples: Annotated[Mapping[str, Samples], SkipValidation, SkipJsonSchema(), Field(exclude=True)] = {}
    """The samples by domain. They are stored beside result.json as raw/<phase>.energy.npz."""
    lost: dict[str, str] = {}
    """Domains that could not be read to the end, and why."""
    late_ns: dict[str, int] = {}
    """The least age of a stamp when its reading was seen, by domain, where the source stamps its own readings."""


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


class ServiceLimits(Fact):
    """How long a feed of a mix may take from its issue; beyond it its units count zero. None: no such limit."""

    first_ns: int | None = Field(default=None, gt=0)
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit of the mean time per unit after the first one."""
    total_ns: int | None = Field(default=None, gt=0)


class Mix(Fact):
    """A bundle of work; a published one is named by its tier and a number, and always means the same."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    tier: Tier
    units: dict[str, float] = Field(min_length=1)
    """m_w: the number of units of each suite in one mix."""
    limits: dict[str, ServiceLimits] = {}
    nominal_flops_per_s: float | None = Field(default=None, gt=0)
    """The speed of the nominal device, on which each suite's part takes a quarter of a second. None: the units were not
    derived from one."""
    nominal_bytes_per_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _counts_are_positive(self) -> Mix:
        if wrong := [suite for suite, count in self.units.items() if not 0 < count < float("inf")]:
            raise ValueError(f"mix {self.name}: units of {', '.join(wrong)} must be above 0")
        if unknown := self.limits.keys() - self.units.keys():
            raise ValueError(f"mix {self.name}: limits of {', '.join(sorted(unknown))}, which is not in it")
        return self

    @property
    def frozen(self) -> bool:
        """Whether the name is that of a published mix. The score checks its numbers."""
        return re.fullmatch(r"(smoke|edge|server)-[0-9]+", self.name) is not None


class Rate(Fact):
    """What a solo phase measured of one route."""

    suite: str
    device: str
    adapter: str
    precision: Precision
    batch: int = Field(gt=0)
    units_per_s: float = Field(gt=0)
    """The rate of the feeds that kept the mix's limits."""
    watts: float | None = Field(default=None, ge=0)
    """The mean power of the device's own domains while it ran. None: not measured."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """The memory that is resident while the suite is loaded."""


class Placement(Fact):
    """A plan of the mixed phase: how large a part of its time each device gives to each suite, and its proof.

    The linear program and its dual are in harness/plan/placement.py.
    """

    objective: Literal["throughput", "efficiency"]
    rates: tuple[Rate, ...]
    """The rate of each (suite, device) that the plan could choose."""
    shares: dict[str, dict[str, float]]
    """x[suite][device]: the share of the device's time for the suite."""
    mixes_per_s: float = Field(ge=0)
    """The mixes per second that the plan predicts."""
    bound_per_s: float = Field(gt=0)
    """λ*: the most mixes per second of any plan over these rates, without regard to memory and the objective."""
    bound_fractions: dict[str, dict[str, float]]
    """The shares that reach the bound."""
    suite_prices: dict[str, float]
    """v_w: the dual price of a unit of each suite; Σ m_w v_w = 1."""
    device_prices: dict[str, float]
    """u: the dual price of the time of each device, or of several that share silicon, `gpu:0 or gpu:pair`: what those
    with device d add up to is ≥ r[w,d] v_w, and Σ u is the bound."""
    watts: float | None = None
    """The predicted power of the energy boundary. None: not measured."""
    pool_bytes: dict[str, int] = {}
    """The free memory of each pool, which the plan does not exceed."""
    host_fraction: float = Field(default=0, ge=0)
    """The share of every CPU device's time that the host threads of one accelerator in use take."""
    idle_watts: dict[str, float] = {}
    """The idle power of each device in the boundary, as far as it was measured."""
    rest_watts: float | None = Field(default=None, ge=0)
    """The power of everything that is no device. None: the power of the boundary is not known."""


class Finding(Fact):
    """What a rule found in a result."""

    rule: str
    severity: Literal["note", "warning", "invalid"]
    about: str
    message: str


class UnitNames(Fact):
    """How reports write the unit of a suite and the times that its units take."""

    short: str = Field(min_length=1)
    """The unit in a rate: `tok` in 3.96 tok/s."""
    work: str = Field(min_length=1)
    """What the units of a mix are called in a sentence: `LLM tokens`, `pictures classified`."""
    first: str = "Time to first unit"
    """The time from a feed's issue to its first unit, for suites whose feeds yield several times."""
    each: str = "Time per unit"
    """The mean time of a feed's further units."""


class NoiseFloor(Fact):
    """How far two measurements of the same thing differ on this machine, as `mixmark selftest` measured it."""

    share: float = Field(ge=0)
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


class Result(Fact):
    """A whole run."""

    schema_version: Literal[6] = SCHEMA
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
    unverified: Annotated[Mapping[str, str], SkipValidation, SkipJsonSchema(), Field(exclude=True)] = {}
    """Why records were not compared with the code of their suite, by their keys; known when a folder is opened."""
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
