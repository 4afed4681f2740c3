"""The load of other programs on the CPUs, sampled before a run begins."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from mixmark.harness.contracts.schema import Conditions
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.evidence import MUCH_FOREIGN
from mixmark.harness.judge.rules import interference
from mixmark.harness.machine.counters import MachineCounters, between, kernel_threads
from mixmark.harness.resources import cpus
from mixmark.harness.resources.psutils import known

SAMPLE_S = 2.0
IDLE_SAMPLES = 2  # in a row, for an idle machine
BIGGEST = 3  # programs that are named

Processes = Callable[[], Mapping[int, tuple[str, float]]]


@dataclass(frozen=True)
class OtherLoad:
    """The CPU time that other programs used."""

    cores: float
    cpus: int
    names: Mapping[str, float]
    """The CPU time of the largest programs by name, in cores."""

    @property
    def limit_cores(self) -> float:
        """The limit of the rule `no_foreign_load`."""
        return min(interference.FOREIGN * self.cpus, interference.FOREIGN_CORES)

    @property
    def busy(self) -> bool:
        return self.cores > self.limit_cores

    @property
    def disturbs(self) -> bool:
        """Whether a measurement under this load is called disturbed, and not only warned of."""
        return self.cores > MUCH_FOREIGN * self.cpus

    def __str__(self) -> str:
        named = [f"{name} {self._percent(cores)}" for name, cores in self.names.items()]
        rest = self.cores - sum(self.names.values())
        if rest > self.limit_cores:
            named.append(f"others {self._percent(rest)}")
        used, limit = self._percent(self.cores), self._percent(self.limit_cores)
        return f"{used} of the machine's CPU time (limit {limit}): {', '.join(named) or 'none can be named'}"

    def _percent(self, cores: float) -> str:
        return f"{cores / self.cpus * 100:.1f} %"


def load_of(conditions: Conditions, names: Mapping[str, float] | None = None) -> OtherLoad | None:
    """The load between two readings of the machine; None if its CPU time is unknown."""
    now = conditions
    if now.foreign_ns is None or not now.cpus:
        return None
    return OtherLoad(max(0, now.foreign_ns) / (now.end_ns - now.begin_ns), now.cpus, names or {})


def processes() -> Mapping[int, tuple[str, float]]:
    """The name and the CPU time in seconds of each process that can be seen, but this one and the kernel's threads."""
    found, kernel = {}, kernel_threads()
    for each in known(lambda: [*psutil.process_iter(["name", "cpu_times"])], ()):
        if each.info["cpu_times"] and each.pid != os.getpid() and each.pid not in kernel:
            found[each.pid] = (plain(each.info["name"] or "?", 40), sum(each.info["cpu_times"][:2]))
    return found


def sample(
    machine: MachineCounters | None = None, wait: Callable[[float], object] = time.sleep, listed: Processes = processes
) -> OtherLoad | None:
    """Samples the load for SAMPLE_S; None if the machine's CPU time is unknown."""
    machine = machine or MachineCounters(usable=cpus.restricted())
    earlier, before = listed(), machine.read()
    wait(SAMPLE_S)
    conditions, later = between(before, machine.read()), listed()
    elapsed_s = (conditions.end_ns - conditions.begin_ns) / 1e9
    cores: dict[str, float] = defaultdict(float)
    for pid, (name, now_s) in later.items():
        cores[name] += (now_s - earlier.get(pid, (name, 0.0))[1]) / elapsed_s
    largest = sorted(cores, key=lambda name: -cores[name])[:BIGGEST]
    return load_of(conditions, {name: cores[name] for name in largest if cores[name] > 0})


def wait(
    seconds: float,
    report: Callable[[OtherLoad], None],
    take: Callable[[], OtherLoad | None] = sample,
    clock: Callable[[], float] = time.monotonic,
) -> OtherLoad | None:
    """Samples the load until IDLE_SAMPLES in a row are idle, or until the seconds are over. Returns the last sample.

    report: is called with the first busy sample.
    """
    deadline_s = clock() + seconds
    quiet, reported = 0, False
    while True:
        load = take()
        if load is None:
            return None
        quiet = 0 if load.busy else quiet + 1
        if quiet == IDLE_SAMPLES or clock() >= deadline_s:
            return load
        if load.busy and not reported:
            report(load)
            reported = True
