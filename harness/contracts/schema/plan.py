"""What a run sets out to measure: limits, shares, tasks and phases, the mix, and the placement of a mixed phase."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from mixmark.harness.contracts.schema.device import Precision, Route, ScenarioName, Tier
from mixmark.harness.contracts.schema.fact import Fact

Purpose = Literal["probe", "screening", "solo", "confirmation", "mixed", "scaling"]
"""Why a phase is run: to measure ceilings, to rank a route by a screening run of a few seconds, to measure a route
alone, to
measure a route that the plan chose alone once more, to run the mix, or to run the mix on the first 1, 2, 4, … of
several hosts, which shows how the rate grows with the hosts."""
MIXES: tuple[Purpose, ...] = ("mixed", "scaling")
"""The purposes of the phases that run a mix by a plan."""


class LatencyLimits(Fact):
    """The latencies that a server must keep at the percentile, from when a feed was due. None: no such limit."""

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

    The linear program and its dual are in harness/plan/bound.py.
    """

    objective: Literal["throughput", "efficiency"]
    rates: tuple[Rate, ...]
    """The rate of each (suite, device) that the plan could choose."""
    fractions: dict[str, dict[str, float]]
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
