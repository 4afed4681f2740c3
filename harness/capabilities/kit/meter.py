"""The checks of a meter, in the order of docs/capabilities/kit/conformance.md: trials -> evidence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import psutil

from mixmark.harness.capabilities.kit.report import Check, NotChecked, Report, checked, chosen, fail_if, trial
from mixmark.harness.capabilities.meter_trial.trial import LiveReading, busy_cpus, live
from mixmark.harness.contracts.device_ids import part_of
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Absent, Device, Domain
from mixmark.harness.judge.energy.coverage import LEFT_OUT, contains, overlap
from mixmark.harness.judge.energy.reading import WHOLE
from mixmark.harness.machine import config as configuration
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import Config
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from mixmark.harness.resources.psutils import known

T = TypeVar("T")
READ_S = 3.0  # at rest, and as long under load
BUSY_PERCENT = 50.0  # of the CPUs, above which rest cannot be told from load
DOMAINS_WITHIN_S = 10.0
MOST_WATTS = 1e6  # of any machine
RISES = 1.02  # times the power at rest, under load
RAISED = re.compile(r"[A-Za-z]+(Error|Exception|Exit)\b")
"""The begin of a reason if a meter raised an error other than MixmarkError."""
PARTS = frozenset({WHOLE, *(part for several in LEFT_OUT.values() for part in several)})
"""The names that a domain may cover beside devices."""


@dataclass(frozen=True)
class DomainList:
    """The reply of a fresh meter to `domains`."""

    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]
    took_s: float


class MeterTrials:
    """The trials of one meter. devices: all that adapters reach here."""

    rest_percent: float
    """How busy other programs kept the CPUs while the meter was read at rest."""

    def __init__(self, meter: Plugin, config: Config, devices: Sequence[Device]) -> None:
        self.meter, self.devices = meter, tuple(devices)
        self._config = Config(meters=self._own(config.meters), meter_pythons=self._own(config.meter_pythons))

    def _own(self, sections: Mapping[str, T]) -> dict[str, T]:
        """Its own sections of mixmark.toml."""
        return {name: own for name, own in sections.items() if name.partition(".")[0] == self.meter.name}

    @trial
    def lists(self) -> tuple[DomainList, ...]:
        """The replies of two fresh meters. Raises NotChecked if the meter needs a section of mixmark.toml and has
        none."""
        found = []
        for _ in range(2):
            begin_s = clock.now_s()
            with self._meters() as meters:
                if meters.unconfigured:
                    raise NotChecked(f"it is read only if mixmark.toml has a section [meter.{self.meter.name}]")
                found.append(DomainList(meters.domains, meters.absent, clock.now_s() - begin_s))
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
        known(psutil.cpu_percent, 0.0)  # the next call returns the mean since this one
        readings = self._read()
        self.rest_percent = known(psutil.cpu_percent, 0.0)
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


def domains_are_quick(trials: MeterTrials) -> str:
    """`domains` returns within 10 s."""
    took_s = min(found.took_s for found in trials.lists)
    fail_if(took_s > DOMAINS_WITHIN_S, f"it took {took_s:.0f} s, and may take {DOMAINS_WITHIN_S:g} s")
    return f"{took_s:.2f} s"


def domains_are_repeatable(trials: MeterTrials) -> str:
    """Two fresh meters report the same domains, and the same sources that cannot be read."""
    first, second = trials.lists
    fail_if(first.domains != second.domains, "the second time it reported other domains")
    fail_if(first.absent != second.absent, "the second time it reported other sources that cannot be read")
    return f"twice the same: {', '.join(domain.id for domain in first.domains) or 'no domain'}"


def absent_sources_say_why(trials: MeterTrials) -> str:
    """A source that cannot be read says why; if only a permission is missing, with the command that gives it. A meter
    raises only MixmarkError."""
    absent = trials.lists[0].absent
    for source in absent:
        fail_if(RAISED.match(source.reason), f"it raised {source.reason}")
        fail_if(not source.reason.strip(), f"{source.name}: there is no reason")
        denied = "denied" in source.reason.lower() and "sudo" not in source.reason
        fail_if(denied, f"{source.name}: {source.reason}: it lacks the command that makes it readable")
    return "; ".join(f"{source.name}: {source.reason}" for source in absent) or "nothing is absent"


def covers_are_known(trials: MeterTrials) -> str:
    """`covers` names devices by their ids, their pieces, or parts of a machine that the docs name."""
    known = PARTS | {HOST_PROCESSOR, *(id for device in trials.devices for id in (device.id, *device.silicon))}
    for domain in trials.domains:
        unknown = [covered for covered in domain.covers if part_of(covered) not in known]
        fail_if(unknown, f"{domain.id} covers {', '.join(unknown)}, which is no device and no part of a machine")
        fail_if(domain.meter != trials.meter.name, f"{domain.id} says that it is of the meter {domain.meter}")
    return "; ".join(f"{domain.id}: {', '.join(domain.covers)}" for domain in trials.domains)


def parents_exist(trials: MeterTrials) -> str:
    """The parent of a domain is another domain of the meter, and no domain contains itself."""
    known = {domain.id: domain for domain in trials.domains}
    for domain in known.values():
        fail_if(domain.parent is not None and domain.parent not in known, f"there is no {domain.parent}")
        fail_if(contains(domain, domain, known), f"{domain.id} contains itself")
    return f"{sum(domain.parent is not None for domain in known.values())} of {len(known)} domains have a parent"


def nothing_overlaps(trials: MeterTrials) -> str:
    """No two domains of one boundary cover the same thing, unless one is the parent of the other."""
    known = {domain.id: domain for domain in trials.domains}
    for first, second in combinations(known.values(), 2):
        nested = contains(first, second, known) or contains(second, first, known)
        twice = first.boundary == second.boundary and not nested and overlap(first, second, known)
        fail_if(twice, f"{first.id} and {second.id} cover the same, and neither is the parent of the other")
    return f"{len(known)} domains"


def reads_are_quick(trials: MeterTrials) -> str:
    """A read returns within 2 s and raises nothing, at rest and under load."""
    for seen in (*trials.at_rest.values(), *trials.under_load.values()):
        fail_if(seen.lost, f"{seen.domain.id}: {seen.lost}")
        fail_if(not seen.reads, f"{seen.domain.id}: it gave no sample")
    return f"{counted(min(seen.reads for seen in trials.at_rest.values()), 'sample')} of each domain at rest"


def counters_rise(trials: MeterTrials) -> str:
    """A counter never falls, unless it wraps at the `wrap_joules` that its domain declares."""
    counters = [domain for domain in trials.domains if domain.quantity == "energy"]
    if not counters:
        raise NotChecked("it reads power and no counter")
    for domain in counters:
        for seen in (trials.at_rest[domain.id], trials.under_load[domain.id]):
            fell = [reason for reason in seen.reading.reasons if reason in ("jumped back", "jumped ahead")]
            fail_if(fell, f"{domain.id}: the counter {' and '.join(fell)}")
    return ", ".join(_wraps(domain) for domain in counters)


def power_is_plausible(trials: MeterTrials) -> str:
    """The power is above zero and possible for a machine, and a processor's power rises under load."""
    messages = []
    for domain in trials.domains:
        rest, load = trials.at_rest[domain.id].watts, trials.under_load[domain.id].watts
        if rest is None or load is None:
            continue
        message = f"{domain.id}: {rest:.1f} W at rest, {load:.1f} W under load"
        fail_if(not (0 < rest < MOST_WATTS and 0 < load < MOST_WATTS), f"{message}: that cannot be")
        computes = any(part_of(covered) in (HOST_PROCESSOR, WHOLE) for covered in domain.covers)
        if computes and trials.rest_percent >= BUSY_PERCENT:
            raise NotChecked(f"{message}: other programs kept the CPUs {trials.rest_percent:.0f} % busy at rest")
        fail_if(computes and load < RISES * rest, f"{message}: it follows no load")
        messages.append(message)
    nothing = "nothing was measured: no domain changed in 3 s at rest and 3 s under load"
    fail_if(not messages, nothing)
    return "; ".join(messages)


def _wraps(domain: Domain) -> str:
    return f"{domain.id} wraps at {domain.wrap_joules:.4g} J" if domain.wrap_joules else f"{domain.id} does not wrap"


def report(meter: str, config: Path | None, on_check: Callable[[str], None]) -> Report:
    """See `kit.check_meter`."""
    plugin, configured = chosen("meters", meter), configuration.load(config)
    devices = setup.find_devices((), configured).devices
    python = configured.meter_pythons.get(plugin.name, sys.executable)
    return checked(plugin, python, devices, CHECKS, MeterTrials(plugin, configured, devices), on_check)


CHECKS: tuple[Check[MeterTrials], ...] = (
    domains_are_quick,
    domains_are_repeatable,
    absent_sources_say_why,
    covers_are_known,
    parents_exist,
    nothing_overlaps,
    reads_are_quick,
    counters_rise,
    power_is_plausible,
)
"""Every check, in the order of the report."""
