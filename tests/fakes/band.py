"""An adapter with as many devices as asked for, each as fast as asked for; the CPU's work is sleeping.

options: `s.<device>.<suite>` seconds a sample; `parts.<device>`: the devices of a group, `a+b`; `slots`: how many
feeds a device takes at once; `die.<device>`, `raise.<device>`, `hang.<device>`: at which feed of a suite that happens;
`says`: the text of the error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from mixmark import Array, Device, Feed, Runner, Suite, Unsupported, Use
from mixmark.harness.resources import clock


class Player:
    def __init__(self, suite: str, device: str, options: Mapping[str, str]) -> None:
        self.facts = {"band": device}
        self.concurrency = int(options.get("slots", 1))
        self.sample_s = float(options[f"s.{device}.{suite}"])
        self.says = options.get("says", "a string broke")
        self.ends = {how: int(options.get(f"{how}.{device}", 0)) for how in ("die", "raise", "hang")}
        self.feeds = 0

    def __call__(self, feed: Feed) -> Iterator[Array]:
        self.feeds += 1
        if sys.platform != "win32" and self.feeds == self.ends["die"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.feeds == self.ends["raise"]:
            raise RuntimeError(self.says)
        if self.feeds == self.ends["hang"]:
            clock.sleep(1000)
        clock.sleep(self.sample_s * len(feed["x"]))
        yield feed["x"]


class Band:
    name = "band"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options
        self.devices = sorted({key.split(".")[1] for key in options if key.startswith("s.")})

    def discover(self) -> Iterable[Device]:
        for name in self.devices:
            parts = tuple(f"npu:{each}" for each in self.options.get(f"parts.{name}", "").split("+") if each)
            yield Device(
                id=f"npu:{name}",
                kind="npu",
                parts=parts,
                memory_pool=name,
                memory_bytes=8 << 30,
                precisions=("fp32",),
                precisions_by_suite={"probe": ()},
            )

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        name = device.id.removeprefix("npu:")
        if f"s.{name}.{suite.name}" not in self.options:
            raise Unsupported(f"{name} does not play {suite.name}")
        yield Player(suite.name, name, self.options)
