"""What happened to one share: its completions or its error, its audit, and the conditions of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.schema.device import HOST_PROCESSOR, Route, ScenarioName
from mixmark.harness.contracts.schema.fact import LARGEST, Fact, Int64s
from mixmark.harness.contracts.schema.plan import LatencyLimits

NOT_ASKED, NO_GATE, HOSTED = "not asked for", "the suite has no gate", "a hosted service has weights of its own"
"""The values of `Record.unaudited` that are no fault."""
DIGEST_BYTES = 16
"""The length of the digest of an output."""


@dataclass(frozen=True)
class Completion:
    """One finished feed."""

    due_ns: int
    """When the feed should have been issued. It equals issued_ns in a closed loop."""
    issued_ns: int
    yields: tuple[tuple[int, int], ...]
    """(timestamp in ns, units finished) of each yield."""

    @property
    def done_ns(self) -> int:
        return self.yields[-1][0]


@dataclass(frozen=True, eq=False)
class Completions:
    """The raw timestamps of a record as columns, one row per feed that finished, in the order of their issue.

    due_ns, issued_ns: [feeds]. ends: [feeds], the index behind a feed's last yield.
    yielded_ns, units: [yields], a timestamp and the number of units that the yield finished.
    Raises ValueError where a feed has no yield, time runs backwards inside a feed or from issue to issue, units are not
    positive, or a number is beyond any run.
    """

    due_ns: Int64s
    issued_ns: Int64s
    ends: Int64s
    yielded_ns: Int64s
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
        if len(self.due_ns) != feeds or len(self.ends) != feeds or len(self.units) != len(self.yielded_ns):
            raise ValueError("columns differ in length")
        starts = self.starts
        if self.ends[-1] != len(self.yielded_ns) or (self.ends <= starts).any():
            raise ValueError("a feed has no yield")
        if (self.units <= 0).any():
            raise ValueError("a yield without units")
        if self.units.sum(dtype=np.float64) >= LARGEST:
            raise ValueError("units are beyond any run")
        if (self.yielded_ns[starts] < self.issued_ns).any() or (self.issued_ns < self.due_ns).any():
            raise ValueError("time runs backwards")
        if (np.diff(self.issued_ns) < 0).any():
            raise ValueError("feeds are not in the order of their issue")
        steps = np.diff(self.yielded_ns)
        steps[starts[1:] - 1] = 0  # from one feed to the next anything goes: they may overlap
        if (steps < 0).any():
            raise ValueError("time runs backwards inside a feed")

    @property
    def starts(self) -> Int64s:
        """[feeds], the index of a feed's first yield."""
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1]))

    def __len__(self) -> int:
        return len(self.issued_ns)

    def __iter__(self) -> Iterator[Completion]:
        for due, issued, start, end in zip(self.due_ns, self.issued_ns, self.starts, self.ends, strict=True):
            yields = zip(self.yielded_ns[start:end].tolist(), self.units[start:end].tolist(), strict=True)
            yield Completion(int(due), int(issued), tuple(yields))


class Gate(Fact):
    """The error that no audited feed may exceed."""

    metric: str
    """The name of the error with its unit. It is 0 for the fp32 reference itself; larger is worse."""
    at_most: float = Field(gt=0)
    samples: int = Field(default=1, gt=0)
    """The minimum number of samples of an audit. A feed of one sample could pass by luck."""


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
    min_flops: float | None = Field(default=None, ge=0)
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
    own_processes_listed: bool | None = None
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
    parent_window_ns: tuple[int, int] | None = None
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
    surviving_processes: tuple[str, ...] = ()
    """The names of processes that lived on when the workers of the phase had ended, and were killed."""
    helper_processes: tuple[str, ...] = ()
    """The names of processes outside of the workers' trees that work for the runners of the phase. They live on."""
    close_failure: Failure | None = None
    """What went wrong when the worker closed its suites, after the measurement. None: nothing."""
    failed_watchers: tuple[Absent, ...] = ()
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
