"""The program on each host of a run: it serves `AgentCalls`, and measures phases as a run of one host does."""

from __future__ import annotations

import base64
import os
import queue
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, cast

import psutil

from mixmark.harness.capabilities.hosts import machine, messages
from mixmark.harness.capabilities.hosts.agents import SILENT_S
from mixmark.harness.capabilities.hosts.coordinator import EVERY_S
from mixmark.harness.capabilities.hosts.dispatcher import Grant, HostDispatcher, Tally
from mixmark.harness.capabilities.hosts.messages import PART_BYTES, AgentCalls, LeaderCalls
from mixmark.harness.capabilities.hosts.streams import Pipes, lines
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent, Device, Domain, Phase, Placement, Rate, ServiceLimits, Share
from mixmark.harness.contracts.text import Reason
from mixmark.harness.machine import config as configuration
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import solo
from mixmark.harness.measure.dispatch import WorkSource
from mixmark.harness.measure.experiments import installed
from mixmark.harness.measure.local_executor import LocalExecutor
from mixmark.harness.measure.metering import Meters, metered
from mixmark.harness.measure.mixed import LoadedSuites, MixDriver, MixSnapshot
from mixmark.harness.measure.phase import Part, attend
from mixmark.harness.plan.placement import place
from mixmark.harness.record import store
from mixmark.harness.record.store import Store
from mixmark.harness.resources import clock, scratch
from mixmark.harness.resources.psutils import known
from mixmark.harness.worker.calls import Call, Garbled, P, read, serve, write_call
from mixmark.harness.worker.messages import StageName
from mixmark.harness.worker.plugin_process import end_all

LOG_BYTES = 1 << 16  # the end of a worker's log, which is sent
ALONE = 5  # times SILENT_S without a byte of the leading process, which may itself stand still: then the agent ends
AT_ONCE = (AgentCalls.ping, AgentCalls.grant)  # served also while another call is

Granted = tuple[Grant, int, Reason | None]
"""The arguments of `AgentCalls.grant`."""


