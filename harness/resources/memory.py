"""How much memory the host has, and how much of it can still be allocated."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import psutil

from mixmark.harness.resources import cgroups
from mixmark.harness.resources.cpus import listed
from mixmark.harness.resources.files import ROOT, table
from mixmark.harness.resources.psutils import known

NODES = "sys/devices/system/node"


def total_bytes(root: Path = ROOT) -> int | None:
    """The machine's memory, or if that is less the memory of the NUMA nodes that this process may use or the limit of
    the tightest control group; None if not known."""
    limits = (installed_bytes(root), _of_nodes(root, "MemTotal"), *cgroups.memory_limits(root))
    return min((limit for limit in limits if limit and limit > 0), default=None)


def available_bytes(root: Path = ROOT) -> int:
    """The memory that can still be allocated without swapping, on the NUMA nodes and within the limits of the control
    groups of this process."""
    available = _bytes(table(root / "proc/meminfo").get("MemAvailable"))
    if available is None:
        available = known(lambda: int(psutil.virtual_memory().available), 0)
        if not available and sys.platform != "win32":
            available = known(lambda: os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0)
    if (on_nodes := _of_nodes(root, "MemFree", "Inactive(file)", "Active(file)", "SReclaimable")) is not None:
        available = min(available, on_nodes)
    return max(0, min((available, *cgroups.memory_headrooms(root))))


def installed_bytes(root: Path = ROOT) -> int | None:
    """The machine's memory; None if not known."""
    found = _bytes(table(root / "proc/meminfo").get("MemTotal"))
    return known(lambda: int(psutil.virtual_memory().total), None) if found is None and root == ROOT else found


def swap_bytes(root: Path = ROOT) -> int | None:
    """The size of all swap areas; None if the kernel does not report it."""
    return _bytes(table(root / "proc/meminfo").get("SwapTotal"))


def _of_nodes(root: Path, *names: str) -> int | None:
    """The sum of these lines over the NUMA nodes that this process may use; None if it may use all."""
    allowed = set(listed(table(root / "proc/self/status").get("Mems_allowed_list", "")))
    nodes = {int(node.name[4:]): table(node / "meminfo") for node in (root / NODES).glob("node[0-9]*")}
    if not allowed or nodes.keys() <= allowed:
        return None
    return sum(_bytes(nodes[node].get(f"Node {node} {name}")) or 0 for node in nodes.keys() & allowed for name in names)


def _bytes(kibibytes: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,15}) kB", kibibytes or "", re.ASCII)
    return int(found[1]) * 1024 if found else None
