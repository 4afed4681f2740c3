"""What a run sets out to measure: limits, shares, tasks and phases, the mix, and the placement of a mixed phase."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from mixmark.harness.contracts.schema.device import Fact, Precision, Route, ScenarioName, Tier

Purpose = Literal["probe", "screening", "solo", "confirmation", "mixed", "scaling", "policy", "load", "drill", "cap"]
"""Why a phase is run.

    probe         measures the ceilings of a device
    screening     ranks the routes of a suite on a device by runs of a few seconds
    solo          measures a route alone
    confirmation  measures a route of the placement alone once more
    mixed         runs the mix
    scaling       runs the mix on the first 1, 2, 4, … of several hosts, to show how the rate grows with the hosts
    policy        runs the mix by another policy than the plan, to show what the plan gains
    load          serves requests of the mix that arrive, at a share of the rate of the mixed runs
    drill         runs the mix while a device is taken away and given back
    cap           runs the mix with a lower limit of the devices' power
"""
MIXES: tuple[Purpose, ...] = ("mixed", "scaling", "policy", "load", "drill", "cap")
"""The purposes of phases that run a mix by a placement."""


class LatencyLimits(Fact):
    """The largest latencies of a server at the percentile, from the time at which a feed was due. None: no limit."""

    percentile: float = Field(gt=0, lt=1)
    first_ns: int | None = Field(default=None, gt=0)
    """The limit of the time until the first unit: an LLM's time to first token."""
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit of the mean time between units of a feed: an LLM's time per output token."""
    total_ns: int | None = Field(default=None, gt=0)
    source: str


class Limits(Fact):
    """How long a share may take, in nanoseconds."""

    warmup_ns: int = Field(ge=0)
    search_ns: int = Field(ge=0)
    """The time of all trials of the search for the best batch or the highest rate. Preparing a batch size and its first
    feed are not counted."""
    min_ns: int = Field(ge=0)
    """The window ends once this has passed, `min_feeds` are done and the half-width is reached."""
    max_ns: int = Field(ge=0)
    """The window also ends once this has passed and one feed is done."""
    min_feeds: int = Field(ge=1)
    half_width: float | None = Field(default=None, gt=0)
    """The half-width that the 95 % confidence interval of a closed loop's throughput must reach, as a fraction of the
    throughput. None: no half-width is required."""
    audits: int = Field(default=0, ge=0)
    """The minimum number of feeds whose outputs are compared with the reference. 0: no audit."""
    screening: bool = False
    """Whether the last feed of each issue thread is cut off once `max_ns` has passed and its rate is known."""


class Share(Fact):
    """The part of a task that one suite is."""

    key: str = Field(pattern=r"^[a-z0-9.-]+$")
    """The key of the record that this share becomes."""
    route: Route
    scenario: ScenarioName
    batch: int | None = Field(default=None, gt=0)
    """The samples in a feed. None: a search finds the best batch."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """The arrival rate of a server in feeds per second. None: a search finds the highest rate that keeps the latency
    limits."""
    run: int = Field(default=1, ge=1)
    limits: Limits


class Task(Fact):
    """A device and its shares of the work. Each adapter of the shares is one worker process."""

    device: str
    shares: tuple[Share, ...] = Field(min_length=1)


HIGHEST_LEVEL = 0.9
"""The highest load of requests that arrive: nearer to 1 their queue does not settle in any time."""
BY_PLAN = "plan"
"""The name of the policy of the score."""


class Load(Fact):
    """Requests of a mix that arrive by independent Poisson processes, one for each suite, while a phase lasts.

    A suite's due times, from the begin of the phase, are `contracts.seeds.arrivals_within` with the seed
    seeds.derived(seed, suite).
    """

    level: float = Field(gt=0, le=HIGHEST_LEVEL)
    """The load: the share of the rate of the mixed runs that arrives."""
    mixes_per_s: float = Field(gt=0)
    """The mixes that arrive per second."""
    length_ns: int = Field(gt=0)
    """The time in which requests arrive."""
    requests: dict[str, int] = Field(min_length=1)
    """The number of requests of each suite that arrive."""
    request_units: dict[str, int]
    """The units in a request of each suite: a feed on every device, or several feeds in a row."""
    seed: int = Field(ge=0)
    """The seed of the due times, drawn when the level was planned."""


class Drill(Fact):
    """A device that gets no work for a part of a phase, as if it had failed."""

    device: str
    lost_ns: int = Field(gt=0)
    """When it is taken away, from the begin of the phase. What it holds then is lost."""
    back_ns: int = Field(gt=0)
    """When it may work again."""


class PowerLimit(Fact):
    """A limit of power that a device or its driver keeps, and that a run may lower."""

    id: str
    """`rapl/intel-rapl:0`, the domain that meters the same package, or `nvml/<UUID>`, whose domains begin with it."""
    watts: float = Field(gt=0)
    """The limit before the run, which a cap is a share of, and which is never exceeded."""
    least_watts: float = Field(default=0.0, ge=0)
    """The lowest limit that the driver takes, as far as it says."""


class Phase(Fact):
    """The tasks that run at the same time. A solo measurement is a phase of one task with one share."""

    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    purpose: Purpose
    tasks: tuple[Task, ...] = Field(min_length=1)
    placement: Placement | None = None
    """The placement by which the shares of a phase of a mix were chosen; None for any other purpose."""
    policy: str = BY_PLAN
    """The policy that assigned the work of a phase of a mix."""
    load: Load | None = None
    """The requests that arrive; None for any other purpose than `load`."""
    drill: Drill | None = None
    """The device that is lost; None for any other purpose than `drill`."""
    cap: float | None = Field(default=None, gt=0, lt=1)
    """The share of their limits that the devices' power is limited to; None for any other purpose than `cap`."""

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
        for purpose, facts in (("load", self.load), ("drill", self.drill), ("cap", self.cap)):
            if (self.purpose == purpose) != (facts is not None):
                raise ValueError(f"phase {self.name} is {self.purpose}: it has facts of a {purpose}, or lacks them")
        return self


