"""Measures a mix: all devices of a host run at once, in the proportion of the mix, until the phase is over.

The parent asks the dispatcher for the next suite of each device. It sends a feed ahead of a brief one that runs, so no
device waits for the parent. Timestamps come back with each feed: if a worker dies, only its feeds in flight are lost.

In a run with one host the driver itself decides when the phase ends; with several hosts, it is given the decisions of
the process that leads the run.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mixmark.harness.contracts import schema, seeds
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.judge.statistics.timestamps import is_in_time
from mixmark.harness.measure.dispatch import Dispatcher, Handed, Loaded, Pair, Source, WorkSource, most_at_once
from mixmark.harness.measure.phase import Part, stamped
from mixmark.harness.plan.placement import Planner
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Garbled
from mixmark.harness.worker.failures import WorkerFailed, failure_of
from mixmark.harness.worker.messages import MAX_CONCURRENCY, AdapterCalls, Fed, Window
from mixmark.harness.worker.outputs import Commitments

BRIEF_NS = 1_000_000_000  # a shorter feed has the next one queued behind it: waiting for the parent takes 1 ms
BALANCED = 0.005  # the surplus with which a window ends: a quarter of what its score may be too low
TICK_NS = 250_000_000  # between updates of the display, and the longest sleep of a device that has to wait


@dataclass(frozen=True)
class MixSnapshot:
    """The phase as it is now, for the display."""

    elapsed_ns: int
    mixes: float
    planned_per_s: float
    """Mixes per second, by the plan that the phase began with."""
    running: Mapping[str, str]
    """The suite that each device runs; empty while the device waits."""
    units: Mapping[str, float]
    """The finished units of each suite."""
    mix_units: Mapping[str, float]


@dataclass(frozen=True)
class LoadedSuites:
    """The suites that a host has loaded when a mixed phase may begin."""

    rates: tuple[schema.Rate, ...]
    """The plan's rate of each loaded pair."""
    quanta: Mapping[Pair, int]
    """The units in a feed of each pair."""
    concurrency: Mapping[str, int]
    """The number of feeds that each device runs at a time."""


def local_driver(
    mix: schema.Mix,
    phase: schema.Phase,
    plan: Planner,
    watch: Callable[[MixSnapshot], None] = lambda snapshot: None,
    source: Source | None = None,
) -> MixDriver:
    """The driver of a phase of a run with one host. plan: makes a new plan from observed rates. watch: gets a snapshot
    now and then. source: hands out the feeds; if None, the plan does."""
    placement = phase.placement
    assert placement is not None  # it is a phase of a mix
    units, limits = mix.units, mix.limits
    source = source or partial(Dispatcher, plan=plan)

    def begin(loaded: LoadedSuites) -> tuple[Mapping[str, float], schema.Placement]:
        return units, planned(placement, loaded, units, plan)

    return MixDriver(placement.rates, limits, begin, source, watch)


def planned(
    placement: schema.Placement, loaded: LoadedSuites, mix_units: Mapping[str, float], plan: Planner
) -> schema.Placement:
    """The plan of the phase, or another one if a pair that it uses is not loaded."""
    used = {(suite, device) for suite, by_device in placement.fractions.items() for device, x in by_device.items() if x}
    return placement if used <= loaded.quanta.keys() else plan(mix_units, loaded.rates)


def is_over(elapsed_ns: int, surplus: float, limits: schema.Limits) -> bool:
    """Whether a mixed phase ends now: after its shortest time as soon as nearly all work is in whole mixes.

    One feed of an LLM may be worth several mixes. A window of fixed length would end with work that no mix counts, and
    the slower the machine, the larger a part of its work that would be.
    """
    return elapsed_ns >= limits.max_ns or (elapsed_ns >= limits.min_ns and surplus <= BALANCED)


