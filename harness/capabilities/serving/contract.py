"""What a policy has: `from mixmark.harness.capabilities.serving.contract import DeviceLoad, Policy, Request`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

BY_PLAN = "plan"
"""The name of the policy that keeps to the plan, as the score does."""


@dataclass(frozen=True)
class Request:
    """A request that is not assigned to a device."""

    number: int
    """The serial number, over all suites, from 0, in the order of arrival."""
    suite: str
    due_ns: int
    """The time of arrival, on the clock of `now_ns`."""
    limit_ns: int | None
    """The longest response time, from `due_ns`. None if there is no limit."""


@dataclass(frozen=True)
class DeviceLoad:
    """The requests that a device is working on or has queued."""

    device: str
    busy_s: float
    """The time that the device needs for these requests, by its solo rates."""
    has_room: bool
    """Whether the device would begin another request at once, or directly after the running one. Without room a new
    request is queued."""


class Policy(Protocol):
    """Assigns waiting requests to devices.

    A policy is pure: its decision depends only on the waiting requests, the load of each device and the plan, and it
    reads no clock and no file. The harness calls it after each arrival and each finished request. A decision of 5
    seconds is a failure.
    """

    def __init__(self, seconds: Mapping[str, Mapping[str, float]], plan: Mapping[str, Mapping[str, float]]) -> None:
        """seconds[suite][device]: the time of a request on the device, by its solo rate, for each loaded pair.
        plan[suite][device]: the fraction of the device's time that the plan of the mix gives to the suite."""

    def choose(
        self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int
    ) -> tuple[Request, str] | None:
        """One of the waiting requests and a device that runs its suite. None if all requests should wait.

        waiting: in the order of their numbers. devices: the devices that have not failed.
        """
