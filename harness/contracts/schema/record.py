"""The record of a share: its completions or its error, its audit, and the conditions of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, JsonValue, SkipValidation, model_validator
from pydantic.json_schema import SkipJsonSchema

from mixmark.harness.contracts.schema.device import HOST_PROCESSOR, LARGEST, Fact, Int64s, Route, ScenarioName
from mixmark.harness.contracts.schema.plan import LatencyLimits
from mixmark.harness.contracts.text import Key, Label, Sentence

Exemption = Literal["not asked for", "no gate", "hosted"]
"""Why no audit is due: the plan asks for none, the suite has no gate, or a hosted service has weights of its own."""
DIGEST_BYTES = 16
"""The length of the digest of an output."""


@dataclass(frozen=True)
class Completion:
    """One finished feed."""

    due_ns: int
    """When the feed should have been issued; equal to issued_ns in a closed loop."""
    issued_ns: int
    yields: tuple[tuple[int, int], ...]
    """(timestamp in ns, units finished) of each yield."""

    @property
    def done_ns(self) -> int:
        return self.yields[-1][0]


@dataclass(frozen=True, eq=False)
class Completions:
    """The raw timestamps of a record as columns, one row per feed that finished, in the order of their issue.

    due_ns, issued_ns: [feeds]. ends: [feeds], the index after a feed's last yield.
    yielded_ns, units: [yields], the timestamp of each yield and the number of units that it finished.
    Raises ValueError if a feed has no yield, time runs backwards inside a feed or from issue to issue, units are not
    positive, or a number is larger than in any run.
    """

    due_ns: Int64s
    issued_ns: Int64s
    ends: Int64s
    yielded_ns: Int64s
    units: Int64s

    @classmethod
    def of(cls, feeds: Iterable[Completion]) -> Completions:
        """The feeds in the order of their issue."""
        ordered = sorted(feeds, key=lambda feed: feed.issued_ns)
        yields = np.array([each for feed in ordered for each in feed.yields], np.int64).reshape(-1, 2)
        return cls(
            np.array([feed.due_ns for feed in ordered], np.int64),
            np.array([feed.issued_ns for feed in ordered], np.int64),
            np.cumsum([len(feed.yields) for feed in ordered]),
            yields[:, 0],
            yields[:, 1],
        )

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
        if {len(self.due_ns), len(self.ends)} != {feeds} or len(self.units) != len(self.yielded_ns):
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
        steps[starts[1:] - 1] = 0  # steps from feed to feed may be negative, because feeds may overlap
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
    """The largest error that an audited feed may have."""

    metric: Label
    """The name of the error with its unit. The fp32 reference has the error 0; larger is worse."""
    at_most: float = Field(gt=0)
    samples: int = Field(default=1, gt=0)
    """The minimum number of samples in an audit, since a single sample could pass by chance."""


class Cost(Fact):
    """The least work of one yield of a feed, by analysis: minimal algorithm, weights read once.

    The costs of a feed are in the order of its yields, such as prefill for 1 yield and decode for 127 yields.
    """

    name: Label
    flops: float = Field(ge=0)
    """Floating-point operations; a multiplication and an addition are two."""
    bytes: float = Field(ge=0)
    yields: int = Field(default=1, gt=0)
    """The number of consecutive yields with this cost."""
    min_flops: float | None = Field(default=None, ge=0)
    """The operations of the most economical algorithm in use: Winograd's F(4×4, 3×3) needs a quarter of the
    multiplications of a convolution. None if it is `flops`."""
    streamed_bytes: float = Field(default=0, ge=0)
    """The part of `bytes` that must be read from memory even with a cache of a quarter of that size: weights, each read
    once in a pass, but not the popular rows of a table, which stay in the cache."""

    @property
    def least_flops(self) -> float:
        """The operations of the most economical algorithm."""
        return self.flops if self.min_flops is None else self.min_flops


SearchEnd = Literal["no gain", "memory", "time", "long feeds"]
"""Why a search tried no larger batch: two sizes in succession were no faster, a larger batch does not fit into memory
or into the time of the search, or its feeds would last longer than 0.5 s."""


class Trial(Fact):
    """The fastest turn of a batch size in the search for the best batch. No figure depends on it."""

    batch: int = Field(gt=0)
    units: int = Field(gt=0)
    elapsed_ns: int = Field(gt=0)


class RateTrial(Fact):
    """One step of the search for the highest rate of a server."""

    rate_per_s: float = Field(gt=0)
    feeds: int = Field(ge=0)
    """The number of finished feeds; 0 if the trial was ended because the queue grew."""
    kept: bool
    """Whether the latencies were within the limits."""


class Failure(Fact):
    """Why there is no number."""

    kind: Literal[
        "refused",
        "unsupported",
        "raised",
        "crashed",
        "out of memory",
        "device lost",
        "hung",
        "overloaded",
        "wrong output",
        "no result",
    ]
    """How the measurement failed. A `refused` or `unsupported` measurement was not attempted."""
    message: Sentence
    hint: Sentence = ""
    """What the reader can do, or which log says more, and its last line."""

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
"""Why an accelerator's clock is not higher. `clock setting`: a user chose the clock. `synchronised clocks`: the clock
follows other accelerators. `thermal limit`: the driver lowers the clock to stay below a temperature. `thermal
protection`: the hardware lowers the clock because it is too hot. `hardware protection`: the hardware lowers the clock
because of heat, current or its power supply; the vendor does not report which."""
PROTECTIVE: tuple[ClockReason, ...] = (
    *("hardware protection", "thermal limit", "thermal protection", "power supply protection"),
)
"""The reasons with which an accelerator protects itself."""


class AcceleratorConditions(Fact):
    """An accelerator at the end of an interval, as its vendor's watcher reports it. None if a value is not reported."""

    id: Label
    """The device's id, `gpu:<uuid>`."""
    reasons: tuple[ClockReason, ...] | None = None
    """Why the clock is not higher."""
    clock_mhz: int | None = Field(default=None, ge=0)
    temperature_c: int | None = None
    power_cap_mw: int | None = Field(default=None, ge=0)
    foreign_pids: tuple[int, ...] | None = None
    """Processes of other programs that compute on the device. None also if the driver is in another namespace of
    processes."""
    own_processes_listed: bool | None = None
    """Whether the driver lists a process of the benchmark that computes on the device. None also if it lists no
    process."""
    utilization_pct: int | None = Field(default=None, ge=0, le=100)
    """The time that the device computed, in percent of the driver's last sampling interval of up to a second."""


