"""Measures a mix: all devices of a host run at once, in the proportion of the mix, until the phase is over.

The parent asks the dispatcher for the next suite of each device. It sends a feed ahead of a brief one that runs, so no
device waits for the parent. Timestamps come back with each feed: if a worker dies, only its feeds in flight are lost.

A `MixLeader` decides how the phase begins and ends: `LocalLeader` in a run with one host; with several hosts, an agent
passes on the decisions of the process that leads the run (see `measure.cluster`).
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Completions, Failure, Limits, Mix, Phase, Placement, Rate, ServiceLimits
from mixmark.harness.judge.statistics.timestamps import is_in_time
from mixmark.harness.measure.dispatch import Dispatcher, Grant, Pair, Tally, least_surplus, most_at_once
from mixmark.harness.measure.phase import Part
from mixmark.harness.plan.placement import Planner
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import WorkerFailed, failure_of

BRIEF_NS = 1_000_000_000  # a shorter feed has the next one queued behind it: waiting for the parent takes 1 ms
BALANCED = 0.005  # the surplus with which a window ends: a quarter of what its score may be too low
TICK_S = 0.25  # between updates of the display, and the longest sleep of a device that has to wait


@dataclass(frozen=True)
class MixSnapshot:
    """The phase as it is now, for the display."""

    elapsed_ns: int
    longest_ns: int
    mixes: float
    planned_per_s: float
    """Mixes per second, by the plan that the phase began with."""
    least_surplus: float
    """See `dispatch.least_surplus`; of the longest window, by the same plan."""
    running: Mapping[str, str]
    """The suite that each device runs; empty while the device waits."""
    tally: Tally
    feeds: Mapping[str, int]
    """The finished feeds of each suite."""
    mix_units: Mapping[str, float]

    @property
    def units(self) -> Mapping[str, float]:
        """The finished units of each suite."""
        return self.tally.finished


@dataclass(frozen=True)
class LoadedSuites:
    """The suites that a host has loaded when a mixed phase may begin."""

    rates: tuple[Rate, ...]
    """The plan's rate of each loaded pair."""
    quanta: Mapping[Pair, int]
    """The units in a feed of each pair."""
    concurrency: Mapping[str, int]
    """The number of feeds that each device runs at a time."""


class MixLeader(Protocol):
    """Decides when a mixed phase begins and ends, and what its host may do."""

    def begin(self, loaded: LoadedSuites) -> tuple[Mapping[str, float], Placement, Planner]:
        """Waits until the phase begins. Returns the units of a mix, the plan for the loaded suites, and the planner
        that makes another one. Raises ValueError or MixmarkError if the loaded suites do not make a mix."""

    def grant(self) -> Grant | None:
        """The host's new grant, or None if it did not change since the last call."""

    def end_ns(self, elapsed_ns: int, surplus: float) -> int | None:
        """How long the phase lasted, if it is over; else None. elapsed_ns: since it began. surplus: see
        `dispatch.surplus`."""

    def watch(self, snapshot: MixSnapshot) -> None:
        """Gets a snapshot now and then."""


@dataclass(frozen=True)
class LocalLeader:
    """Leads the phase of a run with one host.

    plan: makes a new plan from observed rates. limits: those of each share. on_snapshot: gets a snapshot now and then.
    """

    mix: Mix
    placement: Placement
    plan: Planner
    limits: Limits
    on_snapshot: Callable[[MixSnapshot], None] = lambda snapshot: None

    def begin(self, loaded: LoadedSuites) -> tuple[Mapping[str, float], Placement, Planner]:
        return self.mix.units, planned(self.placement, loaded, self.mix.units, self.plan), self.plan

    def grant(self) -> Grant | None:
        return None

    def end_ns(self, elapsed_ns: int, surplus: float) -> int | None:
        return elapsed_ns if is_over(elapsed_ns, surplus, self.limits) else None

    def watch(self, snapshot: MixSnapshot) -> None:
        self.on_snapshot(snapshot)


def local_driver(
    mix: Mix, phase: Phase, plan: Planner, on_snapshot: Callable[[MixSnapshot], None] = lambda snapshot: None
) -> MixDriver:
    """The driver of a phase of a run with one host; see `LocalLeader`."""
    assert phase.placement is not None  # it is a phase of a mix
    leader = LocalLeader(mix, phase.placement, plan, phase.shares[0].limits, on_snapshot)
    return MixDriver(phase.placement.rates, mix.limits, leader)


def planned(placement: Placement, loaded: LoadedSuites, mix_units: Mapping[str, float], plan: Planner) -> Placement:
    """The plan of the phase, or another one if a pair that it uses is not loaded."""
    used = {(suite, device) for suite, by_device in placement.fractions.items() for device, x in by_device.items() if x}
    return placement if used <= loaded.quanta.keys() else plan(mix_units, loaded.rates)


