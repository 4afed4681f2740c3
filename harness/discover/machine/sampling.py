"""Samples the machine in a thread beside the run, about once a second, while a worker measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.schema import Absent, Conditions
from mixmark.harness.discover.machine import processor
from mixmark.harness.discover.machine.accelerators import Accelerators
from mixmark.harness.discover.machine.counters import Machine, between
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.process.files import ROOT

INTERVAL_S = 1.0
WATCH_SHARE = 0.005  # of one core: what watching may cost


@dataclass(frozen=True)
class Watched:
    """What a watch saw, and all that a host hands back of it: plain facts, which travel."""

    blocks: tuple[Conditions, ...]
    """The intervals in order, without a gap between them."""
    absent: tuple[Absent, ...]
    """The vendors' watchers that failed meanwhile, and why."""


class Watch:
    """Samples the machine from `start` to `stop`.

    pids: the workers, whose children count with them. pinned: the cores of those that may use no others. watchers: by
    default the plugins of that kind.

    However slow the machine's counters are to read, watching takes at most half a percent of one core: the pause grows
    with the CPU time of a sample. Stop it before the worker is ended, or the last block does not know the worker's CPU
    time.
    """

    def __init__(
        self,
        pids: Sequence[int],
        root: Path = ROOT,
        clock: Callable[[], int] = time.monotonic_ns,
        watchers: Mapping[str, Plugin] | None = None,
        pinned: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._accelerators = Accelerators(watchers)
        self._machine = Machine(
            pids, root, clock, accelerators=self._accelerators, pinned=pinned, usable=processor.usable()
        )
        self._blocks: list[Conditions] = []
        self._begun, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> Watch:
        """Returns when the first sample is taken: what it costs to begin disturbs nothing that is measured later."""
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
            self._begun.set()  # also where the first sample failed

    def _sample(self) -> None:
        with self._accelerators:
            last = self._machine.read()
            self._begun.set()
            pause_s = INTERVAL_S
            ended = False
            while not ended:
                ended = self._stopped.wait(pause_s)
                before_ns = self._cpu_ns()
                now = self._machine.read()
                if now.at_ns > last.at_ns:
                    self._blocks.append(between(last, now))
                    last = now
                pause_s = max(INTERVAL_S, (self._cpu_ns() - before_ns) / WATCH_SHARE / 1e9)

    def _cpu_ns(self) -> int:
        """The CPU time of this thread and of the watchers' calls."""
        return time.thread_time_ns() + self._accelerators.cpu_ns
