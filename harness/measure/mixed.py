"""All devices of a host at once: a mixed phase is fed in the proportion of the mix until its time is over.

The parent asks the dispatcher what each device does next, and sends one feed ahead of a brief one that runs, so that
no device waits for the parent or for its feed. Stamps come back with each feed: a
worker that dies takes with it what it was doing, and what it had done is kept.

How the phase begins and ends is up to its `Lead`: `Alone` leads the phase of a run with one host. Where there are
several, each is led by the process that leads the run: see `measure.cluster`.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Completions, Failure, Limits, Mix, Phase, Placement, Rate, ServiceLimits
from mixmark.harness.judge.statistics.timestamps import is_in_time
from mixmark.harness.measure.dispatch import Dispatcher, Grant, Pair, Tally
from mixmark.harness.measure.phase import Part
from mixmark.harness.plan.placement import Planner
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import WorkerFailed, failure_of

BRIEF_NS = 1_000_000_000  # a feed that takes less has the next one queued behind it: to wait for the parent takes 1 ms
TICK_S = 0.25  # the display's pace, and how long a device that has to wait sleeps at most


@dataclass(frozen=True)
class Snapshot:
    """The phase as it is now, for the display."""

    elapsed_ns: int
    longest_ns: int
    mixes: float
    planned_per_s: float
    """Mixes per second, by the plan that the phase began with."""
    running: Mapping[str, str]
    """The suite that each device runs; empty where the device waits."""
    tally: Tally
    feeds: Mapping[str, int]
    """The finished feeds of each suite."""
    mix_units: Mapping[str, float]

    @property
    def units(self) -> Mapping[str, float]:
        """The finished units of each suite."""
        return self.tally.finished


@dataclass(frozen=True)
class Loaded:
    """What a host has ready when a mixed phase may begin."""

    rates: tuple[Rate, ...]
    """The rate of each pair that is loaded, as the plan has it."""
    quanta: Mapping[Pair, int]
    """The units of a feed of each."""
    concurrency: Mapping[str, int]
    """The number of feeds that each device runs at a time."""


class Lead(Protocol):
    """Who leads a mixed phase."""

    def begin(self, loaded: Loaded) -> tuple[Mapping[str, float], Placement, Planner]:
        """Waits until the phase begins. Returns the units of a mix, the plan for what is loaded, and how to make
        another one. Raises ValueError or MixmarkError where what is loaded does not make a mix."""

    def grant(self) -> Grant | None:
        """What the host may do from now on, where that has changed since the last call."""

    def end_ns(self, feeds: Mapping[str, int], abandoned: Collection[str]) -> int | None:
        """How long the phase lasts; None where that depends on what happens. feeds: the finished ones of each suite.
        abandoned: the suites that no device can run any more."""

    def watch(self, snapshot: Snapshot) -> None:
        """Gets a snapshot now and then."""


@dataclass(frozen=True)
class Alone:
    """Leads the phase of a run with one host. plan: makes a new plan from observed rates. limits: those of each share.
    watching: gets a snapshot now and then."""

    mix: Mix
    placement: Placement
    plan: Planner
    limits: Limits
    watching: Callable[[Snapshot], None] = lambda snapshot: None

    def begin(self, loaded: Loaded) -> tuple[Mapping[str, float], Placement, Planner]:
        return self.mix.units, planned(self.placement, loaded, self.mix.units, self.plan), self.plan

    def grant(self) -> Grant | None:
        return None

    def end_ns(self, feeds: Mapping[str, int], abandoned: Collection[str]) -> int | None:
        return lasts_ns(self.limits, feeds, abandoned)

    def watch(self, snapshot: Snapshot) -> None:
        self.watching(snapshot)


def alone(mix: Mix, phase: Phase, plan: Planner, watching: Callable[[Snapshot], None] = lambda snapshot: None) -> Drive:
    """What drives the phase of a run with one host; see `Alone`."""
    assert phase.placement is not None  # it is a phase of a mix
    lead = Alone(mix, phase.placement, plan, phase.shares[0].limits, watching)
    return Drive(phase.placement.rates, mix.limits, lead)


def planned(placement: Placement, loaded: Loaded, mix_units: Mapping[str, float], plan: Planner) -> Placement:
    """The plan of the phase, or another one where something that it uses is not loaded."""
    used = {(suite, device) for suite, of in placement.shares.items() for device, part in of.items() if part}
    return placement if used <= loaded.quanta.keys() else plan(mix_units, loaded.rates)


def lasts_ns(limits: Limits, feeds: Mapping[str, int], abandoned: Collection[str]) -> int | None:
    """How long a mixed phase lasts. None: that depends on when the last suite has finished its feeds."""
    left = [count for suite, count in feeds.items() if suite not in abandoned]
    return limits.min_ns if limits.min_ns == limits.max_ns or min(left, default=0) >= limits.min_feeds else None


@dataclass
class _Stream:
    """The feeds of one part: those that are finished, and those that are at its worker."""

    part: Part
    done: list[tuple[int, list[int]]] = field(default_factory=list)
    """The issue of each finished feed and its marks, (stamp in ns, units) in turn."""
    seed: int = 0
    """The seed of the window, once it has begun."""
    sent: int = 0
    """How many feeds were sent."""
    posted_ns: deque[int] = field(default_factory=deque)
    """When the feeds that are at the worker were sent."""
    skew_ns: int | None = None

    @property
    def pair(self) -> Pair:
        return self.part.share.route.suite, self.part.share.route.device

    def send(self) -> None:
        """Sends the next feed to its worker."""
        self.posted_ns.append(time.monotonic_ns())
        nonce = seeds.nonce(self.seed, self.sent)
        self.part.worker.send(messages.Feed(key=self.part.share.key, serial=self.sent, nonce=nonce))
        self.sent += 1

    def may_have_behind(self, held: int) -> bool:
        """Whether, with so many feeds at a worker, one more may be sent behind this suite's."""
        brief = bool(self.done) and self.done[-1][1][-2] - self.done[-1][0] < BRIEF_NS
        return held < self.part.concurrency or (brief and held == self.part.concurrency)


