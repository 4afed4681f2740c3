"""The program on each host of a run: it measures the phases that the leading process requests, as a local run does."""

from __future__ import annotations

import base64
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Device, Placement, Rate, Share
from mixmark.harness.discover import config as configuration
from mixmark.harness.discover import setup
from mixmark.harness.discover.config import Config
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.measure import solo
from mixmark.harness.measure.cluster import machine, messages
from mixmark.harness.measure.cluster.coordinator import EVERY_S
from mixmark.harness.measure.cluster.streams import Pipes, lines
from mixmark.harness.measure.dispatch import Grant
from mixmark.harness.measure.executor import LocalExecutor
from mixmark.harness.measure.metering import Meters, metered
from mixmark.harness.measure.mixed import LoadedSuites, MixDriver, MixSnapshot
from mixmark.harness.measure.phase import Driver, Part, attend
from mixmark.harness.plan.placement import Planner, place
from mixmark.harness.record import store
from mixmark.harness.record.store import Store
from mixmark.harness.worker.failures import failure_of
from mixmark.harness.worker.messages import Covered, Failed, Garbled, Message, read, write

PART_BYTES = 4 << 20  # of a file in one message
LOG_BYTES = 1 << 16  # the end of a worker's log, which is sent


class Agent:
    """Serves the leading process until the stream ends; then it ends its workers and its own process.

    One thread receives messages: it replies to pings at once, and passes grants on to the phase that is measured. The
    thread that calls `serve` serves all other requests, one after the other.

    config: the path of the host's mixmark.toml; None: as `mixmark run` finds it. folder: for files that are sent; the
    agent removes it in the end.
    """

    def __init__(self, pipes: Pipes, config: Path | None, folder: Path) -> None:
        self._pipes, self._folder, self._config_path = pipes, folder, config
        self._config = Config()
        self._locks = ExitStack()
        self._sending = threading.Lock()
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._grants: queue.SimpleQueue[messages.GrantWork] = queue.SimpleQueue()
        self._adapters: tuple[str, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._equipment: Equipment | None = None
        self._meters = Meters(Config(), (), {})

    def serve(self) -> None:
        """Never returns: the process ends with the stream, and with it all workers."""
        self.send(messages.arrived())
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        while True:
            request = self._requests.get()
            try:
                self.send(self._reply(request))
            except Exception as error:  # a plugin's or the disk's: the host stays in the run
                self.send(Failed(failure=failure_of(error)))

    def send(self, message: Message) -> None:
        with self._sending:
            try:
                self._pipes.send(write(message))
            except BrokenPipeError:
                self._end()

    def _receive(self) -> None:
        try:
            for line in lines(self._pipes.receive):
                now_ns = time.monotonic_ns()
                message = read(line, messages.MESSAGES)
                if isinstance(message, messages.Ping):
                    self.send(messages.Pong(sent_ns=message.sent_ns, theirs_ns=now_ns))
                elif isinstance(message, messages.GrantWork):
                    self._grants.put(message)
                else:
                    self._requests.put(message)
        except Garbled as problem:
            print(f"mixmark agent: {problem}", flush=True)
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the workers and this process. Nothing can be reported any more."""
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    def _reply(self, request: Message) -> Message:
        """Raises any exception of a plugin, of the disk, or MixmarkError."""
        if isinstance(request, messages.DescribeHost):
            return self._describe_host(request)
        if isinstance(request, messages.OpenMeters):
            self._meters = metered(self._devices, self._adapters, self._config)
            self._meters.__enter__()
            return Covered(domains=self._meters.domains, absent=self._meters.absent)
        if self._equipment is None:
            raise MixmarkError(f"{type(request).__name__} came before DescribeHost")
        if isinstance(request, messages.FreeMemory):
            here = LocalExecutor(self._equipment, self._folder, self._meters)
            return messages.MemoryPools(pool_bytes=dict(here.pool_bytes(self._devices)))
        if isinstance(request, messages.MeasureIdle):
            if request.begins:
                self._meters.begin()
            self._meters.rest(request.seconds)
            return messages.IdleMeasured()
        if isinstance(request, messages.ReadMeters):
            return self._read_meters(request.phase)
        if isinstance(request, messages.MeasurePhase):
            return self._measure_phase(request, self._equipment)
        raise MixmarkError(f"{type(request).__name__} is no request")

    def _describe_host(self, request: messages.DescribeHost) -> messages.HostDescription:
        identity = machine.identity()
        if request.measures and request.leader != identity:
            machine.hold(self._locks, request.run)
        own = configuration.load(self._config_path)
        self._config = replace(own, suites={})  # the suites' options are the same on all hosts and come with a route
        self._adapters = request.adapters
        suites = setup.load_suites(self._config, request.tier, request.weights)
        bench = setup.prepare(self._config, suites, request.adapters, request.split_cpu)
        self._devices = bench.found.devices
        self._equipment = bench.equipment(request.seed, request.timeout_s)
        system, failed_watchers = setup.disclosed()
        absent = (*suites.absent, *bench.found.absent, *failed_watchers)
        return messages.HostDescription(
            found=replace(bench.found, absent=absent),
            system=system,
            suites=tuple(suites.workloads),
            machine=identity,
        )

    def _measure_phase(self, request: messages.MeasurePhase, equipment: Equipment) -> messages.PhaseMeasured:
        phase, folder = request.phase, self._empty_folder()
        drive: Driver = solo.drive
        more = {}
        if phase.placement is not None:
            while not self._grants.empty():  # late grants of the previous phase
                self._grants.get()
            control = RemoteControl(self.send, self._grants, self._devices, request.host_fraction)
            driver = MixDriver(phase.placement.rates, request.service, control)
            drive, more = driver, {"on_ready": driver.on_ready}
        traffic = (0, 0)

        def counted(parts: Sequence[Part]) -> None:
            nonlocal traffic
            sent_bytes, received_bytes = self._pipes.sent_bytes, self._pipes.received_bytes
            try:
                drive(parts)
            finally:
                traffic = self._pipes.sent_bytes - sent_bytes, self._pipes.received_bytes - received_bytes

        def staged(share: Share, stage: str) -> None:
            self.send(messages.StageBegun.model_validate({"key": share.key, "stage": stage}))

        records = attend(phase, equipment, folder, counted, staged, self._meters.pids, **more)
        Store(folder).append(*records)
        for log in sorted((folder / "logs").iterdir()):
            self._send_file(log, LOG_BYTES)
        sha256 = self._send_raw(folder)
        fields = tuple(record.model_dump(mode="json") for record in records)
        return messages.PhaseMeasured(records=fields, sha256=sha256, sent_bytes=traffic[0], received_bytes=traffic[1])

    def _read_meters(self, phase: str) -> messages.MeterSamples:
        metering, folder = self._meters.drain(phase), self._empty_folder()
        if metering is None:
            return messages.MeterSamples(metering=None, sha256={})
        Store(folder).meter(metering)
        return messages.MeterSamples(metering=metering.model_dump(mode="json"), sha256=self._send_raw(folder))

    def _empty_folder(self) -> Path:
        """A folder for the files of one reply."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "raw").mkdir(parents=True)
        (self._folder / "logs").mkdir()
        return self._folder

    def _send_raw(self, folder: Path) -> dict[str, str]:
        sha256 = store.sums(folder)
        for name in sha256:
            self._send_file(folder / "raw" / name)
        return sha256

    def _send_file(self, path: Path, last_bytes: int | None = None) -> None:
        """Sends a file, or the end of it."""
        with path.open("rb") as file:
            if last_bytes is not None:
                file.seek(max(0, path.stat().st_size - last_bytes))
            while data := file.read(PART_BYTES):
                self.send(messages.FilePart(name=path.name, base64=base64.b64encode(data).decode()))


class RemoteControl:
    """The `MixLeader` of an agent: the leading process begins the phase and grants work, and gets the progress of the
    host every EVERY_S."""

    def __init__(
        self,
        send: Callable[[Message], None],
        grants: queue.SimpleQueue[messages.GrantWork],
        devices: Sequence[Device],
        host_fraction: float,
    ) -> None:
        self._send, self._grants = send, grants
        self._devices, self._host_fraction = devices, host_fraction
        self._lasts_ns: int | None = None
        self._first: Grant | None = None
        self._next_ns = 0

    def begin(self, loaded: LoadedSuites) -> tuple[Mapping[str, float], Placement, Planner]:
        rates = {(rate.suite, rate.device): rate for rate in loaded.rates}
        quanta = tuple(loaded.quanta[pair] for pair in rates)
        self._send(messages.MixReady(rates=loaded.rates, quanta=quanta, concurrency=dict(loaded.concurrency)))
        first = self._grants.get()
        if isinstance(first, messages.BeginMix) and first.problem:
            raise MixmarkError(first.problem)
        self._lasts_ns, self._first = first.lasts_ns, first.grant
        units = first.grant.units
        placement = self._plan(units, [rate for rate in loaded.rates if rate.suite in units])
        return units, placement.model_copy(update={"rates": loaded.rates}), self._plan

    def _plan(self, mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        """Plans this host's part of the mix. A host without a part has an empty plan: it may get a part later, when
        another host is lost."""
        if not mix_units:
            return Placement(
                objective="throughput",
                rates=tuple(rates),
                fractions={},
                mixes_per_s=0,
                bound_per_s=1,
                bound_fractions={},
                suite_prices={},
                device_prices={},
            )
        return place(mix_units, rates, self._devices, host_fraction=self._host_fraction)

    def grant(self) -> Grant | None:
        latest, self._first = self._first, None
        while not self._grants.empty():
            message = self._grants.get()
            self._lasts_ns, latest = message.lasts_ns, message.grant
        return latest

    def end_ns(self, elapsed_ns: int, surplus: float) -> int | None:
        return self._lasts_ns

    def watch(self, snapshot: MixSnapshot) -> None:
        if snapshot.elapsed_ns < self._next_ns:
            return
        self._next_ns = snapshot.elapsed_ns + round(EVERY_S * 1e9)
        tally = snapshot.tally
        paces: dict[str, dict[str, float]] = {}
        for (suite, device), pace in tally.paces.items():
            paces.setdefault(device, {})[suite] = pace
        self._send(
            messages.MixProgress(
                finished=dict(tally.finished),
                handed_out=dict(tally.handed_out),
                paces=paces,
                unfinished_s=dict(tally.unfinished_s),
                feeds=dict(snapshot.feeds),
                running=dict(snapshot.running),
            )
        )
