"""The sources of lines that the meter `external` reads without waiting: a growing log, a TCP connection, a program."""

from __future__ import annotations

import codecs
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from mixmark.harness.capabilities.external_log.lines import decoded, encoding
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import plain

LONGEST_LINE = 1 << 18  # bytes; a table of several thousand columns fits
CHUNK = 1 << 16  # bytes taken by one read: data that arrives faster waits in the kernel
CONNECT_S = 2.0
FIRST_LINES = 200  # in which a header may stand below a banner
PIPE_BYTES = 1 << 20  # of a program's output that wait in memory; then the program waits
END_S = 2.0  # in which a program must end when it is asked to
REASON = 200  # characters of a program's last line of errors


class Lost(MixmarkError):
    """The source cannot be read any more."""


class LogFile:
    """A file that another process appends to. `take` reads it from its begin."""

    live = False
    """Whether a line is read when it is written, so that its time of arrival is known."""

    def __init__(self, path: Path) -> None:
        self.label = f"log {path.name}"
        self._path = path
        self._position = 0
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
                raise Lost(f"{self.label} is not a file; to read a pipe, send its lines to connect=HOST:PORT")
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError for an invalid path
            raise Lost(f"cannot read {self.label}: {cause(error)}; start its writer before the run") from error
        weakref.finalize(self, self._file.close)
        try:
            first = self._file.read(CHUNK)
            self._decoder = _Utf8(encoding(first))
        except ValueError as error:
            raise Lost(f"{self.label} cannot be read: {error}") from error
        self._file.seek(0)

    def take(self) -> bytes:
        """The text that was appended, as UTF-8, of at most CHUNK bytes of the file. Raises Lost if the file was
        truncated, replaced or removed."""
        try:
            named, opened = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise Lost("it was removed or renamed") from None
        if not os.path.samestat(named, opened) or opened.st_size < self._position:
            raise Lost("it was cut or replaced")
        new = self._file.read(CHUNK) or b""
        self._position += len(new)
        return self._decoder(new)


class _Utf8:
    """Turns the bytes of UTF-16 and UTF-32 into UTF-8, and leaves all others as they are."""

    def __init__(self, name: str) -> None:
        self._decoder = codecs.getincrementaldecoder(name)("replace") if name != "utf-8" else None

    def __call__(self, new: bytes) -> bytes:
        return self._decoder.decode(new).encode() if self._decoder else new


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


class Program:
    """A program whose output is the log. It is started here and ended by `close`, or with this process."""

    live = True

    def __init__(self, command: str) -> None:
        windows = os.name == "nt"
        self.label = f"output of {Path(command.split()[0]).name}"  # without its arguments: they may hold a password
        try:
            self._process = subprocess.Popen(
                command if windows else shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=not windows,  # Ctrl-C is for the run, which ends the program after its last read
            )
        except (OSError, ValueError) as error:
            raise Lost(f"cannot start the program of command: {cause(error)}") from error
        assert self._process.stdout is not None and self._process.stderr is not None
        self.pid = self._process.pid
        self._pipe = _Pipe(self._process.stdout)
        self._errors = _Pipe(self._process.stderr, keeps_last=True)
        self._decoder: _Utf8 | None = None
        self.close = weakref.finalize(self, _end, self._process)

    def take(self) -> bytes:
        """The text that has arrived, as UTF-8, of at most CHUNK bytes. Raises Lost if the program has ended."""
        new = self._pipe.take(CHUNK)
        if new:
            try:
                self._decoder = self._decoder or _Utf8(encoding(new))
            except ValueError as error:
                raise Lost(str(error)) from error
            return self._decoder(new)
        if self._pipe.ended:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            raise Lost(self._exit())
        return new

    def _exit(self) -> str:
        """How the program ended, with the last line of its errors."""
        self._errors.join(END_S)
        code = self._process.poll()
        lines = decoded(self._errors.take(CHUNK)).strip().splitlines()
        said = f": {plain(lines[-1], REASON)}" if lines else ""
        if code is None:
            return f"it closed its output{said}"
        return f"it was killed by signal {-code}{said}" if code < 0 else f"it ended with exit code {code}{said}"


class _Pipe(threading.Thread):
    """Reads a pipe, so that neither side waits for the other. keeps_last: the earlier output is dropped; else the
    program waits while PIPE_BYTES are not taken."""

    def __init__(self, pipe: IO[bytes], keeps_last: bool = False) -> None:
        super().__init__(name="meter", daemon=True)
        self._pipe, self._keeps_last = pipe, keeps_last
        self._waiting, self._room = bytearray(), threading.Condition()
        self.start()

    @property
    def ended(self) -> bool:
        return not self.is_alive() and not self._waiting

    def take(self, most: int) -> bytes:
        with self._room:
            taken = bytes(self._waiting[:most])
            del self._waiting[:most]
            self._room.notify()
        return taken

    def run(self) -> None:
        with self._pipe, suppress(OSError, ValueError):
            while new := os.read(self._pipe.fileno(), CHUNK):
                with self._room:
                    self._room.wait_for(lambda: self._keeps_last or len(self._waiting) < PIPE_BYTES)
                    self._waiting += new
                    if self._keeps_last:
                        del self._waiting[:-CHUNK]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program and the programs that it started."""
    if sys.platform == "win32":
        process.kill()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            return


def cause(error: Exception) -> str:
    """The error's message without a path or an address, because it is stored in a result."""
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return str(error.args[-1]) if error.args else type(error).__name__
