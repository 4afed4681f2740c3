"""Checks what would disturb a measurement on this machine, and names the command that fixes it. It changes nothing.

The checks use the readers of this folder, which also sample the machine during a run. The vendors' watchers add
checks of their accelerators, and capabilities add checks of what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal, NamedTuple

from mixmark.harness.contracts.numbers import counted, filesize, percent
from mixmark.harness.contracts.protocols import Check
from mixmark.harness.contracts.schema import Absent, Conditions, System
from mixmark.harness.judge.rules import interference
from mixmark.harness.machine import other_load, power_supply
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.counters import MachineCounters, between
from mixmark.harness.machine.disclosure import disclose
from mixmark.harness.plugins.manifest import BUILT_IN
from mixmark.harness.resources import clock, cpus
from mixmark.harness.resources.files import ROOT, line, text

SAMPLE_S = 1.0
THREAD_VARIABLES = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "TORCH_NUM_THREADS"}
CPUS = "sys/devices/system/cpu"


class Found(NamedTuple):
    """A `Check` without its name."""

    state: Literal["ok", "warn", "unknown"]
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Inspected:
    """What the checks read."""

    root: Path
    system: System
    conditions: Conditions
    """The machine during a second without work of Mixmark."""


def checks(
    root: Path = ROOT, wait: Callable[[float], None] = lambda seconds: clock.sleep(seconds)
) -> tuple[Check, ...]:
    """All checks, in order; takes `SAMPLE_S`.

    root: the file system to read. wait: passes the sample's seconds.
    """
    with Accelerators() as watchers:
        machine = MachineCounters(root=root, accelerators=watchers, usable=cpus.restricted(root))
        before = machine.read()
        wait(SAMPLE_S)
        conditions = between(before, machine.read())
        state = Inspected(root, disclose(root, accelerators=watchers.disclose()), conditions)
        vendors, absent = watchers.checks(), watchers.absent
    return (
        *(Check(name, *find(state)) for name, find in CHECKS.items()),
        *vendors,
        *accelerators(state, absent),
        *(check for spec in BUILT_IN["checks"].values() for check in resolve_name(spec)()),
    )


def governor(state: Inspected) -> Found:
    """Whether the frequency governor keeps the clocks at their highest."""
    files = (state.root / CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({word for file in files if (word := line(file))})
    if not found:
        return Found("unknown", "the machine shows no frequency governor")
    if found == ["performance"]:
        return Found("ok", "every CPU uses the governor performance")
    fix = f"echo performance | sudo tee /{CPUS}/cpu*/cpufreq/scaling_governor"
    return Found("warn", f"{', '.join(found)}: the clocks follow the load with a delay", fix)


def power_source(state: Inspected) -> Found:
    """Whether mains supply the machine and charge no battery."""
    match state.system.power_source:
        case "battery":
            seen = "which slows it down and which no meter at the wall sees"
            return Found("warn", f"the machine runs on its battery, {seen}: plug it in")
        case "charging":
            seen = "and a meter at the wall reads that, too"
            return Found("warn", f"the battery is being charged, {seen}: wait until it is full")
        case "mains":
            return Found("ok", "mains, and no battery is charged")
    if (state.root / power_supply.SUPPLIES).is_dir():
        return Found("ok", "the machine reports no battery of its own")
    return Found("unknown", "the machine does not report what supplies it")


def power_profile(state: Inspected) -> Found:
    """Whether a power profile holds the machine back."""
    found = state.system.power_profile
    if found is None:
        return Found("unknown", "the machine shows no power profile")
    if found not in interference.POWER_SAVING:
        return Found("ok", found)
    name = power_supply.PROFILE if line(state.root / power_supply.PROFILE) else power_supply.PREFERENCE
    fix = f"echo performance | sudo tee /{name.replace('cpu0', 'cpu*')}"
    return Found("warn", f"{found}: it saves power and slows the machine down", fix)


def boost(state: Inspected) -> Found:
    """Whether clocks may exceed the nominal one while temperature and power allow it."""
    for name, on, off in (("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")):
        word = line(state.root / CPUS / name)
        if word == on:
            message = "on: the clock depends on temperature and on how many cores work"
            return Found("ok", message, f"echo {off} | sudo tee /{CPUS}/{name}")
        if word:
            return Found("ok", "off: the clocks hold, below what the CPU could reach")
    return Found("unknown", "the machine does not report whether clocks may exceed the nominal one")


def load(state: Inspected) -> Found:
    """Whether other programs used the CPUs during the sample."""
    used = other_load.load_of(state.conditions)
    if used is None:
        return Found("unknown", "CPU time cannot be read")
    message = f"other programs keep {used.cores:.2f} of {counted(used.cpus, 'CPU')} busy (limit {used.limit_cores:.2f})"
    fix = "ps -eo pid,pcpu,comm --sort=-pcpu | head"
    return Found("warn", message, fix) if used.busy else Found("ok", message)


def steal(state: Inspected) -> Found:
    """Whether the hypervisor gave the CPUs' time to other machines during the sample."""
    now, host = state.conditions, state.system.virtualization
    if now.stolen_ns is None or not now.cpus:
        return Found("unknown", "stolen CPU time cannot be read")
    fraction = now.stolen_ns / ((now.end_ns - now.begin_ns) * now.cpus)
    where = f"under {host}" if host else "no hypervisor was found"
    message = f"{where}; {percent(fraction)} of the CPUs' time was stolen (limit {percent(interference.STOLEN)})"
    return Found("warn" if fraction > interference.STOLEN else "ok", message)


