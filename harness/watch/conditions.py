"""What happens to the machine while a worker measures: counters read in the parent, and a canary loop.

Linux first; what a machine does not say is None, and no reading raises. `root` is the file system to read, so
that tests can lay one out. /proc/<pid> is trusted only with the children of a thread listed (CONFIG_PROC_CHILDREN,
in every distribution's kernel): without them our own CPU time is unknown rather than too small.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.schema import Conditions, GpuConditions
from harness.text import plain
from harness.watch import system

INTERVAL_S = 1.0
WATCH_SHARE = 0.005  # of one core: what watching may cost
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
MOSTLY = 0.5  # of an interval: a CPU busy for more carries the load

# Sensors of the processor; a disk's or a radio's says nothing about it, and reading one may wake it.
CPU_SENSORS = re.compile(r"coretemp|k10temp|zenpower|cpu|soc|pkg", re.IGNORECASE)

# Bits of NVML's clock event reasons, nvml.h.
REASONS = {
    0x01: "idle",
    0x02: "application clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock",
}

CANARY_STEPS = 60_000
CANARY_TIMES = 5
CANARY_WARMUP_NS = 20_000_000  # a governor takes about this long to raise an idle CPU's clock


@dataclass(frozen=True)
class Reading:
    """The machine at one instant. What is missing from a mapping, the machine does not say."""

    at_ns: int
    wall_ns: int
    counters: Mapping[str, int]
    """By the field of `Conditions` that their rise becomes."""
    busy_ns: Mapping[int, int]
    """By CPU."""
    clocks_mhz: Mapping[int, float]
    """By CPU."""
    switches: Mapping[int, int]
    """Involuntary ones by thread of the workers."""
    temperature_c: float | None
    gpus: tuple[GpuConditions, ...]


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
    return Conditions.model_validate(
        {
            "begin_ns": before.at_ns,
            "end_ns": after.at_ns,
            "cpus": len(after.busy_ns) or None,
            "involuntary_switches": _total(switches),
            "clock_mean_mhz": sum(mhz * each for mhz, each in clocks) / weight if weight else None,
            "clock_min_mhz": min(loaded, default=None),
            "temperature_c": after.temperature_c,
            "clock_step_ns": (after.wall_ns - before.wall_ns) - elapsed_ns,
            "gpus": after.gpus,
            **rises,
        }
    )


class Machine:
    """Reads the counters. pids: the workers, whose children count with them; this process is ours too.

    A process that vanishes takes its time with it, so a block in which a worker died has no `own_ns`.
    Use as a context manager: the vendor's library is held open in between.
    """

    def __init__(
        self,
        pids: Sequence[int] = (),
        root: Path = system.ROOT,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._pids = pids
        self._proc = root / "proc"
        self._clock = clock
        self._wall = wall
        self._nvml: Any = None
        # What may be there is looked for once: a machine has hundreds of these files.
        cpus = root / "sys/devices/system/cpu"
        self._clocks = {int(p.parts[-3][3:]): p for p in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")}
        self._throttles = [*cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")]
        self._sensors = [*_sensors(root)]
        self._groups = [folder / "cpu.stat" for folder in system.cgroups(root, "cpu")]

    def __enter__(self) -> Machine:
        self._nvml = _nvml()
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None

    def read(self) -> Reading:
        workers = _tree(self._proc, self._pids)
        stat = read(self._proc / "stat")
        per_cpu = {int(cpu): _busy_ns(row) for cpu, row in re.findall(r"^cpu(\d+) (.*)$", stat, re.MULTILINE)}
        counters = {
            **dict(_machine_counters(stat)),
            **dict(_process_counters(self._proc, workers)),
            **_cgroup_counters(self._groups),
            **dict(_stalls(self._proc / "pressure")),
            **dict(_swaps(read(self._proc / "vmstat"))),
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
            clocks_mhz=self._clocks_mhz(),
            switches=dict(_switches(thread for threads in (workers or {}).values() for thread in threads)),
            temperature_c=max(temperatures) / 1000 if temperatures else None,
            gpus=tuple(self._gpus({os.getpid(), *(workers or self._pids)})),
        )

    def _clocks_mhz(self) -> dict[int, float]:
        if self._clocks:
            kilohertz = {cpu: _integer(path) for cpu, path in self._clocks.items()}
            return {cpu: each / 1000 for cpu, each in kilohertz.items() if each}
        table = re.findall(
            r"^processor\s*: (\d+)$(?:\n.+)*?\ncpu MHz\s*: ([\d.]+)$", read(self._proc / "cpuinfo"), re.MULTILINE
        )
        return {int(cpu): float(mhz) for cpu, mhz in table if float(mhz)}

    def _gpus(self, ours: set[int]) -> Iterator[GpuConditions]:
        if not (nvml := self._nvml):
            return
        with suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                with suppress(nvml.NVMLError):
                    yield _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), ours, self._proc)


class Watch:
    """Samples the machine in a thread of the parent while a worker measures, about once a second.

    However slow the machine's counters are to read, watching takes at most half a percent of one core: the pause
    grows with what a sample cost. Stop it before the worker is ended, or the last block does not know its time.
    """

    def __init__(
        self, pids: Sequence[int], root: Path = system.ROOT, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._machine = Machine(pids, root, clock)
        self._blocks: list[Conditions] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> Watch:
        self._thread.start()
        return self

    def stop(self) -> tuple[Conditions, ...]:
        """The blocks in order, without a gap between them."""
        self._stopped.set()
        self._thread.join()
        return tuple(self._blocks)

    def _watch(self) -> None:
        with self._machine as machine:
            last = machine.read()
            pause_s = INTERVAL_S
            ended = False
            while not ended:
                ended = self._stopped.wait(pause_s)
                begin_ns = time.thread_time_ns()
                now = machine.read()
                if now.at_ns > last.at_ns:
                    self._blocks.append(between(last, now))
                    last = now
                pause_s = max(INTERVAL_S, (time.thread_time_ns() - begin_ns) / WATCH_SHARE / 1e9)


def canary(clock: Callable[[], int] = time.monotonic_ns) -> Conditions:
    """Times a fixed loop: how fast one core is now. For before, between and after cells, never beside a worker."""
    begin_ns = clock()
    warm_ns = time.monotonic_ns() + CANARY_WARMUP_NS
    while time.monotonic_ns() < warm_ns:
        _fixed_work()
    times = []
    for _ in range(CANARY_TIMES):
        start_ns = clock()
        _fixed_work()
        times.append(clock() - start_ns)
    return Conditions(begin_ns=begin_ns, end_ns=clock(), canary_ns=tuple(times))


def _fixed_work() -> int:
    """Integer arithmetic in registers and cache: it follows the clock and nothing else."""
    total = 0
    for step in range(CANARY_STEPS):
        total = (total * 31 + step) & 0xFFFF
    return total


def read(path: Path | str) -> str:
    """A small file's text; empty where it is absent or unreadable. By bare calls: two files a thread and second."""
    text = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            while chunk := os.read(file, 1 << 16):
                text += chunk
        finally:
            os.close(file)
    return text.decode(errors="replace")


