"""The agents of a run, as the leading process reaches them: calls, replies, clocks, and which agents are lost."""

from __future__ import annotations

import queue
import re
import shutil
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate

from mixmark.harness.capabilities.hosts import messages, names
from mixmark.harness.capabilities.hosts.clocks import RoundTrip
from mixmark.harness.capabilities.hosts.launchers import Channel, Host, Launcher
from mixmark.harness.capabilities.hosts.messages import AgentCalls, LeaderCalls
from mixmark.harness.capabilities.hosts.streams import lines
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Call, Failed, Garbled, P, Reply, T, read, write_call
from mixmark.harness.worker.messages import Incompatible

STARTS_WITHIN_S = 60.0  # until an agent's first message: an interpreter on a slow network drive takes many seconds
ENDS_WITHIN_S = 5.0  # for the threads that receive
PING_S = 1.0
BURST = 8  # pings before and after a phase; the shortest round trip counts
SILENT_S = 30.0  # without a message, after which a host is lost, even if its connection stands
REPLIES_WITHIN_S = 900.0  # for a call between phases: a path of a busy host with one core took 103 s
TICK_S = 0.25  # how long one wait for messages lasts
FILE = re.compile(r"[a-z0-9][A-Za-z0-9.-]{0,190}\.(npz|log)")

Received = Call | Reply | Failed


@dataclass
class RemoteAgent:
    """An agent that was started on a host."""

    name: str
    """The name of its host."""
    channel: Channel
    folder: Path
    """The folder for the files of the agent: `raw` and `logs`."""
    lost: Reason | None = None
    """Why the host takes no part any more."""
    unheard_pings: int = 0
    """The number of regular pings that were sent since the agent's last message."""
    round_trips: list[RoundTrip] = field(default_factory=list)
    """The pings with a reply since `Agents.begin_phase`."""
    sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, method: Callable[Concatenate[Any, P], object], *args: P.args, **arguments: P.kwargs) -> None:
        """Calls a method of `AgentCalls`, unless the agent is lost."""
        if not self.lost:
            with self.sending:
                self.channel.send(write_call(method, *args, **arguments))

    def lose(self, why: Reason) -> None:
        """Ends the host's part in the run. The first reason stays."""
        if not self.lost:
            self.channel.close()
            self.lost = plain(why, MAX_REASON)

    def ping(self) -> None:
        self.send(AgentCalls.ping, sent_ns=clock.now_ns())

    def keep_round_trip(self, reply: Reply, back_ns: int) -> None:
        """Raises Garbled if it is not the reply to a ping."""
        sent_ns, theirs_ns = reply.of(AgentCalls.ping)
        self.round_trips.append(RoundTrip(sent_ns, theirs_ns, back_ns))

    def file_part(self, *, name: str, base64: str) -> None:
        """Appends a part to a file of this host. Raises ValueError for a bad name or bad base64, and OSError if the
        disk is full."""
        if not FILE.fullmatch(name):
            raise Garbled(f"no file is called {name[:40]!a}")
        folder = self.folder / ("logs" if name.endswith(".log") else "raw")
        with (folder / name).open("ab") as file:
            file.write(b64decode(base64, validate=True))

    def remove_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("raw", "logs"):
            (self.folder / name).mkdir(parents=True)


