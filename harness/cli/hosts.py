"""The options that name several hosts in place of this machine, and how their agents are started and looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.measure.cluster.agents import Remotes
    from mixmark.harness.measure.cluster.gather import Gathered
    from mixmark.harness.measure.cluster.launchers import Host, Launcher
    from mixmark.harness.measure.cluster.messages import Look
    from mixmark.harness.plan.phases import Workload


def HOSTS(command: Callable[..., Any]) -> Callable[..., Any]:
    """The three options, as `hosts`, `launcher` and `address`."""
    for option in (
        click.option("--address", metavar="ADDRESS", help="Where a launcher such as ray finds its cluster."),
        click.option(
            "--launcher",
            metavar="NAME",
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
    """The launcher and the hosts that the options name; None where they name none. Raises UsageError."""
    from mixmark.harness.measure.cluster.launchers import choose

    return choose.chosen(hosts, launcher, address) if hosts or launcher or address else None


def gathered(
    several: tuple[Launcher, tuple[Host, ...]], look: Look, workloads: Sequence[Workload], stack: ExitStack
) -> tuple[Remotes, Gathered]:
    """Starts the agents, which live as long as the stack, and asks what they have; says which hosts take no part.
    Raises MixmarkError where none does."""
    import tempfile

    from mixmark.harness.measure.cluster.agents import Remotes
    from mixmark.harness.measure.cluster.gather import gather

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-"))
    remotes = stack.enter_context(Remotes(*several, Path(scratch)))
    found = gather(remotes, several[1], look, workloads)
    for each in found.refused:
        click.echo(f"mixmark: {each.label} takes no part: {plain(each.reason)}", err=True)
    return remotes, found