def _integer(path: Path) -> int | None:
    text = read(path).strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text, re.ASCII) else None


def _integers(paths: Iterable[Path]) -> Iterator[int]:
    return (value for path in paths if (value := _integer(path)) is not None)


def _rise(before: int, after: int | None) -> int | None:
    """None where the counter went backwards: it was reset or it wrapped, and neither tells what happened."""
    return after - before if after is not None and after >= before else None


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _busy_ns(row: str) -> int:
    """user, nice, system, irq and softirq; guests' time is part of user and nice."""
    ticks = [int(each) for each in row.split()]
    return (sum(ticks[:3]) + sum(ticks[5:7])) * TICK_NS


def _machine_counters(stat: str) -> Iterator[tuple[str, int]]:
    if found := re.search(r"^cpu +(\d+(?: \d+){7,})", stat, re.MULTILINE):
        yield "busy_ns", _busy_ns(found[1])
        yield "stolen_ns", int(found[1].split()[7]) * TICK_NS


def _tree(proc: Path, pids: Iterable[int]) -> dict[int, list[str]] | None:
    """The processes and all that came of them, each with its threads' folders; None where children are not listed."""
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
        todo += [int(child) for thread in found[pid] for child in read(f"{thread}/children").split()]
    return found


def _fields(proc: Path, pid: int) -> list[int]:
    """The numbers of /proc/<pid>/stat from the parent's id on, proc(5) field 4; empty where it is gone."""
    _, _, rest = read(proc / str(pid) / "stat").rpartition(")")  # a name may hold blanks and brackets
    return [int(each) for each in rest.split()[1:15]]


