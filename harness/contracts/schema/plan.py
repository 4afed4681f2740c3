"""The plan of a run: limits, shares, tasks and phases, the mix, and the placement of a mixed phase."""

from __future__ import annotations

import re
from typing import Literal, TypeVar

from pydantic import Field, JsonValue, model_validator

from mixmark.harness.contracts.schema.device import Fact, Precision, Route, ScenarioName, Tier
from mixmark.harness.contracts.text import Key, Label

F = TypeVar("F", bound=Fact)
Purpose = Literal["probe", "screening", "solo", "confirmation", "mixed", "experiment"]
"""Why a phase is run.

    probe         measures the ceilings of a device
    screening     ranks the routes of a suite on a device by runs of a few seconds
    solo          measures a route alone
    confirmation  measures a route of the placement alone once more
    mixed         runs the mix
    experiment    belongs to an experiment, which is in no score; most run the mix in another way
"""
MIXES: tuple[Purpose, ...] = ("mixed", "experiment")
"""The purposes of the phases with a placement."""


class LatencyLimits(Fact):
    """The largest latencies of a server at the percentile, from a feed's due time. None if there is no limit."""

    percentile: float = Field(ge=0.5, lt=1)
    first_ns: int | None = Field(default=None, gt=0)
    """The limit for the time until the first unit: an LLM's time to first token."""
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit for the mean time between units of a feed: an LLM's time per output token."""
    total_ns: int | None = Field(default=None, gt=0)
    source: Label


class Limits(Fact):
    """The time limits of a share."""

    warmup_ns: int = Field(ge=0)
    search_ns: int = Field(ge=0)
    """The time of all trials of the search for the best batch or the highest rate, without the preparation of each
    batch size and its first feed."""
    min_ns: int = Field(ge=0)
    """The window ends when this time has passed, `min_feeds` are done and the half-width is reached."""
    max_ns: int = Field(ge=0)
    """The window also ends when this time has passed and one feed is done."""
    min_feeds: int = Field(ge=1)
    half_width: float | None = Field(default=None, gt=0)
    """The required half-width of the 95 % confidence interval of a closed loop's throughput, as a fraction of the
    throughput. None if no half-width is required."""
    audits: int = Field(default=0, ge=0)
    """The minimum number of feeds whose outputs are compared with the reference. 0 for no audit."""
    screening: bool = False
    """Whether this is a screening run. Without an audit, the last feed of each issue thread is cut off when `max_ns`
    has passed and its rate is known."""

    @property
    def cut_off(self) -> bool:
        """Whether the last feed of each issue thread is cut off, so that no output is kept."""
        return self.screening and not self.audits


class Share(Fact):
    """One suite of a task."""

    key: Key
    """The key of the share's record."""
    route: Route
    scenario: ScenarioName
    batch: int | None = Field(default=None, gt=0)
    """The samples in a feed. None if a search finds the best batch."""
    rate_per_s: float | None = Field(default=None, gt=0)
    """The arrival rate of a server in feeds per second. None if a search finds the highest rate within the latency
    limits."""
    run: int = Field(default=1, ge=1)
    limits: Limits


class Task(Fact):
    """A device and its shares of the work. Each adapter of the shares is one worker process."""

    device: Label
    shares: tuple[Share, ...] = Field(min_length=1)


class Phase(Fact):
    """Tasks that run at the same time. A solo measurement is a phase of one task with one share."""

    name: Key
    purpose: Purpose
    tasks: tuple[Task, ...] = Field(min_length=1)
    placement: Placement | None = None
    """The plan of a phase with a mix. None if the phase has no mix."""
    experiment: Label = ""
    """The experiment that the phase belongs to. Empty if it belongs to none."""
    facts: dict[Label, JsonValue] = {}
    """What the experiment keeps of the phase."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares of all tasks."""
        return tuple(share for task in self.tasks for share in task.shares)

    def told(self, shape: type[F]) -> F:
        """The facts of the experiment, which `consistency` has checked in a result that was read."""
        return shape.model_validate(self.facts)

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
                f"phase {self.name} is {self.purpose}: a phase has a placement if and only if it runs a mix"
            )
        if (self.purpose == "experiment") != bool(self.experiment):
            raise ValueError(f"phase {self.name} is {self.purpose}: it names an experiment, or lacks its name")
        return self


