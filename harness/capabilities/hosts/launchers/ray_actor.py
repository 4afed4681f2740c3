"""The actor on a node of a Ray cluster that starts the agent there and holds its standard streams.

The module imports only the standard library, and the class travels by value: Ray's own interpreter on a node need not
have Mixmark.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile


class AgentActor:
    def start(self, words: list[str]) -> str:
        """Starts the agent with the environment that the raylet was started with. Returns why it did not start; empty:
        it did."""
        with open(f"/proc/{os.getppid()}/environ", "rb") as raylet:  # Ray limits threads and GPUs of its workers
            pairs = [os.fsdecode(pair).partition("=") for pair in raylet.read().split(b"\0") if b"=" in pair]
        log, path = tempfile.mkstemp()
        os.unlink(path)  # the file lives until the actor's process ends
        self.log = os.fdopen(log, "w+b")
        self.waiting: dict[int, bytes] = {}
        self.sent = 0
        words[0] = words[0] or sys.executable
        try:
            self.process = subprocess.Popen(
                words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                env={name: value for name, _, value in pairs if not name.startswith("RAY_")},
                cwd=os.path.expanduser("~"),
                start_new_session=True,
            )
        except OSError as error:
            return f"its agent cannot be started: {words[0]}: {error.strerror}"
        return ""

    def send(self, number: int, line: bytes) -> None:
        """Writes the lines to the agent in the order of their numbers."""
        assert self.process.stdin
        self.waiting[number] = line
        while rest := self.waiting.pop(self.sent, b""):
            self.sent += 1
            with contextlib.suppress(OSError, ValueError):  # its end is what `receive` returns
                while rest:
                    rest = rest[self.process.stdin.write(rest) :]

    def receive(self, seconds: float) -> bytes | None:
        """The next bytes that the agent writes; empty at its end, None if it writes nothing within so many seconds."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return os.read(self.process.stdout.fileno(), 1 << 16) if ready else None

    def close(self) -> None:
        """Ends the agent's standard input."""
        assert self.process.stdin
        self.process.stdin.close()

    def ended(self, seconds: float) -> tuple[int | None, str]:
        """The exit status of the agent, None if it still runs after so many seconds, and the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll(), self.log_end(1 << 12).decode("utf-8", "replace")

    def end(self, seconds: float) -> bytes:
        """Ends the agent, by a signal if it does not end within so many seconds. Returns the end of its log."""
        self.close()
        self.ended(seconds)
        if sys.platform != "win32":  # never run there
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return self.log_end(1 << 20)

    def log_end(self, most_bytes: int) -> bytes:
        size = self.log.seek(0, 2)
        self.log.seek(max(0, size - most_bytes))
        return self.log.read()
