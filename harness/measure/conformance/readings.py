"""The trials of a meter. Each is made when a check first needs it, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.discover.config import Config
from mixmark.harness.measure.conformance.report import NotChecked, trial
from mixmark.harness.measure.metering import LiveReading, Meters, live
from mixmark.harness.plugins.registry import Plugin

READ_S = 3.0  # at rest, and as long under load
BUSY_PERCENT = 50.0  # of the CPUs, above which rest cannot be told from load
SPIN = "while True: pass"


@dataclass(frozen=True)
class Asked:
    """The reply of a fresh meter to `domains`."""

    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]
    took_s: float


class Readings:
    """The trials of one meter. devices: those that all adapters reach here."""

    def __init__(self, meter: Plugin, config: Config, devices: Sequence[Device]) -> None:
        self.meter, self.devices = meter, tuple(devices)
        own = [name for name in {**config.meters, **config.meter_pythons} if name.partition(".")[0] == meter.name]
        self._config = Config(
            meters={name: config.meters[name] for name in own if name in config.meters},
            meter_pythons={name: config.meter_pythons[name] for name in own if name in config.meter_pythons},
        )

    @trial
    def asked(self) -> tuple[Asked, ...]:
        """Two fresh meters. Raises NotChecked if the meter needs a section of mixmark.toml and has none."""
        found = []
        for _ in range(2):
            begin_s = time.monotonic()
            with self._meters() as meters:
                if meters.unasked:
                    raise NotChecked(f"it is asked only where mixmark.toml has a section [meter.{self.meter.name}]")
                found.append(Asked(meters.domains, meters.absent, time.monotonic() - begin_s))
        return tuple(found)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains that it can read here. Raises NotChecked if there is none."""
        asked = self.asked[0]
        if not asked.domains:
            raise NotChecked("; ".join(f"{each.name}: {each.reason}" for each in asked.absent) or "it covers nothing")
        return asked.domains

    @trial
    def at_rest(self) -> Mapping[str, LiveReading]:
        """The readings of each domain on the idle machine, by its id."""
        psutil.cpu_percent()
        return self._read()

    @trial
    def rest_percent(self) -> float:
        """How busy the CPUs were at rest, by other processes."""
        psutil.cpu_percent()
        time.sleep(0.3)
        return psutil.cpu_percent()

    @trial
    def under_load(self) -> Mapping[str, LiveReading]:
        """The readings of each domain while every CPU was busy, by its id."""
        with _load():
            return self._read()

    def _read(self) -> Mapping[str, LiveReading]:
        if not self.domains:
            return {}
        with self._meters() as meters:
            return {each.domain.id: each for each in live(meters, READ_S)}

    def _meters(self) -> Meters:
        return Meters(self._config, self.devices, {self.meter.name: self.meter})


@contextmanager
def _load() -> Iterator[None]:
    """Keeps every CPU busy."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)  # until a power that is a mean over some time has risen
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()
