"""Splits the host's CPU into several devices: disjoint sets of cores, each with workers that are pinned to it.

Slices share caches and the memory bus, so they slow each other down; the retained fraction shows by how much.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Device
from mixmark.harness.plan.phases import Target
from mixmark.harness.resources import cpus
from mixmark.harness.resources.cpus import CPUS, listed
from mixmark.harness.resources.files import ROOT, line

BY = ("numa", "type")


def split(targets: Sequence[Target], how: str, root: Path = ROOT) -> tuple[Target, ...]:
    """Replaces each target on the host's CPU by one target for each slice of it.

    how: a number of slices of equally many cores (the first ones may have one more), `numa`, or `type` of core. A group
    or a slice that an adapter made of the CPU itself stays as it is. Raises UsageError if there is nothing to split, no
    target on the CPU, or a quota that the slices would have to share.
    """
    if not any(_is_split(target.device) for target in targets):
        raise UsageError("--split-cpu: no adapter here reaches the CPU", hint="mixmark devices shows what there is")
    threads = usable()
    if limit := cpus.quota(root):
        worth = cpus.count(root)
        raise UsageError(
            f"--split-cpu: this process's {len(threads)} hardware threads share one quota of {limit.cpus:g} CPUs, so "
            "slices of them would stop each other",
            hint=f"taskset -c {ranges(threads[:worth])} leaves as many as the quota allows; or lift the quota",
        )
    slices = cut(how, threads, root)
    made: list[Target] = []
    for target in targets:
        if not _is_split(target.device):
            made.append(target)
            continue
        for number, cores in enumerate(slices):
            id = f"{target.device.id}.{number}"
            made.append(replace(target, device=_slice(target.device, id, cores)))
    return tuple(made)


def _is_split(device: Device) -> bool:
    return device.on_host and not device.parts


def _slice(device: Device, id: str, cores: tuple[int, ...]) -> Device:
    named = f"{device.name}, threads {ranges(cores)}" if device.name else ""
    return device.model_copy(update={"id": id, "name": named, "slice_of": device.id, "cores": cores})


def usable() -> tuple[int, ...]:
    """The hardware threads that this process may run on. Raises UsageError if this system pins no process."""
    if not hasattr(os, "sched_getaffinity"):
        raise UsageError("--split-cpu: this operating system pins no process to cores", hint="run it on Linux")
    return cpus.usable()


def cut(how: str, threads: Sequence[int], root: Path = ROOT) -> list[tuple[int, ...]]:
    """Divides the threads into disjoint sets; the threads of one core stay together. Raises UsageError."""
    if how in BY:
        groups: dict[str, list[int]] = defaultdict(list)
        kinds = _nodes(root) if how == "numa" else _kinds(root)
        for thread in threads:
            groups[kinds.get(thread, "")].append(thread)
        if len(groups) < 2:
            what = "NUMA node" if how == "numa" else "kind of core"
            raise UsageError(f"--split-cpu {how}: this machine has one {what}", hint="give a number of slices")
        return [tuple(group) for _, group in sorted(groups.items())]
    if not how.isdecimal() or int(how) < 2:
        raise UsageError(f"--split-cpu {how!r}: nothing to split by", hint=f"give 2 or more, or {' or '.join(BY)}")
    count, cores = int(how), cpus.by_core(threads, root)
    if len(cores) < count:
        raise UsageError(
            f"--split-cpu {count}: this process has {counted(len(cores), 'core')}", hint="give fewer slices"
        )
    share, rest = divmod(len(cores), count)
    slices, at = [], 0
    for number in range(count):
        end = at + share + (number < rest)
        slices.append(tuple(sorted(thread for core in cores[at:end] for thread in core)))
        at = end
    return slices


def _nodes(root: Path) -> Mapping[int, str]:
    found = {}
    for node in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for thread in listed(line(node / "cpulist") or ""):
            found[thread] = node.name
    return found


def _kinds(root: Path) -> Mapping[int, str]:
    """The kind of core of each thread. Intel names its two kinds (perf's devices cpu_core and cpu_atom); Arm reports
    each core's capacity."""
    named = {
        thread: kind
        for kind in ("cpu_core", "cpu_atom")
        for thread in listed(line(root / "sys/devices" / kind / "cpus") or "")
    }
    if named:
        return named
    capacities = (root / CPUS).glob("cpu[0-9]*/cpu_capacity")
    return {int(path.parent.name[3:]): (line(path) or "").zfill(6) for path in capacities}


def ranges(threads: Sequence[int]) -> str:
    """The threads as the kernel writes them, e.g. 0-3,8."""
    runs: list[list[int]] = []
    for thread in sorted(threads):
        if runs and runs[-1][1] == thread - 1:
            runs[-1][1] = thread
        else:
            runs.append([thread, thread])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
