"""Samples the machine about once a second, in a thread of its own, while a worker measures.

The canary is a fixed loop, timed before and after each measurement, that shows whether one core is still as fast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.schema import Absent, Conditions
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.counters import MachineCounters, between
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock, cpus
from mixmark.harness.resources.files import ROOT

INTERVAL_S = 1.0
WATCH_FRACTION = 0.005  # of one core: what sampling may cost
CANARY_STEPS = 60_000
CANARY_TIMES = 5
WARMUP_NS = 20_000_000  # a governor takes about this long to raise an idle CPU's clock


@dataclass(frozen=True)
class Watched:
    """The result of a watch: plain facts, which another host can send."""

    blocks: tuple[Conditions, ...]
    """Consecutive intervals, in order."""
    absent: tuple[Absent, ...]
    """The vendors' watchers that failed during the watch."""


class Watch:
    """Samples the machine from `start` to `stop`.

    pids: the workers, whose descendants count with them. pinned: the cores of each worker that is pinned. watchers: by
    default the plugins of that kind.

    Sampling takes at most half a percent of one core: the pause grows with the CPU time of a sample. Stop it before the
    worker ends, or the last block lacks the worker's CPU time.
    """

    def __init__(
        self,
        pids: Sequence[int],
        root: Path = ROOT,
        watchers: Mapping[str, Plugin] | None = None,
        pinned: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._accelerators = Accelerators(watchers)
        self._machine = MachineCounters(
            pids, root, clock.now_ns, accelerators=self._accelerators, pinned=pinned, usable=cpus.restricted(root)
        )
        self._blocks: list[Conditions] = []
        self._begun, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> Watch:
        """Returns after the first sample, so that the cost of opening the watchers disturbs no measurement."""
        self._thread.start()
        self._begun.wait()
        return self

    def stop(self) -> Watched:
        """Takes one last sample, and ends the thread."""
        self._stopped.set()
        self._thread.join()
        return Watched(tuple(self._blocks), self._accelerators.absent)

    def _watch(self) -> None:
        try:
            self._sample()
        finally:
            self._begun.set()  # also if the first sample failed

    def _sample(self) -> None:
        with self._accelerators:
            last = self._machine.read()
            self._begun.set()
            pause_s = INTERVAL_S
            ended = False
            while not ended:
                ended = clock.wait(self._stopped, pause_s)
                before_ns = self._cpu_ns()
                now = self._machine.read()
                if now.at_ns > last.at_ns:
                    self._blocks.append(between(last, now))
                    last = now
                pause_s = max(INTERVAL_S, (self._cpu_ns() - before_ns) / WATCH_FRACTION / 1e9)

    def _cpu_ns(self) -> int:
        """The CPU time of this thread and of the watchers' calls."""
        return time.thread_time_ns() + self._accelerators.cpu_ns


def canary() -> Conditions:
    """The loop's times in ns. Run it before, between and after measurements, never beside a worker."""
    begin_ns = clock.now_ns()
    warm_ns = time.monotonic_ns() + WARMUP_NS
    while time.monotonic_ns() < warm_ns:
        _fixed_work()
    times = []
    for _ in range(CANARY_TIMES):
        start_ns = clock.now_ns()
        _fixed_work()
        times.append(clock.now_ns() - start_ns)
    return Conditions(begin_ns=begin_ns, end_ns=clock.now_ns(), canary_ns=tuple(times))


def _fixed_work() -> int:
    """Does integer arithmetic in registers and cache, so that its time follows the clock and nothing else."""
    total = 0
    for step in range(CANARY_STEPS):
        total = (total * 31 + step) & 0xFFFF
    return total