class Agent(AgentCalls):
    """Serves the leading process until the stream ends; then it ends its workers and its own process.

    One thread receives calls and serves pings and grants. The thread that runs `serve` serves all other calls, one
    after the other.

    config: the path of the host's mixmark.toml; if None, it is found as `mixmark run` finds it. folder: for files that
    are sent; the agent removes it in the end.
    """

    def __init__(self, pipes: Pipes, config: Path | None, folder: Path) -> None:
        self._pipes, self._folder, self._config_path = pipes, folder, config
        self._config = Config()
        self._locks = ExitStack()
        self._sending = threading.Lock()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.grants: queue.SimpleQueue[Granted] = queue.SimpleQueue()
        self._adapters: tuple[str, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._bench: Equipment | None = None
        self._meters = Meters(Config(), (), {})
        self._experiments = tuple(filter(None, (each.on_host() for each in installed().values())))
        self._interface = type("Calls", (AgentCalls, *map(type, self._experiments)), {})

    def serve(self) -> None:
        """Never returns: the process ends with the stream, and with it all workers."""
        self._send(messages.arrival())
        for target in (self._receive, self._end_alone):
            threading.Thread(target=target, daemon=True).start()
        serve(iter(self._calls.get, None), lambda: self, self._send)

    def call(self, method: Callable[Concatenate[Any, P], object], *args: P.args, **arguments: P.kwargs) -> None:
        """Calls a method of `LeaderCalls`."""
        self._send(write_call(method, *args, **arguments))

    def _send(self, line: bytes) -> None:
        with self._sending:
            try:
                self._pipes.send(line)
            except BrokenPipeError:
                self._end()

    def _receive(self) -> None:
        try:
            for line in lines(self._pipes.receive):
                call = read(line, self._interface)
                if not isinstance(call, Call):
                    raise Garbled("a reply, but an agent waits for none")
                if call.method in AT_ONCE:
                    serve([call], lambda: self, self._send)
                else:
                    self._calls.put(call)
        except Garbled as problem:
            print(f"mixmark agent: {problem}", flush=True)
        finally:
            self._end()

    def _end_alone(self) -> None:
        """Ends this process once the leading process, which pings it each second, is silent: a network that was cut off
        ends no stream. The time is counted, since this process itself may stand still."""
        silent = 0
        while silent < ALONE:
            before = self._pipes.received_bytes
            clock.sleep(SILENT_S)
            silent = silent + 1 if self._pipes.received_bytes == before else 0
        print(f"mixmark agent: nothing was heard of the leading process for {ALONE * SILENT_S:g} s", flush=True)
        self._end()

    def _end(self) -> None:
        """Ends the workers and this process. Nothing can be reported any more."""
        for child in known(lambda: psutil.Process().children(recursive=True), ()):
            known(child.kill, None)
        shutil.rmtree(self._folder, ignore_errors=True)
        scratch.remove()
        os._exit(0)

    @property
    def _equipment(self) -> Equipment:
        """Raises MixmarkError before `describe_host`."""
        if self._bench is None:
            raise MixmarkError("an agent must describe its host first")
        return self._bench

    def __getattr__(self, name: str) -> Any:
        """The call of an experiment."""
        for experiment in self._experiments:
            if hasattr(experiment, name):
                return getattr(experiment, name)
        raise AttributeError(name)

    def ping(self, *, sent_ns: int) -> tuple[int, int]:
        return sent_ns, clock.now_ns()

    def grant(self, *, grant: Grant, ends_ns: int, problem: Reason | None = None) -> None:
        self.grants.put((grant, ends_ns, problem))

    def open_meters(self) -> tuple[Domain | Absent, ...]:
        self._meters = metered(self._devices, self._adapters, self._config)
        self._meters.__enter__()
        return *self._meters.domains, *self._meters.absent

    def free_memory(self) -> dict[str, int]:
        return dict(LocalExecutor(self._equipment, self._folder, self._meters).pool_bytes(self._devices))

    def end_plugins(self) -> None:
        end_all()

    def measure_idle(self, *, seconds: float, begins: bool) -> None:
        if begins:
            self._meters.begin()
        self._meters.rest(seconds)

    def describe_host(self, *, query: messages.HostQuery) -> messages.HostDescription:
        identity = machine.identity()
        if query.measures and query.leader != identity:
            machine.hold_for_hosts(self._locks, query.run)
        for path, sha256 in (pair for files in query.files.values() for pair in files.items()):
            machine.check_file(Path(path), sha256)
        own = configuration.load(self._config_path)
        self._config = replace(own, suites=query.suites)  # the suites' options are the same on all hosts
        self._adapters = query.adapters
        loaded = setup.load_suites(self._config, query.tier, query.weights)
        suites = setup.check_checkpoints(loaded, query.tier)
        bench = setup.prepare(self._config, suites, query.adapters, query.split_cpu)
        self._devices = bench.found.devices
        self._bench = bench.equipment(query.seed, query.timeout_s)
        system, failed_watchers = setup.disclosed()
        absent = (*suites.absent, *bench.found.absent, *failed_watchers)
        return messages.HostDescription(
            found=replace(bench.found, absent=absent), system=system, suites=tuple(suites.workloads), machine=identity
        )

    def measure_phase(self, *, phase: Phase, service: dict[str, ServiceLimits]) -> messages.PhaseMeasured:
        equipment, folder = self._equipment, self._empty_folder()
        driver: MixDriver | None = None
        if phase.placement is not None:
            while not self.grants.empty():  # late grants of the previous phase
                self.grants.get()
            leader = RemoteControl(self, self._devices, phase.placement)
            source = partial(HostDispatcher, plan=leader.plan)
            driver = MixDriver(phase.placement.rates, service, leader.begin, source, leader.watch, leader.lead)
        traffic = (0, 0)

        def counted(parts: Sequence[Part]) -> None:
            nonlocal traffic
            sent_bytes, received_bytes = self._pipes.sent_bytes, self._pipes.received_bytes
            try:
                (driver or solo.drive)(parts)
            finally:
                traffic = self._pipes.sent_bytes - sent_bytes, self._pipes.received_bytes - received_bytes

        def ready(parts: Sequence[Part]) -> None:
            if driver:
                driver.on_ready(parts)

        def staged(share: Share, stage: str) -> None:
            self.call(LeaderCalls.stage, key=share.key, name=cast(StageName, stage))

        records = attend(phase, equipment, folder, counted, staged, on_ready=ready)
        Store(folder).append(*records)
        for log in sorted((folder / "logs").iterdir()):
            self._send_file(log, LOG_BYTES)
        sha256 = self._send_raw(folder)
        fields = tuple(record.model_dump(mode="json") for record in records)
        return messages.PhaseMeasured(records=fields, sha256=sha256, sent_bytes=traffic[0], received_bytes=traffic[1])

    def read_meters(self, *, phase: str) -> messages.MeterSamples:
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
                self.call(LeaderCalls.file_part, name=path.name, base64=base64.b64encode(data).decode())


class RemoteControl:
    """Lets the leading process begin and end a mixed phase and grant its work, and sends it the host's progress every
    EVERY_S."""

    def __init__(self, agent: Agent, devices: Sequence[Device], placement: Placement) -> None:
        self._agent, self._devices, self._placement = agent, devices, placement
        self._ends_ns = 0
        self._first: Grant | None = None
        self._next_ns = 0
        self._tally = Tally({}, {}, {}, {})

    def begin(self, loaded: LoadedSuites) -> tuple[Mapping[str, float], Placement]:
        self._agent.call(LeaderCalls.mix_ready, loaded=loaded)
        self._first, self._ends_ns, problem = self._agent.grants.get()
        if problem:
            raise MixmarkError(problem)
        units = self._first.units
        placement = self.plan(units, [rate for rate in loaded.rates if rate.suite in units])
        return units, placement.model_copy(update={"rates": loaded.rates})

    def plan(self, mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        """Plans this host's part of the mix. A host without a part has an empty plan: it may get a part later, when
        another host is lost."""
        if not mix_units:
            return self._placement.model_copy(update={"rates": tuple(rates), "mixes_per_s": 0})
        return place(mix_units, rates, self._devices, host_fraction=self._placement.host_fraction)

    def lead(self, source: WorkSource, now_ns: int) -> int:
        """Passes the latest grant on, and returns the moment at which the phase ends on all hosts."""
        assert isinstance(source, HostDispatcher)
        latest, self._first = self._first, None
        while not self._agent.grants.empty():
            latest, self._ends_ns, _ = self._agent.grants.get()
        if latest:
            source.granted(latest, now_ns)
        self._tally = source.tally(now_ns)
        return self._ends_ns

    def watch(self, snapshot: MixSnapshot) -> None:
        if snapshot.elapsed_ns < self._next_ns:
            return
        self._next_ns = snapshot.elapsed_ns + round(EVERY_S * 1e9)
        self._agent.call(LeaderCalls.mix_progress, tally=self._tally)
