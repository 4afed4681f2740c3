"""What will disturb a measurement on this machine, and the command that would stop it. It reads and changes nothing.

A check is `ok`, `warn` or `unknown`. An ok one may carry a command too: nothing is wrong, but results made with
and without it differ.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.judge import validate
from harness.schema import Conditions, System
from harness.text import plain
from harness.watch import conditions, system

SAMPLE_S = 1.0
CPUS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Check:
    """What was looked at, how it stands, and the command that changes it; empty where no command can."""

    name: str
    state: Literal["ok", "warn", "unknown"]
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Patient:
    """What the checks look at."""

    root: Path
    system: System
    now: Conditions
    """During a sample of a second in which we did nothing."""


def checks(root: Path = system.ROOT, wait: Callable[[float], None] = time.sleep) -> tuple[Check, ...]:
    """All checks, in order; takes `SAMPLE_S`. root: the file system to read. wait: passes the sample's seconds."""
    with conditions.Machine(root=root) as machine:
        before = machine.read()
        wait(SAMPLE_S)
        now = conditions.between(before, machine.read())
    patient = Patient(root, system.disclose(root), now)
    return tuple(check for look in CHECKS for check in look(patient))


def governor(patient: Patient) -> Iterator[Check]:
    files = (patient.root / CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({word for file in files if (word := _word(file))})
    fix = f"echo performance | sudo tee /{CPUS}/cpu*/cpufreq/scaling_governor"
    if not found:
        yield Check("governor", "unknown", "the machine shows no frequency governor")
    elif found == ["performance"]:
        yield Check("governor", "ok", "performance on every CPU")
    else:
        yield Check("governor", "warn", f"{', '.join(found)}: clocks follow the load with a delay", fix)


def boost(patient: Patient) -> Iterator[Check]:
    for name, on, off in (("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")):
        if word := _word(patient.root / CPUS / name):
            if word == on:
                message = "on: the clock depends on temperature and on how many cores work"
                yield Check("boost", "ok", message, f"echo {off} | sudo tee /{CPUS}/{name}")
            else:
                yield Check("boost", "ok", "off: clocks hold, below what the CPU could reach")
            return
    yield Check("boost", "unknown", "the machine does not say whether clocks may exceed the nominal one")


def load(patient: Patient) -> Iterator[Check]:
    now = patient.now
    if now.busy_ns is None or now.own_ns is None or not now.cpus:
        yield Check("load", "unknown", "CPU time cannot be read")
        return
    cores = max(0, now.busy_ns - now.own_ns) / (now.end_ns - now.begin_ns)
    limit = min(validate.FOREIGN * now.cpus, validate.FOREIGN_CORES)
    message = f"other processes keep {cores:.2f} of {now.cpus} CPUs busy (limit {limit:.2f})"
    if cores > limit:
        yield Check("load", "warn", message, "ps -eo pid,pcpu,comm --sort=-pcpu | head")
    else:
        yield Check("load", "ok", message)


def steal(patient: Patient) -> Iterator[Check]:
    now, host = patient.now, patient.system.virtualization
    if now.stolen_ns is None or not now.cpus:
        yield Check("steal", "unknown", "stolen CPU time cannot be read")
        return
    share = now.stolen_ns / ((now.end_ns - now.begin_ns) * now.cpus)
    where = f"under {host}" if host else "no hypervisor seen"
    message = f"{where}; {share * 100:.1f} % of the CPUs' time was stolen (limit {validate.STOLEN * 100:g} %)"
    yield Check("steal", "warn" if share > validate.STOLEN else "ok", message)


def swap(patient: Patient) -> Iterator[Check]:
    path = patient.root / "proc/swaps"
    if not path.exists():
        yield Check("swap", "unknown", "swap areas cannot be listed")
        return
    rows = [line.split() for line in conditions.read(path).splitlines()[1:]]
    used = sum(int(row[3]) for row in rows if len(row) > 3 and row[3].isdecimal())
    if used:
        yield Check("swap", "warn", f"{used / 1024:.0f} MiB are swapped out and may come back", "sudo swapoff -a")
    else:
        yield Check("swap", "ok", "unused" if rows else "none")


def cpu_limit(patient: Patient) -> Iterator[Check]:
    """The tightest quota of our cgroup and those above it, version 2 or 1."""
    tightest: tuple[float, str] | None = None
    for folder in system.cgroups(patient.root, "cpu"):
        cpus, fix = _quota(folder, patient.root)
        if cpus is not None and (tightest is None or cpus < tightest[0]):
            tightest = cpus, fix
    if tightest:
        cpus, fix = tightest
        message = f"the cgroup may use {cpus:.2f} CPUs and is stopped when it has"
        yield Check("cpu limit", "warn", message, fix)
    else:
        yield Check("cpu limit", "ok", "no CPU quota seen")


def container(patient: Patient) -> Iterator[Check]:
    if name := patient.system.container:
        yield Check("container", "ok", f"in {name}: what others do outside may not be seen from here")
    else:
        yield Check("container", "ok", "none seen")


def energy_counters(patient: Patient) -> Iterator[Check]:
    """The processor's own meters; since 2020 only root may read them on most kernels."""
    files = [*(patient.root / "sys/class/powercap").glob("*/energy_uj")]
    if not files:
        yield Check("energy counters", "unknown", "the processor shows none")
    elif closed := [file for file in files if not _word(file)]:
        message = f"{len(closed)} of {len(files)} energy counters cannot be read"
        yield Check("energy counters", "warn", message, "sudo chmod a+r /sys/class/powercap/*/energy_uj")
    else:
        yield Check("energy counters", "ok", f"{len(files)} can be read")


def watchable(patient: Patient) -> Iterator[Check]:
    """Disturbances that would go unnoticed here."""
    known = {
        "CPU clocks": patient.now.clock_mean_mhz,
        "CPU temperature": patient.now.temperature_c,
        "thermal throttling": patient.now.thermal_throttles,
        "memory pressure": patient.now.memory_stall_ns,
        "paging": patient.now.swapped_in_pages,
    }
    blind = [what for what, value in known.items() if value is None]
    # Red Hat's kernels are the ones that count pressure only when told to at boot; grubby is their tool.
    fix = "sudo grubby --update-kernel=ALL --args=psi=1" if "memory pressure" in blind else ""
    if blind:
        yield Check("watchable", "unknown", f"cannot be watched here: {', '.join(blind)}", fix)
    else:
        yield Check("watchable", "ok", ", ".join(known))


def hugepages(patient: Patient) -> Iterator[Check]:
    name = "sys/kernel/mm/transparent_hugepage/enabled"
    if chosen := re.search(r"\[(\w+)\]", conditions.read(patient.root / name)):
        fix = "" if chosen[1] == "madvise" else f"echo madvise | sudo tee /{name}"
        yield Check("huge pages", "ok", f"transparent ones: {chosen[1]}", fix)
    else:
        yield Check("huge pages", "unknown", "the kernel does not say")


def smt(patient: Patient) -> Iterator[Check]:
    match _word(patient.root / CPUS / "smt/active"):
        case "1":
            fix = f"echo off | sudo tee /{CPUS}/smt/control"
            yield Check("smt", "ok", "on: a thread's speed depends on its sibling's", fix)
        case "0":
            yield Check("smt", "ok", "off: each core runs one thread")
        case _:
            yield Check("smt", "unknown", "the kernel does not say")


def gpu(patient: Patient) -> Iterator[Check]:
    """Each NVIDIA one's persistence mode, power limit, clocks and company; nothing where there is no driver."""
    states = {state.id.removeprefix("gpu:"): state for state in patient.now.gpus}
    for facts in patient.system.accelerators:
        uuid = facts.get("uuid", "")
        state = states.get(uuid)
        name = f"gpu {facts.get('name', '')}".strip()
        found = [
            _persistence(name, facts, uuid),
            _power_limit(name, facts, uuid),
            *((_clocks(name, state.reasons, uuid), _company(name, state.foreign_pids)) if state else ()),
        ]
        yield from filter(None, found)


CHECKS: tuple[Callable[[Patient], Iterator[Check]], ...] = (
    governor,
    boost,
    load,
    steal,
    swap,
    cpu_limit,
    container,
    energy_counters,
    watchable,
    hugepages,
    smt,
    gpu,
)


def _word(path: Path) -> str:
    return plain(conditions.read(path), system.MAX_TEXT)


def _quota(folder: Path, root: Path) -> tuple[float | None, str]:
    """How many CPUs a cgroup may use, and what lifts the limit."""
    here = f"/{folder.relative_to(root)}"
    if found := re.fullmatch(r"(\d+) ([1-9]\d*)", _word(folder / "cpu.max"), re.ASCII):
        return int(found[1]) / int(found[2]), f"echo max | sudo tee {here}/cpu.max"
    quota, period = _word(folder / "cpu.cfs_quota_us"), _word(folder / "cpu.cfs_period_us")
    if re.fullmatch(r"\d+", quota, re.ASCII) and re.fullmatch(r"[1-9]\d*", period, re.ASCII):
        return int(quota) / int(period), f"echo -1 | sudo tee {here}/cpu.cfs_quota_us"
    return None, ""


def _persistence(name: str, facts: dict[str, str], uuid: str) -> Check | None:
    match facts.get("persistence"):
        case "on":
            return Check(f"{name} persistence", "ok", "on")
        case "off":
            message = "off: the driver unloads between runs, and clocks and settings with it"
            return Check(f"{name} persistence", "warn", message, f"sudo nvidia-smi -i {uuid} -pm 1")
    return None


def _power_limit(name: str, facts: dict[str, str], uuid: str) -> Check | None:
    limits = [facts.get(key, "") for key in ("power_limit_mw", "power_limit_default_mw")]
    if not all(limit.isdecimal() for limit in limits):
        return None
    limit_w, default_w = (int(limit) / 1000 for limit in limits)
    message = f"{limit_w:.0f} W, by default {default_w:.0f} W"
    if limit_w < default_w:
        return Check(f"{name} power limit", "warn", message, f"sudo nvidia-smi -i {uuid} -pl {default_w:.0f}")
    return Check(f"{name} power limit", "ok", message)


def _clocks(name: str, reasons: Sequence[str] | None, uuid: str) -> Check | None:
    if reasons is None:
        return None
    if held := [reason for reason in reasons if reason in validate.SLOWED]:
        fix = f"nvidia-smi -i {uuid} -q -d PERFORMANCE,TEMPERATURE,POWER"
        return Check(f"{name} clocks", "warn", f"held back by {', '.join(held)}", fix)
    return Check(f"{name} clocks", "ok", "not held back")


def _company(name: str, pids: Sequence[int] | None) -> Check | None:
    if pids is None:
        return Check(f"{name} company", "unknown", "the driver's process numbers are not known here")
    if pids:
        message = f"foreign processes on it: {len(pids)} ({', '.join(map(str, pids))})"
        return Check(f"{name} company", "warn", message, f"ps -o pid,user,comm -p {','.join(map(str, pids))}")
    return Check(f"{name} company", "ok", "no foreign process on it")
