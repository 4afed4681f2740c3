"""Where a worker's process runs, and how its parent reaches it: on the machine of the parent, which starts it by
`local`. On another machine of a run the parent is that machine's agent: see `measure.cluster.launchers`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """A worker's process and the private pair of byte streams to it. One thread at a time sends, one receives."""

    @property
    def pid(self) -> int: ...

    def send(self, line: bytes) -> None:
        """Raises BrokenPipeError where the process is gone."""

    def receive(self, timeout_s: float) -> bytes | None:
        """The bytes that came next; empty at the end of the stream, None where none came in time."""

    def kill(self) -> None:
        """Ends the process and its process group, and waits for it. Harmless where it is gone."""

    def wait(self) -> int:
        """Waits for the end, and kills the process where that does not come soon. Returns the exit status, or the
        negative number of the signal that killed it."""

    def memory_bytes(self) -> int:
        """The proportional set size of the process and its descendants, now; 0 where it cannot be read."""

    def out_of_memory(self) -> bool:
        """Whether its machine's kernel has killed a process for want of memory since this one was started."""

    def close(self, spared: Collection[int] = ()) -> tuple[str, ...]:
        """Kills it and whatever it left behind outside of its process group, and gives back the streams.

        spared: the ids of processes that are left alone. Returns the names of the processes that were left behind.
        """


class Host(Protocol):
    """The machine that workers run on. It is the parent's: both have the same files and the same clock."""

    def start(
        self,
        python: str,
        code: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
        helps: bool = False,
    ) -> Process:
        """Runs `python -c code CHANNEL arguments…`; CHANNEL is the file descriptor of the socket that the process reads
        its requests from and writes its answers to.

        variables: added to its environment; isolated: they are its whole environment, and the interpreter runs no site
        hooks (`-I -S`). log: the file that stdout and stderr are appended to. helps: it works for the harness itself,
        beside the workers of a run: what it leaves behind is not taken for theirs. Raises OSError where it cannot be
        started.
        """
