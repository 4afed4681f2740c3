"""How an energy source follows a load that is switched on and off: how late, how far, and how it scatters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Domain, Int64s, Samples
from mixmark.harness.judge.energy.reading import power
from mixmark.harness.judge.statistics.timestamps import Floats

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
