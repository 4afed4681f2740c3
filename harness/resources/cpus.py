"""The processors that this process may use: its affinity, the cores that its threads share, and its CPU quota.

A quota limits CPU time and no thread: a process that starts a thread for each CPU that it sees uses the quota up early
in each period, and then all its threads stand still, also while others spin for them. So at most as many threads as
whole CPUs of the quota are worth starting.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import psutil

from mixmark.harness.resources import cgroups
from mixmark.harness.resources.cgroups import CpuQuota
from mixmark.harness.resources.files import ROOT, line, text
from mixmark.harness.resources.psutils import known

CPUS = "sys/devices/system/cpu"
SIBLINGS = ("core_cpus_list", "thread_siblings_list")  # the first since Linux 5.3


def usable() -> tuple[int, ...]:
    """The hardware threads that this process may run on, by its affinity; all that are online if the system has no
    affinity."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    affinity = getattr(psutil.Process(), "cpu_affinity", None)  # Windows
    return tuple(affinity()) if affinity else tuple(range(psutil.cpu_count() or 1))


def restricted(root: Path = ROOT) -> frozenset[int] | None:
    """The hardware threads that this process may run on; None if the kernel counts the time of no other. A container's
    own view of /proc/cpuinfo does not tell: /proc/stat may hold the CPUs of the host."""
    mine = frozenset(usable())
    return None if mine.issuperset(time_rows(root)) else mine


def time_rows(root: Path = ROOT) -> dict[int, str]:
    """The times of each CPU, as /proc/stat counts them."""
    rows = re.findall(r"^cpu(\d+) (.*)$", text(root / "proc/stat"), re.MULTILINE | re.ASCII)
    return {int(cpu): row for cpu, row in rows}


def quota(root: Path = ROOT) -> CpuQuota | None:
    """The tightest quota of this process's control group and the groups above it. None if there is none below the
    threads that this process may run on."""
    found = filter(None, map(cgroups.cpu_quota, cgroups.folders(root, "cpu")))
    tightest = min(found, key=lambda each: each.cpus, default=None)
    return tightest if tightest and tightest.cpus < len(usable()) else None


def count(root: Path = ROOT) -> int:
    """How many threads this process can keep busy: its hardware threads, or the whole CPUs of its quota; at least 1."""
    return _within_quota(len(usable()), root)


def cores(root: Path = ROOT) -> int:
    """How many physical cores this process can keep busy; at least 1."""
    mine = usable()
    if all(core_of(thread, root) for thread in mine):
        return _within_quota(len(by_core(mine, root)), root)
    return _within_quota(min(len(mine), known(lambda: psutil.cpu_count(logical=False), None) or len(mine)), root)


def thread_variables(pinned: int = 0) -> dict[str, str]:
    """The environment of a process that starts a thread for each CPU that it sees. Empty without a quota: the libraries
    then know best. pinned: to how many hardware threads the process is pinned; 0: it is not."""
    if quota() is None or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(min(cores(), pinned or cores()))}


def core_of(thread: int, root: Path = ROOT) -> tuple[int, ...]:
    """The hardware threads of a thread's core; empty if the kernel does not report them. A core_id is unique only in
    its cluster."""
    folder = root / CPUS / f"cpu{thread}/topology"
    return listed(next(filter(None, (line(folder / name) for name in SIBLINGS)), ""))


def by_core(threads: Iterable[int], root: Path = ROOT) -> list[tuple[int, ...]]:
    """The threads that share a core together, ordered. A thread whose core is not reported is one by itself."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for thread in threads:
        found[core_of(thread, root) or (thread,)].append(thread)
    return sorted(map(tuple, found.values()))


def listed(ranges: str) -> tuple[int, ...]:
    """The numbers of a list as the kernel writes it, e.g. 0-3,8."""
    pairs = [each.partition("-") for each in ranges.split(",") if each.strip()]
    return tuple(thread for low, _, high in pairs for thread in range(int(low), int(high or low) + 1))


def _within_quota(threads: int, root: Path) -> int:
    limit = quota(root)
    return max(1, min(threads, int(limit.cpus))) if limit else threads
