"""Splits the host's CPU into several devices: disjoint sets of cores, each with workers that are pinned to it.

Slices share caches and the memory bus, so they slow each other down; the retained fraction shows by how much.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Device
from mixmark.harness.plan.phases import Target
from mixmark.harness.resources import cpus
from mixmark.harness.resources.cpus import CPUS, listed
from mixmark.harness.resources.files import ROOT, line

BY = ("numa", "type")
NUMBERS = ("cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq")
WHERE = "cpu_core and cpu_atom, " + ", ".join(NUMBERS)
FAR = 1.15  # Zen 5 to Zen 5c: 1.5; A76 to A55: 2.3; the first to the last preferred core of one kind: 1.03 a step


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
        groups: dict[object, list[int]] = defaultdict(list)
        kinds = _nodes(root) if how == "numa" else _kinds(threads, root)
        for thread in threads:
            groups[kinds.get(thread)].append(thread)
        if len(groups) < 2:
            one = "this machine has one NUMA node" if how == "numa" else f"the kernel names no kinds of core ({WHERE})"
            raise UsageError(f"--split-cpu {how}: {one}", hint="give a number of slices")
        return list(map(tuple, groups.values()))
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


def _kinds(threads: Sequence[int], root: Path) -> Mapping[int, object]:
    """The kind of core of each of the threads, from the first source that has a value for each of them and tells two
    kinds. Intel names its kinds by perf's devices. Other kernels report numbers: the cores of one kind differ by a few
    percent, as the preferred ones of AMD do, so a new kind begins where a number is far above the next lower one."""
    named = {
        thread: path.parent.name
        for path in (root / "sys/devices").glob("cpu_*/cpus")
        for thread in listed(line(path) or "")
    }
    if len({named.get(thread) for thread in threads}) > 1:
        return named
    for source in NUMBERS:
        texts = {thread: line(root / CPUS / f"cpu{thread}" / source) or "" for thread in threads}
        if all(map(str.isdecimal, texts.values())):
            ordered = sorted(map(int, texts.values()))
            starts = [high for low, high in pairwise(ordered) if high > FAR * low]
            if starts:
                return {thread: bisect(starts, int(text)) for thread, text in texts.items()}
    return named


def ranges(threads: Sequence[int]) -> str:
    """The threads as the kernel writes them, e.g. 0-3,8."""
    runs: list[list[int]] = []
    for thread in sorted(threads):
        if runs and runs[-1][1] == thread - 1:
            runs[-1][1] = thread
        else:
            runs.append([thread, thread])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
