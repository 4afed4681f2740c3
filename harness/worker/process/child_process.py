"""A child process in a group of its own, and a private socket to it.

Vendors' libraries print to stdout, so the messages travel through a pair of sockets that only the two processes hold.
Another process of the same user can open a pipe through /proc/<pid>/fd, but not a socket.

A child inherits the socket only on POSIX systems, so Windows cannot run workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.resources.psutils import UNKNOWN
from mixmark.harness.worker.process import orphans

ENDS_WITHIN_S = 10.0  # a process that has closed its socket and does not end is killed
NO_CURRENT_FOLDER = ("-P",)  # nothing is imported from the current folder
NO_SITE = ("-I", "-S")  # no PYTHON* variable, .pth file or sitecustomize has an effect


class ConnectedProcess:
    """A process in a group of its own, with a private socket to it.

    start: starts it. Its arguments are the descriptor of the process's end of the socket, and the log. log: the file
    that is appended to. tracked: what the process leaves behind is killed at its end, see `orphans`. Raises OSError if
    it cannot be started.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    """This process's end of the socket."""

    def __init__(
        self, start: Callable[[int, BinaryIO], subprocess.Popen[bytes]], log: Path, tracked: bool = True
    ) -> None:
        self.channel, far_end = socket.socketpair()

        def started() -> int:
            with log.open("ab") as output:
                self.process = start(far_end.fileno(), output)
            return self.process.pid

        with far_end:
            try:
                orphans.guard()
                orphans.start(started) if tracked else started()
            except OSError:
                self.channel.close()
                raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kills the process and its process group, and waits for its end. Does nothing if it is gone."""
        if sys.platform == "win32":  # never run there
            self.process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self, spared: Collection[int] = ()) -> tuple[str, ...]:
        """Kills the process and what it left behind outside of its process group, and closes the socket.

        spared: the ids of processes that live on. Returns the names of the processes that were left behind.
        """
        surviving_processes = orphans.end(self.process.pid, self.kill, spared)
        self.channel.close()
        return surviving_processes


class ChildProcess(ConnectedProcess):
    """Runs `python -c code CHANNEL arguments…`. CHANNEL is the number of the file descriptor of the child's socket.

    variables: added to its environment; isolated: they are its whole environment, and the interpreter runs with
    `-I -S`. log: the file to which stdout and stderr are appended. tracked: as of `ConnectedProcess`; only adapters'
    workers are tracked. inherited: further file descriptors, which it gets under the same numbers. Raises OSError if it
    cannot be started, MixmarkError on Windows. Several threads may send, and one at a time may receive.
    """

    # declared here, because a type checker for Windows reads no further than the refusal below
    _kills: int
    _killed_here: bool
    _sending: threading.Lock

    def __init__(
        self,
        python: str,
        code: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
        tracked: bool = True,
        inherited: Sequence[int] = (),
    ) -> None:
        if sys.platform == "win32":
            raise MixmarkError("workers need a POSIX system", "run Mixmark in the Windows Subsystem for Linux")
        self._kills = _out_of_memory_kills()
        self._killed_here = False
        self._sending = threading.Lock()

        def start(channel: int, output: BinaryIO) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [python, *(NO_SITE if isolated else NO_CURRENT_FOLDER), "-c", code, str(channel), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(channel, *inherited),
                # Ctrl-C is the parent's to handle, and a group can be killed as a whole. An orphan in another session
                # than this process's counts as left behind by a worker, so only workers get a session.
                start_new_session=tracked,
                process_group=None if tracked else 0,
                env=dict(variables) if isolated else {**os.environ, **variables},
            )

        super().__init__(start, log, tracked)

    def send(self, line: bytes) -> None:
        """Raises BrokenPipeError if the process is gone."""
        try:
            with self._sending:
                self.channel.sendall(line)
        except ConnectionResetError as error:  # it ended with a request unread
            raise BrokenPipeError from error

    def receive(self, timeout_s: float) -> bytes | None:
        """The next bytes; empty at the end of the stream, None if none came in time."""
        ready, _, _ = select.select([self.channel], [], [], timeout_s)
        try:
            return self.channel.recv(1 << 16) if ready else None
        except ConnectionResetError:
            return b""

    def kill(self) -> None:
        self._killed_here = self._killed_here or self.process.poll() is None
        super().kill()

    def wait(self) -> int:
        """Waits for the end, and kills the process if it takes too long. Returns the exit status, or the negative
        number of the signal that ended the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(ENDS_WITHIN_S)
        self.kill()
        return self.process.returncode

    def memory_bytes(self) -> int:
        """The proportional set size of the process and its descendants; 0 if it cannot be read."""
        total = 0
        with contextlib.suppress(*UNKNOWN):
            root = psutil.Process(self.process.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(*UNKNOWN):
                    full = process.memory_full_info()
                    total += getattr(full, "pss", full.uss)
        return total

    def out_of_memory(self) -> bool:
        """Whether something else than `kill` killed the process, and the kernel has killed a process for lack of memory
        since it started."""
        killed = sys.platform != "win32" and self.process.returncode == -signal.SIGKILL
        return killed and not self._killed_here and _out_of_memory_kills() > self._kills


def _out_of_memory_kills() -> int:
    """How many processes the kernel has killed for lack of memory since it booted; 0 on other systems than Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