class Agents:
    """All agents of a run. Use it as a context manager: leaving it ends them, and with them their workers.

    A thread for each agent receives its lines and records the replies to pings, and one pings them all, whatever the
    run does: an agent that hears nothing ends itself. Everything else happens in the thread that runs `received` or
    `call`.
    """

    def __init__(self, launcher: Launcher, hosts: Sequence[Host], folder: Path) -> None:
        """folder: for the logs of the agents, and for the files that they send."""
        self._launcher, self._hosts, self._folder = launcher, tuple(hosts), folder
        self._agents: dict[str, RemoteAgent] = {}
        # It gets None when an agent has arrived, and a reason when one has ended.
        self._inbox: queue.SimpleQueue[tuple[RemoteAgent, Received | Reason | None]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._stack = ExitStack()
        self.refused: dict[str, Reason] = {}
        """The hosts whose agent could not be started or is of another Mixmark, and why."""

    def __enter__(self) -> Agents:
        """Starts the agents and waits for their first lines. Raises UsageError if the launcher cannot be used."""
        with ExitStack() as stack:
            logs = self._folder / "agents"
            logs.mkdir(parents=True, exist_ok=True)
            for name, channel in stack.enter_context(self._launcher(self._hosts, logs)).items():
                if isinstance(channel, str):
                    self.refused[name] = channel
                    continue
                agent = self._agents[name] = RemoteAgent(name, channel, self._folder / "scratch" / name)
                thread = threading.Thread(target=self._receive, args=(agent,), name=f"agent of {name}", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._threads.append(threading.Thread(target=self._keep_pinging, name="pings", daemon=True))
            self._threads[-1].start()
            stack.callback(self._close)
            self._await_arrivals()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        shutil.rmtree(self._folder / "scratch", ignore_errors=True)

    def _close(self) -> None:
        self._closing.set()
        for agent in self._agents.values():
            agent.channel.close()
        for thread in self._threads:
            thread.join(ENDS_WITHIN_S)

    def __getitem__(self, name: str) -> RemoteAgent:
        return self._agents[name]

    @property
    def present(self) -> list[str]:
        """The names of the hosts that are not lost."""
        return [agent.name for agent in self._agents.values() if not agent.lost]

    def _await_arrivals(self) -> None:
        """Refuses each host whose agent does not arrive in time, or is of another Mixmark."""
        deadline_s = clock.now_s() + STARTS_WITHIN_S
        waiting = set(self._agents)
        while waiting:
            try:
                agent, message = clock.get(self._inbox, max(0.0, deadline_s - clock.now_s()))
            except queue.Empty:
                break
            waiting.discard(agent.name)
            if isinstance(message, str):
                self._refuse(agent, message)
        for name in waiting:
            self._refuse(self._agents[name], f"its agent sent nothing within {STARTS_WITHIN_S:g} s")

    def _refuse(self, agent: RemoteAgent, why: Reason) -> None:
        agent.lose(why)
        self.refused[agent.name] = plain(why, MAX_REASON)
        self._agents.pop(agent.name, None)

    def _receive(self, agent: RemoteAgent) -> None:
        """Receives the lines of an agent until its end."""
        arrived = False
        try:
            for line in lines(agent.channel.receive):
                back_ns = clock.now_ns()
                agent.unheard_pings = 0
                if not arrived:
                    messages.check_arrival(line)
                    arrived = True
                    self._inbox.put((agent, None))
                    continue
                received = read(line, LeaderCalls)
                if isinstance(received, Reply) and received.name == "ping":
                    agent.keep_round_trip(received, back_ns)
                else:
                    self._inbox.put((agent, received))
            why = agent.channel.why_ended() or "its agent closed the connection"
        except Incompatible as error:
            why = f"it {error}; install the same Mixmark on all hosts"
        except Garbled as error:
            why = f"its agent broke the protocol: {error}"
        self._inbox.put((agent, why))

    def received(self, until_s: float) -> Iterator[tuple[RemoteAgent, Received]]:
        """Yields what the agents send until then, but not the parts of files, which are kept. Calls have the run's
        names. A silent host is given up."""
        while True:
            now_s = clock.now_s()
            for agent in self._agents.values():
                if agent.unheard_pings > SILENT_S / PING_S:
                    agent.lose(f"nothing was heard of it for {SILENT_S:g} s")
            try:
                agent, received = clock.get(self._inbox, max(0.0, min(TICK_S, until_s - now_s)))
            except queue.Empty:
                if now_s >= until_s:
                    return
                continue
            if isinstance(received, str):
                agent.lose(received)
            elif isinstance(received, Call) and received.method is LeaderCalls.file_part:
                try:
                    agent.file_part(**received.arguments)
                except ValueError as error:
                    agent.lose(f"its agent broke the protocol: {error}")
                except OSError as error:
                    agent.lose(f"a file of it cannot be stored: {error.strerror}")
            elif isinstance(received, Call) and not agent.lost:
                yield agent, Call(received.method, names.to_run(agent.name, received.arguments))
            elif received is not None and not agent.lost:
                yield agent, received

    def _keep_pinging(self) -> None:
        while not clock.wait(self._closing, PING_S):
            for agent in [*self._agents.values()]:
                agent.ping()
                agent.unheard_pings += 1  # counted, not timed: this process itself may stand still

    def burst(self) -> None:
        """Sends several pings in a row, so that one of them meets no delay. No host is at work meanwhile."""
        for _ in range(BURST):
            for name in self.present:
                self._agents[name].ping()
            for _ in self.received(clock.now_s() + 0.01):
                pass

    def begin_phase(self) -> None:
        """Forgets the pings and the files of the phase before."""
        for agent in self._agents.values():
            agent.round_trips = []
            agent.remove_files()

    def call(
        self, method: Callable[Concatenate[Any, P], T], hosts: Sequence[str], *args: P.args, **arguments: P.kwargs
    ) -> dict[str, T | Reason]:
        """Calls a method of `AgentCalls` on several hosts at once. Returns by host, in their order, the reply with the
        run's names or why there is none."""
        replies: dict[str, T | Reason] = {}
        for name in hosts:
            self._agents[name].send(method, *args, **arguments)
        deadline_s = clock.now_s() + REPLIES_WITHIN_S
        while (waiting := set(hosts) - replies.keys()) and clock.now_s() < deadline_s:
            replies |= {name: lost for name in waiting if (lost := self._agents[name].lost)}
            for agent, received in self.received(clock.now_s() + TICK_S):
                try:
                    if agent.name in replies or agent.name not in waiting:
                        continue
                    if isinstance(received, Failed):
                        replies[agent.name] = reason(received)
                    elif isinstance(received, Reply) and received.name == method.__name__:
                        replies[agent.name] = names.to_run(agent.name, received.of(method))
                except Garbled as error:
                    agent.lose(f"its agent broke the protocol: {error}")
                if replies.keys() >= waiting:
                    break
        for name in set(hosts) - replies.keys():
            self._agents[name].lose(f"no reply came within {REPLIES_WITHIN_S:.0f} s")
        return {name: replies.get(name, str(self._agents[name].lost)) for name in hosts}

    def ask(self, method: Callable[Concatenate[Any, P], T], host: str, *args: P.args, **arguments: P.kwargs) -> T:
        """Calls an experiment's method on a host. Arguments and reply have the run's names. Raises MixmarkError if no
        reply comes."""
        reply = self.call(method, [host], *args, **names.to_host(arguments))[host]
        if isinstance(reply, str):
            raise MixmarkError(f"the host {host} sent no reply: {reply}")
        return reply


def reason(failed: Failed) -> Reason:
    """Why an agent sent no reply, with the hint."""
    return "; ".join(filter(None, (failed.failure.message, failed.failure.hint)))
