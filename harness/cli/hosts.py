"""The options that name several hosts in place of this machine, and the start of their agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli import complete
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
    import tempfile

    from mixmark.harness.measure.cluster.agents import Agents
    from mixmark.harness.measure.cluster.gather import gather

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-"))
    agents = stack.enter_context(Agents(*several, Path(scratch)))
    found = gather(agents, several[1], request, workloads)
    for host in found.refused:
        click.echo(f"mixmark: {host.label} takes no part: {plain(host.reason)}", err=True)
    return agents, found
