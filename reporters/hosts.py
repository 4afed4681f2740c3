"""The hosts of a run for a reader."""

from __future__ import annotations

from mixmark.harness.contracts.schema import Hosts, Result, System
from mixmark.reporters import figures

MOST = 12  # hosts that are named; the others are in the JSON


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
