"""An adapter that keeps to its contract, and breaks as much of it as its option `broken` names.

Its two devices compute a suite of one sum: all differences that the kit's checks look for show there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mixmark import Array, Device, Feed, Precision, Runner, Suite, Unsupported, Use, refuse_options

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
FAULTS = (
    *("slow", "forgets", "twice", "lax", "raises", "wide", "wrong", "elsewhere"),
    *("clings", "leaks", "spins", "mixes up", "greedy"),
)
SPINS = "import time\nwhile sum(range(40_000)): time.sleep(0.002)"
"""Burns a part of a CPU."""
HELD: list[Any] = []
CLOSED: list[str] = []


class Lazy:
    """An output that becomes an array when the harness converts it."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


class Engine:
    facts: Mapping[str, str] = {"engine": "acme 1"}

    def __init__(self, faults: Iterable[str], precision: str, processes: Sequence[int]) -> None:
        self.faults, self.precision, self.processes = set(faults), precision, processes
        self.concurrency = 2
        self.buffer: Array = np.zeros(1, np.int64)
        self.lock = threading.Condition()
        self.writes = 0
        if "elsewhere" in self.faults:
            self.facts = {**self.facts, "elsewhere": "2 of 3 nodes on cpu:0"}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if "raises" in self.faults and self.precision == "bf16":
            raise RuntimeError("acme: no kernel")
        output: Any = feed["x"] + 0
        if "mixes up" in self.faults:  # all feeds share one buffer: each waits until another one has written into it
            with self.lock:
                self.buffer, self.writes = feed["x"], self.writes + 1
                own = self.writes
                self.lock.notify_all()
                self.lock.wait_for(lambda: self.writes > own, timeout=0.1)
                output = self.buffer + 0
        if "wide" in self.faults and self.precision == "fp16":
            output = output.astype(np.float64)
        if "wrong" in self.faults and self.precision == "int8":
            output += 1
        try:
            out: Any = Lazy(output)
            yield out
        finally:
            output[:] = -1  # a yielded array may be lazy, and may be written to again
            if "clings" in self.faults and sys.exc_info()[0] is GeneratorExit:
                time.sleep(0.2)


class Acme:
    name = "acme"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.faults = options.get("broken", "").split(",")
        self.folder = options.get("folder", "")
        self.processes = [int(each) for each in options.get("server", "").split()]
        if "lax" not in self.faults:
            refuse_options("adapter acme", options, ["broken", "folder", "server"])

    def discover(self) -> Iterable[Device]:
        if "slow" in self.faults:
            time.sleep(0.3)
        name = f"Acme {os.getpid()}" if "forgets" in self.faults else "Acme"
        for number in (0, 1, 1) if "twice" in self.faults else (0, 1):
            pool = f"npu:acme{number}"
            yield Device(id=pool, kind="npu", name=name, memory_pool=pool, precisions=PRECISIONS)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        if precision not in PRECISIONS:
            raise Unsupported(f"acme computes in no {precision}")
        if "once" in self.faults and CLOSED:
            raise RuntimeError("acme: the driver is gone")
        if "leaks" in self.faults:
            HELD.append(np.ones(6 << 20))
        if "spins" in self.faults and not any(isinstance(each, subprocess.Popen) for each in HELD):
            # a process that outlives a killed worker
            HELD.append(subprocess.Popen([sys.executable, "-S", "-c", SPINS], start_new_session=True))
        if "greedy" not in self.faults:
            yield Engine(self.faults, precision, self.processes)
            CLOSED.append(suite.name)
            return
        lock = Path(self.folder, "acme.lock")
        if lock.exists() and lock.read_text() != device.id:
            raise RuntimeError(f"acme: {lock.read_text()} is in use")
        lock.write_text(device.id)
        yield Engine(self.faults, precision, self.processes)
        lock.unlink(missing_ok=True)
