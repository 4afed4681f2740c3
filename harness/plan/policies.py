"""The built-in policies, which assign waiting requests to devices.

The mix of the score is dispatched by the plan (`measure.dispatch`). These serve arriving requests, and the plan is
compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixmark.harness.contracts.protocols import DeviceLoad, Request

Seconds = Mapping[str, Mapping[str, float]]
"""The seconds of a request, by suite and device."""
Choice = tuple[Request, str] | None


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


class Greedy:
    """The oldest request goes to the device that is expected to finish it first."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._seconds = seconds

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        for request in waiting:
            if device := first_to_finish(self._seconds[request.suite], devices):
                return request, device
        return None


class Planned(Greedy):
    """Like greedy, among the devices that the plan uses for the suite. Other devices serve a suite only if all of the
    planned devices have failed."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        super().__init__(seconds, plan)
        self._planned = {
            suite: {device: s for device, s in own.items() if plan.get(suite, {}).get(device)}
            for suite, own in seconds.items()
        }

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        for request in waiting:
            if device := first_to_finish(self._planned[request.suite], devices):
                return request, device
        return super().choose(waiting, devices, now_ns)


class Deadline:
    """A device with room gets the request with the least slack: the time to its limit minus its time on the fastest
    device. Requests without a limit are last, in the order of arrival."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._seconds = seconds
        self._least_ns = {suite: min(own.values(), default=0.0) * 1e9 for suite, own in seconds.items()}

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        free = [each for each in devices if each.has_room]
        for request in sorted(waiting, key=self._latest_begin_ns) if free else ():
            if device := first_to_finish(self._seconds[request.suite], free):
                return request, device
        return None

    def _latest_begin_ns(self, request: Request) -> float:
        if request.limit_ns is None:
            return float("inf")
        return request.due_ns + request.limit_ns - self._least_ns[request.suite]


def first_to_finish(seconds: Mapping[str, float], devices: Sequence[DeviceLoad]) -> str | None:
    """The device expected to finish a request first. None if no device can run it. seconds: the request's time on each
    device."""
    able = (each for each in devices if each.device in seconds)
    best = min(able, key=lambda each: each.busy_s + seconds[each.device], default=None)
    return best.device if best else None
