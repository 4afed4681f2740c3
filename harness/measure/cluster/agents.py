"""The agents of a run, as the process that leads them reaches them: what they say, their clocks, and which are lost."""

from __future__ import annotations

import base64
import contextlib
import queue
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster import machine, messages
from mixmark.harness.measure.cluster.clocks import Ping
from mixmark.harness.measure.cluster.launchers import Host, Launcher, Started
from mixmark.harness.measure.cluster.link import Stranger
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.worker.messages import Garbled, Incompatible, Message, read, write

PING_S = 1.0
BURST = 8  # pings before and after a phase: the shortest round trip of them counts
SILENT_S = 30.0  # a host of which nothing was heard for so long is lost, even while its connection stands
ANSWERS_S = 300.0  # for what a host does between phases: to look for devices, to open meters
TICK_S = 0.25  # how long one wait for messages lasts
FILE = re.compile(r"[a-z0-9][A-Za-z0-9.-]{0,190}\.(npz|log)")

MessageT = TypeVar("MessageT", bound=Message)


@dataclass
class Remote:
    """A host whose agent was started."""

    name: str
    started: Started
    folder: Path
    """For the files that it sends: `raw` and `logs`."""
    gone: str = ""
    """Why it is lost; empty while it is there."""
    unanswered: int = 0
    """How many of the pings that go out every PING_S were sent since something was heard of it."""
    open_ns: set[int] = field(default_factory=set)
    """The stamps of the pings that it has not answered."""
    pings: list[Ping] = field(default_factory=list)
    """The pings that were answered since `Remotes.fresh`."""

    def say(self, message: Message) -> None:
        """Nothing is said to a host that is lost."""
        if not self.gone:
            try:
                self.started.link.send(write(message))
            except BrokenPipeError:
                self.lose("the connection to it is closed")

    def lose(self, why: str) -> None:
        """From now on it takes no part. The first reason stays."""
        if not self.gone:
            with contextlib.suppress(OSError):
                self.started.link.close()
            self.gone = plain(f"{why}; {self.started.ended()}".removesuffix("; "), MAX_REASON)

    def ping(self) -> None:
        sent_ns = time.monotonic_ns()
        self.open_ns.add(sent_ns)
        self.say(messages.Ping(sent_ns=sent_ns))

    def answered(self, pong: messages.Pong, back_ns: int) -> None:
        """Keeps an answered ping. Raises Garbled for one that was not sent, or was answered before."""
        if pong.sent_ns not in self.open_ns:
            raise Garbled("an answer to a ping that was not sent")
        self.open_ns.remove(pong.sent_ns)
        self.pings.append(Ping(pong.sent_ns, pong.theirs_ns, back_ns))

    def take(self, blob: messages.Blob) -> None:
        """Adds a part to a file of this host. Raises ValueError for a name that no such file has and for what is no
        part, and OSError where this disk is full."""
        if not FILE.fullmatch(blob.name):
            raise Garbled(f"no file is called {blob.name[:40]!a}")
        into = self.folder / ("logs" if blob.name.endswith(".log") else "raw")
        with (into / blob.name).open("ab") as file:
            file.write(base64.b64decode(blob.base64, validate=True))

    def forget_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for each in ("raw", "logs"):
            (self.folder / each).mkdir(parents=True)


