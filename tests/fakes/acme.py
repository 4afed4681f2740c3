"""A vendor's adapter that misbehaves on request: `mode` says how."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from mixmark import Array, Device, Feed, Runner, Suite, Unsupported, Use, refuse_options
from mixmark.harness.resources import clock

DEVICE = Device(
    id="npu:acme0",
    kind="npu",
    name="Acme NPU",
    memory_pool="npu:acme0",
    memory_bytes=8 << 30,
    precisions=("fp32", "int8"),
    precisions_by_suite={"probe": ()},
)


class Engine:
    """A runner that brings its own runtime."""

    def __init__(self, mode: str, work_s: float) -> None:
        self.mode = mode
        self.work_s = work_s
        self.concurrency = {"two slots": 2, "no slots": 0, "endless slots": 10**9}.get(mode, 1)
        self.facts = {"engine": "acme 1"}
        self.processes: list[int] = []
        self.before: Callable[[], None] = lambda: None
        """Is called before each feed."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.before()
        if self.mode == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.mode == "exit":
            os._exit(7)
        if self.mode == "sys.exit":
            sys.exit("acme: licence expired")
        if self.mode == "raises in the loop":
            raise RuntimeError("a kernel failed")
        if self.mode == "hang":
            clock.sleep(1000)
        if self.mode == "hold the lock":
            ctypes.PyDLL(None).sleep(1000)
        if self.mode == "memory":
            raise MemoryError("no room for the activations")
        if self.mode == "hoard":
            hoard = [np.ones(1 << 21) for _ in range(128)]  # 2 GiB, touched
            raise AssertionError(f"no limit stopped {len(hoard)} blocks")
        if self.mode == "noisy":
            print('{"done": {}}')
            os.write(1, b'{"failure": 1}\n')
            os.system("echo noise of a child")
        clock.sleep(self.work_s)
        yield feed["x"] + (self.mode == "wrong")


class Acme:
    name = "acme"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.mode = options.get("mode", "fine")
        if self.mode == "strict":
            refuse_options("adapter acme", options, ["mode", "work_s"])
        self.work_s = float(options.get("work_s", 0.001))

    def discover(self) -> Iterable[Device]:
        if self.mode == "broken driver":
            raise RuntimeError("libacme.so: cannot open shared object file")
        return () if self.mode == "absent" else (DEVICE,)

    def _meet(self, device: Device) -> None:
        """Waits `waits_s` until as many devices as `meets` says are being opened: each leaves a file in `at`."""
        place = Path(self.options["at"])
        (place / device.id.replace(":", "-")).touch()
        until = clock.now_s() + float(self.options["waits_s"])
        while len(list(place.iterdir())) < int(self.options["meets"]):
            if clock.now_s() > until:
                raise RuntimeError("no other device is being opened")
            clock.sleep(0.01)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        if self.mode == "unsupported":
            raise Unsupported(f"acme has no kernels for {suite.name}")
        if self.mode == "raises in open":
            raise RuntimeError("the device is gone")
        engine = Engine(self.mode, self.work_s)
        if "meets" in self.options:
            meet = partial(self._meet, device)
            if "in_a_feed" in self.options:
                engine.before = meet
            else:
                meet()
        if "shows_use" in self.options:
            engine.facts["use"] = f"{use.scenario}, {f'{use.in_flight} in flight' if use.in_flight else 'all slots'}"
        if "helper" in self.options:
            engine.processes = [int(self.options["helper"])]
        yield cast(Runner, "a text") if self.mode == "gives a text" else engine
        if self.mode == "raises at close":
            raise RuntimeError("the device will not let go")
