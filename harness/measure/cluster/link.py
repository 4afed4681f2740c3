"""A stream of bytes between two hosts of a run, on which only those who know the run's secret are heard.

A secret is drawn for each run and given to an agent by the launcher that starts it; it never travels on the stream.
Both sides first send a number that nobody can foresee, and prove by a code over both numbers that they know the secret
(RFC 2104). Every later line carries a code over its place in the stream and its text, by a key that follows from the
secret and both numbers. So what a stranger says, what somebody changes on the way, and what is played again from an
earlier stream or from an earlier place in this one is noticed at its line, and the stream is cut off.

The text is not encrypted: it holds stamps and names of devices, and no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import secrets
import select
import socket
import time
from typing import Literal, Protocol

PROTOCOL = "mixmark-link-1"
LONGEST_BYTES = 16 << 20  # a longer line is taken for a flood
LONGEST_GREETING_BYTES = 256  # the same before the other side has proved that it knows the secret
GREETS_WITHIN_S = 10.0

Role = Literal["coordinator", "agent"]


class Stream(Protocol):
    """A private pair of byte streams; a connected socket is one."""

    def fileno(self) -> int:
        """What `arrives` waits for."""

    def recv(self, most: int, /) -> bytes:
        """What came next; empty at the end. Raises OSError where the other side is gone."""

    def sendall(self, data: bytes, /) -> None:
        """Raises OSError where the other side is gone."""

    def close(self) -> None: ...


class Pipes:
    """A stream of two file descriptors, which may be pipes, sockets or the same one twice. It owns them."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    @classmethod
    def standard(cls) -> Pipes:
        """The standard input and output of this process, taken away from everything else in it: from now on what
        reads the one finds it empty, and what a library prints to the other goes to the standard error."""
        taken = cls(os.dup(0), os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return taken

    def fileno(self) -> int:
        return self._incoming

    def recv(self, most: int, /) -> bytes:
        return os.read(self._incoming, most)

    def sendall(self, data: bytes, /) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._outgoing, left) :]

    def close(self) -> None:
        both, self._incoming, self._outgoing = {self._incoming, self._outgoing} - {-1}, -1, -1
        for each in both:
            os.close(each)


def give_secret(stream: Stream, secret: bytes) -> None:
    """Hands a secret to an agent that was just started, as the first line of its standard input."""
    stream.sendall(secret.hex().encode() + b"\n")


def take_secret(stream: Stream) -> bytes:
    """The secret that `give_secret` sent. Raises ValueError where something else came."""
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows belongs to the next reader
        come = stream.recv(1)
        if not come or len(line) == LONGEST_GREETING_BYTES:
            raise ValueError("the first line of the standard input must be the secret of the run in hexadecimal")
        line += come
    secret = bytes.fromhex(line.decode("ascii").strip())
    if not secret:
        raise ValueError("the secret of the run is empty")
    return secret


class Stranger(Exception):
    """The other side is not who it should be, or what came was not what it sent. The message says what was seen; the
    stream is closed."""


class Link:
    """An authenticated stream of lines. One thread sends and one receives at a time. It owns the stream."""

    def __init__(self, stream: Stream, secret: bytes, role: Role, greets_within_s: float = GREETS_WITHIN_S) -> None:
        """Greets the other side. Raises Stranger where it does not know the secret or speaks another protocol."""
        self._stream = stream
        self._pending = b""
        self.sent_bytes = self.received_bytes = 0
        """What crossed the network, in bytes of text and codes."""
        mine = secrets.token_hex(32)
        deadline = time.monotonic() + greets_within_s
        self._greet(f"{PROTOCOL} {role} {mine}\n".encode())
        other: Role = "agent" if role == "coordinator" else "coordinator"
        words = self._greeted(deadline).split()
        if len(words) != 3 or words[0] != PROTOCOL:
            raise self._cut(f"it speaks another protocol than {PROTOCOL}")
        if words[1] != other or words[2] == mine:
            raise self._cut(f"it is no {other}")
        numbers = (mine, words[2]) if role == "coordinator" else (words[2], mine)
        key = hmac.digest(secret, " ".join((PROTOCOL, *numbers)).encode(), hashlib.sha256)
        self._greet(_code(key, f"{role} knows") + b"\n")
        if not hmac.compare_digest(self._greeted(deadline).encode(), _code(key, f"{other} knows")):
            raise self._cut("it does not know the secret of this run")
        self._key, self._role, self._other = key, role, other
        self._sent = self._received = 0

    def send(self, line: bytes) -> None:
        """Sends a line, which ends with its only newline. Raises BrokenPipeError where the other side is gone."""
        code = _code(self._key, f"{self._role} {self._sent} ".encode() + line)
        self._sent += 1
        self._write(code + b" " + line)

    def receive(self, timeout_s: float) -> bytes | None:
        """The next line; empty at the end of the stream, None where none came in time. Raises Stranger."""
        line = self._line(time.monotonic() + timeout_s, LONGEST_BYTES)
        if not line:
            return line
        code, _, text = line.partition(b" ")
        if not hmac.compare_digest(code, _code(self._key, f"{self._other} {self._received} ".encode() + text)):
            raise self._cut(f"line {self._received} is none of its own, or it is played again")
        self._received += 1
        return text

    def close(self) -> None:
        end(self._stream)

    def _greet(self, line: bytes) -> None:
        try:
            self._write(line)
        except BrokenPipeError:
            raise self._cut("it went away") from None

    def _greeted(self, deadline: float) -> str:
        line = self._line(deadline, LONGEST_GREETING_BYTES)
        if not line:
            raise self._cut("it said nothing" if line is None else "it went away")
        return line.decode("ascii", "replace").strip()

    def _line(self, deadline: float, longest_bytes: int) -> bytes | None:
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) > longest_bytes:
                raise self._cut(f"it sent more than {longest_bytes} bytes without an end of line")
            if not arrives(self._stream, max(0.0, deadline - time.monotonic())):
                return None
            try:
                received = self._stream.recv(1 << 16)
            except OSError:
                received = b""
            if not received:
                return b""
            self.received_bytes += len(received)
            self._pending += received
        line, self._pending = self._pending[: end + 1], self._pending[end + 1 :]
        return line

    def _write(self, data: bytes) -> None:
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise BrokenPipeError from error
        self.sent_bytes += len(data)

    def _cut(self, seen: str) -> Stranger:
        self.close()
        return Stranger(seen)


def end(stream: Stream) -> None:
    """Closes a stream. Where it is a socket the other side and who waits for it on this side see its end at once: a
    socket that is only closed stays open for as long as another thread waits for it."""
    if isinstance(stream, socket.socket):
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
    stream.close()


def arrives(stream: Stream, seconds: float) -> bool:
    """Waits so long at most until the stream has something to read, or its end. It has no limit on the number of open
    files, which `select` has."""
    waits = select.poll()
    waits.register(stream.fileno(), select.POLLIN)
    return bool(waits.poll(math.ceil(seconds * 1000)))


def _code(key: bytes, text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return hmac.new(key, data, hashlib.sha256).hexdigest().encode()
