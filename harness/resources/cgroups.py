"""The control groups that this process is in, version 2 or 1, and the limits that they set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.resources.files import integer, line, text

MOUNTS = "proc/self/mountinfo"
RECLAIMABLE = "inactive_file|active_file|slab_reclaimable"  # the last of version 2 only
LIMITS = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.weight", "cpu.shares"),
    "memory": ("memory.max", "memory.high", "memory.swap.max", "memory.limit_in_bytes"),
    "cpuset": ("cpuset.cpus.effective", "cpuset.mems.effective", "cpuset.cpus", "cpuset.mems"),
}


def folders(root: Path, controller: str) -> Iterator[Path]:
    """The folder of this process's group, then the folders of the groups that contain it."""
    mounts = re.findall(r"^(?:\S+ ){4}(\S+) .*- (cgroup2?) \S+ (\S+)$", text(root / MOUNTS), re.MULTILINE)
    for row in text(root / "proc/self/cgroup").splitlines():
        number, _, rest = row.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            usual = "sys/fs/cgroup"
            found = [path for path, kind, _ in mounts if kind == "cgroup2"]
        elif controller in controllers.split(","):
            usual = f"sys/fs/cgroup/{controller}"
            found = [path for path, kind, options in mounts if kind == "cgroup" and controller in options.split(",")]
        else:
            continue
        top = root / (usual if not found or f"/{usual}" in found else found[0].lstrip("/"))
        # In a container the path may be the host's, or climb out by "..": a file that does not exist reads as unknown.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def limits(root: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each limit. If several groups set one, the group nearest to this process counts."""
    for controller, names in LIMITS.items():
        groups = list(folders(root, controller))
        for name in names:
            if limit := next((found for folder in groups if (found := line(folder / name))), None):
                yield name, limit


def memory_limits(root: Path) -> Iterator[int]:
    """The memory limits of every group in bytes; above memory.high the kernel all but stops a group."""
    for folder in folders(root, "memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            if limit := integer(folder / name):
                yield limit


def memory_headrooms(root: Path) -> Iterator[int]:
    """How many bytes every group may still allocate. Page cache that the kernel can drop does not count as used."""
    for folder in folders(root, "memory"):
        for limit_name, used_name, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.high", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit, used = integer(folder / limit_name), integer(folder / used_name)
            if limit is None or used is None:
                continue
            stat = text(folder / "memory.stat")
            caches = re.findall(rf"^{prefix}(?:{RECLAIMABLE}) (\d+)$", stat, re.MULTILINE | re.ASCII)
            yield min(limit, limit - used + sum(map(int, caches)))


@dataclass(frozen=True)
class CpuQuota:
    """A limit on the CPU time of a control group."""

    cpus: float
    """How many CPUs' worth of time the group may use."""
    file: Path
    """The file that holds the limit."""
    none: str
    """What to write to the file to lift the limit."""


def cpu_quota(folder: Path) -> CpuQuota | None:
    """The quota of the group with this folder; None if it has none."""
    if found := re.fullmatch(r"(\d+) ([1-9]\d*)", line(folder / "cpu.max") or "", re.ASCII):
        return CpuQuota(int(found[1]) / int(found[2]), folder / "cpu.max", "max")
    quota, period = line(folder / "cpu.cfs_quota_us") or "", line(folder / "cpu.cfs_period_us") or ""
    if re.fullmatch(r"\d+", quota, re.ASCII) and re.fullmatch(r"[1-9]\d*", period, re.ASCII):
        return CpuQuota(int(quota) / int(period), folder / "cpu.cfs_quota_us", "-1")
    return None
