"""How the agent of each host is started: `process` starts them itself or by ssh, Slurm and Ray, and `choose` picks a
launcher.

`mixmark agent` is the same program everywhere. It reads requests from its standard input, writes replies to its
standard output and its log to the standard error, and ends when its standard input does. The engine that starts it
carries these streams: ssh and srun connect them to their own, and `ray_bridge` passes the bytes on in calls of a Ray
actor. Nothing listens on a port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mixmark.harness.contracts.text import Reason


@dataclass(frozen=True)
class Host:
    """A host of a run, as hosts.toml or the command line names it."""

    name: str
    """The prefix of its devices: `host1` in `host1/cpu:0`."""
    address: str = ""
    """Where the launcher finds the host, e.g. `user@machine` for ssh. It appears in no result."""
    python: str = ""
    """The host's interpreter that has Mixmark. Empty means the launcher's default."""
    config: str = ""
    """The path of the host's mixmark.toml. If empty, it is found as `mixmark run` finds it there."""
    cores: tuple[int, ...] = ()
    """The hardware threads that the agent and all its workers are pinned to. Empty means all."""


class Channel(Protocol):
    """The standard streams of an agent, seen from the leading process. One thread sends and one receives."""

    def send(self, line: bytes) -> None:
        """Sends a line. If the agent is gone, `receive` returns the end."""

    def receive(self) -> bytes:
        """Waits for the next bytes; empty at the end of the stream."""

    def close(self) -> None:
        """Ends both streams, and with its standard input the agent. `receive` returns the end soon."""

    def why_ended(self) -> Reason | None:
        """How the agent ended, with the last line of its log; None if not known. To be called by the receiving thread,
        once `receive` has returned the end."""


Launcher = Callable[[Sequence[Host], Path], AbstractContextManager[Mapping[str, Channel | Reason]]]
"""Starts all agents at once. Yields by host the channel to its agent, or why it was not started; a host that cannot be
reached costs only itself. Leaving the block ends all agents, whatever they do.

Its arguments are the hosts, and the folder that gets the standard error of each agent as `<name>.log`. It raises
UsageError if the launcher itself cannot be used: a program or a package is missing."""


def command(host: Host, python: str) -> list[str]:
    """The command line of a host's agent. python: the interpreter if the host names none."""
    words = [host.python or python, "-P", "-m", "mixmark", "agent", "--name", host.name]
    words += ["--config", host.config] if host.config else []
    return words + (["--cores", ",".join(map(str, host.cores))] if host.cores else [])
