"""Policies that the plan is compared with. Each assigns waiting requests to devices."""

from __future__ import annotations

from collections.abc import Sequence

from mixmark.harness.capabilities.serving.contract import DeviceLoad, Request
from mixmark.harness.capabilities.serving.policies import Choice, FirstToFinish, Seconds


class RoundRobin:
    """The oldest request goes to the next device in turn that runs its suite. Each suite has a separate turn."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._turns = {suite: list(devices) for suite, devices in seconds.items()}

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        alive = {each.device for each in devices}
        for request in waiting:
            turn = self._turns[request.suite]
            if device := next((each for each in turn if each in alive), None):
                turn.append(turn.pop(turn.index(device)))
                return request, device
        return None


class FastestDevice:
    """The oldest request goes to the device that runs its suite fastest, however busy it is."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._seconds = seconds

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        alive = {each.device for each in devices}
        for request in waiting:
            own = self._seconds[request.suite]
            if device := min((each for each in own if each in alive), key=own.__getitem__, default=None):
                return request, device
        return None


class Greedy(FirstToFinish):
    """The oldest request goes to the device that is expected to finish it first."""
