"""The command that runs on each host of a run with several hosts."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import click

from harness.cli.options import CONFIG


@click.command(hidden=True)
@click.option(
    "--connect", metavar="ADDRESS:PORT", help="Speak over a socket to this address, not over stdin and stdout."
)
@click.option(
    "--name", default="host", metavar="NAME", help="The name of this host, which is said on that socket first."
)
@click.option("--cores", metavar="0-3,8", help="Use these hardware threads only.")
@CONFIG
def agent(connect: str | None, name: str, cores: str | None, config: Path | None) -> None:
    """Measure on this host for a run that another process leads. `mixmark run --hosts` starts it on each host.

    It reads the secret of the run from standard input, and ends when the process that leads the run does.
    """
    if cores:
        os.sched_setaffinity(0, numbers(cores))  # before numpy is loaded, which starts threads
    from harness import config as configuration
    from harness.cluster.agent import Agent
    from harness.errors import UsageError
    from harness.launchers.listener import call
    from harness.link import Link, Pipes, Stranger, take_secret

    stream: Pipes | socket.socket = Pipes.standard()
    try:
        secret = take_secret(stream)
    except ValueError as error:
        raise UsageError(str(error), "`mixmark run --hosts` starts agents; nobody has to") from error
    try:
        if connect:
            stream = call(connect, name)
        link = Link(stream, secret, "agent")
    except (OSError, ValueError, Stranger) as error:
        raise UsageError(f"the process that leads the run was not reached: {error}") from error
    configured = configuration.load(config)
    Agent(link, secret, configured, Path(tempfile.mkdtemp(prefix="mixmark-agent-"))).serve()


def numbers(cores: str) -> set[int]:
    """The hardware threads of a list such as 0-3,8. Raises UsageError."""
    from harness.errors import UsageError

    found: set[int] = set()
    for part in cores.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"--cores {cores!r} is no list of hardware threads", "give it as 0-3,8")
        found |= set(range(int(first), int(last or first) + 1))
    return found