def _process_counters(proc: Path, workers: Iterable[int] | None) -> Iterator[tuple[str, int]]:
    """Time and faults of children that were waited for are in their parent's, so no process is lost by ending."""
    harness = _fields(proc, os.getpid())[10:12]  # without its children: they are workers, or not ours
    if workers is None or not harness:
        return
    each = [fields for pid in workers if (fields := _fields(proc, pid))]
    yield "own_ns", (sum(sum(fields[10:14]) for fields in each) + sum(harness)) * TICK_NS
    if each:
        yield "major_faults", sum(fields[8] + fields[9] for fields in each)


def _switches(threads: Iterable[str]) -> Iterator[tuple[int, int]]:
    for thread in threads:
        _, _, count = read(f"{thread}/status").rpartition("nonvoluntary_ctxt_switches:")
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
        for name, value in re.findall(r"^(\w+) (\d+)$", read(file), re.MULTILINE):
            if name in units:
                field, unit = units[name]
                sums[field] = sums.get(field, 0) + int(value) * unit
    return sums


def _stalls(pressure: Path) -> Iterator[tuple[str, int]]:
    for name in ("cpu", "memory"):
        if found := re.search(r"^some .*total=(\d+)$", read(pressure / name), re.MULTILINE):
            yield f"{name}_stall_ns", int(found[1]) * 1000


def _swaps(vmstat: str) -> Iterator[tuple[str, int]]:
    for name, field in (("pswpin", "swapped_in_pages"), ("pswpout", "swapped_out_pages")):
        if found := re.search(rf"^{name} (\d+)$", vmstat, re.MULTILINE):
            yield field, int(found[1])


def _sensors(root: Path) -> Iterator[Path]:
    for zone in (root / "sys/class/thermal").glob("thermal_zone*"):
        if CPU_SENSORS.search(read(zone / "type")):
            yield zone / "temp"
    for chip in (root / "sys/class/hwmon").glob("hwmon*"):
        if CPU_SENSORS.search(read(chip / "name")):
            yield from chip.glob("temp*_input")


def _nvml() -> Any:
    """NVIDIA's library, opened; None where there is no driver."""
    import pynvml  # here, since most machines have none

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _gpu(nvml: Any, device: object, ours: set[int], proc: Path) -> GpuConditions:
    def told(read: Callable[[], Any]) -> Any:
        with suppress(nvml.NVMLError):
            return read()
        return None

    # By the older of its two names: drivers before 535 know no other.
    bits = told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))
    pids = told(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)])
    if pids is not None and not all((proc / str(pid)).exists() for pid in pids):
        pids = None  # the driver's numbers are not this namespace's, so ours cannot be told from others'
    return GpuConditions(
        id=f"gpu:{plain(str(nvml.nvmlDeviceGetUUID(device)))}",
        reasons=None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit),
        sm_clock_mhz=told(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
        temperature_c=told(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        power_cap_mw=told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device)),
        foreign_pids=None if pids is None else tuple(sorted(set(pids) - ours)),
        own_listed=not ours.isdisjoint(pids) if pids else None,  # in a container, drivers may list none at all
        utilization_pct=told(lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu),
    )
