"""The trials of a meter. Each is made when a check first needs it, and kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.discover.config import Config
from mixmark.harness.measure.conformance.report import NotChecked, trial
from mixmark.harness.measure.meter_trial import busy_cpus, config_of
from mixmark.harness.measure.metering import LiveReading, Meters, live
from mixmark.harness.plugins.registry import Plugin

READ_S = 3.0  # at rest, and as long under load
BUSY_PERCENT = 50.0  # of the CPUs, above which rest cannot be told from load


@dataclass(frozen=True)
class DomainList:
    """The reply of a fresh meter to `domains`."""

    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]
    took_s: float


class MeterTrials:
    """The trials of one meter. devices: those that all adapters reach here."""

    rest_percent: float
    """How busy other programs kept the CPUs while the meter was read at rest."""

    def __init__(self, meter: Plugin, config: Config, devices: Sequence[Device]) -> None:
        self.meter, self.devices = meter, tuple(devices)
        self._config = config_of(config, meter.name)

    @trial
    def lists(self) -> tuple[DomainList, ...]:
        """The replies of two fresh meters. Raises NotChecked if the meter needs a section of mixmark.toml and has
        none."""
        found = []
        for _ in range(2):
            begin_s = time.monotonic()
            with self._meters() as meters:
                if meters.unconfigured:
                    raise NotChecked(f"it is read only if mixmark.toml has a section [meter.{self.meter.name}]")
                found.append(DomainList(meters.domains, meters.absent, time.monotonic() - begin_s))
        return tuple(found)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains that it can read here. Raises NotChecked if there is none."""
        first = self.lists[0]
        if not first.domains:
            raise NotChecked(
                "; ".join(f"{source.name}: {source.reason}" for source in first.absent) or "it covers nothing"
            )
        return first.domains

    @trial
    def at_rest(self) -> Mapping[str, LiveReading]:
        """The readings of each domain on the idle machine, by its id."""
        psutil.cpu_percent()  # the next call returns the mean since this one
        readings = self._read()
        self.rest_percent = psutil.cpu_percent()
        return readings

    @trial
    def under_load(self) -> Mapping[str, LiveReading]:
        """The readings of each domain while every CPU was busy, by its id."""
        with busy_cpus(settle_s=0.5):
            return self._read()

    def _read(self) -> Mapping[str, LiveReading]:
        if not self.domains:
            return {}
        with self._meters() as meters:
            return {reading.domain.id: reading for reading in live(meters, READ_S)}

    def _meters(self) -> Meters:
        return Meters(self._config, self.devices, {self.meter.name: self.meter})
