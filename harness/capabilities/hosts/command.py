"""The hidden command that an agent is."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from mixmark.harness.cli.options import CONFIG


@click.command(hidden=True)
@click.option(
    "--name", default="host", metavar="NAME", help="The name of this host, to be seen in a list of processes."
)
@click.option("--cores", metavar="0,1,8", help="Use these hardware threads only.")
@CONFIG
def agent(name: str, cores: str | None, config: Path | None) -> None:
    """Measure on this host for a run that another process leads. `mixmark run --hosts` starts it on each host.

    It reads requests from standard input and writes replies to standard output; it ends with its standard input.
    """
    from mixmark.harness.contracts.errors import UsageError

    if os.isatty(0):
        raise UsageError("mixmark agent speaks to a program", hint="`mixmark run --hosts` starts agents")
    if cores:
        _pin(cores)  # before numpy is loaded, which starts threads
    from mixmark.harness.capabilities.hosts.streams import Pipes

    pipes = Pipes.standard()  # before libraries are loaded, which may print
    from mixmark.harness.capabilities.hosts.agent import Agent

    Agent(pipes, config, Path(tempfile.mkdtemp(prefix="mixmark-agent-"))).serve()


def _pin(cores: str) -> None:
    """Pins this process to hardware threads, given as in 0,1,8. Raises UsageError."""
    import psutil

    from mixmark.harness.contracts.errors import UsageError

    if sys.platform == "darwin":
        raise UsageError("macOS pins no process to hardware threads", hint="omit cores = … of this host")
    try:
        psutil.Process().cpu_affinity([int(core) for core in cores.split(",")])
    except (ValueError, OSError, OverflowError) as error:
        raise UsageError(f"this machine pins no process to the hardware threads {cores}: {error}") from error
