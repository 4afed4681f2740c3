"""Tries the meters against a load that it switches on and off: idle, all CPUs busy, idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Domain
from mixmark.harness.discover.config import Config
from mixmark.harness.judge.energy.reading import reading
from mixmark.harness.judge.energy.step_response import StepResponse, step_response
from mixmark.harness.measure.metering import Meters

SPIN = "while True: pass"
SETTLE_S = 2.0
"""Before the first stretch, so that a source with a lag has begun."""


@dataclass(frozen=True)
class MeterTrial:
    """What one source showed."""

    domain: Domain
    response: StepResponse
    period_ns: int | None
    """The time between its updates. None: it was never seen to change."""
    lost: str
    """Why it could not be read to the end. Empty: it could."""


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
    """Keeps every CPU busy. settle_s: until a power that is a mean over some time has risen."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(settle_s)
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
    sleep: Callable[[float], None] = time.sleep,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> tuple[MeterTrial, ...]:
    """Reads all sources for three stretches. parts: of each source's chart."""
    if not meters.domains:
        return ()
    meters.begin()
    sleep(SETTLE_S)
    begin_ns = clock_ns()
    sleep(stretch_s)
    with load():
        on_ns = clock_ns()
        sleep(stretch_s)
        off_ns = clock_ns()
    sleep(stretch_s)
    end_ns = clock_ns()
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
    return tuple(found)
