"""How much memory the host has, and how much of it can still be allocated."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from mixmark.harness.resources import cgroups
from mixmark.harness.resources.files import ROOT, table


def total_bytes(root: Path = ROOT) -> int | None:
    """The machine's memory, or the limit of the tightest control group if that is less; None if not known."""
    total = installed_bytes(root)
    if total is None and root == ROOT:
        total = int(psutil.virtual_memory().total)
    return min((limit for limit in (total, *cgroups.memory_limits(root)) if limit and limit > 0), default=None)


def available_bytes(root: Path = ROOT) -> int:
    """The memory that can still be allocated without swapping, within the limits of this process's control groups."""
    available = _bytes(table(root / "proc/meminfo").get("MemAvailable"))
    if available is None:
        available = int(psutil.virtual_memory().available)
    return max(0, min((available, *cgroups.memory_headrooms(root))))


def installed_bytes(root: Path = ROOT) -> int | None:
    """The machine's memory as the kernel reports it; None if it does not."""
    return _bytes(table(root / "proc/meminfo").get("MemTotal"))


def swap_bytes(root: Path = ROOT) -> int | None:
    """The size of all swap areas; None if the kernel does not report it."""
    return _bytes(table(root / "proc/meminfo").get("SwapTotal"))


def _bytes(kibibytes: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,15}) kB", kibibytes or "", re.ASCII)
    return int(found[1]) * 1024 if found else None
