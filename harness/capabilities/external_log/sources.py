"""The sources of lines that the meter `external` reads without waiting: a growing log, or a program."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from mixmark.harness.capabilities.external_log.lines import Lost, decoded
from mixmark.harness.contracts.text import plain

CHUNK = 1 << 16  # bytes taken by one read: data that arrives faster waits in the kernel
END_S = 2.0  # in which a program must end when it is asked to
REASON = 200  # characters of a program's last line of errors


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
                raise Lost(f'{self.label} is not a file; to read a pipe, give command = "cat PIPE"')
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError for an invalid path
            raise Lost(f"cannot read {self.label}: {cause(error)}; start its writer before the run") from error
        self.close = weakref.finalize(self, self._file.close)

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


class Program:
    """A program whose output is the log. It is started here and ended by `close`, or with this process. If its output
    is not taken, it waits. It is never started on Windows, where nothing can be measured."""

    live = True

    def __init__(self, command: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the program
        self.label = f"output of {Path(command.split()[0]).name}"  # without its arguments: they may hold a password
        try:
            self._process = subprocess.Popen(
                shlex.split(command),
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the run, which ends the program after its last read
            )
        except (OSError, ValueError) as error:
            self._errors.close()
            raise Lost(f"cannot start the program of command: {cause(error)}") from error
        assert self._process.stdout is not None
        self._output = self._process.stdout
        if sys.platform != "win32":
            os.set_blocking(self._output.fileno(), False)
        self.close = weakref.finalize(self, _end, self._process, self._errors)

    def take(self) -> bytes:
        """The bytes that have arrived, at most CHUNK. Raises Lost if the program has ended."""
        new = self._output.read(CHUNK)
        if new == b"":
            raise Lost(self._exit())
        return new or b""

    def _exit(self) -> str:
        """How the program ended, with the last line of its errors."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.poll()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - CHUNK))
        lines = decoded(self._errors.read()).strip().splitlines()
        said = f": {plain(lines[-1], REASON)}" if lines else ""
        how = "closed its output" if code is None else f"ended with exit code {code}"
        return f"it {how}{said}"


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Ends a program and the programs that it started, and closes its streams."""
    if sys.platform == "win32":
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    errors.close()
    if process.stdout:
        process.stdout.close()


def cause(error: Exception) -> str:
    """The error's message without a path or an address, because it is stored in a result."""
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return str(error.args[-1]) if error.args else type(error).__name__
