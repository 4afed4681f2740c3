"""Starts workers on this machine, each in a process group of its own with a private pair of pipes.

Vendors' libraries print to stdout, so requests and answers travel by pipes that only the worker knows.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

ENDS_WITHIN_S = 10.0  # a process that has closed its stream and does not end is killed


class Local:
    """This machine."""

    clock_offset_ns = 0

    def start(
        self, python: str, code: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> LocalProcess:
        return LocalProcess(python, code, arguments, variables, log)


class LocalProcess:
    """A process group on this machine, as `harness.hosts.Process` describes it."""

    def __init__(
        self, python: str, code: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> None:
        self._kills = _out_of_memory_kills()
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [python, "-P", "-c", code, str(requests), str(answers), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(requests, answers),
                    start_new_session=True,  # Ctrl-C is the parent's to handle, and a group can be killed whole
                    env={**os.environ, **variables},
                )
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(requests)
            os.close(answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._requests, line) :]

    def receive(self, timeout_s: float) -> bytes | None:
        ready, _, _ = select.select([self._answers], [], [], timeout_s)
        return os.read(self._answers, 1 << 16) if ready else None

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

    def close(self) -> None:
        self.kill()
        os.close(self._requests)
        os.close(self._answers)


def _out_of_memory_kills() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
