"""The counters of the machine at one instant, and what happened between two instants.

Most of it is read from Linux's /proc and /sys. What a machine does not count is None, and no reading raises. `root` is
the file system to read, so that tests can lay one out. The workers' CPU time is read only if the kernel lists the
children of a thread (CONFIG_PROC_CHILDREN, set in every distribution's kernel): without the list it would be too small.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.schema import AcceleratorConditions, Conditions, PowerSource
from mixmark.harness.machine import power_supply
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.resources import cgroups
from mixmark.harness.resources.cpus import listed, time_rows
from mixmark.harness.resources.files import ROOT, integer, text

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
FIELDS = 5  # each of them may be off by a tick
TIMES = ("busy_ns", "own_ns", "plugins_ns", "kernel_ns", "stolen_ns", "cpu_stall_ns", "memory_stall_ns")
"""Times that cannot exceed the time of all CPUs: some kernels count more."""
MOSTLY = 0.5  # of an interval: a CPU that is busy for more carries the load
KTHREADD = 2  # the parent of all kernel threads; in a container's process namespace, any process
PF_KTHREAD = 0x00200000  # the flag of a kernel thread, linux/sched.h

# Sensors of the processor; a disk's or a radio's says nothing about it, and reading one may wake it.
CPU_SENSORS = re.compile(r"coretemp|k10temp|zenpower|cpu|soc|pkg", re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """The machine at one instant. A mapping lacks what the machine does not count."""

    at_ns: int
    wall_ns: int
    counters: Mapping[str, int]
    """Rising counters, by the field of `Conditions` that their rise becomes."""
    busy_ns: Mapping[int, int]
    """The CPU time that each CPU spent working."""
    kernel_ns: Mapping[int, int]
    """The CPU time of each kernel thread."""
    clocks_mhz: Mapping[int, float]
    """The clock of each CPU."""
    switches: Mapping[int, int]
    """The involuntary context switches of each thread of the workers."""
    strayed: int | None
    """How many threads of workers that are pinned to some cores may run on others now."""
    temperature_c: float | None
    power_source: PowerSource | None
    accelerators: tuple[AcceleratorConditions, ...]


def between(before: Reading, after: Reading) -> Conditions:
    """What happened from one reading to a later one."""
    rises = {name: _rise(count, after.counters.get(name)) for name, count in before.counters.items()}
    if after.busy_ns.keys() != before.busy_ns.keys():  # a CPU came or went, so what the machine could do is unclear
        rises |= {"busy_ns": None, "stolen_ns": None}
    busy = {cpu: _rise(count, after.busy_ns.get(cpu)) or 0 for cpu, count in before.busy_ns.items()}
    clocks = [(mhz, busy.get(cpu, 0)) for cpu, mhz in after.clocks_mhz.items()]
    weight = sum(each for _, each in clocks)
    elapsed_ns = after.at_ns - before.at_ns
    loaded = [mhz for mhz, each in clocks if each > MOSTLY * elapsed_ns]
    switches = [_rise(before.switches.get(thread, 0), count) for thread, count in after.switches.items()]
    kernel = [_rise(before.kernel_ns.get(thread, 0), time_ns) for thread, time_ns in after.kernel_ns.items()]
    rises["kernel_ns"] = _total(kernel)
    most_ns = (elapsed_ns + FIELDS * TICK_NS) * (len(after.busy_ns) or math.inf)
    rises |= {name: None for name in TIMES if (rise := rises.get(name)) is not None and rise > most_ns}
    return Conditions.model_validate(
        {
            "begin_ns": before.at_ns,
            "end_ns": after.at_ns,
            "cpus": len(after.busy_ns) or None,
            "involuntary_switches": _total(switches),
            "clock_mean_mhz": sum(mhz * each for mhz, each in clocks) / weight if weight else None,
            "clock_min_mhz": min(loaded, default=None),
            "temperature_c": after.temperature_c,
            "power_source": after.power_source,
            "strayed_threads": after.strayed,
            "clock_step_ns": (after.wall_ns - before.wall_ns) - elapsed_ns,
            "accelerators": after.accelerators,
            **rises,
        }
    )


class MachineCounters:
    """Reads the counters.

    pids: the workers, whose descendants count with them, and with this process. All else that this process started or
    adopted works for a plugin. usable: the hardware threads that this process and its workers may use; load on others
    does not disturb them, so it is not counted. None means all. pinned: the cores of each worker that is pinned.
    accelerators: the vendors' watchers, opened by the caller; if None, accelerators are not read. A process that ends
    takes its CPU time with it, so a block during which a worker died has no `own_ns`.
    """

    def __init__(
        self,
        pids: Sequence[int] = (),
        root: Path = ROOT,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        accelerators: Accelerators | None = None,
        pinned: Mapping[int, Sequence[int]] | None = None,
        usable: Collection[int] | None = None,
    ) -> None:
        self._pids = pids
        self._usable = usable
        self._pinned = {pid: frozenset(cores) for pid, cores in (pinned or {}).items() if cores}
        self._root, self._proc = root, root / "proc"
        self._clock = clock
        self._wall = wall
        self._accelerators = accelerators
        # The files are looked for once: a machine has hundreds of them.
        cpus = root / "sys/devices/system/cpu"
        self._clocks = {int(p.parts[-3][3:]): p for p in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")}
        self._throttles = [*cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
        self._sensors = [*_sensors(root)]
        self._groups = [folder / "cpu.stat" for folder in cgroups.folders(root, "cpu")]

    def read(self) -> Reading:
        workers = _tree(self._proc, self._pids)
        threads = itertools.chain.from_iterable((workers or {}).values())
        statuses = {thread: text(f"{thread}/status") for thread in threads}
        rows = time_rows(self._root)
        if self._usable is not None:  # a container may count its CPUs from 0: then no row is known to be one of them
            rows = {cpu: rows[cpu] for cpu in self._usable} if rows.keys() >= set(self._usable) else {}
        per_cpu = {cpu: _busy_ns(row) for cpu, row in rows.items()}
        counters = {
            **dict(_counters_of(rows)),
            **dict(_process_counters(self._proc, workers)),
            **_cgroup_counters(self._groups),
            **dict(_stalls(self._proc / "pressure")),
            **dict(_swaps(text(self._proc / "vmstat"))),
            **dict(_traffic(text(self._proc / "net/dev"))),
        }
        throttles = [*_integers(self._throttles)]
        if throttles:
            counters["thermal_throttles"] = sum(throttles)
        temperatures = [*_integers(self._sensors)]
        return Reading(
            at_ns=self._clock(),
            wall_ns=self._wall(),
            counters=counters,
            busy_ns=per_cpu,
            kernel_ns=kernel_threads(self._proc) if self._usable is None else {},  # a thread's time is of all CPUs
            clocks_mhz=self._clocks_mhz(),
            switches=dict(_switches(statuses)),
            strayed=self._strayed(statuses) if any(statuses.values()) else None,
            temperature_c=max(temperatures) / 1000 if temperatures else None,
            power_source=power_supply.source(self._root),
            accelerators=self._states({os.getpid(), *(workers or self._pids)}),
        )

    def _strayed(self, statuses: Mapping[str, str]) -> int | None:
        if not self._pinned:
            return None
        strayed = 0
        for pid, cores in self._pinned.items():
            family = _tree(self._proc, [pid]) or {}
            allowed = [_cores(statuses.get(thread, "")) for threads in family.values() for thread in threads]
            strayed += sum(not each <= cores for each in allowed)
        return strayed

    def _clocks_mhz(self) -> dict[int, float]:
        if self._clocks:
            kilohertz = {cpu: integer(path) for cpu, path in self._clocks.items()}
            return {cpu: each / 1000 for cpu, each in kilohertz.items() if each}
        table = re.findall(
            r"^processor\s*: (\d+)$(?:\n.+)*?\ncpu MHz\s*: ([\d.]+)$", text(self._proc / "cpuinfo"), re.MULTILINE
        )
        return {int(cpu): float(mhz) for cpu, mhz in table if float(mhz)}

    def _states(self, ours: set[int]) -> tuple[AcceleratorConditions, ...]:
        return () if self._accelerators is None else self._accelerators.read(ours, self._proc)


def _integers(paths: Iterable[Path]) -> Iterator[int]:
    return (value for path in paths if (value := integer(path)) is not None)


def _rise(before: int, after: int | None) -> int | None:
    """By how much a counter rose; None if it fell, since after a reset or an overflow the rise is unknown."""
    return after - before if after is not None and after >= before else None


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _busy_ns(row: str) -> int:
    """The sum of user, nice, system, irq and softirq; guests' time is part of user and nice."""
    ticks = [int(each) for each in row.split()]
    return (sum(ticks[:3]) + sum(ticks[5:7])) * TICK_NS