@dataclass
class _Stream:
    """The feeds of one part."""

    part: Part
    done: list[schema.Completion] = field(default_factory=list)
    """The finished feeds."""
    seed: int = 0
    """The seed of the window, once it has begun."""
    sent: int = 0
    """The number of feeds that were sent."""
    carried_ns: int = 0
    """The time that its feeds took to read and to write what one feed hands to the next. It is the worker's word, so
    that of each feed is cut to the time of the feed."""
    carried_bytes: int = 0
    """The size of these files."""

    @property
    def pair(self) -> Pair:
        return self.part.share.route.suite, self.part.share.route.device

    def send(self, handed: Handed, before: _Delivered | None) -> _Held:
        """Sends the next feed to its worker. before: the output that the feed is derived from; None if there is
        none."""
        serial, part = self.sent, self.part
        nonce = seeds.nonce(self.seed, serial, before.digest if before else b"")
        if before:
            part.commitments.followed[serial] = before.digest
        took = before if handed.takes else None
        gives = part.scratch / f"{part.name}.{serial}.npy" if handed.gives else None
        take, give = str(took.file) if took else "", str(gives or "")
        part.worker.send(AdapterCalls.feed, key=part.name, serial=serial, nonce=nonce, take=take, give=give)
        self.sent += 1
        return _Held(self, handed, serial, took, gives)

    def may_queue_behind(self, held: int) -> bool:
        """Whether one more feed may be sent behind this suite's. held: the number of feeds at the worker."""
        brief = bool(self.done) and self.done[-1].done_ns - self.done[-1].issued_ns < BRIEF_NS
        return held < self.part.concurrency or (brief and held == self.part.concurrency)


@dataclass(frozen=True)
class _Delivered:
    """The output from which the next feed of its request is derived."""

    digest: bytes
    serial: int
    """The number of its feed."""
    file: Path | None
    """Where the next feed finds it. None if that does not continue it."""


@dataclass
class _Held:
    """A feed that was sent to a device and is not finished."""

    stream: _Stream
    handed: Handed
    serial: int
    took: _Delivered | None = None
    """The output that it continues."""
    gives: Path | None = None
    """The file for its own output, which the next feed of its request continues."""
    begun_ns: int | None = None
    """When its turn came: when it was sent, or when the output arrived that it waited for. None while it waits behind
    others."""

    @property
    def name(self) -> tuple[str, int]:
        return self.stream.part.name, self.serial


@dataclass
class MixDriver:
    """Drives a mixed phase on a host."""

    rates: Sequence[schema.Rate]
    """All rates of the plan."""
    service: Mapping[str, schema.ServiceLimits]
    """The limits of a feed of each suite."""
    begin: Callable[[LoadedSuites], tuple[Mapping[str, float], schema.Placement]]
    """Waits until the phase begins. Returns the units of a mix and the plan for the loaded suites. Raises ValueError or
    MixmarkError if they do not make a mix."""
    source: Source
    watch: Callable[[MixSnapshot], None]
    """Gets a snapshot now and then."""
    lead: Callable[[WorkSource, int], int] | None = None
    """Is called now and then, while no feed is handed out, with the source and the time. Returns the
    moment at which the phase ends on all hosts. None if no other process leads the phase, so the driver decides."""
    _devices: _Devices | None = None

    def on_ready(self, parts: Sequence[Part]) -> None:
        """Lets the workers make the pools of their feeds, and waits until the phase begins. Raises WorkerFailed if the
        loaded suites do not make a mix."""
        streams = [_Stream(part) for part in parts]
        for stream in streams:
            stream.seed, stream.part.commitments.reported = stream.part.begin(), True
        try:
            self._devices = _Devices(streams, self)
        except (ValueError, MixmarkError) as error:
            raise WorkerFailed(schema.Failure(kind="no result", message=f"the plan cannot be run: {error}")) from error

    def __call__(self, parts: Sequence[Part]) -> None:
        """Feeds all devices until the phase is over. Raises WorkerFailed if no work could be handed out."""
        assert self._devices is not None  # `on_ready` comes first
        devices = self._devices
        parent_window_ns = devices.run()
        if devices.error is not None:
            raise WorkerFailed(schema.Failure(kind="no result", message=str(devices.error))) from devices.error
        delay_ns = devices.source.arrival_delay_ns()
        for stream in devices.streams.values():
            if stream.done:
                draft = stream.part.draft
                draft.completions, draft.ended_by = schema.Completions.of(stream.done), "time"
                draft.parent_window_ns, draft.stamped = parent_window_ns, True
                draft.arrival_delay_ns = delay_ns
                draft.latency_limits = stream.part.suite.latency if delay_ns is not None else None
                draft.carried_ns = stream.carried_ns // len(stream.done) or None
                draft.carried_bytes = stream.carried_bytes // len(stream.done) or None


@dataclass
class _Holding:
    """What one device holds."""

    feeds: deque[_Held] = field(default_factory=deque)
    """The feeds that were sent to it and are not finished, in that order."""
    next: tuple[_Stream, Handed] | None = None
    """The feed that was handed out and waits until another worker of the device is done."""

    def take_turns(self, now_ns: int) -> None:
        """Begins the feeds whose turn has come: of a device that holds feeds of several suites, each runs beside those
        before it if all of their runners take that many at once, as in the worker."""
        at_once = MAX_CONCURRENCY
        for place, feed in enumerate(self.feeds):
            at_once = min(at_once, feed.stream.part.concurrency)
            if feed.begun_ns is None and place < at_once:
                feed.begun_ns = now_ns


