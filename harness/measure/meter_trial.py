"""Reads the meters outside a run: for a few seconds, or with a load that is switched on and off (idle, busy, idle)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Domain, Metering
from mixmark.harness.judge.energy.reading import EnergyReading, StepResponse, power, reading, step_response
from mixmark.harness.machine import other_load
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.other_load import OtherLoad
from mixmark.harness.measure.metering import Meters
from mixmark.harness.resources import clock, cpus

SPIN = "while True: pass"
SETTLE_S = 2.0
"""Before the first stretch, so that a source with a lag has begun."""

LATE_S = 2.0
"""After the time that is shown, so that a source which reports a reading late has reported all of it."""


@dataclass(frozen=True)
class LiveReading:
    """The readings of one domain over a few seconds, for `mixmark meters`."""

    domain: Domain
    reading: EnergyReading
    reads: int
    watts: float | None
    """The mean power. It may be known when the time was too short for joules."""
    resolution: float | None
    """The smallest change of the value, in joules or watts. None if it did not change."""
    lost: str
    """Why the domain cannot be read any more. Empty if it can."""


def live(meters: Meters, seconds: float) -> list[LiveReading]:
    """Reads all domains for some seconds."""
    meters.begin(paced=False)
    begin_ns = clock.now_ns()
    clock.sleep(seconds if meters.domains else 0)
    end_ns = clock.now_ns()
    clock.sleep(LATE_S if meters.domains else 0)
    drained = meters.drain("live")
    return [_live(domain, drained, begin_ns, end_ns) for domain in meters.domains] if drained else []


def _live(domain: Domain, drained: Metering, begin_ns: int, end_ns: int) -> LiveReading:
    samples = drained.samples[domain.id]
    read = reading(domain, samples, begin_ns, end_ns, domain.id in drained.lost)
    changes = np.abs(np.diff(samples.values))
    _, watts = power(domain, samples)
    known = watts[np.isfinite(watts)]
    now = read.watts if read.valid else float(known.mean()) if len(known) else None
    step = float(changes[changes > 0].min()) if changes.any() else None
    return LiveReading(domain, read, len(samples.values), now, step, drained.lost.get(domain.id, ""))


@dataclass(frozen=True)
class MeterTrial:
    """What one source showed."""

    domain: Domain
    response: StepResponse
    period_ns: int | None
    """The time between its updates. None if it was never seen to change."""
    lost: str
    """Why it could not be read to the end. Empty if it could."""


def config_of(config: Config, meter: str) -> Config:
    """The sections of one meter."""

    def is_own(section: str) -> bool:
        return section.partition(".")[0] == meter

    return Config(
        meters={name: options for name, options in config.meters.items() if is_own(name)},
        meter_pythons={name: python for name, python in config.meter_pythons.items() if is_own(name)},
    )


@contextmanager
def busy_cpus(settle_s: float = 0.0) -> Iterator[None]:
    """Keeps every CPU busy, within a quota. settle_s: until a power that is a mean over some time has risen."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(cpus.count())]
    try:
        clock.sleep(settle_s)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def trials(
    meters: Meters,
    stretch_s: float,
    parts: int,
    load: Callable[[], AbstractContextManager[None]] = busy_cpus,
) -> tuple[tuple[MeterTrial, ...], OtherLoad | None]:
    """Reads all sources for three stretches. Returns also the load of other programs while nothing should run, if it
    was above the limit. parts: of each source's chart."""
    if not meters.domains:
        return (), None
    meters.begin(paced=False)
    clock.sleep(SETTLE_S)
    begin_ns = clock.now_ns()
    others = other_load.sample(wait=lambda _: clock.sleep(stretch_s))
    with load():
        on_ns = clock.now_ns()
        clock.sleep(stretch_s)
        off_ns = clock.now_ns()
    clock.sleep(stretch_s)
    end_ns = clock.now_ns()
    drained = meters.drain("trial")
    assert drained is not None  # there is a domain
    found = []
    for domain in meters.domains:
        samples = drained.samples[domain.id]
        found.append(
            MeterTrial(
                domain=domain,
                response=step_response(domain, samples, (begin_ns, end_ns), (on_ns, off_ns), parts),
                period_ns=reading(domain, samples, begin_ns, end_ns, domain.id in drained.lost).period_ns,
                lost=drained.lost.get(domain.id, ""),
            )
        )
    return tuple(found), others if others is not None and others.busy else None
