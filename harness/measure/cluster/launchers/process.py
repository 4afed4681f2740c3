"""Processes on this machine that are agents, or programs that reach one on another machine: `ssh`, `srun`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster.launchers import Host, Started
from mixmark.harness.measure.cluster.link import PROTOCOL, Link, Stranger, end, give_secret
from mixmark.harness.worker.process import orphans

STARTS_WITHIN_S = 60.0  # until an agent greets: an interpreter on a slow network drive takes many seconds
ENDS_WITHIN_S = 10.0  # once its stream is closed; then it is killed
SAYS_WITHIN_S = 2.0  # between the end of its stream and the end of the process
POLL_S = 0.02
LOG_END_BYTES = 4096  # in which the last line of a log is looked for
MAX_LINE = 200  # characters of a log's last line

Why = Callable[[int, str], str]
"""Tells by its exit status and the end of its log why a process that reaches an agent failed itself; empty where it is
the agent that ended."""


def command(host: Host, python: str, connect: str = "") -> list[str]:
    """The words that start the agent of a host. python: where the host names no interpreter. connect: the address and
    port that the agent calls back to; empty: it uses its standard streams."""
    words = [host.python or python, "-P", "-m", "mixmark", "agent", "--name", host.name]
    words += ["--config", host.config] if host.config else []
    words += ["--cores", ",".join(map(str, host.cores))] if host.cores else []
    return words + (["--connect", connect] if connect else [])


class Processes:
    """The processes of a launcher. Leaving the block ends them all."""

    def __init__(self) -> None:
        self._all: list[Process] = []

    def start(self, host: Host, words: Sequence[str], logs: Path, why: Why | None = None) -> Process | str:
        """The process, or why there is none. why: see `Process`."""
        try:
            process = Process(host, words, logs, why)
        except OSError as error:
            return f"its agent cannot be started: {words[0]}: {error.strerror}"
        self._all.append(process)
        return process

    def end(self) -> None:
        """Closes all streams, at which agents end by themselves, and kills what lives on."""
        for each in self._all:
            each.close()
        deadline = time.monotonic() + ENDS_WITHIN_S
        for each in self._all:
            each.wait(max(0.0, deadline - time.monotonic()))
        for each in self._all:
            each.kill()
        self._all.clear()


def greeted(started: Mapping[str, Process | str], secret: bytes) -> dict[str, Started | str]:
    """Greets all agents at once: each that answers, or why it is no agent of the run."""

    def greet(found: Process | str) -> Process | str:
        return found if isinstance(found, str) else found.greet(secret) or found

    with ThreadPoolExecutor(max(1, len(started))) as pool:
        return dict(zip(started, pool.map(greet, started.values()), strict=True))


class Process:
    """The process, its stream and its log. It is a `Started` from when it has greeted."""

    link: Link

    def __init__(self, host: Host, command: Sequence[str], logs: Path, why: Why | None = None) -> None:
        """Starts the process in a session of its own, with one end of a private socket as its standard input and
        output. Raises OSError where it cannot be started."""
        self._host = host
        self._why = why
        self._log = logs / f"{host.name}.log"
        self.stream, theirs = socket.socketpair()

        def start() -> int:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=log, start_new_session=True
                )
            return self._process.pid

        with theirs:
            try:
                orphans.start(start)
            except OSError:
                self.stream.close()
                raise

    def greet(self, secret: bytes) -> str:
        """Gives the agent the secret and greets it. Returns why it is no agent of the run; empty where it is one."""
        try:
            give_secret(self.stream, secret)
            self.link = Link(self.stream, secret, "coordinator", STARTS_WITHIN_S)
        except OSError:
            return self._never_greeted()
        except Stranger as seen:
            if str(seen) == "it went away":
                return self._never_greeted()
            if str(seen) == "it said nothing":
                return f"its agent did not greet within {STARTS_WITHIN_S:g} s{self._last_words()}"
            prints = (
                "; it looks so where a login or a start of Python prints something" if PROTOCOL in str(seen) else ""
            )
            return f"{seen}{prints}{self._last_words()}"
        return ""

    def _never_greeted(self) -> str:
        self.wait(SAYS_WITHIN_S)
        return self.ended() or f"its agent closed its stream before it greeted{self._last_words()}"

    def ended(self) -> str:
        """Why the process is gone, with the last line of its log; empty while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        if self._why and (why := self._why(status, self._log_end())):
            return why
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return f"its agent {how}{self._last_words()}"

    def _last_words(self) -> str:
        """The last line of its log as the end of a sentence, in which the address of the host is not named."""
        lines = [plain(line, MAX_LINE) for line in self._log_end().splitlines()]
        last = next((line for line in reversed(lines) if line), "")
        return f"; its log ends with: {unaddressed(last, self._host)}" if last else ""

    def _log_end(self) -> str:
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_END_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        """Closes the stream. Harmless where it is closed."""
        end(self.stream)

    def wait(self, seconds: float) -> None:
        """Waits so long at most for the end of the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """Ends the process and all its descendants. Harmless where they are gone."""
        orphans.end(self._process.pid, self._kill)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def unaddressed(text: str, host: Host) -> str:
    """The text with the host's name in place of its address: an address belongs in no result."""
    for part in (host.address, host.address.rpartition("@")[2]):
        if part:
            text = re.sub(rf"(?<![\w.-]){re.escape(part)}(?![\w-])", host.name, text)
    return text
