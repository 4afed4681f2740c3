"""The command that runs on each host of a run with several hosts."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import click

from mixmark.harness.cli.options import CONFIG

LAST_CORE = 65535


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
    from mixmark.harness.contracts.errors import UsageError

    if not connect and os.isatty(0):
        raise UsageError("mixmark agent speaks to a program", hint="`mixmark run --hosts` starts agents; nobody has to")
    if cores:
        _pin(cores)  # before numpy is loaded, which starts threads
    from mixmark.harness.measure.cluster.agent import Agent
    from mixmark.harness.measure.cluster.launchers.listener import call
    from mixmark.harness.measure.cluster.link import Link, Pipes, Stranger, take_secret

    stream: Pipes | socket.socket = Pipes.standard()
    try:
        secret = take_secret(stream)
    except ValueError as error:
        raise UsageError(str(error), "`mixmark run --hosts` starts agents; nobody has to") from error
    try:
        if connect:
            stream = call(connect, name)
        link = Link(stream, secret, "agent")
    except (OSError, ValueError, Stranger) as error:  # without its address, which a result could show as a reason
        told = getattr(error, "strerror", None) or error
        raise UsageError(f"the process that leads the run was not reached: {told}") from error
    Agent(link, secret, config, Path(tempfile.mkdtemp(prefix="mixmark-agent-"))).serve()


def _pin(cores: str) -> None:
    """Pins this process. Raises UsageError."""
    from mixmark.harness.contracts.errors import UsageError

    chosen = numbers(cores)
    try:
        os.sched_setaffinity(0, chosen)
    except (AttributeError, OSError, OverflowError) as error:
        raise UsageError(f"this machine pins no process to the hardware threads {cores}: {error}") from error


def numbers(cores: str) -> set[int]:
    """The hardware threads of a list such as 0-3,8. Raises UsageError."""
    from mixmark.harness.contracts.errors import UsageError

    found: set[int] = set()
    for part in cores.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"--cores {cores!r} is no list of hardware threads", "give it as 0-3,8")
        if int(last or first) < int(first) or int(last or first) > LAST_CORE:
            raise UsageError(f"--cores {cores!r} is no list of hardware threads", "give it as 0-3,8")
        found |= set(range(int(first), int(last or first) + 1))
    return found
