"""A vendor's meter, exact or broken: `mode` says how."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mixmark import Absent, Device, Domain, Meter, MixmarkError, Sample
from mixmark.harness.resources import clock

WATTS = 50.0


class Joules:
    """Counts 50 W on every device, and reports a missing probe."""

    name = "joules"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.mode = options.get("mode", "fine")
        self.label = options.get("name", "")
        self.reads = 0

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain | Absent]:
        if self.mode == "broken driver":
            raise RuntimeError("libjoules.so: cannot open\x1b[31m shared object file")
        if self.mode == "exits":
            sys.exit("joules: licence expired")
        if self.mode == "prints":
            print("JOULES 1.0")
            os.write(1, b"libjoules 1.0\n")
        if self.mode == "absent":
            yield Absent(kind="meter", name="probe 2", reason="not plugged in: plug it in")
            return
        common: dict[str, Any] = {"meter": self.name, "quantity": "energy", "source": "a test"}
        if self.mode == "wall":
            place: dict[str, Any] = {"id": f"{self.name}/{self.label}", "covers": ("cpu:0", "node")}
            yield Domain(boundary="wall", method="external", **place, **common)
            return
        for device in devices:
            place = {"id": f"{self.name}/{device.id}", "covers": (device.id,)}
            yield Domain(boundary="devices", method="counter", **place, **common)

    def read(self, domain: Domain) -> Sequence[Sample]:
        self.reads += 1
        if self.mode == "dies" and self.reads > 3:
            raise MixmarkError("the probe was pulled out", hint="plug it in again")
        if self.mode == "hangs" and self.reads > 3:
            clock.sleep(1000)
        if sys.platform != "win32" and self.mode == "is killed" and self.reads > 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.mode == "leaves":
            sys.exit("joules: licence expired")
        if self.mode in ("nan", "1e300"):
            return (Sample(float(self.mode)),)
        if self.mode == "falls":
            return (Sample(-WATTS * clock.now_ns() / 1e9),)
        if self.mode == "late":
            at_ns = clock.now_ns() - 3_000_000_000
            return (Sample(WATTS * at_ns / 1e9, at_ns),)
        if self.mode == "backwards":
            return (Sample(1.0, 10), Sample(2.0, 9))
        return (Sample(WATTS * clock.now_ns() / 1e9),)


class Plug(Joules):
    """Only where it is configured."""

    name = "plug"
    needs_section = True


def _matches(joules: Joules) -> Meter:
    return joules
