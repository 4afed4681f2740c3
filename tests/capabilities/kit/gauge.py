"""A meter that keeps to its contract, and breaks as much of it as its option `broken` names."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixmark import Absent, Device, Domain, Sample

FAULTS = ("slow", "forgets", "denied", "strange", "orphan", "again", "lost", "falls", "flat")
COVERS = {"strange": "fpga", "orphan": "memory", "again": "cpu:0", "lost": "fans", "falls": "drives"}
"""What the domains cover that are there only with a fault of their name."""


class Gauge:
    """Counts 10 W, and 10 W more while the file `load` is in the working directory."""

    name = "gauge"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.faults = options.get("broken", "").split(",")
        self.joules, self.read_s = 0.0, time.monotonic()

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        if "slow" in self.faults:
            time.sleep(0.3)
        more: dict[str, Any] = {"accuracy": random.random()} if "forgets" in self.faults else {}
        yield self._domain("cpu", "cpu:0", **more)
        for fault in (each for each in self.faults if each in COVERS):
            yield self._domain(fault, COVERS[fault], parent="gauge/none" if fault == "orphan" else None)
        fix = "" if "denied" in self.faults else ": sudo chmod a+r /dev/gauge1"
        yield Absent(kind="meter", name="gauge 1", reason=f"[Errno 13] Permission denied: '/dev/gauge1'{fix}")

    def read(self, domain: Domain) -> Sequence[Sample]:
        seconds = time.monotonic()
        if domain.id == "gauge/lost":
            raise OSError("the gauge was pulled out")
        if domain.id == "gauge/falls":
            return (Sample(1e6 - seconds),)
        watts = 20 if Path("load").exists() and "flat" not in self.faults else 10
        self.joules, self.read_s = self.joules + watts * (seconds - self.read_s), seconds
        return (Sample(self.joules),)

    def _domain(self, name: str, covers: str, **more: Any) -> Domain:
        return Domain(
            id=f"gauge/{name}",
            meter=self.name,
            covers=(covers,),
            boundary="devices",
            quantity="energy",
            method="counter",
            source="a test",
            **more,
        )
