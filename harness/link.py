"""A stream of bytes between two hosts of a run, on which only those who know the run's secret are heard.

A secret is drawn for each run and given to an agent by the launcher that starts it; it never travels on the stream.
Both sides first send a number that nobody can foresee, and prove by a code over both numbers that they know the secret
(RFC 2104). Every later line carries a code over its place in the stream and its text, by a key that follows from the
secret and both numbers. So what a stranger says, what somebody changes on the way, and what is played again from an
earlier stream or from an earlier place in this one is noticed at its line, and the stream is cut off.

The text is not encrypted: it holds stamps and names of devices, and no secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import select
import socket
import time
from typing import Literal

PROTOCOL = "mixmark-link-1"
LONGEST_BYTES = 16 << 20  # a longer line is taken for a flood
GREETS_WITHIN_S = 10.0

Role = Literal["coordinator", "agent"]


class Stranger(Exception):
    """The other side is not who it should be, or what came was not what it sent. The message says what was seen; the
    stream is closed."""


class Link:
    """An authenticated stream of lines. One thread sends and one receives at a time. It owns the socket."""

    def __init__(
        self, stream: socket.socket, secret: bytes, role: Role, greets_within_s: float = GREETS_WITHIN_S
    ) -> None:
        """Greets the other side. Raises Stranger where it does not know the secret or speaks another protocol."""
        self._stream = stream
        self._pending = b""
        self.sent_bytes = self.received_bytes = 0
        """What crossed the network, in bytes of text and codes."""
        mine = secrets.token_hex(32)
        deadline = time.monotonic() + greets_within_s
        self._write(f"{PROTOCOL} {role} {mine}\n".encode())
        other: Role = "agent" if role == "coordinator" else "coordinator"
        words = self._greeting(deadline).split()
        if len(words) != 3 or words[0] != PROTOCOL:
            raise self._cut(f"it speaks another protocol than {PROTOCOL}")
        if words[1] != other or words[2] == mine:
            raise self._cut(f"it is no {other}")
        numbers = (mine, words[2]) if role == "coordinator" else (words[2], mine)
        key = hmac.digest(secret, " ".join((PROTOCOL, *numbers)).encode(), hashlib.sha256)
        self._write(_code(key, f"{role} knows") + b"\n")
        if not hmac.compare_digest(self._greeting(deadline).encode(), _code(key, f"{other} knows")):
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
        line = self._line(time.monotonic() + timeout_s)
        if not line:
            return line
        code, _, text = line.partition(b" ")
        if not hmac.compare_digest(code, _code(self._key, f"{self._other} {self._received} ".encode() + text)):
            raise self._cut(f"line {self._received} is none of its own, or it is played again")
        self._received += 1
        return text

    def close(self) -> None:
        self._stream.close()

    def _greeting(self, deadline: float) -> str:
        line = self._line(deadline)
        if not line:
            raise self._cut("it said nothing" if line is None else "it went away")
        return line.decode("ascii", "replace").strip()

    def _line(self, deadline: float) -> bytes | None:
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) > LONGEST_BYTES:
                raise self._cut(f"it sent more than {LONGEST_BYTES >> 20} MiB without an end of line")
            ready, _, _ = select.select([self._stream], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            try:
                received = self._stream.recv(1 << 16)
            except ConnectionError:
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
        except ConnectionError as error:
            raise BrokenPipeError from error
        self.sent_bytes += len(data)

    def _cut(self, seen: str) -> Stranger:
        self.close()
        return Stranger(seen)


def _code(key: bytes, text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return hmac.new(key, data, hashlib.sha256).hexdigest().encode()
