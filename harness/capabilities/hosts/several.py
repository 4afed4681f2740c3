"""The hosts that the command line names, as the machines of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.executor import Cluster
from mixmark.harness.capabilities.hosts.gather import Gathered, gather
from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
from mixmark.harness.capabilities.hosts.launchers.choose import choose
from mixmark.harness.capabilities.hosts.messages import HostQuery
from mixmark.harness.contracts.text import plain
from mixmark.harness.machine.devices import Found
from mixmark.harness.machine.setup import Workbench
from mixmark.harness.measure.executor import Executor
from mixmark.harness.measure.request import Machines, MeasuredMachine, PreparedRun
from mixmark.harness.plan.phases import Workload


class SeveralHosts(Machines):
    @cached_property
    def _chosen(self) -> tuple[Launcher, tuple[Host, ...]]:
        return choose(**self.given)

    def check(self) -> None:
        _ = self._chosen

    def find_devices(self, adapters: Sequence[str], stack: ExitStack) -> Found:
        return self._gathered(HostQuery(adapters=tuple(adapters)), (), stack)[1].found

    def open(self, run: PreparedRun, stack: ExitStack) -> MeasuredMachine:
        request = run.request
        query = HostQuery(
            adapters=request.adapters,
            tier=request.tier,
            weights=tuple(
                f"{name}={each['weights']}" for name, each in run.suites.options.items() if "weights" in each
            ),
            suites={
                name: dict(each)
                for name, each in run.suites.options.items()
                if "plugin" in each and run.suites.plugins[name].built_in
            },
            files={name: dict(each) for name, each in run.suites.files.items() if each},
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
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-"))
        agents = stack.enter_context(Agents(*self._chosen, Path(scratch)))
        found = gather(agents, self._chosen[1], query, workloads)
        for host in (each for each in found.found.absent if each.kind == "host"):
            click.echo(f"mixmark: {host.label} takes no part: {plain(host.reason)}", err=True)
        return agents, found
