"""Hands out a mix as requests that a policy assigns to devices. This module is pure, as `measure.dispatch` is.

A request of a suite is the same work on every device: as many units as its largest feed has. A device whose feeds are
smaller runs several of them for one request.

Requests arrive at their due times, or, without a load, as soon as others are finished: then a few of them are always
unfinished, in the proportion of the mix, so that policies can be compared when there is no end of work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mixmark.harness.capabilities.serving.contract import DeviceLoad, Policy, Request
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Int64s, ServiceLimits
from mixmark.harness.measure.dispatch import Handed, Loaded, WorkSource, most_at_once
from mixmark.harness.plugins.calls import error_text, error_with_line

STUCK_NS = 10_000_000_000  # for which a policy may leave requests waiting while no device has anything to do
BRIEF_S = 0.25  # of work in hand: a device with less has room for one more feed, which need not wait for the parent
Table = Mapping[str, Mapping[str, float]]
"""A number for each suite and device."""


def request_units(quanta: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """The units in a request of each suite: the smallest whole number of feeds on every device.

    quanta: the units of a feed, by suite and device.
    """
    units: dict[str, int] = {}
    for (suite, _), quantum in quanta.items():
        units[suite] = math.lcm(units.get(suite, 1), quantum)
    return units


class PolicyFailed(MixmarkError):
    """A policy raised an error, or chose what cannot be."""


@dataclass(eq=False)
class _Given:
    """A request that a device was given and has not finished."""

    request: Request
    device: str
    feeds_left: int
    begun: bool = False


class _Device:
    """What a device was given."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.queued: deque[_Given] = deque()
        """The feeds that were not handed out yet, by their requests."""
        self.held = 0
        self.work_s = 0.0
        """The expected time of all feeds, queued and held."""
        self.since_ns = 0
        """When the device last finished a feed, or got one while it had none."""

    def load(self, name: str, now_ns: int) -> DeviceLoad:
        spent_s = (now_ns - self.since_ns) / 1e9
        feeds, room = self.held + len(self.queued), self.concurrency + (self.work_s < BRIEF_S)
        return DeviceLoad(device=name, busy_s=max(0.0, self.work_s - spent_s), has_room=feeds < room)


