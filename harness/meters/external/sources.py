"""The sources of lines that the meter `external` reads without waiting: a growing log file and a TCP connection."""

from __future__ import annotations

import os
import socket
import stat
import weakref
from pathlib import Path

from mixmark.harness.contracts.errors import MixmarkError

LONGEST_LINE = 4096
CHUNK = 65536  # bytes taken by one read: data that arrives faster waits in the kernel
CONNECT_S = 2.0


class Lost(MixmarkError):
    """The source cannot be read any more."""


class LogFile:
    """A file that another process appends to, read from its present end.

    first_line: the line with the header; empty if the file has no whole line. lines: the number of skipped lines.
    """

    def __init__(self, path: Path) -> None:
        self.label = f"log {path.name}"
        self._path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
                raise Lost(f"{self.label} is not a file; to read a pipe, send its lines to connect=HOST:PORT")
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError for an invalid path
            raise Lost(f"cannot read {self.label}: {cause(error)}; start its writer before the run") from error
        weakref.finalize(self, self._file.close)
        first, newline, _ = self._file.read(LONGEST_LINE).partition(b"\n")
        self.first_line = first if newline else b""
        self._file.seek(0)
        self.lines = 0
        self._position = end = 0
        while chunk := self._file.read(1 << 20):
            if b"\n" in chunk:
                self.lines += chunk.count(b"\n")
                self._position = end + chunk.rindex(b"\n") + 1
            end += len(chunk)
        self._file.seek(self._position)  # the end of the last whole line

    def take(self) -> bytes:
        """The bytes that were appended, at most CHUNK. Raises Lost if the file was truncated, replaced or removed."""
        try:
            named, opened = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise Lost("it was removed or renamed") from None
        if not os.path.samestat(named, opened) or opened.st_size < self._position:
            raise Lost("it was cut or replaced")
        new = self._file.read(CHUNK) or b""
        self._position += len(new)
        return new


class TcpConnection:
    """A connection to a program that sends one line for each reading."""

    label = "TCP line protocol"  # has no address, because the label is stored in a result

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self._socket = socket.create_connection(address, CONNECT_S)
        except (OSError, UnicodeError) as error:  # UnicodeError for an invalid host name
            raise Lost(f"nothing accepts the connection: {cause(error)}; start the meter first") from error
        self._socket.setblocking(False)
        weakref.finalize(self, self._socket.close)

    def take(self) -> bytes:
        """The bytes that have arrived, at most CHUNK. Raises Lost or OSError if the connection has ended."""
        try:
            new = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        if not new:
            raise Lost("its peer closed it")
        return new


def cause(error: Exception) -> str:
    """The error's message without a path or an address, because it is stored in a result."""
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return str(error.args[-1]) if error.args else type(error).__name__