class Audit(Fact):
    """Outputs of the timed window, compared with the fp32 reference on the same feeds."""

    gate: Gate
    finished: int = Field(ge=0)
    """The number of feeds whose outputs the worker had committed to. The audited feeds were drawn from these feeds."""
    feeds: tuple[int, ...] = ()
    """The serial numbers of the audited feeds, from 0 in the order of generation."""
    values: tuple[float, ...] = ()
    """The error of each audited feed, in the gate's metric."""
    device: Label = HOST_PROCESSOR
    """The device on which the reference ran."""
    disagreement: float | None = Field(default=None, ge=0)
    """The difference of the first feed's error from its error against a reference on the CPU. None if the reference ran
    on the CPU."""
    elapsed_ns: int = Field(default=0, ge=0)
    problem: Sentence = ""
    """Why an output could not be compared; empty if all outputs were compared."""
    sha256: Label = ""
    """The hash of the file of the audited outputs; before the draw, of all outputs that were kept. Empty if there is
    none."""
    software: dict[Label, Label] = {}
    """The versions of Python, numpy and torch of the auditor's process."""

    @property
    def passed(self) -> bool:
        return bool(self.values) and not self.problem and max(self.values) <= self.gate.at_most


PowerSource = Literal["mains", "battery", "charging"]
"""What supplies a machine: mains, a battery, or mains that also charge the battery."""