def is_over(elapsed_ns: int, surplus: float, limits: Limits) -> bool:
    """Whether a mixed phase ends now: after its shortest time as soon as nearly all work is in whole mixes.

    One feed of an LLM may be worth several mixes. A window of fixed length would end with work that no mix counts, and
    the slower the machine, the larger a part of its work that would be.
    """
    return elapsed_ns >= limits.max_ns or (elapsed_ns >= limits.min_ns and surplus <= BALANCED)


@dataclass
class _Stream:
    """The feeds of one part, finished and in flight."""

    part: Part
    done: list[tuple[int, list[int]]] = field(default_factory=list)
    """(when it was issued, its yields) of each finished feed; yields are timestamps in ns and units in turn."""
    seed: int = 0
    """The seed of the window, once it has begun."""
    sent: int = 0
    """The number of feeds that were sent."""
    posted_ns: deque[int] = field(default_factory=deque)
    """When each feed in flight was sent."""
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

    def may_queue_behind(self, held: int) -> bool:
        """Whether one more feed may be sent behind this suite's. held: the number of feeds at the worker."""
        brief = bool(self.done) and self.done[-1][1][-2] - self.done[-1][0] < BRIEF_NS
        return held < self.part.concurrency or (brief and held == self.part.concurrency)


class MixDriver:
    """Drives a mixed phase on a host. rates: those of the plan. service: the limits of a feed of each suite."""

    def __init__(self, rates: Sequence[Rate], service: Mapping[str, ServiceLimits], leader: MixLeader) -> None:
        self._rates, self._service, self._leader = tuple(rates), service, leader
        self._devices: _Devices | None = None

    def on_ready(self, parts: Sequence[Part]) -> None:
        """Lets the workers make the pools of their feeds, and waits until the phase begins. Raises WorkerFailed if the
        loaded suites do not make a mix."""
        streams = [_Stream(part) for part in parts]
        for stream in streams:
            stream.seed = stream.part.begin()
        try:
            self._devices = _Devices(streams, self._rates, self._service, self._leader)
        except (ValueError, MixmarkError) as error:
            raise WorkerFailed(Failure(kind="no result", message=f"the plan cannot be run: {error}")) from error

    def __call__(self, parts: Sequence[Part]) -> None:
        """Feeds all devices until the phase is over."""
        assert self._devices is not None  # `on_ready` comes first
        devices = self._devices
        parent_window_ns = devices.run()
        for stream in devices.streams.values():
            if stream.done:
                draft = stream.part.draft
                draft.completions, draft.ended_by = _columns(stream.done), "time"
                draft.parent_window_ns, draft.skew_ns = parent_window_ns, stream.skew_ns


