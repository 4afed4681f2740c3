"""Stand-ins for agents: threads of the test that speak to the leading process over an authenticated stream.

A `Host` of a test answers what an agent is asked as its methods say; a test overrides those that it wants otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mixmark.harness.contracts.schema import Completions, Device, Limits, Phase, Rate, Record, Route, Share, Task
from mixmark.harness.measure.cluster import launchers, messages
from mixmark.harness.measure.cluster.link import Link, Stranger
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Message, read, write
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


class Host:
    """A host with a device, whose agent is a thread of this process."""

    said = messages.arrived()
    ahead_ns = 5_000_000_000
    """How far its clock is ahead of this process's."""

    def __init__(self, name: str = "", devices: Sequence[Device] = (device("npu:a"),), machine: str = "") -> None:
        self.name, self.devices, self.machine = name, tuple(devices), machine
        self.asked: list[Message] = []
        self.told: queue.SimpleQueue[messages.Begin] = queue.SimpleQueue()
        self.why_ended = ""
        self.folder = Path()
        self.sending = threading.Lock()
        self.link: Link
        self.theirs: socket.socket
        self.thread: threading.Thread

    # --- a `launchers.Started` ----------------------------------------------------------------------------------------

    def ended(self) -> str:
        return self.why_ended

    # --- what it does -------------------------------------------------------------------------------------------------

    def clock_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    def seen(self) -> messages.Seen:
        return messages.Seen(
            targets=tuple(messages.TargetOn(device=each, adapter="band", options={}) for each in self.devices),
            absent=(),
            environments={},
            system=sample.system(),
            suites=tuple(messages.SuiteThere(name=each, version="1", weights="synthetic") for each in ("low", "high")),
            machine=self.machine or self.name,
        )

    def attend(self, request: messages.Attend) -> Message | None:
        """Measures the phase: each share has finished a few feeds."""
        for each in request.phase.shares:
            self.say(messages.Staged(key=each.key, stage="measuring"))
        if request.phase.placement is not None:
            self.mix(request)
        return self.attended(request.phase)

    def mix(self, request: messages.Attend) -> None:
        self.ready(request)
        self.told.get()
        self.tally(request)

    def ready(self, request: messages.Attend) -> None:
        assert request.phase.placement is not None
        rates = request.phase.placement.rates
        concurrency = {each.device: 1 for each in rates}
        self.say(messages.Ready(rates=rates, quanta=tuple(1 for _ in rates), concurrency=concurrency))

    def tally(self, request: messages.Attend, feeds: int = 5) -> None:
        done = {each.route.suite: feeds for each in request.phase.shares}
        self.say(
            messages.Tallied(
                finished={suite: float(feeds) for suite in done},
                handed_out={suite: float(feeds) for suite in done},
                paces=(),
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

    def attended(self, phase: Phase) -> messages.Attended:
        records = [self.record(phase.name, each) for each in phase.shares]
        return self.sent(records)

    def sent(self, records: Sequence[Record]) -> messages.Attended:
        """Sends the stamps of records."""
        made = self.folder / hashlib.sha256(str(time.monotonic_ns()).encode()).hexdigest()
        (made / "raw").mkdir(parents=True)
        store.Store(made).append(*records)
        sha256 = store.sums(made)
        for name in sha256:
            self.blob(name, (made / "raw" / name).read_bytes())
        fields = tuple(each.model_dump(mode="json") for each in records)
        return messages.Attended(records=fields, sha256=sha256, sent_bytes=10, received_bytes=20)

    def blob(self, name: str, data: bytes) -> None:
        self.say(messages.Blob(name=name, base64=base64.b64encode(data).decode()))

    def drained(self, phase: str) -> messages.Drained:
        return messages.Drained(metering=None, sha256={})

    def pong(self, ping: messages.Ping) -> None:
        self.say(messages.Pong(sent_ns=ping.sent_ns, theirs_ns=self.clock_ns()))

    def answer(self, request: Message) -> Message | None:
        if isinstance(request, messages.Look):
            return self.seen()
        if isinstance(request, messages.Cover):
            return messages.Covered(domains=(), absent=())
        if isinstance(request, messages.Room):
            return messages.Roomy(pool_bytes={each.memory_pool: each.memory_bytes or 1 for each in self.devices})
        if isinstance(request, messages.Rest):
            return messages.Rested()
        if isinstance(request, messages.Drain):
            return self.drained(request.phase)
        assert isinstance(request, messages.Attend)
        return self.attend(request)

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """The ends of its stream: of the leading process, and its own."""
        return socket.socketpair()

    # --- how it speaks ------------------------------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        self.send(write(message))

    def send(self, line: bytes) -> None:
        with self.sending, contextlib.suppress(BrokenPipeError):
            self.theirs_link.send(line)

    def die(self, why: str = "its agent was killed by signal 9") -> None:
        """As if the process were gone."""
        self.why_ended = why
        with contextlib.suppress(OSError):
            self.theirs.shutdown(socket.SHUT_RDWR)

    def serve(self, secret: bytes) -> None:
        self.theirs_link = Link(self.theirs, secret, "agent")
        self.say(self.said)
        requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(requests,), daemon=True).start()
        with contextlib.suppress(Stranger, ValueError):  # ValueError: it was closed from this side
            while line := self.theirs_link.receive(60):
                message = read(line, messages.MESSAGES)
                if isinstance(message, messages.Ping):
                    self.pong(message)
                elif isinstance(message, messages.Begin):
                    self.told.put(message)
                else:
                    self.asked.append(message)
                    requests.put(message)
        requests.put(None)
        self.theirs_link.close()

    def _work(self, requests: queue.SimpleQueue[Message | None]) -> None:
        while (request := requests.get()) is not None:
            if (answer := self.answer(request)) is not None:
                self.say(answer)


class Launcher:
    """Starts stand-ins, and hands over the reason in place of those that are texts."""

    def __init__(self, folder: Path, found: Mapping[str, Host | str]) -> None:
        self.found = found
        for name, each in found.items():
            if isinstance(each, Host):
                each.name, each.folder = name, folder / "sent" / name

    @property
    def hosts(self) -> tuple[launchers.Host, ...]:
        return tuple(launchers.Host(name) for name in self.found)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.found.values():
            if isinstance(each, Host):
                each.link.close()
                each.told.put(messages.Begin(units={}, credit={}, lasts_ns=0))  # for one that waits
                each.die()
                each.thread.join()

    def start(
        self, hosts: Sequence[launchers.Host], secret: bytes, logs: Path
    ) -> Mapping[str, launchers.Started | str]:
        for each in self.found.values():
            if isinstance(each, Host):
                ours, each.theirs = each.sockets()
                each.thread = threading.Thread(target=each.serve, args=(secret,), daemon=True)
                each.thread.start()
                each.link = Link(ours, secret, "coordinator")
        return {host.name: self.found[host.name] for host in hosts}
