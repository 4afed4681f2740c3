"""Stand-ins for agents: threads of the test that speak to the leading process over a pair of sockets.

A `StandIn` replies to requests as its methods say; a test overrides the methods that it wants to behave otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mixmark.harness.contracts.schema import Completions, Device, Limits, Phase, Rate, Record, Route, Share, Task
from mixmark.harness.discover.devices import Found
from mixmark.harness.measure.cluster import launchers, messages
from mixmark.harness.measure.cluster.streams import lines
from mixmark.harness.measure.dispatch import Grant
from mixmark.harness.plan.phases import Target, Workload
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Covered, Message, read, write
from tests.golden import sample

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

    arrived = messages.arrived()
    ahead_ns = 5_000_000_000
    """How far its clock is ahead of this process's."""

    def __init__(self, name: str = "", devices: Sequence[Device] = (device("npu:a"),), machine: str = "") -> None:
        self.name, self.devices, self.machine = name, tuple(devices), machine
        self.requests: list[Message] = []
        self.grants: queue.SimpleQueue[messages.GrantWork] = queue.SimpleQueue()
        self.status: str | None = None
        self.folder = Path()
        self.sending = threading.Lock()
        self.near: socket.socket
        self.far: socket.socket
        self.thread: threading.Thread

    # --- a `launchers.Channel` ----------------------------------------------------------------------------------------

    def send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self.near.sendall(line)

    def receive(self) -> bytes:
        try:
            return self.near.recv(1 << 16)
        except OSError:
            return b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.near.shutdown(socket.SHUT_RDWR)

    def why_ended(self) -> str | None:
        return self.status

    # --- what it does -------------------------------------------------------------------------------------------------

    def clock_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    def describe(self) -> messages.HostDescription:
        return messages.HostDescription(
            found=Found(tuple(Target(each, "band", {}) for each in self.devices), ()),
            system=sample.system(),
            suites=tuple(Workload(name, "1", ("offline",)) for name in ("low", "high")),
            machine=self.machine or self.name,
        )

    def measure(self, request: messages.MeasurePhase) -> Message | None:
        """Measures the phase: each share has finished a few feeds."""
        for each in request.phase.shares:
            self.say(messages.StageBegun(key=each.key, stage="measuring"))
        if request.phase.placement is not None:
            self.mix(request)
        return self.measured(request.phase)

    def mix(self, request: messages.MeasurePhase) -> None:
        self.ready(request)
        self.grants.get()
        self.progress(request)

    def ready(self, request: messages.MeasurePhase) -> None:
        assert request.phase.placement is not None
        rates = request.phase.placement.rates
        concurrency = {each.device: 1 for each in rates}
        self.say(messages.MixReady(rates=rates, quanta=tuple(1 for _ in rates), concurrency=concurrency))

    def progress(self, request: messages.MeasurePhase, feeds: int = 5) -> None:
        done = {each.route.suite: feeds for each in request.phase.shares}
        self.say(
            messages.MixProgress(
                finished={suite: float(feeds) for suite in done},
                handed_out={suite: float(feeds) for suite in done},
                paces={task.device: dict.fromkeys(done, 1.0) for task in request.phase.tasks},
                unfinished_s={},
                feeds=done,
                running={each.device: "low" for each in request.phase.tasks},
            )
        )

    def record(self, phase: str, of: Share) -> Record:
        """Three feeds of 10 ms that have just been finished, on this host's clock."""
        first = self.clock_ns() - 60 * MS
        issued = first + 10 * MS * np.arange(3)
        done = Completions(issued, issued, np.arange(1, 4), issued + 10 * MS, np.ones(3, np.int64))
        made_up = sample.record(of.key, of.route.suite, "sample", done, scenario=of.scenario)
        return made_up.model_copy(update={"phase": phase, "route": of.route, "run": of.run})

    def measured(self, phase: Phase) -> messages.PhaseMeasured:
        records = [self.record(phase.name, each) for each in phase.shares]
        return self.sent(records)

    def sent(self, records: Sequence[Record]) -> messages.PhaseMeasured:
        """Sends the timestamps of records."""
        made = self.folder / hashlib.sha256(str(time.monotonic_ns()).encode()).hexdigest()
        (made / "raw").mkdir(parents=True)
        store.Store(made).append(*records)
        sha256 = store.sums(made)
        for name in sha256:
            self.file(name, (made / "raw" / name).read_bytes())
        fields = tuple(each.model_dump(mode="json") for each in records)
        return messages.PhaseMeasured(records=fields, sha256=sha256, sent_bytes=10, received_bytes=20)

    def file(self, name: str, data: bytes) -> None:
        self.say(messages.FilePart(name=name, base64=base64.b64encode(data).decode()))

    def samples(self, phase: str) -> messages.MeterSamples:
        return messages.MeterSamples(metering=None, sha256={})

    def pong(self, ping: messages.Ping) -> None:
        self.say(messages.Pong(sent_ns=ping.sent_ns, theirs_ns=self.clock_ns()))

    def reply(self, request: Message) -> Message | None:
        if isinstance(request, messages.DescribeHost):
            return self.describe()
        if isinstance(request, messages.OpenMeters):
            return Covered(domains=(), absent=())
        if isinstance(request, messages.FreeMemory):
            return messages.MemoryPools(pool_bytes={each.memory_pool: each.memory_bytes or 1 for each in self.devices})
        if isinstance(request, messages.MeasureIdle):
            return messages.IdleMeasured()
        if isinstance(request, messages.ReadMeters):
            return self.samples(request.phase)
        assert isinstance(request, messages.MeasurePhase)
        return self.measure(request)

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """The ends of its stream: of the leading process, and its own."""
        return socket.socketpair()

    # --- how it speaks ------------------------------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        self.write(write(message))

    def write(self, line: bytes) -> None:
        with self.sending, contextlib.suppress(OSError):
            self.far.sendall(line)

    def die(self, status: str = "its agent was killed by signal 9") -> None:
        """As if the process were gone."""
        self.status = status
        with contextlib.suppress(OSError):
            self.far.shutdown(socket.SHUT_RDWR)

    def read(self) -> bytes:
        with contextlib.suppress(OSError):
            return self.far.recv(1 << 16)
        return b""

    def serve(self) -> None:
        self.say(self.arrived)
        requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(requests,), daemon=True).start()
        for line in lines(self.read):
            message = read(line, messages.MESSAGES)
            if isinstance(message, messages.Ping):
                self.pong(message)
            elif isinstance(message, messages.GrantWork):
                self.grants.put(message)
            else:
                self.requests.append(message)
                requests.put(message)
        requests.put(None)
        self.far.close()

    def _work(self, requests: queue.SimpleQueue[Message | None]) -> None:
        while (request := requests.get()) is not None:
            if (reply := self.reply(request)) is not None:
                self.say(reply)


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
            stand_in.near, stand_in.far = stand_in.sockets()
            stand_in.thread = threading.Thread(target=stand_in.serve, daemon=True)
            stand_in.thread.start()
        try:
            yield {host.name: self.found[host.name] for host in hosts}
        finally:
            self.end()

    def end(self) -> None:
        for stand_in in self.stand_ins:
            stand_in.close()
            stand_in.grants.put(messages.GrantWork(grant=Grant({}, {}), lasts_ns=0))  # for a stand-in that waits
            stand_in.die()
            stand_in.thread.join()
            stand_in.near.close()