class ServiceLimits(Fact):
    """The longest times of a feed of a mix, from its issue. The units of a slower feed do not count. None: no limit."""

    first_ns: int | None = Field(default=None, gt=0)
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit of the mean time per unit after the first unit."""
    total_ns: int | None = Field(default=None, gt=0)


class Mix(Fact):
    """A bundle of work. A published mix is named by its tier and a number, and never changes."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    tier: Tier
    units: dict[str, float] = Field(min_length=1)
    """m_w: the number of units of each suite in one mix."""
    limits: dict[str, ServiceLimits] = {}
    nominal_flops_per_s: float | None = Field(default=None, gt=0)
    """The speed of the nominal device, on which each suite's part takes a quarter of a second. None: the units were not
    derived from a nominal device."""
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
        """Whether the name is that of a published mix. The score checks the numbers."""
        return re.fullmatch(r"(smoke|edge|server)-[0-9]+", self.name) is not None


class Rate(Fact):
    """The rate, power and memory of a route, from its solo phase."""

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
    """The plan of a mixed phase: the fraction of its time that each device gives to each suite, and the dual proof.

    The linear program and its dual are in harness/plan/bound.py.
    """

    objective: Literal["throughput", "efficiency"]
    rates: tuple[Rate, ...]
    """The rates among which the plan could choose, one for each suite on each device."""
    fractions: dict[str, dict[str, float]]
    """x[suite][device]: the fraction of the device's time for the suite."""
    mixes_per_s: float = Field(ge=0)
    """The mixes per second that the plan predicts."""
    bound_per_s: float = Field(gt=0)
    """λ*: the most mixes per second of any plan at these rates, regardless of memory and the objective."""
    bound_fractions: dict[str, dict[str, float]]
    """The fractions that reach the bound."""
    suite_prices: dict[str, float]
    """v_w: the dual price of a unit of each suite; Σ m_w v_w = 1."""
    device_prices: dict[str, float]
    """u: the dual price of the time of each device, or of devices that share silicon, `gpu:0 or gpu:pair`. The prices
    that name device d add up to at least r[w,d] v_w, and Σ u is the bound."""
    watts: float | None = None
    """The predicted power of the energy boundary. None: not measured."""
    pool_bytes: dict[str, int] = {}
    """The free memory of each pool, which the plan does not exceed."""
    host_fraction: float = Field(default=0, ge=0)
    """The fraction of every CPU device's time that the host threads of one used accelerator take."""
    idle_watts: dict[str, float] = {}
    """The measured idle power of devices in the boundary."""
    rest_watts: float | None = Field(default=None, ge=0)
    """The power of all parts that are no devices. None: the power of the boundary is not known."""
