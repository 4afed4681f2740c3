"""All devices at once: a mixed phase is fed in the proportion of the mix until its time is over.

The parent asks the dispatcher what each device does next, and sends one feed ahead of a brief one that runs, so that
no device waits for the parent or for its feed. Stamps come back with each feed: a
worker that dies takes with it what it was doing, and what it had done is kept.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness import seeds, wire
from harness.dispatch import Dispatcher, Pair, Planner
from harness.errors import MixmarkError
from harness.failures import WorkerFailed, failure_of
from harness.judge.stamps import is_in_time
from harness.phase import Part
from harness.schema import Completions, Failure, Mix, Placement, ServiceLimits

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
    units: Mapping[str, float]
    """The finished units of each suite."""
    mix_units: Mapping[str, float]


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
        self.part.worker.post(wire.Feed(key=self.part.share.key, serial=self.sent, nonce=nonce))
        self.sent += 1

    def may_have_behind(self, held: int) -> bool:
        """Whether, with so many feeds at a worker, one more may be sent behind this suite's."""
        brief = bool(self.done) and self.done[-1][1][-2] - self.done[-1][0] < BRIEF_NS
        return held < self.part.slots or (brief and held == self.part.slots)


@dataclass(frozen=True)
class Drive:
    """Drives a mixed phase. plan: makes a new plan from observed rates. watching: gets a snapshot now and then."""

    mix: Mix
    placement: Placement
    plan: Planner
    watching: Callable[[Snapshot], None] = lambda snapshot: None

    def __call__(self, parts: Sequence[Part]) -> None:
        """Feeds all devices until the phase is over. Raises WorkerFailed where what is loaded does not make a mix."""
        try:
            devices = _Devices(self, [_Stream(part) for part in parts])
            bracket_ns = devices.run()
        except (ValueError, MixmarkError) as error:
            raise WorkerFailed(Failure(kind="no result", message=f"the plan cannot be run: {error}")) from error
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

    def __init__(self, how: Drive, streams: Sequence[_Stream]) -> None:
        """Raises ValueError or MixmarkError where what is loaded does not make a mix."""
        self.mix, self.watching = how.mix, how.watching
        self.streams = {stream.pair: stream for stream in streams}
        self.by_key = {stream.part.share.key: stream for stream in streams}
        self.bounds = streams[0].part.share.limits
        self.feeds = dict.fromkeys(self.mix.units, 0)
        self.running = dict.fromkeys(dict.fromkeys(device for _, device in self.streams), "")
        self.changed = threading.Condition()
        self.stopping = False
        loaded = [rate for rate in how.placement.rates if (rate.suite, rate.device) in self.streams]
        used = {(suite, device) for suite, of in how.placement.shares.items() for device, part in of.items() if part}
        placement = how.placement if used <= self.streams.keys() else how.plan(self.mix.units, loaded)
        self.planned_per_s = placement.mixes_per_s
        slots = dict.fromkeys(self.running, 1)
        for (_, device), stream in self.streams.items():
            slots[device] = max(slots[device], stream.part.slots)
        quanta = {pair: stream.part.units for pair, stream in self.streams.items()}
        for stream in streams:
            stream.seed = stream.part.begin(tell=False)
        self.begin_ns = time.monotonic_ns()
        self.dispatcher = Dispatcher(self.mix.units, placement, quanta, slots, how.plan, self.begin_ns)

    def run(self) -> tuple[int, int]:
        """Returns when dispatching began and when it stopped, on this process's clock."""
        lanes = [threading.Thread(target=self._lane, args=(device,), name=device) for device in self.running]
        stop_ns = self.begin_ns
        try:
            for lane in lanes:
                lane.start()
            while not self.stopping:
                with self.changed:
                    stop_ns = time.monotonic_ns()
                    if self._over(stop_ns) or not any(lane.is_alive() for lane in lanes):
                        self.stopping = True
                        self.changed.notify_all()
                        break
                self.watching(self._snapshot())
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
        return now_ns - self.begin_ns >= self.bounds.max_ns or (end_ns is not None and now_ns >= end_ns)

    def _end_ns(self) -> int | None:
        """When the window ends. None: that depends on when the last suite has finished its feeds."""
        left = [count for suite, count in self.feeds.items() if suite not in self.dispatcher.abandoned]
        if self.bounds.min_ns == self.bounds.max_ns or min(left, default=0) >= self.bounds.min_feeds:
            return self.begin_ns + self.bounds.min_ns
        return None

    def _snapshot(self) -> Snapshot:
        elapsed_ns = time.monotonic_ns() - self.begin_ns
        with self.changed:
            done = dict(self.dispatcher.units)
            return Snapshot(
                elapsed_ns=elapsed_ns,
                longest_ns=self.bounds.max_ns,
                mixes=self.dispatcher.mixes,
                planned_per_s=self.planned_per_s,
                running=dict(self.running),
                units=done,
                mix_units=self.mix.units,
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
                answer = held[0].part.worker.answer(wire.Fed, held[0].part.timeout_s, replies=self._drop)
                held.remove(stream := self.by_key[answer.key])
                stream.part.told.digests[answer.serial] = answer.digest
                self._finished(stream, answer.issued_ns, answer.marks)
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

    def _drop(self, question: wire.Question) -> wire.Reply:
        return self.by_key[question.key].part.drop(question)

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
        service = self.mix.limits.get(suite, ServiceLimits())
        kept = is_in_time(service, stamps[1] - issued_ns, stamps[-1] - issued_ns, sum(units[1:]))
        with self.changed:
            self.feeds[suite] += 1
            self.dispatcher.finished(device, suite, issued_ns, stamps[1:], units, bool(kept))
            self.changed.notify_all()


def _columns(done: Sequence[tuple[int, list[int]]]) -> Completions:
    """The finished feeds as a table, in the order of their issue."""
    ordered = sorted(done, key=lambda each: each[0])
    issued = np.array([issued_ns for issued_ns, _ in ordered], np.int64)
    flat = np.concatenate([np.array(marks, np.int64) for _, marks in ordered])
    ends = np.cumsum([len(marks) // 2 for _, marks in ordered])
    return Completions(issued, issued, ends, flat[0::2], flat[1::2])