class Drive:
    """Drives a mixed phase on a host. rates: those of the plan. service: how long the feeds of each suite may take."""

    def __init__(self, rates: Sequence[Rate], service: Mapping[str, ServiceLimits], lead: Lead) -> None:
        self._rates, self._service, self._lead = tuple(rates), service, lead
        self._devices: _Devices | None = None

    def ready(self, parts: Sequence[Part]) -> None:
        """Lets the workers make what their feeds are made from, and waits until the phase begins. Raises WorkerFailed
        where what is loaded does not make a mix."""
        streams = [_Stream(part) for part in parts]
        for stream in streams:
            stream.seed = stream.part.begin(tell=False)
        try:
            self._devices = _Devices(streams, self._rates, self._service, self._lead)
        except (ValueError, MixmarkError) as error:
            raise WorkerFailed(Failure(kind="no result", message=f"the plan cannot be run: {error}")) from error

    def __call__(self, parts: Sequence[Part]) -> None:
        """Feeds all devices until the phase is over."""
        assert self._devices is not None  # `ready` comes first
        devices = self._devices
        bracket_ns = devices.run()
        for stream in devices.streams.values():
            if stream.done:
                stream.part.fields |= {
                    "completions": _columns(stream.done),
                    "ended_by": "time",
                    "bracket_ns": bracket_ns,
                    "skew_ns": stream.skew_ns,
                }