class Conditions(Fact):
    """The state of the machine during one interval (block) of a record, or the canary that ran in it.

    Counters are increases over the interval. A value is None if the machine does not report it or a counter went
    backwards.
    """

    begin_ns: int
    end_ns: int
    cpus: int | None = Field(default=None, gt=0)
    """The online hardware threads that the run may use."""
    busy_ns: int | None = Field(default=None, ge=0)
    """CPU time of all processes on these threads, interrupts included, steal time excluded."""
    own_ns: int | None = Field(default=None, ge=0)
    """CPU time of the harness and of the workers, with their children and the processes that serve their phase, such as
    a policy's."""
    plugins_ns: int | None = Field(default=None, ge=0)
    """CPU time of the processes of all other plugins, such as meters, with what they started and left behind. It is not
    part of `own_ns`."""
    kernel_ns: int | None = Field(default=None, ge=0)
    """CPU time of the kernel's threads, which reclaim memory and write files back. None also in a container, which
    hides these threads, and if the run may not use all CPUs."""
    stolen_ns: int | None = Field(default=None, ge=0)
    """CPU time that the hypervisor gave to other machines."""
    throttled_periods: int | None = Field(default=None, ge=0)
    """How often this process's cgroup, or a cgroup above it, was stopped because it had used up its CPU quota."""
    throttled_ns: int | None = Field(default=None, ge=0)
    cpu_stall_ns: int | None = Field(default=None, ge=0)
    """The time during which a task of any process waited for a CPU."""
    memory_stall_ns: int | None = Field(default=None, ge=0)
    """The time during which a task of any process waited for memory."""
    involuntary_switches: int | None = Field(default=None, ge=0)
    """The number of times that a thread of the workers was preempted."""
    major_faults: int | None = Field(default=None, ge=0)
    """The number of pages that the workers waited for while they were read from disk."""
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
    power_source: PowerSource | None = None
    """What supplied the machine at the end of the interval."""
    strayed_threads: int | None = Field(default=None, ge=0)
    """The number of threads of pinned workers that may run on cores outside their slice, at the end of the interval.
    None also if no worker is pinned."""
    received_bytes: int | None = Field(default=None, ge=0)
    """Bytes received by all network interfaces but the loopback, for any process of this network namespace."""
    sent_bytes: int | None = Field(default=None, ge=0)
    """Bytes sent by these network interfaces."""
    clock_step_ns: int | None = None
    """How far the wall clock moved against CLOCK_MONOTONIC, because it was set or the machine slept."""
    accelerators: tuple[AcceleratorConditions, ...] = ()
    canary_ns: tuple[int, ...] = ()
    """The durations of a fixed loop. No worker runs in an interval with a canary."""

    @model_validator(mode="after")
    def _time_passes(self) -> Conditions:
        if self.end_ns <= self.begin_ns:
            raise ValueError("an interval ends before it begins")
        return self

    @property
    def foreign_ns(self) -> int | None:
        """CPU time of other programs, plugins among them, without the kernel's threads, which work for any process and
        on an idle machine too. It may be below 0 by a few ticks of the counters. None if the machine does not report
        it."""
        if self.busy_ns is None or self.own_ns is None:
            return None
        return self.busy_ns - self.own_ns - (self.kernel_ns or 0)


class Found(Fact):
    """Something that an experiment found out, before the first phase or in one of its own."""

    experiment: Label
    facts: dict[Label, JsonValue]


class Absent(Fact):
    """Something that a run cannot use, and the reason."""

    kind: str = Field(pattern=r"^[a-z]+$", max_length=40)
    """`adapter`, `device`, `meter`, `watcher`, `suite`, `weights`, `mix`, `configuration`, `host`, or a word of an
    experiment."""
    name: Label
    """The name of the adapter, device or other thing. A section of mixmark.toml has its name in the file."""
    reason: Sentence
    covers: tuple[Label, ...] = ()
    """The devices and parts that an unreadable energy source would cover. The energy boundary `devices` has no joules
    if no other source covers these devices."""

    @property
    def label(self) -> str:
        """The name in a report: kind and name, but only the name of a device, of a section of the configuration or of
        what belongs to an experiment."""
        return self.name if self.kind in ("device", "configuration", "experiment") else f"{self.kind} {self.name}"