def swap(state: Inspected) -> Found:
    """Whether memory has been swapped out."""
    path = state.root / "proc/swaps"
    if not path.exists():
        return Found("unknown", "swap areas cannot be listed")
    rows = [row.split() for row in text(path).splitlines()[1:]]
    used = sum(int(row[3]) for row in rows if len(row) > 3 and row[3].isdecimal())
    if used:
        message = f"{filesize(used * 1024)} of memory are swapped out, and reading them back takes time"
        return Found("warn", message, "sudo swapoff -a")
    return Found("ok", "no swap area is used" if rows else "there is no swap area")


def cpu_limit(state: Inspected) -> Found:
    """Whether a control group limits this process's CPU time: the tightest quota of its group and the groups above."""
    tightest = cpus.quota(state.root)
    if tightest is None:
        return Found("ok", "no CPU quota was found")
    stopped = "and is stopped for the rest of a period once it has used them"
    fix = f"echo {tightest.none} | sudo tee /{tightest.file.relative_to(state.root)}"
    return Found("warn", f"the cgroup may use {tightest.cpus:.2f} CPUs, {stopped}", fix)


def threads(state: Inspected) -> Found:
    """Whether a variable of the environment keeps engines from using all cores."""
    cores = cpus.cores(state.root)
    given = {name: value for name, value in state.system.environment.items() if name in THREAD_VARIABLES}
    few = [name for name, value in given.items() if value.isdecimal() and int(value) < cores]
    if few:
        message = f"{', '.join(f'{name}={given[name]}' for name in few)}: engines use fewer threads than {cores} cores"
        return Found("warn", message, f"unset {' '.join(few)}")
    return Found("ok", "no variable keeps engines from using all cores")


def watchable(state: Inspected) -> Found:
    """The disturbances that cannot be observed on this machine."""
    known = {
        "CPU clocks": state.conditions.clock_mean_mhz,
        "CPU temperature": state.conditions.temperature_c,
        "thermal throttling": state.conditions.thermal_throttles,
        "memory pressure": state.conditions.memory_stall_ns,
        "paging": state.conditions.swapped_in_pages,
    }
    blind = [what for what, value in known.items() if value is None]
    if not blind:
        return Found("ok", f"all disturbances can be observed: {', '.join(known)}")
    return Found("unknown", f"these disturbances cannot be observed here: {', '.join(blind)}")


CHECKS: Mapping[str, Callable[[Inspected], Found]] = {
    "governor": governor,
    "power supply": power_source,
    "power profile": power_profile,
    "boost": boost,
    "load": load,
    "steal": steal,
    "swap": swap,
    "cpu limit": cpu_limit,
    "threads": threads,
    "watchable": watchable,
}


def accelerators(state: Inspected, absent: Iterable[Absent]) -> Iterator[Check]:
    """Whether other processes compute on the accelerators. absent: the vendors' watchers that failed."""
    names = {facts.get("id"): facts.get("name", "") for facts in state.system.accelerators}
    for accelerator in state.conditions.accelerators:
        name = f"{accelerator.id.partition(':')[0]} {names.get(accelerator.id, '')}".strip() + " company"
        pids = accelerator.foreign_pids
        if pids is None:
            message = "the driver does not report which processes use it, or counts in another process namespace"
            yield Check(name, "unknown", message)
        elif pids:
            message = f"foreign processes compute on it: {len(pids)} ({', '.join(map(str, pids))})"
            yield Check(name, "warn", message, f"ps -o pid,user,comm -p {','.join(map(str, pids))}")
        else:
            yield Check(name, "ok", "no foreign process computes on it")
    for each in absent:
        yield Check(each.label, "unknown", f"it failed, so its accelerators were not checked: {each.reason}")
