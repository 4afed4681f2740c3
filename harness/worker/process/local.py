"""Starts workers on this machine, each in a session of its own, at the end of a private socket.

Vendors' libraries print to stdout, so requests and answers travel by a pair of sockets that only the worker and its
parent hold. Another process of the same user can open a pipe through /proc/<pid>/fd, but no socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import psutil

from mixmark.harness.worker.process import orphans

ENDS_WITHIN_S = 10.0  # a process that has closed its stream and does not end is killed
SITE = ("-P",)  # the current folder is no place to import from
NO_SITE = ("-I", "-S")  # neither variables nor a .pth file nor sitecustomize have a say


class Local:
    """This machine."""

    def start(
        self,
        python: str,
        code: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
        helps: bool = False,
    ) -> LocalProcess:
        return LocalProcess(python, code, arguments, variables, log, isolated, helps)


class LocalProcess:
    """A process group on this machine, as `mixmark.harness.worker.process.Process` describes it."""

    def __init__(
        self,
        python: str,
        code: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        isolated: bool,
        helps: bool,
    ) -> None:
        self._kills = _out_of_memory_kills()
        self._channel, theirs = socket.socketpair()
        flags = NO_SITE if isolated else SITE

        def start() -> int:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [python, *flags, "-c", code, str(theirs.fileno()), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    # Ctrl-C is the parent's to handle, and a group can be killed whole. What is orphaned in another
                    # session than this one is taken for a worker's.
                    start_new_session=not helps,
                    process_group=0 if helps else None,
                    env=dict(variables) if isolated else {**os.environ, **variables},
                )
            return self._process.pid

        with theirs:
            try:
                if helps:
                    start()
                else:
                    orphans.start(start)
            except OSError:
                self._channel.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        try:
            self._channel.sendall(line)
        except ConnectionResetError as error:  # it ended with a request unread
            raise BrokenPipeError from error

    def receive(self, timeout_s: float) -> bytes | None:
        ready, _, _ = select.select([self._channel], [], [], timeout_s)
        try:
            return self._channel.recv(1 << 16) if ready else None
        except ConnectionResetError:
            return b""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(ENDS_WITHIN_S)
        self.kill()
        return self._process.returncode

    def memory_bytes(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    full = process.memory_full_info()
                    total += getattr(full, "pss", full.uss)
        return total

    def out_of_memory(self) -> bool:
        return _out_of_memory_kills() > self._kills

    def close(self, spared: Collection[int] = ()) -> tuple[str, ...]:
        left = orphans.end(self._process.pid, self.kill, spared)
        self._channel.close()
        return left


def _out_of_memory_kills() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
