"""The protocol of a policy: which waiting request which device works on next.

A policy sees what waits, what each device holds, and what the plan says. It is pure: it reads no clock and no file, and
what it decides depends on these alone. The harness asks it again after each arrival and each finished request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """A request that no device has been given yet."""

    number: int
    """Counted in the order of arrival, over all suites, from 0."""
    suite: str
    due_ns: int
    """When it arrived, on the clock of `now_ns`."""
    limit_ns: int | None
    """The longest that its response may take from then. None: no limit."""


@dataclass(frozen=True)
class DeviceLoad:
    """What a device holds."""

    device: str
    busy_s: float
    """The time that it will take for what it holds, by its solo rates."""
    has_room: bool
    """Whether it would begin another request at once or right behind the one that runs. A device without room queues
    what it is given."""


class Policy(Protocol):
    """Assigns requests to devices."""

    def __init__(self, seconds: Mapping[str, Mapping[str, float]], plan: Mapping[str, Mapping[str, float]]) -> None:
        """seconds[suite][device]: how long a request takes the device, by its solo rate; only pairs that are loaded.
        plan[suite][device]: the fraction of the device's time that the plan of the mix gives to the suite."""

    def choose(
        self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int
    ) -> tuple[Request, str] | None:
        """One of the waiting requests and a device that runs its suite. None: all of them wait for now.

        waiting: in the order of arrival. devices: those that work; one that failed is left out.
        """
