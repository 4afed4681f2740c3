"""A connection within this process: its reader waits for a condition, so it can be used with a clock that jumps."""

from __future__ import annotations

import threading

from mixmark.harness.resources import clock


class End:
    """One of two ends, with the methods of a socket and of its files that the harness uses."""

    def __init__(self) -> None:
        self._received, self._closed = bytearray(), False
        self._changed = threading.Condition()
        self.peer: End

    def sendall(self, data: bytes) -> None:
        with self.peer._changed:
            if self.peer._closed:
                raise BrokenPipeError
            self.peer._received += data
            self.peer._changed.notify_all()

    write = sendall

    def flush(self) -> None: ...

    def recv(self, most: int, seconds: float | None = None) -> bytes | None:
        """Empty at the end of the stream; None if nothing came in time."""
        with self._changed:
            if not self._received and not self._closed:
                clock.wait(self._changed, seconds)
            data = bytes(self._received[:most])
            del self._received[:most]
            return data if data or self._closed else None

    def readline(self) -> bytes:
        with self._changed:
            while b"\n" not in self._received and not self._closed:
                self._changed.wait()
            end = self._received.find(b"\n") + 1 or len(self._received)
            line = bytes(self._received[:end])
            del self._received[:end]
            return line

    def close(self) -> None:
        """Closes both ends."""
        for end in (self, self.peer):
            with end._changed:
                end._closed = True
                end._changed.notify_all()


def connection() -> tuple[End, End]:
    near, far = End(), End()
    near.peer, far.peer = far, near
    return near, far
