"""Bytes between the leading process and an agent: the lines of a stream, and the standard streams of the agent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from mixmark.harness.worker.calls import LONGEST_BYTES, Garbled

CHUNK_BYTES = 1 << 16


def lines(receive: Callable[[], bytes]) -> Iterator[bytes]:
    """Splits a stream into lines, each with its newline. receive: waits for the next bytes; empty at the end.

    Raises Garbled for a line of more than LONGEST_BYTES, so that a peer cannot fill this process's memory.
    """
    pending = bytearray()
    while data := receive():
        searched = len(pending)
        pending += data
        while (end := pending.find(b"\n", searched)) >= 0:
            yield bytes(pending[: end + 1])
            del pending[: end + 1]
            searched = 0
        if len(pending) > LONGEST_BYTES:
            raise Garbled(f"more than {LONGEST_BYTES} bytes without an end of line")


class Pipes:
    """Two file descriptors, one to read from and one to write to."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.sent_bytes = self.received_bytes = 0

    @classmethod
    def standard(cls) -> Pipes:
        """Takes the standard input and output away from everything else in this process. From now on code that reads
        the standard input finds it empty, and a library that prints does so to the standard error."""
        taken = cls(os.dup(0), os.dup(1))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return taken

    def receive(self) -> bytes:
        """Waits for the next bytes; empty at the end of the stream."""
        try:
            data = os.read(self._incoming, CHUNK_BYTES)
        except OSError:
            return b""
        self.received_bytes += len(data)
        return data

    def send(self, line: bytes) -> None:
        """Raises BrokenPipeError if the peer is gone."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._outgoing, rest) :]
        except OSError as error:
            raise BrokenPipeError from error
        self.sent_bytes += len(line)
