"""Stand-ins for agents: threads of the test, connected to the leading process within it.

A `StandIn` has the methods of `AgentCalls`; a test overrides the methods that shall behave otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate

import numpy as np

from mixmark.harness.capabilities.hosts import launchers, messages
from mixmark.harness.capabilities.hosts.dispatcher import Grant, Tally
from mixmark.harness.capabilities.hosts.messages import AgentCalls, LeaderCalls
from mixmark.harness.capabilities.hosts.streams import lines
from mixmark.harness.contracts.schema import (
    Absent,
    Completions,
    Device,
    Domain,
    Limits,
    Phase,
    Rate,
    Record,
    Route,
    ServiceLimits,
    Share,
    Task,
)
from mixmark.harness.contracts.text import Reason
from mixmark.harness.machine.devices import Found
from mixmark.harness.measure.mixed import LoadedSuites
from mixmark.harness.plan.phases import Target, Workload
from mixmark.harness.record import store
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Call, Later, P, read, serve, write_call
from tests.fakes.streams import End, connection
from tests.golden import sample

PACKAGE = Domain(
    id="rapl:0", meter="rapl", covers=("cpu:0",), boundary="devices", quantity="energy", method="counter", source=""
)
LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=1_000_000_000, min_feeds=1, audits=0)
MS = 1_000_000


def device(name: str, **other: object) -> Device:
    fields = {"kind": "npu", "memory_pool": name, "memory_bytes": 8 << 30, "precisions": ("fp32",), **other}
    return Device.model_validate({"id": name, **fields})


def share(phase: str, suite: str, where: str) -> Share:
    route = Route(suite=suite, tier="smoke", suite_version="1", device=where, adapter="band", precision="fp32")
    key = phase if phase.startswith("solo") else f"{phase}.{suite}.{where.replace('/', '-').replace(':', '-')}"
    return Share(key=key, route=route, scenario="offline" if phase.startswith("solo") else "mixed", limits=LIMITS)


def rate(suite: str, where: str) -> Rate:
    return Rate(suite=suite, device=where, adapter="band", precision="fp32", batch=1, units_per_s=10)


def solo(name: str, where: str, suite: str = "low") -> Phase:
    """A phase of one task."""
    return Phase(name=name, purpose="solo", tasks=(Task(device=where, shares=(share(name, suite, where),)),))


class StandIn:
    """A host with a device, whose agent is a thread of this process. It is the `Channel` to that agent, too."""

    arrival = messages.arrival()
    interface: type = AgentCalls
    """The calls that it takes."""
    ahead_ns = 5_000_000_000
    """How far its clock is ahead of this process's."""

    def __init__(self, name: str = "", devices: Sequence[Device] = (device("npu:a"),), machine: str = "") -> None:
        self.name, self.devices, self.machine = name, tuple(devices), machine
        self.grants: queue.SimpleQueue[tuple[Grant, Reason | None]] = queue.SimpleQueue()
        self.ends_ns = 0
        self.status: str | None = None
        self.folder = Path()
        self.sending = threading.Lock()
        self.near: End
        self.far: End
        self.thread: threading.Thread

    # --- a `launchers.Channel` ----------------------------------------------------------------------------------------

    def send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self.near.sendall(line)

    def receive(self) -> bytes:
        return self.near.recv(1 << 16) or b""

    def close(self) -> None:
        self.near.close()

    def why_ended(self) -> str | None:
        return self.status

    # --- `AgentCalls` -------------------------------------------------------------------------------------------------

    def describe_host(self, *, query: messages.HostQuery) -> messages.HostDescription:
        return messages.HostDescription(
            found=Found(tuple(Target(each, "band", {}) for each in self.devices), ()),
            system=sample.system(),
            suites=tuple(Workload(name, "1", ("offline",)) for name in ("low", "high")),
            machine=self.machine or self.name,
        )

    def open_meters(self) -> tuple[Domain | Absent, ...]:
        return ()

    def free_memory(self) -> dict[str, int]:
        return {each.memory_pool: each.memory_bytes or 1 for each in self.devices}

    def measure_idle(self, *, seconds: float, begins: bool) -> None: ...

    def measure_phase(self, *, phase: Phase, service: dict[str, ServiceLimits]) -> object:
        return self.measure(phase) or Later()

    def read_meters(self, *, phase: str) -> messages.MeterSamples:
        return messages.MeterSamples(metering=None, sha256={})

    def grant(self, *, grant: Grant, ends_ns: int, problem: Reason | None = None) -> None:
        self.ends_ns = ends_ns
        self.grants.put((grant, problem))

    def ping(self, *, sent_ns: int) -> object:
        return sent_ns, self.clock_ns()

    # --- what it does -------------------------------------------------------------------------------------------------

    def clock_ns(self) -> int:
        return clock.now_ns() + self.ahead_ns

    def measure(self, phase: Phase) -> messages.PhaseMeasured | None:
        """Measures the phase: each share has finished a few feeds. None: there is no reply."""
        for each in phase.shares:
            self.call(LeaderCalls.stage, key=each.key, name="measuring")
        if phase.placement is not None:
            self.mix(phase)
        return self.measured(phase)

    def mix(self, phase: Phase) -> None:
        self.ready(phase)
        self.grants.get()
        self.progress(phase)

    def ready(self, phase: Phase, **other: Any) -> None:
        assert phase.placement is not None
        rates = phase.placement.rates
        quanta = {(each.suite, each.device): 1 for each in rates}
        loaded = LoadedSuites(rates, quanta, {each.device: 1 for each in rates})
        self.call(LeaderCalls.mix_ready, loaded=replace(loaded, **other))

    def progress(self, phase: Phase, **other: Any) -> None:
        done = {each.route.suite: 5.0 for each in phase.shares}
        devices = [task.device for task in phase.tasks]
        tally = Tally(done, done, {(suite, device): 1.0 for suite in done for device in devices}, {})
        self.call(LeaderCalls.mix_progress, tally=replace(tally, **other))

    def record(self, phase: str, of: Share) -> Record:
        """Three feeds of 10 ms that have just been finished, on this host's clock."""
        first = self.clock_ns() - 60 * MS
        issued = first + 10 * MS * np.arange(3)
        done = Completions(issued, issued, np.arange(1, 4), issued + 10 * MS, np.ones(3, np.int64))
        made_up = sample.record(of.key, of.route.suite, "sample", done, scenario=of.scenario)
        return made_up.model_copy(update={"phase": phase, "route": of.route, "run": of.run, "audit": None})

    def measured(self, phase: Phase) -> messages.PhaseMeasured:
        records = [self.record(phase.name, each) for each in phase.shares]
        return self.sent(records)

    def sent(self, records: Sequence[Record]) -> messages.PhaseMeasured:
        """Sends the timestamps of records."""
        made = self.folder / hashlib.sha256(str(clock.now_ns()).encode()).hexdigest()
        (made / "raw").mkdir(parents=True)
        store.Store(made).append(*records)
        sha256 = store.sums(made)
        for name in sha256:
            self.file(name, (made / "raw" / name).read_bytes())
        fields = tuple(each.model_dump(mode="json") for each in records)
        return messages.PhaseMeasured(records=fields, sha256=sha256, sent_bytes=10, received_bytes=20)

    def file(self, name: str, data: bytes) -> None:
        self.call(LeaderCalls.file_part, name=name, base64=base64.b64encode(data).decode())

    # --- how it sends -------------------------------------------------------------------------------------------------

    def call(self, method: Callable[Concatenate[Any, P], object], *args: P.args, **arguments: P.kwargs) -> None:
        self.write(write_call(method, *args, **arguments))

    def write(self, line: bytes) -> None:
        with self.sending, contextlib.suppress(OSError):
            self.far.sendall(line)

    def die(self, status: str = "its agent was killed by signal 9") -> None:
        """As if the process were gone."""
        self.status = status
        self.far.close()

    def read(self) -> bytes:
        return self.far.recv(1 << 16) or b""

    def serve(self) -> None:
        self.write(self.arrival)
        calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        threading.Thread(target=serve, args=(iter(calls.get, None), lambda: self, self.write), daemon=True).start()
        for line in lines(self.read):
            call = read(line, self.interface)
            assert isinstance(call, Call)
            if call.name in ("ping", "grant"):
                serve([call], lambda: self, self.write)
            else:
                calls.put(call)
        calls.put(None)
        self.far.close()