class RequestQueue(WorkSource):
    """The requests of a phase, waiting or given to a device."""

    def __init__(
        self,
        loaded: Loaded,
        policy: Callable[[Table, Table], Policy],
        limits: Mapping[str, ServiceLimits],
        due_ns: Mapping[str, Int64s] | None = None,
        units: Mapping[str, int] | None = None,
    ) -> None:
        """limits: of a feed of each suite. due_ns: when the requests of each suite are due, from the begin of the
        phase; None if they do not arrive by time. units: in a request of each suite; by default the fewest. Raises
        PolicyFailed."""
        super().__init__(loaded)
        mix_units, placement, quanta = loaded.mix_units, loaded.placement, loaded.quanta
        self._due_ns, self._limits = due_ns, limits
        self._units = dict(units or request_units(quanta))
        self._seconds: dict[str, dict[str, float]] = {suite: {} for suite in mix_units}
        for rate in placement.rates:
            if (rate.suite, rate.device) in quanta:
                self._seconds[rate.suite][rate.device] = self._units[rate.suite] / rate.units_per_s
        self._devices = {
            id: _Device(most_at_once(loaded.concurrency, id)) for id in dict.fromkeys(id for _, id in quanta)
        }
        with _blamed("does not begin"):
            self._policy = policy(self._seconds, placement.fractions)
        self._waiting: dict[int, Request] = {}
        self._given: dict[int, _Given] = {}
        self._coming: deque[tuple[int, str]] = deque()
        self._arrived = dict.fromkeys(mix_units, 0)
        self._most = sum(each.concurrency + 1 for each in self._devices.values()) + len(mix_units)
        self._stuck_since_ns: int | None = None
        self._delays_ns: list[int] = []

    def begin(self, begin_ns: int) -> None:
        if self._due_ns:
            due = self._due_ns.items()
            self._coming = deque(sorted((begin_ns + at, suite) for suite, at_ns in due for at in at_ns.tolist()))

    def next_arrival_ns(self) -> int | None:
        return self._coming[0][0] if self._coming else None

    def arrive(self, now_ns: int) -> None:
        """Takes up the requests that are due; without a load, enough for the devices."""
        while self._coming and self._coming[0][0] <= now_ns:
            at_ns, suite = self._coming.popleft()
            self._delays_ns.append(now_ns - at_ns)
            self._wait(suite, at_ns)
        while not self._due_ns and self._mix_units and len(self._waiting) + len(self._given) < self._most:
            behind = min(
                self._mix_units, key=lambda each: self._arrived[each] * self._units[each] / self._mix_units[each]
            )
            self._wait(behind, now_ns)

    def arrival_delay_ns(self) -> int | None:
        delays_ns = sorted(self._delays_ns)
        return delays_ns[math.ceil(0.99 * len(delays_ns)) - 1] if delays_ns else None

    def next(self, device: str, now_ns: int) -> Handed | None:
        """The next feed of a device, or None to wait. Raises PolicyFailed."""
        if device not in self._devices:
            return None
        self.arrive(now_ns)
        self._assign(now_ns)
        own = self._devices[device]
        if not own.queued or own.held > own.concurrency:
            return None
        given = own.queued.popleft()
        given.begun = True
        own.held += 1
        return self._handed(given.request)

    def _handed(self, request: Request) -> Handed:
        return Handed(request.suite, request.due_ns if self._due_ns else None, request.number)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        """Records that a feed is finished. units: those that count."""
        own, given = self._devices[device], self._given[handed.request]
        own.held -= 1
        busy = own.held or own.queued
        own.work_s = max(0.0, own.work_s - self._feed_s(handed.suite, device)) if busy else 0.0
        own.since_ns = end_ns
        self._finished[handed.suite] += units
        given.feeds_left -= 1
        if not given.feeds_left:
            del self._given[handed.request]

    def lost(self, device: str, now_ns: int) -> None:
        """Records that the device has failed. Requests that it had begun are lost; the others wait again, and are lost
        if no other device runs their suite."""
        del self._devices[device]
        for number, given in [(number, each) for number, each in self._given.items() if each.device == device]:
            del self._given[number]
            if not given.begun:
                self._waiting[number] = given.request
        for own in self._seconds.values():
            own.pop(device, None)
        self._mix_units = {suite: count for suite, count in self._mix_units.items() if self._seconds[suite]}
        self._waiting = {n: each for n, each in sorted(self._waiting.items()) if each.suite in self._mix_units}
        self._coming = deque(each for each in self._coming if each[1] in self._mix_units)

    def surplus(self, now_ns: int) -> float:
        """1 while a request that arrives is left, then 0. Without arrivals, a mixed phase's surplus by the plan."""
        if self._due_ns:
            return 1.0 if self._coming or self._waiting or self._given else 0.0
        return super().surplus(now_ns)

    def _unfinished_s(self, now_ns: int) -> dict[str, float]:
        return {id: max(0, now_ns - each.since_ns) / 1e9 for id, each in self._devices.items() if each.held}

    def _wait(self, suite: str, at_ns: int) -> None:
        number = sum(self._arrived.values())
        self._arrived[suite] += 1
        limit_ns = self._limits.get(suite, ServiceLimits()).total_ns
        self._waiting[number] = Request(number=number, suite=suite, due_ns=at_ns, limit_ns=limit_ns)

    def _assign(self, now_ns: int) -> None:
        """Lets the policy assign what waits. Raises PolicyFailed."""
        while self._waiting:
            loads = tuple(each.load(id, now_ns) for id, each in self._devices.items())
            with _blamed("failed"):
                choice = self._policy.choose(tuple(self._waiting.values()), loads, now_ns)
            if choice is None:
                break
            self._give(choice, now_ns)
        if self._waiting and not self._given:
            self._stuck_since_ns = self._stuck_since_ns or now_ns
            if now_ns - self._stuck_since_ns > STUCK_NS:
                left = counted(len(self._waiting), "request")
                raise PolicyFailed(f"the policy leaves {left} waiting, and no device has anything to do")
        else:
            self._stuck_since_ns = None

    def _give(self, choice: object, now_ns: int) -> None:
        """Gives a request to a device. Raises PolicyFailed if that cannot be."""
        if not (isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[0], Request)):
            raise PolicyFailed(f"the policy chose {choice!r:.80}, and not a request and a device")
        request, device = choice
        if self._waiting.get(request.number) != request:
            raise PolicyFailed(f"the policy chose request {request.number}, which does not wait")
        if device not in self._seconds[request.suite]:
            raise PolicyFailed(f"the policy gave {device!r:.80} a request of {request.suite}, which it does not run")
        del self._waiting[request.number]
        own = self._devices[device]
        feeds = math.ceil(self._units[request.suite] / self._quanta[request.suite, device])
        if not (own.held or own.queued):
            own.since_ns = now_ns
        given = self._given[request.number] = _Given(request, device, feeds)
        own.queued.extend([given] * feeds)
        own.work_s += feeds * self._feed_s(request.suite, device)

    def _feed_s(self, suite: str, device: str) -> float:
        return self._seconds[suite][device] * self._quanta[suite, device] / self._units[suite]


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Raises the errors of a policy as PolicyFailed. what: completes `the policy …`."""
    try:
        yield
    except MixmarkError as error:  # of its process
        raise PolicyFailed(f"the policy {what}: {error_text(error)}") from error
    except (Exception, SystemExit) as error:
        raise PolicyFailed(f"the policy {what}: {error_with_line(error)}") from error
