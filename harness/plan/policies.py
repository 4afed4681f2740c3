"""The policies that assign waiting requests by the plan. The mix of the score is not served but dispatched
(`measure.dispatch`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mixmark.harness.contracts.protocols import DeviceLoad, Request

Seconds = Mapping[str, Mapping[str, float]]
"""The seconds of a request, by suite and device."""
Choice = tuple[Request, str] | None


class InProportion:
    """A request waits for the device that lags most behind its part of the plan. Other devices serve a suite only if
    all of the planned devices have failed."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._per_s = {
            suite: {device: plan.get(suite, {}).get(device, 0.0) / s for device, s in own.items()}
            for suite, own in seconds.items()
        }
        self._given: Counter[tuple[str, str]] = Counter()
        self._chosen: dict[int, str] = {}
        """The device of each request that waits, by its number."""

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        room = {each.device: each.has_room for each in devices}
        for request in waiting:
            if self._chosen.get(request.number) not in room:
                self._chosen[request.number] = self._lagging(request.suite, room)
            if room[self._chosen[request.number]]:
                return request, self._chosen.pop(request.number)
        return None

    def _lagging(self, suite: str, alive: Mapping[str, bool]) -> str:
        able = {device: per_s for device, per_s in self._per_s[suite].items() if device in alive}
        parts = {device: per_s for device, per_s in able.items() if per_s} or dict.fromkeys(able, 1.0)
        device = min(parts, key=lambda each: ((self._given[suite, each] + 1) / parts[each], each))
        self._given[suite, device] += 1
        return device


class FirstToFinish:
    """The oldest request goes to the device that is expected to finish it first."""

    def __init__(self, seconds: Seconds, plan: Seconds) -> None:
        self._seconds = seconds

    def choose(self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int) -> Choice:
        for request in waiting:
            if device := first_to_finish(self._seconds[request.suite], devices):
                return request, device
        return None


class Planned(FirstToFinish):
    """The same among the devices that the plan uses for the suite. Other devices serve a suite only if all of the
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


def first_to_finish(seconds: Mapping[str, float], devices: Sequence[DeviceLoad]) -> str | None:
    """The device expected to finish a request first. None if no device can run it. seconds: the request's time on each
    device."""
    able = (each for each in devices if each.device in seconds)
    best = min(able, key=lambda each: each.busy_s + seconds[each.device], default=None)
    return best.device if best else None
