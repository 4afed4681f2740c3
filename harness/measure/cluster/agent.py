"""The program on each host of a run: it measures what it is given, with the code that measures a run of one host."""

from __future__ import annotations

import base64
import os
import queue
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Device, Placement, Rate, Share
from mixmark.harness.discover import config as configuration
from mixmark.harness.discover import setup
from mixmark.harness.discover.config import Config
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.measure import mixed as mix
from mixmark.harness.measure import solo
from mixmark.harness.measure.cluster import machine, messages
from mixmark.harness.measure.cluster.coordinator import EVERY_S
from mixmark.harness.measure.cluster.link import Link, Stranger
from mixmark.harness.measure.dispatch import Grant
from mixmark.harness.measure.executor import LocalExecutor
from mixmark.harness.measure.metering import Meters, metered
from mixmark.harness.measure.mixed import Loaded, Snapshot
from mixmark.harness.measure.phase import Drive, Part, attend
from mixmark.harness.plan.placement import Planner, place
from mixmark.harness.plugins.calls import error_text
from mixmark.harness.record import store
from mixmark.harness.record.store import Store
from mixmark.harness.worker.messages import Garbled, Message, read, write

LISTENS_S = 60.0  # how long one wait for a line lasts; nothing depends on it
PART_BYTES = 4 << 20  # of a file in one message
LOG_BYTES = 1 << 16  # the end of a worker's log, which is sent


