"""Several hosts in place of this machine: the options that name them, the start of their agents, and the hidden command
that an agent is."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli import complete
from mixmark.harness.cli.options import CONFIG
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.measure.cluster.agents import Agents
    from mixmark.harness.measure.cluster.gather import Gathered
    from mixmark.harness.measure.cluster.launchers import Host, Launcher
    from mixmark.harness.measure.cluster.messages import HostQuery
    from mixmark.harness.plan.phases import Workload


def HOSTS(command: Callable[..., Any]) -> Callable[..., Any]:
    """The three options, as `hosts`, `launcher` and `address`."""
    for option in (
        click.option("--address", metavar="ADDRESS", help="Where a launcher such as ray finds its cluster."),
        click.option(
            "--launcher",
            metavar="NAME",
            shell_complete=complete.LAUNCHER,
            help="What starts an agent on each host: local, ssh, slurm or ray.  [default: local]",
        ),
        click.option(
            "--hosts",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Use the hosts that this file lists, in place of this machine.",
        ),
    ):
        command = option(command)
    return command


def named(hosts: Path | None, launcher: str | None, address: str | None) -> tuple[Launcher, tuple[Host, ...]] | None:
    """The launcher and the hosts that the options name; None without one of them. Raises UsageError."""
    from mixmark.harness.measure.cluster.launchers.choose import choose

    return choose(hosts, launcher, address) if hosts or launcher or address else None


def gathered(
    several: tuple[Launcher, tuple[Host, ...]],
    request: HostQuery,
    workloads: Sequence[Workload],
    stack: ExitStack,
) -> tuple[Agents, Gathered]:
    """Starts the agents, which live as long as the stack, and asks them to describe their hosts. Prints which hosts
    take no part. Raises MixmarkError if none does."""
    from mixmark.harness.measure.cluster.agents import Agents
    from mixmark.harness.measure.cluster.gather import gather

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-"))
    agents = stack.enter_context(Agents(*several, Path(scratch)))
    found = gather(agents, several[1], request, workloads)
    for host in found.refused:
        click.echo(f"mixmark: {host.label} takes no part: {plain(host.reason)}", err=True)
    return agents, found


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
    from mixmark.harness.measure.cluster.streams import Pipes

    pipes = Pipes.standard()  # before libraries are loaded, which may print
    from mixmark.harness.measure.cluster.agent import Agent

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