class StandInLauncher:
    """Starts stand-ins. A text in place of one is the reason why there is none."""

    def __init__(self, folder: Path, found: Mapping[str, StandIn | str]) -> None:
        self.found = found
        self.stand_ins = [stand_in for stand_in in found.values() if isinstance(stand_in, StandIn)]
        for name, stand_in in found.items():
            if isinstance(stand_in, StandIn):
                stand_in.name, stand_in.folder = name, folder / "sent" / name

    @property
    def hosts(self) -> tuple[launchers.Host, ...]:
        return tuple(launchers.Host(name) for name in self.found)

    @contextlib.contextmanager
    def __call__(self, hosts: Sequence[launchers.Host], logs: Path) -> Iterator[Mapping[str, launchers.Channel | str]]:
        for stand_in in self.stand_ins:
            stand_in.near, stand_in.far = connection()
            stand_in.thread = threading.Thread(target=stand_in.serve, daemon=True)
            stand_in.thread.start()
        try:
            yield {host.name: self.found[host.name] for host in hosts}
        finally:
            self.end()

    def end(self) -> None:
        for stand_in in self.stand_ins:
            stand_in.close()
            stand_in.grants.put((Grant({}, {}), None))  # for a stand-in that waits
            stand_in.die()
            stand_in.thread.join()
