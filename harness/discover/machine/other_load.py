"""Whether other programs use the machine now, and which ones: looked at before anything is measured."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from mixmark.harness.contracts.schema import Conditions
from mixmark.harness.contracts.text import plain
from mixmark.harness.discover.machine.counters import Machine, between
from mixmark.harness.judge.rules import interference

LOOK_S = 2.0
LOOKS = 2  # in a row without others, for an idle machine
BIGGEST = 3  # programs that are named

Processes = Callable[[], Mapping[int, tuple[str, float]]]


@dataclass(frozen=True)
class Others:
    """What other programs used of the CPUs."""

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

    def __str__(self) -> str:
        named = [f"{name} {self._percent(cores)}" for name, cores in self.names.items()]
        rest = self.cores - sum(self.names.values())
        if rest > self.limit_cores:
            named.append(f"others {self._percent(rest)}")
        used, limit = self._percent(self.cores), self._percent(self.limit_cores)
        return f"{used} of the machine's CPU time (limit {limit}): {', '.join(named) or 'none can be named'}"

    def _percent(self, cores: float) -> str:
        return f"{cores / self.cpus * 100:.1f} %"


def of(conditions: Conditions, names: Mapping[str, float] | None = None) -> Others | None:
    """What others used between two readings of the machine; None where the machine does not say."""
    now = conditions
    if now.busy_ns is None or now.own_ns is None or not now.cpus:
        return None
    return Others(max(0, now.busy_ns - now.own_ns) / (now.end_ns - now.begin_ns), now.cpus, names or {})


def processes() -> Mapping[int, tuple[str, float]]:
    """The name and the CPU time in seconds of each process that can be seen, but this one."""
    found = {}
    for each in psutil.process_iter(["name", "cpu_times"]):
        if each.info["cpu_times"] and each.pid != os.getpid():
            found[each.pid] = (plain(each.info["name"] or "?", 40), sum(each.info["cpu_times"][:2]))
    return found


def look(
    machine: Machine | None = None, wait: Callable[[float], object] = time.sleep, listed: Processes = processes
) -> Others | None:
    """Looks at the machine for LOOK_S; None where it does not say how busy it is."""
    machine = machine or Machine()
    earlier, before = listed(), machine.read()
    wait(LOOK_S)
    conditions, later = between(before, machine.read()), listed()
    elapsed_s = (conditions.end_ns - conditions.begin_ns) / 1e9
    cores: dict[str, float] = defaultdict(float)
    for pid, (name, now_s) in later.items():
        cores[name] += (now_s - earlier.get(pid, (name, 0.0))[1]) / elapsed_s
    largest = sorted(cores, key=lambda name: -cores[name])[:BIGGEST]
    return of(conditions, {name: cores[name] for name in largest if cores[name] > 0})


def wait(
    seconds: float,
    tell: Callable[[Others], None],
    look: Callable[[], Others | None] = look,
    clock: Callable[[], float] = time.monotonic,
) -> Others | None:
    """Looks until nobody else used the machine in LOOKS looks in a row, or until the seconds are over. Returns the last
    look. tell: is called with each look that is busy."""
    deadline_s = clock() + seconds
    quiet = 0
    while True:
        others = look()
        if others is None:
            return None
        quiet = 0 if others.busy else quiet + 1
        if quiet == LOOKS or clock() >= deadline_s:
            return others
        if others.busy:
            tell(others)