def _counters_of(rows: Mapping[int, str]) -> Iterator[tuple[str, int]]:
    """The time of these CPUs together."""
    if rows:
        yield "busy_ns", sum(_busy_ns(row) for row in rows.values())
        yield "stolen_ns", sum(int(row.split()[7]) for row in rows.values()) * TICK_NS


def _tree(proc: Path, pids: Iterable[int], without: Collection[int] = ()) -> dict[int, list[str]] | None:
    """The processes and their descendants, each with the folders of its threads. None if the kernel lists no children.

    without: descendants that are left out with their own.
    """
    found: dict[int, list[str]] = {}
    todo = list(pids)
    while todo:
        pid = todo.pop()
        found[pid] = []
        tasks = f"{proc}/{pid}/task"
        with suppress(OSError):
            found[pid] = [f"{tasks}/{thread}" for thread in os.listdir(tasks)]
        if found[pid] and not os.path.exists(f"{tasks}/{pid}/children"):
            return None
        children = [int(child) for thread in found[pid] for child in text(f"{thread}/children").split()]
        todo += [child for child in children if child not in without]
    return found


def _fields(proc: Path, pid: int) -> list[int]:
    """The numbers of /proc/<pid>/stat from the parent's id on, proc(5) field 4; empty where the process is gone."""
    _, _, rest = text(proc / str(pid) / "stat").rpartition(")")  # a name may hold blanks and brackets
    return [int(each) for each in rest.split()[1:15]]