class Remotes:
    """All agents of a run. Use it as a context manager: leaving it ends them, and with them their workers.

    A thread for each host reads what it says, and stamps the answers to pings. Everything else happens in the thread
    that calls `messages` or `ask`.
    """

    def __init__(self, launcher: Launcher, hosts: Sequence[Host], folder: Path) -> None:
        """folder: for the logs of the agents, and for what they send."""
        self._launcher, self._hosts, self._folder = launcher, tuple(hosts), folder
        self._all: dict[str, Remote] = {}
        self._inbox: queue.SimpleQueue[tuple[Remote, Message | str]] = queue.SimpleQueue()
        self._pinged_s = 0.0
        self._stack = ExitStack()
        self.refused: dict[str, str] = {}
        """The hosts that could not be started, and why."""
        self.machine = ""
        """This machine, in words that only the agents can compare with theirs."""

    def __enter__(self) -> Remotes:
        """Starts the agents. Raises UsageError where the launcher cannot be used."""
        with ExitStack() as stack:
            launcher = stack.enter_context(self._launcher)
            logs = self._folder / "agents"
            logs.mkdir(parents=True, exist_ok=True)
            secret = secrets.token_bytes(32)
            self.machine = machine.token(secret)
            for name, started in launcher.start(self._hosts, secret, logs).items():
                if isinstance(started, str):
                    self.refused[name] = started
                    continue
                remote = self._all[name] = Remote(name, started, self._folder / "scratch" / name)
                threading.Thread(target=self._listen, args=(remote,), name=f"link of {name}", daemon=True).start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        shutil.rmtree(self._folder / "scratch", ignore_errors=True)

    def __getitem__(self, name: str) -> Remote:
        return self._all[name]

    @property
    def there(self) -> list[str]:
        """The names of the hosts that are not lost."""
        return [each.name for each in self._all.values() if not each.gone]

    def _listen(self, remote: Remote) -> None:
        """Reads what a host says. Its first line must be that of the same Mixmark."""
        link, first = remote.started.link, True
        why = "it closed the connection"
        try:
            while (line := link.receive(SILENT_S)) != b"":
                back_ns = time.monotonic_ns()
                if line is None:
                    continue
                remote.unanswered = 0
                if first:
                    messages.check_arrival(line)
                    first = False
                    continue
                message = read(line, messages.MESSAGES)
                if isinstance(message, messages.Pong):
                    remote.answered(message, back_ns)
                else:
                    self._inbox.put((remote, message))
        except Incompatible as error:
            why = f"it {error}; install the same Mixmark on all hosts"
        except (Stranger, Garbled) as error:
            why = f"it said what no agent says: {error}"
        except (OSError, ValueError):  # the link was closed from this side
            why = "the connection to it is closed"
        self._inbox.put((remote, why))

    def messages(self, until_s: float) -> Iterator[tuple[Remote, Message]]:
        """What the hosts say until then, but for the files that they send. Pings go out meanwhile, and a silent host is
        given up."""
        while True:
            now_s = time.monotonic()
            if now_s - self._pinged_s >= PING_S:
                self._ping()
                for remote in self._all.values():  # counted, not timed: this process itself may have stood still
                    remote.unanswered += 1
                    if remote.unanswered > SILENT_S / PING_S:
                        remote.lose(f"nothing was heard of it for {SILENT_S:g} s")
            try:
                remote, message = self._inbox.get(timeout=max(0.0, min(TICK_S, until_s - now_s)))
            except queue.Empty:
                if now_s >= until_s:
                    return
                continue
            if isinstance(message, str):
                remote.lose(message)
            elif isinstance(message, messages.Blob):
                try:
                    remote.take(message)
                except ValueError as error:
                    remote.lose(f"it said what no agent says: {error}")
                except OSError as error:
                    remote.lose(f"what it sent cannot be stored: {error.strerror}")
            elif not remote.gone:
                yield remote, message

    def _ping(self) -> None:
        self._pinged_s = time.monotonic()
        for name in self.there:
            self._all[name].ping()

    def burst(self) -> None:
        """Sends several pings in a row, so that one of them meets no delay. No host is at work meanwhile."""
        for _ in range(BURST):
            self._ping()
            for _ in self.messages(time.monotonic() + 0.01):
                pass

    def fresh(self) -> None:
        """Forgets the pings and the files of the phase before."""
        for remote in self._all.values():
            remote.pings = []
            remote.forget_files()

    def ask(self, requests: Mapping[str, Message], answer: type[MessageT]) -> dict[str, MessageT | str]:
        """Asks several hosts at once. Returns the answer of each, or why there is none."""
        told: dict[str, MessageT | str] = {}
        for name, request in requests.items():
            self._all[name].say(request)
        deadline_s = time.monotonic() + ANSWERS_S
        while (waiting := requests.keys() - told.keys()) and time.monotonic() < deadline_s:
            for name in waiting:
                if self._all[name].gone:
                    told[name] = self._all[name].gone
            for remote, message in self.messages(time.monotonic() + TICK_S):
                if remote.name in waiting and isinstance(message, answer):
                    told[remote.name] = message
                elif remote.name in waiting and isinstance(message, messages.Refused):
                    told[remote.name] = why(message)
                if not requests.keys() - told.keys():
                    break
        for name in requests.keys() - told.keys():
            self._all[name].lose(f"no answer came within {ANSWERS_S:.0f} s")
            told[name] = self._all[name].gone
        return {name: told[name] for name in requests}  # in the order of the question, whoever was first


def why(refused: messages.Refused) -> str:
    """What an agent could not do, in its words."""
    return plain(f"{refused.message}; {refused.hint}".removesuffix("; "), MAX_REASON)