class ServiceLimits(Fact):
    """The longest times of a feed of a mix, from its issue. Units of a slower feed do not count. None if there is no
    limit."""

    first_ns: int | None = Field(default=None, gt=0)
    per_unit_ns: int | None = Field(default=None, gt=0)
    """The limit for the mean time per unit after the first unit."""
    total_ns: int | None = Field(default=None, gt=0)


class Mix(Fact):
    """A bundle of work. A published mix is named by its tier and a number, with a word between them if no
    score is ranked with it, and never changes."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,199}$")
    tier: Tier
    units: dict[Label, float] = Field(min_length=1)
    """m_w: the number of units of each suite in one mix."""
    limits: dict[Label, ServiceLimits] = {}
    nominal_flops_per_s: float | None = Field(default=None, gt=0)
    """The speed of the nominal device, on which each suite's part takes a quarter of a second. None if the units were
    not derived from a nominal device."""
    nominal_bytes_per_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _counts_are_positive(self) -> Mix:
        if wrong := [suite for suite, count in self.units.items() if not 0 < count < float("inf")]:
            raise ValueError(f"mix {self.name}: units of {', '.join(wrong)} must be above 0")
        if unknown := self.limits.keys() - self.units.keys():
            raise ValueError(f"mix {self.name}: there are limits of {', '.join(sorted(unknown))}, but no units")
        return self

    @property
    def frozen(self) -> bool:
        """Whether a published mix has this name. The score checks the numbers."""
        return re.fullmatch(r"(smoke|edge|server)-([a-z]+-)?[0-9]+", self.name) is not None


class Rate(Fact):
    """The rate, power and memory of a route, from its solo phase."""

    suite: Label
    device: Label
    adapter: Label
    precision: Precision
    batch: int = Field(gt=0)
    units_per_s: float = Field(gt=0)
    """The rate, counting only feeds within the mix's limits."""
    watts: float | None = Field(default=None, ge=0)
    """The mean power of the device's domains during the solo phase. None if it was not measured."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """The resident memory while the suite is loaded."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of its route: see `Route.key`."""
        return self.suite, self.device, self.adapter, self.precision


class Placement(Fact):
    """The plan of a mixed phase: the fraction of each device's time for each suite, and the dual proof.

    The linear program and its dual are in harness/plan/bound.py.
    """

    objective: Literal["throughput", "efficiency"]
    rates: tuple[Rate, ...]
    """The rates that the plan could choose from, one for each suite on each device."""
    fractions: dict[Label, dict[Label, float]]
    """x[suite][device]: the fraction of the device's time for the suite."""
    mixes_per_s: float = Field(ge=0)
    """The mixes per second that the plan predicts."""
    bound_per_s: float = Field(gt=0)
    """λ*: the highest rate of any plan at these rates, regardless of memory and the objective."""
    bound_fractions: dict[Label, dict[Label, float]]
    """x[suite][device] of a plan that reaches the bound."""
    suite_prices: dict[Label, float]
    """v_w: the dual value of a unit of each suite; Σ m_w v_w = 1."""
    device_prices: dict[Label, float]
    """u: the dual value of the time of each device, or of devices that share silicon, `gpu:0 or gpu:pair`. The values
    that name device d add up to at least r[w,d] v_w, and Σ u is the bound."""
    watts: float | None = None
    """The predicted power of the energy boundary. None if it was not measured."""
    pool_bytes: dict[Label, int] = {}
    """The free memory of each pool: the plan's limit."""
    host_fraction: float = Field(default=0, ge=0)
    """The fraction of every CPU device's time that the host threads of one used accelerator need."""
    idle_watts: dict[Label, float] = {}
    """The measured idle power of devices in the boundary."""
    rest_watts: float | None = Field(default=None, ge=0)
    """The power of all parts other than devices. None if the power of the boundary is unknown."""