class _Devices(Window):
    """Runs all devices concurrently. One thread per device receives what it finished."""

    def __init__(self, streams: Sequence[_Stream], driver: MixDriver) -> None:
        """Waits until the phase begins. Raises ValueError or MixmarkError if the loaded suites do not make a mix."""
        self.driver = driver
        self.streams = {stream.pair: stream for stream in streams}
        self.by_name = {stream.part.name: stream for stream in streams}
        self.limits = streams[0].part.share.limits
        self.holding = {device: _Holding() for _, device in self.streams}
        self.changed = threading.Condition()
        self.stopping = False
        self.error: MixmarkError | None = None
        """Why no work could be handed out."""
        self.stop_ns = 0
        concurrency = {pair: stream.part.concurrency for pair, stream in self.streams.items()}
        most = {device: most_at_once(concurrency, device) for device in self.holding}
        quanta = {pair: stream.part.units for pair, stream in self.streams.items()}
        rates = tuple(rate for rate in driver.rates if (rate.suite, rate.device) in quanta)
        self.mix_units, placement = driver.begin(LoadedSuites(rates, quanta, most))
        self.planned_per_s = placement.mixes_per_s
        self.source = driver.source(Loaded(self.mix_units, placement, quanta, concurrency))
        self.delivered: dict[int, _Delivered] = {}
        """The last output of each request that has a feed left, by its number."""
        self.ends_ns = sys.maxsize
        """When the phase ends, by the process that leads it."""
        self.begin_ns = clock.now_ns()

    def run(self) -> tuple[int, int]:
        """Returns when the phase began and when it ended, on this process's clock."""
        threads = [threading.Thread(target=self._receive, args=(device,), name=device) for device in self.holding]
        self.begin_ns = clock.now_ns()
        self.source.begin(self.begin_ns)
        with self.changed:
            self._be_led()
            self._end_if_over()  # of a host that begins after the end nothing counts
        try:
            for thread in threads:
                thread.start()
            while not self.stopping:
                with self.changed:
                    self._be_led()
                    self._end_if_over(any_left=any(thread.is_alive() for thread in threads))
                self.driver.watch(self._snapshot())
                self._arrivals(clock.now_ns() + TICK_NS)
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

    def _be_led(self) -> None:
        if self.driver.lead is not None:
            self.ends_ns = self.driver.lead(self.source, clock.now_ns())
            self.changed.notify_all()

    def _arrivals(self, until_ns: int) -> None:
        """Sends each request that arrives until then to its device. It sleeps rather than wait for a change, so that
        it takes no core from a device."""
        while not self.stopping and (now_ns := clock.now_ns()) < until_ns:
            due_ns = self.source.next_arrival_ns()
            clock.sleep(max(0, min(until_ns, due_ns or until_ns) - now_ns) / 1e9)
            if due_ns is not None and due_ns < until_ns:
                with self.changed:
                    self.source.arrive(clock.now_ns())  # also while no device has room for them
                    self._send_all()
                    self.changed.notify_all()

    def _send_all(self) -> None:
        """Sends what became ready to the devices that work: their own threads wait for their workers. An idle device is
        woken, and sends itself."""
        for device in (id for id, each in self.holding.items() if each.feeds):
            with suppress(WorkerFailed):  # the device's own thread finds its worker gone
                self._send(device)

    def _end_if_over(self, any_left: bool = True) -> None:
        """any_left: whether any device still works."""
        now_ns = clock.now_ns()
        if self.driver.lead is None:
            over = is_over(now_ns - self.begin_ns, self.source.surplus(now_ns), self.limits)
        else:
            over = now_ns >= self.ends_ns
        if (over or not any_left) and not self.stopping:
            self.stopping, self.stop_ns = True, max(self.begin_ns, min(now_ns, self.ends_ns))
            self.changed.notify_all()

    def _snapshot(self) -> MixSnapshot:
        elapsed_ns = clock.now_ns() - self.begin_ns
        with self.changed:
            return MixSnapshot(
                elapsed_ns=elapsed_ns,
                mixes=self.source.mixes,
                planned_per_s=self.planned_per_s,
                running={id: each.feeds[0].stream.pair[0] if each.feeds else "" for id, each in self.holding.items()},
                units=dict(self.source.units),
                mix_units=self.mix_units,
            )

    def _send(self, device: str) -> None:
        """Sends a device the feeds that it gets now. All of the device works for one worker at a time."""
        holding = self.holding[device]
        while not self.stopping:
            held = holding.feeds
            if holding.next is None and (not held or held[-1].stream.may_queue_behind(len(held))):
                try:
                    handed = self.source.next(device, clock.now_ns())
                except MixmarkError as error:
                    self.error, self.stopping, self.stop_ns = error, True, clock.now_ns()
                    self.changed.notify_all()
                    return
                holding.next = (self.streams[handed.suite, device], handed) if handed else None
            if holding.next is None or (held and held[0].stream.part.worker is not holding.next[0].part.worker):
                return
            stream, handed = holding.next
            holding.next = None
            now_ns = clock.now_ns()
            before = self.delivered.pop(handed.request, None) if handed.chained else None
            held.append(stream.send(handed, before))
            holding.take_turns(now_ns)

    def _receive(self, device: str) -> None:
        """Receives what the device finished, and sends it the next feeds, until the phase is over."""
        held = self.holding[device].feeds
        try:
            while True:
                with self.changed:
                    self._send(device)
                    if not held:
                        if self.stopping:
                            return
                        clock.wait(self.changed, TICK_NS / 1e9)
                        continue
                    part = held[0].stream.part
                fed = part.worker.fed(part.timeout_s, window=self)
                ended_ns = clock.now_ns()
                with self.changed:
                    (feed,) = (each for each in held if each.name == (fed.key, fed.serial))
                    held.remove(feed)
                    self.holding[device].take_turns(ended_ns)
                feed.stream.part.commitments.digests[fed.serial] = fed.digest
                self._finished(feed, fed, ended_ns)
        except Exception as error:  # of any kind: the other devices go on
            failure = failure_of(error)
            for (_, ran_on), stream in self.streams.items():
                if ran_on == device:
                    stream.part.failure = failure
                    stream.part.worker.kill()
            with self.changed:
                self.holding[device] = _Holding()
                self.source.lost(device, clock.now_ns())
                self.changed.notify_all()

    def outputs_full(self, *, key: str, done: int, commitment: str) -> int:
        """Draws a sampling key. `feed_finished` and `sealed` raise Garbled: this window is the parent's."""
        return self._commitments(key).outputs_full(key=key, done=done, commitment=commitment)

    def first_yielded(self, *, key: str, serial: int, units: int, digest: str) -> None:
        self._commitments(key).first_yielded(key=key, serial=serial, units=units, digest=digest)

    def _commitments(self, key: str) -> Commitments:
        if key not in self.by_name:
            raise Garbled("a message came for a share that is not measured")
        return self.by_name[key].part.commitments

    def _finished(self, feed: _Held, fed: Fed, ended_ns: int) -> None:
        """Keeps a finished feed. Raises ValueError or OverflowError if its timestamps cannot be any."""
        stream, handed = feed.stream, feed.handed
        suite, device = stream.pair
        delivered = bytes.fromhex(fed.digest) if handed.chained else b""
        if handed.chained and len(delivered) != schema.DIGEST_BYTES:
            raise ValueError("the digest of an output has another length")
        if feed.begun_ns is None:
            raise ValueError("a feed ended before its turn came")
        due_ns = feed.begun_ns if handed.due_ns is None else handed.due_ns
        done = stamped(due_ns, feed.begun_ns, fed.yields, stream.part.commitments.first_ns.get(feed.serial), ended_ns)
        stream.done.append(done)
        stream.carried_ns += min(fed.carried_ns, ended_ns - feed.begun_ns)
        files = (feed.took and feed.took.file, feed.gives)
        stream.carried_bytes += sum(each.stat().st_size for each in files if each)
        service = self.driver.service.get(suite, schema.ServiceLimits())
        units = [each for _, each in done.yields]
        kept = is_in_time(service, done.yields[0][0] - due_ns, ended_ns - due_ns, sum(units[1:]))
        with self.changed:
            if handed.chained and not handed.last:
                self.delivered[handed.request] = _Delivered(delivered, feed.serial, feed.gives)
            if feed.took and feed.took.file:
                stream.part.commitments.keep_taken(feed.serial, feed.took.serial, feed.took.file)
            self.source.committed(handed, fed.digest)
            self.source.finished(device, handed, done.issued_ns, ended_ns, sum(units) if kept else 0)
            self._end_if_over()
            if handed.chained:
                self._send_all()
            self.changed.notify_all()