class Record(Fact):
    """The outcome of one share of one task: completions or an error, never both."""

    key: Key
    """The record's name, unique in the run, and the stem of its raw file."""
    phase: Key
    route: Route
    scenario: ScenarioName
    unit: Label
    batch: int | None = Field(default=None, gt=0)
    costs: tuple[Cost, ...] = ()
    """The costs of one feed, in the order of its yields."""
    facts: dict[Label, Sentence] = {}
    """What ran where, as the adapter reports it."""
    concurrency: int = Field(default=1, gt=0)
    """The number of feeds that the runner may have in flight, except in single-stream."""
    load_ns: int | None = Field(default=None, ge=0)
    needed_bytes: int | None = Field(default=None, ge=0)
    """The memory budget for weights, state and runtime at batch 1."""
    peak_pss_bytes: int | None = Field(default=None, ge=0)
    """The peak of the proportional set size of the worker's process tree, loading included."""
    trials: tuple[Trial, ...] = ()
    search_ended_by: SearchEnd | None = None
    """Why the search for the best batch tried no larger batch. None if there was no search."""
    seed: int | None = Field(default=None, ge=0)
    """The seed of the window, drawn when the window began. Feeds and arrivals are derived from it. None if the window
    never began."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """The arrival rate of a server in feeds per second."""
    rate_trials: tuple[RateTrial, ...] = ()
    """The rates that the search for the highest rate tried. Empty if there was no search."""
    latency_limits: LatencyLimits | None = None
    run: int = Field(default=1, ge=1)
    """The number of the run, from 1. Each run of a share has a fresh process."""
    ended_by: Literal["precision", "cap", "time"] | None = None
    """Why the window ended: the half-width was reached (`precision`), the longest time passed (`cap`), or the shortest
    time passed and no half-width was required (`time`)."""
    feed_units: int | None = Field(default=None, gt=0)
    """The number of units in each feed."""
    screening: bool = False
    """Whether this is a screening run, which ranks the routes of a suite and may plan the mix. Without an audit its
    last feed may have been cut off and then lacks units."""
    parent_window_ns: tuple[int, int] | None = None
    """The begin and end of the window on the parent's clock: when the parent sent its seed and when the worker closed
    it. In a mixed phase, the begin and end of dispatching."""
    stamped: bool = False
    """Whether the parent took the times of each feed: when its turn came, its first yield and its last. Otherwise the
    worker took them, inside of the parent's window."""
    arrival_delay_ns: int | None = Field(default=None, ge=0)
    """In a phase with a load, the 99th percentile of the time from a request's due time until the harness handled its
    arrival, over the requests of all suites."""
    carried_ns: int | None = Field(default=None, ge=0)
    """The mean time of a feed to read the output that it continues, and to write its own for the feed that continues
    it, as the worker reports it, cut to the time of the feed. None if no feed of the record does either."""
    carried_bytes: int | None = Field(default=None, ge=0)
    """The mean size of the files that a feed's output was carried in. None as for `carried_ns`."""
    audit: Audit | None = None
    """The audit of the outputs. None if there was no audit; `exempt` or `unaudited` is then the reason."""
    exempt: Exemption | None = None
    """Why no audit was due. None if one was."""
    unaudited: Sentence = ""
    """Why an audit that was due could not be made, in words. Empty if it was made, or if the run ended before it."""
    conditions: tuple[Conditions, ...] = ()
    """The canary before the workers started, the blocks during the measurement, and the canary after the workers had
    ended."""
    surviving_processes: tuple[Label, ...] = ()
    """The names of processes that outlived the workers of the phase and were killed."""
    helper_processes: tuple[Label, ...] = ()
    """The names of the runner's helper processes that no worker started. They are not killed, and their load counts as
    the run's."""
    close_failure: Failure | None = None
    """The error when the worker closed its suites after the measurement. None if there was no error."""
    failed_watchers: tuple[Absent, ...] = ()
    """The vendors' watchers that failed during the record. The later conditions of their accelerators are missing."""
    completions: Annotated[Completions | None, SkipValidation, SkipJsonSchema(), Field(exclude=True)] = None
    """The raw timestamps, stored beside result.json as raw/<key>.npz."""
    error: Failure | None = None
    cut_short: Failure | None = None
    """The error that ended this share of a mixed phase early. Finished feeds are kept."""

    @property
    def audited(self) -> bool:
        """Whether its outputs were compared with the reference, and all of them passed."""
        return self.audit is not None and self.audit.passed

    @property
    def cut_off(self) -> bool:
        """Whether its last feed may have been cut off."""
        return self.screening and self.audit is None

    @property
    def is_highest_rate(self) -> bool:
        """Whether a search found the arrival rate, as the highest rate within the limits."""
        return bool(self.rate_trials)

    @model_validator(mode="after")
    def _completions_xor_error(self) -> Record:
        if (self.completions is None) == (self.error is None):
            raise ValueError(f"record {self.key} needs completions or an error, and not both")
        return self