class Agent:
    """Serves the process that leads the run until the stream ends, and ends its own process then.

    One thread reads what comes: pings, which it answers at once, and what concerns the phase that is measured. All
    other requests are worked off by the thread that calls `serve`.

    config: the path of the host's mixmark.toml; None: as `mixmark run` finds it. folder: for files of the run, which
    nobody needs afterwards; it is removed in the end.
    """

    def __init__(self, link: Link, secret: bytes, config: Path | None, folder: Path) -> None:
        self._link, self._folder, self._configured = link, folder, config
        self._config = Config()
        self._machine = machine.token(secret)
        self._locks = ExitStack()
        self._sending = threading.Lock()
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._led: queue.SimpleQueue[messages.Begin] = queue.SimpleQueue()
        self._adapters: tuple[str, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._equipment: Equipment | None = None
        self._meters = Meters(Config(), (), {})

    def serve(self) -> None:
        """Never returns: the process ends with the stream, and with it all workers."""
        self.say(messages.arrived())
        threading.Thread(target=self._listen, name="link", daemon=True).start()
        while True:
            request = self._requests.get()
            try:
                self.say(self._answer(request))
            except MixmarkError as error:
                self.say(messages.Refused(message=str(error), hint=error.hint))
            except Exception as error:  # whatever a plugin or the disk does: the host stays there for what comes next
                self.say(messages.Refused(message=error_text(error)))

    def say(self, message: Message) -> None:
        with self._sending:
            try:
                self._link.send(write(message))
            except BrokenPipeError:
                self._end()

    def _listen(self) -> None:
        try:
            while (line := self._link.receive(LISTENS_S)) != b"":
                now_ns = time.monotonic_ns()
                if line is None:
                    continue
                message = read(line, messages.MESSAGES)
                if isinstance(message, messages.Ping):
                    self.say(messages.Pong(sent_ns=message.sent_ns, theirs_ns=now_ns))
                elif isinstance(message, messages.Begin):
                    self._led.put(message)
                else:
                    self._requests.put(message)
        except (Stranger, Garbled) as problem:
            print(f"mixmark agent: {problem}", flush=True)
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the workers and this process. Nobody is there any more who could be told anything."""
        for each in psutil.Process().children(recursive=True):
            try:
                each.kill()
            except psutil.Error:
                continue
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    def _answer(self, request: Message) -> Message:
        """Raises whatever goes wrong."""
        if isinstance(request, messages.Look):
            return self._look(request)
        if isinstance(request, messages.Cover):
            self._meters = metered(self._devices, self._adapters, self._config)
            self._meters.__enter__()
            return messages.Covered(domains=self._meters.domains, absent=self._meters.absent)
        if self._equipment is None:
            raise MixmarkError(f"{type(request).__name__} came before the host was looked at")
        if isinstance(request, messages.Room):
            here = LocalExecutor(self._equipment, self._folder, self._meters)
            return messages.Roomy(pool_bytes=dict(here.pool_bytes(self._devices)))
        if isinstance(request, messages.Rest):
            if request.begins:
                self._meters.begin()
            self._meters.rest(request.seconds)
            return messages.Rested()
        if isinstance(request, messages.Drain):
            return self._drain(request.phase)
        if isinstance(request, messages.Attend):
            return self._attend(request, self._equipment)
        raise MixmarkError(f"{type(request).__name__} is no request")

    def _look(self, request: messages.Look) -> messages.Seen:
        if request.measures and request.leader != self._machine:
            machine.hold(self._locks, self._machine)
        own = configuration.load(self._configured)
        self._config = replace(own, suites={})  # the suites' options are the same on all hosts and come with a route
        self._adapters = request.adapters
        suites = setup.load_suites(self._config, request.tier, request.weights)
        bench = setup.prepare(self._config, suites, request.adapters, request.split_cpu)
        self._devices = bench.found.devices
        self._equipment = bench.equipment(request.seed, request.timeout_s)
        system, unwatched = setup.disclosed()
        return messages.Seen(
            targets=tuple(
                messages.TargetOn(device=target.device, adapter=target.adapter, options=dict(target.options))
                for target in bench.found.targets
            ),
            absent=(*suites.absent, *bench.found.absent, *unwatched),
            environments=dict(bench.found.environments),
            system=system,
            suites=tuple(
                messages.SuiteThere(name=each.name, version=each.version, weights=each.weights)
                for each in suites.workloads
            ),
            machine=self._machine,
        )

    def _attend(self, request: messages.Attend, equipment: Equipment) -> messages.Attended:
        phase, folder = request.phase, self._emptied()
        drive: Drive = solo.drive
        more = {}
        if phase.placement is not None:
            while not self._led.empty():  # of a phase that ended before its grants had come
                self._led.get()
            led = Led(self, self._led, self._devices, request.host_fraction)
            mixed = mix.Drive(phase.placement.rates, request.service, led)
            drive, more = mixed, {"ready": mixed.ready}
        crossed = (0, 0)

        def counted(parts: Sequence[Part]) -> None:
            nonlocal crossed
            sent_bytes, received_bytes = self._link.sent_bytes, self._link.received_bytes
            try:
                drive(parts)
            finally:
                crossed = self._link.sent_bytes - sent_bytes, self._link.received_bytes - received_bytes

        def staged(share: Share, stage: str) -> None:
            self.say(messages.Staged.model_validate({"key": share.key, "stage": stage}))

        records = attend(phase, equipment, folder, counted, staged, self._meters.pids, **more)
        Store(folder).append(*records)
        for each in sorted((folder / "logs").iterdir()):
            self._send(each, LOG_BYTES)
        sha256 = self._send_raw(folder)
        fields = tuple(record.model_dump(mode="json") for record in records)
        return messages.Attended(records=fields, sha256=sha256, sent_bytes=crossed[0], received_bytes=crossed[1])

    def _drain(self, phase: str) -> messages.Drained:
        metering, folder = self._meters.drain(phase), self._emptied()
        if metering is None:
            return messages.Drained(metering=None, sha256={})
        Store(folder).meter(metering)
        return messages.Drained(metering=metering.model_dump(mode="json"), sha256=self._send_raw(folder))

    def _emptied(self) -> Path:
        """A folder for the files of one answer."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "raw").mkdir(parents=True)
        (self._folder / "logs").mkdir()
        return self._folder

    def _send_raw(self, folder: Path) -> dict[str, str]:
        sha256 = store.sums(folder)
        for name in sha256:
            self._send(folder / "raw" / name)
        return sha256

    def _send(self, file: Path, last_bytes: int | None = None) -> None:
        """Sends a file, or the end of it."""
        with file.open("rb") as opened:
            if last_bytes is not None:
                opened.seek(max(0, file.stat().st_size - last_bytes))
            while data := opened.read(PART_BYTES):
                self.say(_blob(file.name, data))


def _blob(name: str, data: bytes) -> messages.Blob:
    return messages.Blob(name=name, base64=base64.b64encode(data).decode())


class Led:
    """The `mix.Lead` of a host whose agent is led: it begins when it is told to, does what it is granted, and tells
    sums every EVERY_S."""

    def __init__(
        self,
        agent: Agent,
        told: queue.SimpleQueue[messages.Begin],
        devices: Sequence[Device],
        host_fraction: float,
    ) -> None:
        self._agent, self._told = agent, told
        self._devices, self._host_fraction = devices, host_fraction
        self._lasts_ns: int | None = None
        self._first: Grant | None = None
        self._next_ns = 0

    def begin(self, loaded: Loaded) -> tuple[Mapping[str, float], Placement, Planner]:
        rates = {(rate.suite, rate.device): rate for rate in loaded.rates}
        quanta = tuple(loaded.quanta[pair] for pair in rates)
        self._agent.say(messages.Ready(rates=loaded.rates, quanta=quanta, concurrency=dict(loaded.concurrency)))
        begins = self._told.get()
        if begins.problem:
            raise MixmarkError(begins.problem)
        self._lasts_ns = begins.lasts_ns
        self._first = Grant(begins.units, begins.credit)
        placement = self._plan(begins.units, [rate for rate in loaded.rates if rate.suite in begins.units])
        return begins.units, placement.model_copy(update={"rates": loaded.rates}), self._plan

    def _plan(self, mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        """The plan of this host's part. A host without a part, which others could lose to it later, has an empty
        one."""
        if not mix_units:
            return Placement(
                objective="throughput",
                rates=tuple(rates),
                shares={},
                mixes_per_s=0,
                bound_per_s=1,
                bound_fractions={},
                suite_prices={},
                device_prices={},
            )
        return place(mix_units, rates, self._devices, host_fraction=self._host_fraction)

    def grant(self) -> Grant | None:
        latest, self._first = self._first, None
        while not self._told.empty():
            told = self._told.get()
            self._lasts_ns = told.lasts_ns
            latest = Grant(told.units, told.credit)
        return latest

    def end_ns(self, feeds: Mapping[str, int], abandoned: Collection[str]) -> int | None:
        return self._lasts_ns

    def watch(self, snapshot: Snapshot) -> None:
        if snapshot.elapsed_ns < self._next_ns:
            return
        self._next_ns = snapshot.elapsed_ns + round(EVERY_S * 1e9)
        tally = snapshot.tally
        self._agent.say(
            messages.Tallied(
                finished=dict(tally.finished),
                handed_out=dict(tally.handed_out),
                paces=tuple((*pair, pace) for pair, pace in tally.paces.items()),
                feeds=dict(snapshot.feeds),
                running=dict(snapshot.running),
            )
        )