class _Devices:
    """Runs all devices concurrently, one thread per device."""

    def __init__(
        self, streams: Sequence[_Stream], rates: Sequence[Rate], service: Mapping[str, ServiceLimits], lead: Lead
    ) -> None:
        """Waits until the phase begins. Raises ValueError or MixmarkError where what is loaded does not make a mix."""
        self.service, self.lead = service, lead
        self.streams = {stream.pair: stream for stream in streams}
        self.by_key = {stream.part.share.key: stream for stream in streams}
        self.longest_ns = streams[0].part.share.limits.max_ns
        self.running = dict.fromkeys(dict.fromkeys(device for _, device in self.streams), "")
        self.changed = threading.Condition()
        self.stopping = False
        concurrency = dict.fromkeys(self.running, 1)
        for (_, device), stream in self.streams.items():
            concurrency[device] = max(concurrency[device], stream.part.concurrency)
        quanta = {pair: stream.part.units for pair, stream in self.streams.items()}
        loaded = Loaded(tuple(rate for rate in rates if (rate.suite, rate.device) in quanta), quanta, concurrency)
        self.mix_units, placement, plan = lead.begin(loaded)
        self.feeds = dict.fromkeys(self.mix_units, 0)
        self.planned_per_s = placement.mixes_per_s
        self.begin_ns = time.monotonic_ns()
        self.dispatcher = Dispatcher(self.mix_units, placement, quanta, concurrency, plan, self.begin_ns)

    def run(self) -> tuple[int, int]:
        """Returns when dispatching began and when it stopped, on this process's clock."""
        lanes = [threading.Thread(target=self._lane, args=(device,), name=device) for device in self.running]
        stop_ns = self.begin_ns = time.monotonic_ns()
        try:
            for lane in lanes:
                lane.start()
            while not self.stopping:
                with self.changed:
                    stop_ns = time.monotonic_ns()
                    if grant := self.lead.grant():
                        self.dispatcher.granted(grant, stop_ns)
                        self.changed.notify_all()
                    if self._over(stop_ns) or not any(lane.is_alive() for lane in lanes):
                        self.stopping = True
                        self.changed.notify_all()
                        break
                self.lead.watch(self._snapshot())
                time.sleep(TICK_S)  # and not until something changes: who looks on takes no core from a device
        except BaseException:
            self.stopping = True
            for stream in self.streams.values():
                stream.part.worker.kill()
            raise
        finally:
            for lane in lanes:
                if lane.ident:
                    lane.join()
        return self.begin_ns, stop_ns

    def _over(self, now_ns: int) -> bool:
        end_ns = self._end_ns()
        return now_ns - self.begin_ns >= self.longest_ns or (end_ns is not None and now_ns >= end_ns)

    def _end_ns(self) -> int | None:
        """When the window ends; None where that is not known yet."""
        lasts_ns = self.lead.end_ns(self.feeds, self.dispatcher.abandoned)
        return None if lasts_ns is None else self.begin_ns + lasts_ns

    def _snapshot(self) -> Snapshot:
        elapsed_ns = time.monotonic_ns() - self.begin_ns
        with self.changed:
            return Snapshot(
                elapsed_ns=elapsed_ns,
                longest_ns=self.longest_ns,
                mixes=self.dispatcher.mixes,
                planned_per_s=self.planned_per_s,
                running=dict(self.running),
                tally=self.dispatcher.tally(),
                feeds=dict(self.feeds),
                mix_units=self.mix_units,
            )

    def _lane(self, device: str) -> None:
        """Keeps one device busy. All of the device works for one worker at a time."""
        held: deque[_Stream] = deque()
        chosen: _Stream | None = None
        try:
            while True:
                with self.changed:
                    if self.stopping:
                        chosen = None
                    elif chosen is None and (not held or held[-1].may_have_behind(len(held))):
                        suite = self.dispatcher.next(device, time.monotonic_ns(), self._end_ns())
                        chosen = self.streams[suite, device] if suite else None
                    if chosen and (not held or held[0].part.worker is chosen.part.worker):
                        chosen.send()
                        held.append(chosen)
                        chosen = None
                        continue
                    self.running[device] = held[0].pair[0] if held else ""
                    if not held:
                        if self.stopping:
                            return
                        self.changed.wait(TICK_S)
                        continue
                fed = held[0].part.worker.receive(messages.Fed, held[0].part.timeout_s, sampling_key=self._sampling_key)
                held.remove(stream := self.by_key[fed.key])
                stream.part.commitments.digests[fed.serial] = fed.digest
                self._finished(stream, fed.issued_ns, fed.yields)
        except Exception as error:  # whatever it is, the other devices go on
            failure = failure_of(error)
            for (_, where), stream in self.streams.items():
                if where == device:
                    stream.part.failure = failure
                    stream.part.worker.kill()
            with self.changed:
                self.running[device] = ""
                self.dispatcher.lost(device, time.monotonic_ns())
                self.changed.notify_all()

    def _sampling_key(self, full: messages.OutputsFull) -> int:
        return self.by_key[full.key].part.sampling_key(full)

    def _finished(self, stream: _Stream, issued_ns: int, marks: list[int]) -> None:
        """Keeps the stamps of a feed. Raises ValueError, TypeError or OverflowError where they cannot be stamps."""
        suite, device = stream.pair
        stamps, units = array("q", [issued_ns, *marks[0::2]]), array("q", marks[1::2])
        if list(stamps) != sorted(stamps):
            raise ValueError("time runs backwards inside a feed")
        if len(units) != len(stamps) - 1 or min(units) <= 0:
            raise ValueError("a mark without units")
        skew_ns = max(stream.posted_ns.popleft() - issued_ns, stamps[-1] - time.monotonic_ns())
        stream.skew_ns = skew_ns if stream.skew_ns is None else max(stream.skew_ns, skew_ns)
        stream.done.append((issued_ns, marks))
        service = self.service.get(suite, ServiceLimits())
        kept = is_in_time(service, stamps[1] - issued_ns, stamps[-1] - issued_ns, sum(units[1:]))
        with self.changed:
            self.feeds[suite] = self.feeds.get(suite, 0) + 1
            self.dispatcher.finished(device, suite, issued_ns, stamps[1:], units, bool(kept))
            self.changed.notify_all()


def _columns(done: Sequence[tuple[int, list[int]]]) -> Completions:
    """The finished feeds as a table, in the order of their issue."""
    ordered = sorted(done, key=lambda each: each[0])
    issued = np.array([issued_ns for issued_ns, _ in ordered], np.int64)
    flat = np.concatenate([np.array(marks, np.int64) for _, marks in ordered])
    ends = np.cumsum([len(marks) // 2 for _, marks in ordered])
    return Completions(issued, issued, ends, flat[0::2], flat[1::2])
