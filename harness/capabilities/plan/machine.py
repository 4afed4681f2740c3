"""What a machine is planned of: kinds of devices with their rates, constraints, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import significant

Question = Literal["cheapest", "most", "efficient"]
"""The lowest cost for a demand, the most mixes per hour, or the most mixes per kWh (for a demand, the least power)."""
HOUR_S, HOURS_A_YEAR = 3600, 8766
Level = Literal[-1, 0, 1]
"""The low end of every rate, the estimate, or the high end."""
LEVELS: tuple[Level, ...] = (-1, 0, 1)


@dataclass(frozen=True)
class Speed:
    """The solo rate of one device of a kind with a suite."""

    suite: str
    units_per_s: Estimate
    extra_watts: float | None = 0.0
    """The power above idle. None if unknown."""
    memory_bytes: int = 0
    device: str = ""
    """The device, if the kind contains several, such as a host with a GPU on its chip."""
    pool: str = ""
    """The device's memory pool."""


@dataclass(frozen=True)
class Basis:
    """What a rate that nobody measured is based on."""

    units_per_s: float
    """The rate that the planner computes with."""
    at_most: float | None = None
    """The most units per second that the datasheet allows. None if there is none."""
    limit: str = ""
    """What limits the bound. Empty for a declared rate."""
    memory_bytes: int = 0
    """The weights."""


@dataclass(frozen=True)
class Assumption:
    """Where the figures of a device that nobody measured are from."""

    source: str
    suites: Mapping[str, Basis]


@dataclass(frozen=True)
class Kind:
    """A unit of purchase: a host with its processors, or an accelerator for a host."""

    name: str
    speeds: tuple[Speed, ...]
    is_host: bool = False
    slots: int = 0
    """The number of accelerators that fit into a host."""
    processors: frozenset[str] = frozenset({""})
    """The devices of a host that run host threads."""
    threads: float = 0.0
    """The fraction of a host's processor time that an accelerator's host threads take."""
    pool_bytes: Mapping[str, int] = field(default_factory=dict)
    """The memory of each limited pool."""
    idle_watts: float | None = None
    price: float | None = None
    owned: int = 0
    """The number that need not be bought."""
    declared: frozenset[str] = frozenset()
    """The figures that the user declared: price, watts, slots."""
    assumption: Assumption | None = None
    """None if the kind was measured."""
    doubt: str = ""
    """Why its figures should not be relied on. Empty if nothing is known against them."""
    mark: str = ""
    """The end of the name: assumed, or the verdict on the result of the kind."""

    @property
    def unmarked(self) -> str:
        """The name in the file of prices and in options."""
        return self.name.removesuffix(f" ({self.mark})")

    def marked(self, mark: str) -> Kind:
        """The kind with the mark in its name, so that every line that names it says so."""
        return replace(self, name=f"{self.name} ({mark})", mark=mark) if mark else self

    @property
    def has_watts(self) -> bool:
        return self.idle_watts is not None and all(speed.extra_watts is not None for speed in self.speeds)


@dataclass(frozen=True)
class Retained:
    """The fraction of a planned rate that mixed runs reached, with the lowest and the highest run."""

    estimate: float = 1.0
    low: float = 1.0
    high: float = 1.0
    runs: int = 0

    def of(self, kind: Kind) -> Retained:
        """What a kind retains. A run that did more than its plan raises no figure that nobody measured."""
        if kind.assumption is None:
            return self
        return replace(self, estimate=min(1.0, self.estimate), low=min(1.0, self.low), high=min(1.0, self.high))

    def units_per_s(self, speed: Speed, level: Level) -> float:
        """The rate of a device in a mix."""
        low, high = speed.units_per_s.ends
        return {0: self.estimate * speed.units_per_s.estimate, 1: self.high * high, -1: self.low * low}[level]


@dataclass(frozen=True)
class Constraints:
    """The limits of a machine. None if there is no limit."""

    mixes_per_hour: float | None = None
    """The demand: the lowest rate."""
    budget: float | None = None
    watts: float | None = None
    hosts: int | None = None
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """The limits in words. Empty if there is none."""
        numbers = (
            ("{} mixes per hour", self.mixes_per_hour),
            ("a budget of {}", self.budget),
            ("a power of {} W", self.watts),
            ("{} hosts", self.hosts),
        )
        words = [text.format(significant(most)) for text, most in numbers if most is not None]
        words += [f"at least {count} of {kind}" for kind, count in self.at_least.items()]
        words += [f"at most {count} of {kind}" for kind, count in self.at_most.items()]
        return " and ".join(words)


@dataclass(frozen=True)
class Tariff:
    """The cost of electricity."""

    per_kwh: float = 0.0
    years: float = 3.0

    @property
    def per_watt(self) -> float:
        return self.per_kwh * self.years * HOURS_A_YEAR / 1000


@dataclass(frozen=True)
class Answer:
    """The best machine by prediction, and the proof."""

    question: Question
    counts: Mapping[str, int]
    """The devices of each kind in use."""
    time: Mapping[str, Mapping[str, float]]
    """The time of each kind for each suite, in devices."""
    mixes_per_hour: Estimate
    """The machine's rate at full load. The ends assume the low or the high end of every solo rate."""
    planned_per_hour: float
    """The rate of `time`, `watts` and `energy_cost`: the demand, or the rate at full load."""
    watts: float | None
    bought: Mapping[str, int]
    """The devices of each kind that are not owned."""
    price: float | None
    """The price of the bought devices."""
    energy_cost: float | None
    gap: float | None
    """How much better another machine could be, as a fraction; 0 if proved optimal. None if nothing is proved."""
    not_considered: tuple[str, ...] = ()
    """The kinds and results that had no part in the question."""
    measured_per_hour: float = 0.0
    """The low rate of the devices that were measured, alone. 0 if they do not run the mix, or were not asked."""