class _Devices:
    """Runs all devices concurrently, one thread per device."""

    def __init__(
        self, streams: Sequence[_Stream], rates: Sequence[Rate], service: Mapping[str, ServiceLimits], leader: MixLeader
    ) -> None:
        """Waits until the phase begins. Raises ValueError or MixmarkError if the loaded suites do not make a mix."""
        self.service, self.leader = service, leader
        self.streams = {stream.pair: stream for stream in streams}
        self.by_key = {stream.part.share.key: stream for stream in streams}
        self.longest_ns = streams[0].part.share.limits.max_ns
        self.running = dict.fromkeys(dict.fromkeys(device for _, device in self.streams), "")
        self.changed = threading.Condition()
        self.stopping = False
        self.stop_ns = 0
        concurrency = {pair: stream.part.concurrency for pair, stream in self.streams.items()}
        most = {device: most_at_once(concurrency, device) for device in self.running}
        quanta = {pair: stream.part.units for pair, stream in self.streams.items()}
        loaded = LoadedSuites(tuple(rate for rate in rates if (rate.suite, rate.device) in quanta), quanta, most)
        self.mix_units, placement, plan = leader.begin(loaded)
        self.feeds = dict.fromkeys(self.mix_units, 0)
        self.planned_per_s = placement.mixes_per_s
        self.least_surplus = least_surplus(placement, self.mix_units, quanta, self.longest_ns / 1e9)
        self.begin_ns = time.monotonic_ns()
        self.dispatcher = Dispatcher(self.mix_units, placement, quanta, concurrency, plan, self.begin_ns)

    def run(self) -> tuple[int, int]:
        """Returns when dispatching began and when it stopped, on this process's clock."""
        threads = [threading.Thread(target=self._keep_busy, args=(device,), name=device) for device in self.running]
        self.begin_ns = time.monotonic_ns()
        try:
            for thread in threads:
                thread.start()
            while not self.stopping:
                with self.changed:
                    if grant := self.leader.grant():
                        self.dispatcher.granted(grant, time.monotonic_ns())
                        self.changed.notify_all()
                    self._end_if_over(any_left=any(thread.is_alive() for thread in threads))
                self.leader.watch(self._snapshot())
                time.sleep(TICK_S)  # rather than wait for a change: the display takes no core from a device
        except BaseException:
            self.stopping = True
            for stream in self.streams.values():
                stream.part.worker.kill()
            raise
        finally:
            for thread in threads:
                if thread.ident:
                    thread.join()
        return self.begin_ns, self.stop_ns

    def _end_if_over(self, any_left: bool = True) -> None:
        """any_left: whether any device still works."""
        now_ns = time.monotonic_ns()
        elapsed_ns = now_ns - self.begin_ns
        lasted_ns = self.leader.end_ns(elapsed_ns, self.dispatcher.surplus(now_ns))
        if lasted_ns is None and (elapsed_ns >= self.longest_ns or not any_left):
            lasted_ns = elapsed_ns
        if lasted_ns is not None and not self.stopping:
            self.stopping, self.stop_ns = True, min(now_ns, self.begin_ns + lasted_ns)
            self.changed.notify_all()

    def _snapshot(self) -> MixSnapshot:
        elapsed_ns = time.monotonic_ns() - self.begin_ns
        with self.changed:
            return MixSnapshot(
                elapsed_ns=elapsed_ns,
                longest_ns=self.longest_ns,
                mixes=self.dispatcher.mixes,
                planned_per_s=self.planned_per_s,
                least_surplus=self.least_surplus,
                running=dict(self.running),
                tally=self.dispatcher.tally(self.begin_ns + elapsed_ns),
                feeds=dict(self.feeds),
                mix_units=self.mix_units,
            )

    def _keep_busy(self, device: str) -> None:
        """Keeps one device busy. All of the device works for one worker at a time."""
        held: deque[_Stream] = deque()
        chosen: _Stream | None = None
        try:
            while True:
                with self.changed:
                    if self.stopping:
                        chosen = None
                    elif chosen is None and (not held or held[-1].may_queue_behind(len(held))):
                        suite = self.dispatcher.next(device, time.monotonic_ns())
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
                fed = held[0].part.worker.receive(messages.Fed, held[0].part.timeout_s, on_window=self._on_window)
                held.remove(stream := self.by_key[fed.key])
                stream.part.commitments.digests[fed.serial] = fed.digest
                self._finished(stream, fed.issued_ns, fed.yields)
        except Exception as error:  # of any kind: the other devices go on
            failure = failure_of(error)
            for (_, ran_on), stream in self.streams.items():
                if ran_on == device:
                    stream.part.failure = failure
                    stream.part.worker.kill()
            with self.changed:
                self.running[device] = ""
                self.dispatcher.lost(device, time.monotonic_ns())
                self.changed.notify_all()

    def _on_window(self, message: messages.InWindow, received_ns: int) -> int:
        """Draws a sampling key. Raises Garbled for other messages: the parent opens and closes this window."""
        if not isinstance(message, messages.OutputsFull) or message.key not in self.by_key:
            raise messages.Garbled(f"{type(message).__name__} came in a mixed phase")
        return self.by_key[message.key].part.commitments.draw_key(message.done, message.commitment)

    def _finished(self, stream: _Stream, issued_ns: int, marks: list[int]) -> None:
        """Keeps the timestamps of a feed. Raises ValueError, TypeError or OverflowError if they cannot be any."""
        suite, device = stream.pair
        times_ns, units = array("q", [issued_ns, *marks[0::2]]), array("q", marks[1::2])
        if list(times_ns) != sorted(times_ns):
            raise ValueError("time runs backwards inside a feed")
        if len(units) != len(times_ns) - 1 or min(units) <= 0:
            raise ValueError("a yield without units")
        skew_ns = max(stream.posted_ns.popleft() - issued_ns, times_ns[-1] - time.monotonic_ns())
        stream.skew_ns = skew_ns if stream.skew_ns is None else max(stream.skew_ns, skew_ns)
        stream.done.append((issued_ns, marks))
        service = self.service.get(suite, ServiceLimits())
        kept = is_in_time(service, times_ns[1] - issued_ns, times_ns[-1] - issued_ns, sum(units[1:]))
        with self.changed:
            self.feeds[suite] = self.feeds.get(suite, 0) + 1
            self.dispatcher.finished(device, suite, issued_ns, times_ns[-1], sum(units) if kept else 0)
            self._end_if_over()
            self.changed.notify_all()


def _columns(done: Sequence[tuple[int, list[int]]]) -> Completions:
    """The finished feeds as a table, in the order of their issue."""
    ordered = sorted(done, key=lambda feed: feed[0])
    issued = np.array([issued_ns for issued_ns, _ in ordered], np.int64)
    flat = np.concatenate([np.array(marks, np.int64) for _, marks in ordered])
    ends = np.cumsum([len(marks) // 2 for _, marks in ordered])
    return Completions(issued, issued, ends, flat[0::2], flat[1::2])
