"""The policies that assign waiting requests by the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixmark.harness.capabilities.serving.contract import DeviceLoad, Request

Seconds = Mapping[str, Mapping[str, float]]
"""The seconds of a request, by suite and device."""
Choice = tuple[Request, str] | None


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
