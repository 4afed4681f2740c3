"""A vendor's watcher of one accelerator, exact or broken: each class is one way to be broken."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mixmark import AcceleratorState, Check, Watcher
from mixmark.harness.resources import clock

ID = "npu:onyx"


class Onyx:
    """An accelerator that is well."""

    name = "onyx"

    def disclose(self) -> Iterable[Mapping[str, str]]:
        return [{"id": ID, "name": "Onyx"}]

    def read(self) -> Iterable[AcceleratorState]:
        return [AcceleratorState(ID, reasons=("power cap",), clock_mhz=900, pids=[])]

    def checks(self) -> Iterable[Check]:
        return [Check("npu Onyx fan", "warn", "off", "onyxctl fan on")]

    def close(self) -> None:
        pass


class Unbuilt(Onyx):
    def __init__(self) -> None:
        raise OSError("libonyx.so: cannot open\x1b[31m shared object file")


class Raising(Onyx):
    """Works twice, then its driver is gone."""

    reads = 0

    def read(self) -> Iterable[AcceleratorState]:
        type(self).reads += 1
        if self.reads > 2:
            raise RuntimeError("the driver is gone")
        return super().read()


class Leaving(Onyx):
    def read(self) -> Iterable[AcceleratorState]:
        sys.exit("onyx: licence expired")


class Hanging(Onyx):
    def read(self) -> Iterable[AcceleratorState]:
        clock.sleep(1000)
        return []


class Printing(Onyx):
    def read(self) -> Iterable[AcceleratorState]:
        print("ONYX 1.0")
        os.write(1, b"libonyx 1.0\n")
        return super().read()


class Babbling(Onyx):
    """Tells a reason that the schema does not know."""

    def read(self) -> Iterable[AcceleratorState]:
        reasons: Any = ("it felt like it",)  # typed away: the harness must refuse what the types forbid
        return [AcceleratorState(ID, reasons=reasons)]


class Slow(Onyx):
    """Burns 50 ms of CPU time with each read."""

    def read(self) -> Iterable[AcceleratorState]:
        end_ns = time.thread_time_ns() + 50_000_000
        while time.thread_time_ns() < end_ns:
            pass
        return super().read()


class Closing(Onyx):
    def close(self) -> None:
        raise RuntimeError("it does not close")


def _matches(onyx: Onyx) -> Watcher:
    return onyx


class Flooding(Onyx):
    """Replies with more than the process that measures would like to parse."""

    def read(self) -> Iterable[AcceleratorState]:
        return [AcceleratorState(ID + "x" * (2 << 20))]
