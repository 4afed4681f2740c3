"""How the agent of each host is started: one module and one class with the shape of `Launcher` for each way.

`mixmark agent` is the same program everywhere. It reads one line from its standard input, the secret of the run in
hexadecimal, and then speaks to the process that leads the run over one authenticated stream
(`measure.cluster.link`): over its own standard input and output, or with `--connect ADDRESS:PORT` over a socket that it
opens to the leading host, on which it first says its name. Its log goes to its standard error.

A launcher starts the agents before anything is measured and ends them afterwards. Nothing of it runs in a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from mixmark.harness.measure.cluster.link import Link


@dataclass(frozen=True)
class Host:
    """A host of a run, as hosts.toml or the command line names it."""

    name: str
    """What its devices are named with: `host1` in `host1/cpu:0`."""
    address: str = ""
    """Where its launcher finds it, e.g. `user@machine` for ssh. It appears in no result."""
    python: str = ""
    """The interpreter there in which Mixmark is installed. Empty: the launcher's default."""
    config: str = ""
    """The path there of its mixmark.toml. Empty: as `mixmark run` finds it there."""
    cores: tuple[int, ...] = ()
    """The hardware threads that the agent and all its workers are pinned to. Empty: all."""


class Started(Protocol):
    """An agent that was started and has proved that it knows the secret."""

    link: Link
    """The stream to it. Who holds the agent uses it; the launcher closes it in the end."""

    def ended(self) -> str:
        """Why its process is gone, with the last line of its log; empty while it runs or where nobody can tell."""


class Launcher(Protocol):
    """Starts the agents on the hosts of a run. Leaving the block ends them all, whatever they do."""

    def __enter__(self) -> Launcher: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, hosts: Sequence[Host], secret: bytes, logs: Path) -> Mapping[str, Started | str]:
        """Starts all agents at once, greets them, and returns for each host its agent, or why there is none in words
        that help.

        logs: the folder that gets the standard error of each agent as `<name>.log`. A host that cannot be reached costs
        only itself. Raises UsageError where the launcher itself cannot be used: a program or a package is missing."""
