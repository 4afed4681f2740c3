"""The cost of several hosts: one mix over two agents on this machine, and over `--split-cpu 2` without agents, in turn.

Run: python -m bench.capabilities.hosts [PAIRS] [SECONDS] [TIER]    (5 30 smoke)

Both have the same routes, plan and cores and differ only in the dispatch. The goal for agents is at least 0.99 of the
rate without agents. Then the agents rest for 30 s; the goal is at most 0.5 % of a core each.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import psutil

from mixmark.harness.capabilities.hosts import messages
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.executor import Cluster
from mixmark.harness.capabilities.hosts.gather import gather
from mixmark.harness.capabilities.hosts.launchers import Host
from mixmark.harness.capabilities.hosts.launchers.process import AgentProcess, local
from mixmark.harness.contracts.schema import Phase, Record, Result, Tier
from mixmark.harness.machine import cpu_slices, setup
from mixmark.harness.machine.config import Config
from mixmark.harness.measure.executor import Executor, PhaseRequest
from mixmark.harness.measure.local_executor import LocalExecutor
from mixmark.harness.measure.metering import metered
from mixmark.harness.record import store

ADAPTER = "torch"
REST_S = 30.0
TIMEOUT_S = 600.0


def mixes_per_hour(executor: Executor, phase: Phase, before: Result) -> float:
    """Measures a phase of the mix. All units that were finished in the window count, audited or not."""
    records: list[Record] = []
    for facts in executor.measure([PhaseRequest(phase, 0, before.mix, before.devices)], lambda event: None):
        records += facts.records
    failed = [str(record.error) for record in records if record.error]
    if failed:
        sys.exit("\n".join(failed))
    begin_ns = min(record.parent_window_ns[0] for record in records if record.parent_window_ns)
    end_ns = max(record.parent_window_ns[1] for record in records if record.parent_window_ns)
    assert before.mix is not None
    units = dict.fromkeys(before.mix.units, 0)
    for record in records:
        if (done := record.completions) is not None:
            units[record.route.suite] += int(done.units[done.yielded_ns <= end_ns].sum())
    return min(units[suite] / count for suite, count in before.mix.units.items()) / (end_ns - begin_ns) * 1e9


def main() -> None:
    pairs, seconds, tier = (*sys.argv[1:], *("5", "30", "smoke")[len(sys.argv) - 1 :])
    cores = cpu_slices.cut("2", cpu_slices.usable())
    hosts = tuple(Host(f"host{number}", cores=each) for number, each in enumerate(cores))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mixmark-")))
        options = ["--split-cpu", "2", "--adapter", ADAPTER, "--tier", tier, "--out", str(folder / "alone")]
        subprocess.run([sys.executable, "-m", "mixmark", "run", *options], check=True, stdout=subprocess.DEVNULL)
        before = store.open(folder / "alone")
        (phase,) = [each for each in before.phases if each.placement]
        window_ns = int(float(seconds) * 1e9)
        for share in phase.shares:
            limits = share.limits.model_copy(update={"min_ns": window_ns, "max_ns": window_ns})
            phase = Phase.model_validate_json(
                phase.model_dump_json().replace(share.limits.model_dump_json(), limits.model_dump_json())
            )
        suites = setup.load_suites(Config(), cast(Tier, tier))
        bench = setup.prepare(Config(), suites, [ADAPTER], "2")
        meters = stack.enter_context(metered(bench.found.devices, [ADAPTER], Config()))
        here = LocalExecutor(bench.equipment(None, TIMEOUT_S), folder / "alone", meters)
        agents = stack.enter_context(Agents(local(), hosts, folder / "agents"))
        request = messages.HostQuery(adapters=(ADAPTER,), tier=cast(Tier, tier), timeout_s=TIMEOUT_S, measures=True)
        found = gather(agents, hosts, request, suites.workloads)
        (folder / "cluster" / "raw").mkdir(parents=True)
        units = {name: each.unit for name, each in suites.facts.items()}
        cluster = Cluster(agents, found.domains, units, folder / "cluster", found.neighbours)
        text = phase.model_dump_json()
        for number, host in enumerate(hosts):
            text = text.replace(f'"cpu:0.{number}"', f'"{host.name}/cpu:0"')
        there = before.model_copy(update={"devices": found.found.devices})
        ratios = []
        for _ in range(int(pairs)):
            alone = mixes_per_hour(here, phase, before)
            together = mixes_per_hour(cluster, Phase.model_validate_json(text), there)
            ratios.append(together / alone)
            print(f"  without agents {alone:8.3f} mixes/s   over two agents {together:8.3f} mixes/s", flush=True)
        print(
            f"{tier}, {seconds} s: {statistics.median(ratios):.4f} of the run without agents, median of {pairs} "
            f"(from {min(ratios):.4f} to {max(ratios):.4f}; goal ≥ 0.99)"
        )
        processes = [psutil.Process(cast(AgentProcess, agents[host.name].channel).pid) for host in hosts]
        spent_s = [sum(process.cpu_times()[:2]) for process in processes]
        begin_s = time.monotonic()
        for _ in agents.received(begin_s + REST_S):
            pass
        shares = [
            (sum(process.cpu_times()[:2]) - before_s) / (time.monotonic() - begin_s)
            for process, before_s in zip(processes, spent_s, strict=True)
        ]
        print(f"an agent at rest takes {max(shares):.2%} of a core at most (goal ≤ 0.5 %)")


if __name__ == "__main__":
    main()
