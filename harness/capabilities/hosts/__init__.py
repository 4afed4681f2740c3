"""A run over several hosts: one leading process, and an agent on each host that measures the devices there.

`agent` is the program on each host: it finds devices, starts workers, reads meters and dispatches its own feeds, with
the code that measures a run of one host. In the leading process, `launchers` start the agents, `agents` exchanges
`messages` with them, `gather` joins the descriptions of their hosts, and `executor` measures phases on them. The rest
of the code sees one machine with many devices. `names` translates ids and timestamps between a host and the run.

In the window of a mix neither a feed nor a call per feed crosses the network: every two seconds each host reports its
progress and gets a grant (`coordinator`), and every second a ping of a few bytes tracks its clock (`clocks`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.executors import Machines

if TYPE_CHECKING:
    from mixmark.harness.capabilities.hosts.agents import Agents
    from mixmark.harness.capabilities.hosts.gather import Gathered
    from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
    from mixmark.harness.capabilities.hosts.messages import HostQuery
    from mixmark.harness.machine.devices import Found
    from mixmark.harness.measure.executor import Executor
    from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
    from mixmark.harness.plan.phases import Workload


class SeveralHosts(Machines):
    options = (
        click.Option(
            ["--hosts"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Use the hosts that this file lists, in place of this machine.",
        ),
        click.Option(
            ["--launcher"],
            type=click.Choice(("local", "ssh", "slurm", "ray")),
            help="What starts an agent on each host.  [default: local]",
        ),
        click.Option(
            ["--address"], metavar="ADDRESS", hide_input=True, help="Where a launcher such as ray finds its cluster."
        ),
    )

    @cached_property
    def _chosen(self) -> tuple[Launcher, tuple[Host, ...]]:
        from mixmark.harness.capabilities.hosts.launchers.choose import choose

        return choose(**self.given)

    def check(self) -> None:
        _ = self._chosen

    def find_devices(self, adapters: Sequence[str], stack: ExitStack) -> Found:
        from mixmark.harness.capabilities.hosts.messages import HostQuery

        return self._gathered(HostQuery(adapters=tuple(adapters)), (), stack)[1].found

    def open(self, run: PreparedRun, stack: ExitStack) -> MeasuredMachine:
        from mixmark.harness.capabilities.hosts.executor import Cluster
        from mixmark.harness.capabilities.hosts.messages import HostQuery
        from mixmark.harness.machine.setup import Workbench
        from mixmark.harness.measure.request import MeasuredMachine

        request = run.request
        query = HostQuery(
            adapters=request.adapters,
            tier=request.tier,
            weights=tuple(
                f"{name}={each['weights']}" for name, each in run.suites.options.items() if "weights" in each
            ),
            split_cpu=request.split_cpu,
            seed=request.seed,
            timeout_s=request.timeout_s,
            measures=True,
        )
        agents, gathered = self._gathered(query, run.workloads, stack)
        bench = Workbench(run.config, {}, run.suites, gathered.found, gathered.hosts)
        units = {name: suite.unit for name, suite in run.suites.facts.items()}

        def executor(folder: Path, experiments: Mapping[str, Mapping[str, Any]]) -> Executor:
            return Cluster(agents, gathered.domains, units, folder, gathered.neighbours)

        return MeasuredMachine(bench, gathered.found.devices, gathered.domains, (), executor)

    def _gathered(self, query: HostQuery, workloads: Sequence[Workload], stack: ExitStack) -> tuple[Agents, Gathered]:
        """Starts the agents, which live as long as the stack, and asks them to describe their hosts. Prints which hosts
        take no part."""
        from mixmark.harness.capabilities.hosts.agents import Agents
        from mixmark.harness.capabilities.hosts.gather import gather

        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-"))
        agents = stack.enter_context(Agents(*self._chosen, Path(scratch)))
        found = gather(agents, self._chosen[1], query, workloads)
        for host in (each for each in found.found.absent if each.kind == "host"):
            click.echo(f"mixmark: {host.label} takes no part: {plain(host.reason)}", err=True)
        return agents, found
