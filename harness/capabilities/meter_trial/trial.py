"""Reads the meters outside a run: for a few seconds, or with a load that is switched on and off (idle, busy, idle)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Domain, Int64s, Metering, Samples
from mixmark.harness.judge.energy.reading import EnergyReading, power, reading
from mixmark.harness.judge.statistics.timestamps import Floats
from mixmark.harness.machine import other_load
from mixmark.harness.machine.other_load import OtherLoad
from mixmark.harness.measure.metering import Meters
from mixmark.harness.resources import clock, cpus

SPIN = "while True: pass"
SETTLE_S = 2.0
"""Before the first stretch, so that a source with a lag has begun."""

LATE_S = 2.0
"""After the time that is shown, so that a source which reports a reading late has reported all of it."""


GRID_NS = 20_000_000
EARLIEST_NS, LATEST_NS = -3_000_000_000, 6_000_000_000
"""The lags that are tried."""
CLEAR = 4.0
"""How many times its scatter a source must rise under load before its lag can be told."""


@dataclass(frozen=True)
class StepResponse:
    """What a source showed around a load that began and ended at known times."""

    idle_watts: float | None
    """None, as for the others: the source gave too few values."""
    full_watts: float | None
    noise_watts: float | None
    """The standard deviation about these two."""
    lag_ns: int | None
    """How late the source followed the load. None if it did not follow clearly."""
    watts: tuple[float | None, ...]
    """The mean power in equal parts of the time, for a chart. None if not known."""


def step_response(
    domain: Domain, samples: Samples, whole_ns: tuple[int, int], load_ns: tuple[int, int], parts: int
) -> StepResponse:
    """whole_ns: the time that was looked at. load_ns: when the load began and ended in it. parts: of the chart.

    The lag is the shift of a square wave that fits the power best by least squares.
    """
    grid = np.arange(*whole_ns, GRID_NS)
    watts = _on(grid, *power(domain, samples)) if len(samples.values) else np.full(len(grid), np.nan)
    chart = tuple(float(np.nanmean(part)) if np.isfinite(part).any() else None for part in np.array_split(watts, parts))
    known = np.isfinite(watts)
    best: tuple[float, int, float, float] | None = None
    for lag_ns in range(EARLIEST_NS, LATEST_NS + 1, GRID_NS):
        on = (grid >= load_ns[0] + lag_ns) & (grid < load_ns[1] + lag_ns)
        if not (known & on).any() or not (known & ~on).any():
            continue
        full, idle = float(watts[known & on].mean()), float(watts[known & ~on].mean())
        error = float(np.square(watts[known] - np.where(on, full, idle)[known]).sum())
        if best is None or error < best[0]:
            best = error, lag_ns, idle, full
    if best is None:
        return StepResponse(None, None, None, None, chart)
    error, lag_ns, idle, full = best
    noise = float(np.sqrt(error / known.sum()))
    clear = full - idle > CLEAR * noise and full > idle
    return StepResponse(idle, full, noise, lag_ns if clear else None, chart)


def _on(grid: Int64s, at_ns: Int64s, watts: Floats) -> Floats:
    """[grid], the power at each moment, constant within an interval of the source. NaN if not known."""
    if not len(watts):
        return np.full(len(grid), np.nan)
    index = np.searchsorted(at_ns, grid, side="right") - 1
    inside = (index >= 0) & (index < len(watts))
    return np.where(inside, watts[np.clip(index, 0, len(watts) - 1)], np.nan)


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
    meters: Meters, stretch_s: float, parts: int, load: Callable[[], AbstractContextManager[None]] = busy_cpus
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
