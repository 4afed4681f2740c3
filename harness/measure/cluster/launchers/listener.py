"""The socket that agents call back to where their standard streams do not reach the leading host.

It listens only while agents are expected, and takes one agent for each name: the first that says the name and proves
that it knows the secret. Whoever else connects is cut off, with a line in the log. Many connections that do not greet
cannot keep an agent out: the one that has waited longest makes room for the next.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster.link import GREETS_WITHIN_S, Link, Stranger, arrives

LONGEST_NAME_BYTES = 64
MOST_GREETING = 64  # connections that have not greeted yet
MOST_LOGGED = 200  # lines about strangers
POLL_S = 0.2
MAX_SEEN = 40  # characters of a stranger's name


def call(address: str, name: str) -> socket.socket:
    """The agent's side: connects to a listener and says the name, so that the greeting of `measure.cluster.link`
    can follow. Raises OSError or ValueError."""
    host, _, port = address.rpartition(":")
    stream = socket.create_connection((host.strip("[]"), int(port)), GREETS_WITHIN_S)
    stream.settimeout(None)
    _at_once(stream)
    stream.sendall(f"{name}\n".encode())
    return stream


class Listener:
    """Expects the agents of some hosts. It listens inside its block."""

    def __init__(self, interface: str, names: Collection[str], secret: bytes, log: Path) -> None:
        """interface: the address of this machine that agents reach. log: the file that strangers are told in. Raises
        OSError where the address is none of this machine's."""
        self._names, self._secret, self._log = tuple(names), secret, log
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        self._socket = socket.create_server((interface, 0), family=family, backlog=1024)
        self._socket.setblocking(False)
        host = f"[{interface}]" if ":" in interface else interface
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._new: dict[str, Link] = {}
        """The agents that have greeted and were not handed over yet."""
        self._greeting: dict[socket.socket, None] = {}
        """The connections that have not greeted yet, the oldest first."""
        self._strangers = 0

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        with self._lock:
            for each in self._greeting:
                _shut(each)
            self._greeting.clear()
            for link in self._new.values():
                link.close()

    def agents(self, within_s: float, gone: Callable[[str], str]) -> dict[str, Link | str]:
        """Waits until each agent has greeted or is gone, so long at most; and why there is none.

        gone: tells for the name of a host why its agent will not come; empty where it may come yet."""
        found: dict[str, Link | str] = {}
        deadline = time.monotonic() + within_s
        while missing := [name for name in self._names if name not in found]:
            if time.monotonic() > deadline:
                return {**found, **dict.fromkeys(missing, self._never_came(within_s))}
            if arrives(self._socket, POLL_S):
                self._take()
            found.update({name: reason for name in missing if (reason := gone(name))})
            with self._lock:
                found.update(self._new)
                self._new.clear()
        return found

    def _never_came(self, within_s: float) -> str:
        others = f"; {self._strangers} connections were cut off: see {self._log.name}" if self._strangers else ""
        return f"its agent did not call back within {within_s:g} s, as where a firewall is in its way{others}"

    def _take(self) -> None:
        try:
            stream, (origin, *_) = self._socket.accept()
        except OSError:  # it is gone already, or this process has too many files open
            time.sleep(POLL_S)
            return
        with self._lock:
            if len(self._greeting) >= MOST_GREETING:
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                _shut(oldest)
            self._greeting[stream] = None
        threading.Thread(target=self._greet, args=(stream, origin), daemon=True).start()

    def _greet(self, stream: socket.socket, origin: str) -> None:
        name = "one without a name"
        try:
            name = _name(stream)
            if name not in self._names:
                raise Stranger("no host of this run is called so")
            _at_once(stream)
            link = Link(stream, self._secret, "coordinator")
            with self._lock:
                if stream not in self._greeting or name in self._taken:
                    raise Stranger("it came after the agent of this name, or too late")
                self._taken.add(name)
                self._new[name] = link
                del self._greeting[stream]
        except (OSError, Stranger) as seen:
            with self._lock:
                self._greeting.pop(stream, None)
                self._tell(f"{origin}: {plain(name, MAX_SEEN)}: cut off: {seen}")
            stream.close()

    def _tell(self, line: str) -> None:
        self._strangers += 1
        if self._strangers <= MOST_LOGGED:
            more = "\nfurther ones are not listed" if self._strangers == MOST_LOGGED else ""
            with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
                log.write(f"{line}{more}\n")


def _name(stream: socket.socket) -> str:
    """The first line that the other side says. Raises OSError or Stranger."""
    deadline = time.monotonic() + GREETS_WITHIN_S
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows is the greeting
        stream.settimeout(max(0.001, deadline - time.monotonic()))
        come = stream.recv(1)
        if not come or len(line) == LONGEST_NAME_BYTES:
            raise Stranger("it does not say its name")
        line += come
    stream.settimeout(None)
    return line[:-1].decode("utf-8", "replace")


def _at_once(stream: socket.socket) -> None:
    """Sends every line at once, and notices in time where the other machine is gone."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _shut(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
