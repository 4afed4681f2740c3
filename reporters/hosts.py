"""The hosts of a run for a reader: what they are, their clocks and traffic."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.schema import Hosts, Result, System
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.reporters import figures
from mixmark.reporters.document import Table
from mixmark.reporters.figures import UNKNOWN

MOST = 12  # hosts that a table lists; the others are in the JSON
YES_OR_NO = {True: "yes", False: "NO", None: "not known"}


def subject(result: Result) -> str:
    """The subject of the sentence that says what was measured."""
    hosts, machines = len(result.systems), sum(group.count for group in result.groups)
    if hosts == 1 or machines == 1:
        return "This machine" if hosts == 1 else f"This machine, as {hosts} hosts,"
    return f"This cluster of {hosts} hosts" + ("" if machines == hosts else f" on {machines} machines")


def label(group: Hosts) -> str:
    """`2 hosts: host1, host2`, and `on 1 machine` if they share it; `machine` for the machine that led its own run."""
    names = [name for name in group.names if name]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    shared = "" if group.machines is None else f" on {figures.counted(group.machines, 'machine')}"
    return f"{figures.counted(len(names), 'host')}{shared}: {', '.join(names[:MOST])}{more}" if names else "machine"


def described(system: System) -> str:
    """Acme Quartz · 32 threads · 64.0 GiB · Example Linux 12 · 6.12.0 x86_64."""
    memory = None if system.memory_bytes is None else figures.gibibytes(system.memory_bytes)
    threads = None if system.cpu_threads is None else figures.counted(system.cpu_threads, "thread")
    parts = (system.cpu_model, threads, system.quota_in_words, memory, system.operating_system, system.kernel)
    return " · ".join(figures.name(part) for part in (*parts, system.virtualization, system.container) if part)


def facts(run: ScoredRun) -> Iterator[tuple[str, str]]:
    """How well the clocks of the hosts were known, and whether the run was self-contained."""
    if run.traffic:
        longer = figures.duration(2 * run.clock_bound_ns)
        known = f"known to ±{figures.duration(run.clock_bound_ns)}; the window is counted {longer} longer for it"
        yield "clocks", known
        yield "traffic", _traffic(run)


def _traffic(run: ScoredRun) -> str:
    outside = sum(traffic.outside_bytes for traffic in run.traffic)
    agents = sum(traffic.agent_bytes for traffic in run.traffic)
    answers = {traffic.self_contained for traffic in run.traffic}
    known = "self-contained" if None not in answers else "self-contained as far as known"
    conclusion = "not self-contained" if False in answers else known
    return f"{figures.prefixed(outside, 'B')} beside the agents' own {figures.prefixed(agents, 'B')}: {conclusion}"


def table(run: ScoredRun) -> Table:
    """The hosts with the most other traffic."""
    rows = [
        (
            traffic.host,
            figures.prefixed(traffic.agent_bytes, "B"),
            figures.prefixed(traffic.outside_bytes, "B") if traffic.seconds else UNKNOWN,
            figures.prefixed(traffic.outside_per_s, "B/s") if traffic.seconds else UNKNOWN,
            YES_OR_NO[traffic.self_contained],
        )
        for traffic in sorted(run.traffic, key=lambda traffic: -traffic.outside_per_s)[:MOST]
    ]
    return Table("Hosts", ("host", "its agent", "other traffic", "a second", "self-contained"), rows)