def _process_counters(proc: Path, workers: Collection[int] | None) -> Iterator[tuple[str, int]]:
    """CPU time and page faults. A parent's counters include the children that it waited for."""
    harness = _fields(proc, os.getpid())[10:12]  # without its children: they are workers, or of plugins
    if workers is None or not harness:
        return
    each = [fields for pid in workers if (fields := _fields(proc, pid))]
    yield "own_ns", (sum(sum(fields[10:14]) for fields in each) + sum(harness)) * TICK_NS
    if each:
        yield "major_faults", sum(fields[8] + fields[9] for fields in each)
    of_plugins = _tree(proc, [os.getpid()], without=workers) or {}
    yield "plugins_ns", sum(sum(_fields(proc, pid)[10:14]) for pid in of_plugins if pid != os.getpid()) * TICK_NS


def kernel_threads(proc: Path = ROOT / "proc") -> dict[int, int]:
    """The CPU time of each kernel thread in ns. Empty if a container hides them, or the kernel lists no children."""
    children = text(proc / f"{KTHREADD}/task/{KTHREADD}/children").split()
    found = {pid: _fields(proc, pid) for pid in (KTHREADD, *map(int, children))}
    return {pid: sum(fields[10:12]) * TICK_NS for pid, fields in found.items() if fields and fields[5] & PF_KTHREAD}


def _cores(status: str) -> frozenset[int]:
    """The cores that a thread may run on, from `Cpus_allowed_list: 0-3,8`; empty if the line is missing."""
    found = re.search(r"^Cpus_allowed_list:\s*([\d,-]+)$", status, re.MULTILINE | re.ASCII)
    return frozenset(listed(found[1] if found else ""))


def _traffic(table: str) -> Iterator[tuple[str, int]]:
    """The bytes of all network interfaces but the loopback, in this process's network namespace."""
    rows = re.findall(r"^\s*([^\s:]+):\s*(\d+)(?:\s+\d+){7}\s+(\d+)", table, re.MULTILINE | re.ASCII)
    if rows:
        yield "received_bytes", sum(int(received) for name, received, _ in rows if name != "lo")
        yield "sent_bytes", sum(int(sent) for name, _, sent in rows if name != "lo")


def _switches(statuses: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    for thread, status in statuses.items():
        _, _, count = status.rpartition("nonvoluntary_ctxt_switches:")
        if found := re.match(r"\s*(\d+)", count):
            yield int(os.path.basename(thread)), int(found[1])


def _cgroup_counters(files: Iterable[Path]) -> dict[str, int]:
    """Version 2 counts in µs, version 1 in ns. Each level has its own quota, so they add up."""
    sums: dict[str, int] = {}
    units = {
        "nr_throttled": ("throttled_periods", 1),
        "throttled_usec": ("throttled_ns", 1000),
        "throttled_time": ("throttled_ns", 1),
    }
    for file in files:
        for name, value in re.findall(r"^(\w+) (\d+)$", text(file), re.MULTILINE):
            if name in units:
                field, unit = units[name]
                sums[field] = sums.get(field, 0) + int(value) * unit
    return sums


def _stalls(pressure: Path) -> Iterator[tuple[str, int]]:
    for name in ("cpu", "memory"):
        if found := re.search(r"^some .*total=(\d+)$", text(pressure / name), re.MULTILINE):
            yield f"{name}_stall_ns", int(found[1]) * 1000


def _swaps(vmstat: str) -> Iterator[tuple[str, int]]:
    for name, field in (("pswpin", "swapped_in_pages"), ("pswpout", "swapped_out_pages")):
        if found := re.search(rf"^{name} (\d+)$", vmstat, re.MULTILINE):
            yield field, int(found[1])


def _sensors(root: Path) -> Iterator[Path]:
    for zone in (root / "sys/class/thermal").glob("thermal_zone*"):
        if CPU_SENSORS.search(text(zone / "type")):
            yield zone / "temp"
    for chip in (root / "sys/class/hwmon").glob("hwmon*"):
        if CPU_SENSORS.search(text(chip / "name")):
            yield from chip.glob("temp*_input")
