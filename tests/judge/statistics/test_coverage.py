"""Do intervals hold the truth as often as they say, although the run stops once they are narrow? By simulation."""

from __future__ import annotations

import numpy as np
import pytest

from bench import coverage
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.judge.statistics.timestamps import Floats
from tests.judge.statistics.test_steadiness import noise

TRIALS = 4000
CAP = 240
HALF_WIDTH = 0.02
TRUTH = 100.0
WINDOWS = 300


def stopped_at(rates: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[trials], the number of blocks at which `intervals.twice_precise` ends each series of rates [blocks, trials]."""
    checks = intervals.checks(CAP)
    narrow = [intervals.precise(rates[:count], HALF_WIDTH) for count in checks]
    stops = np.full(rates.shape[1], CAP)
    for count, before, now in reversed(list(zip(checks[1:], narrow, narrow[1:], strict=False))):
        stops[before & now] = count
    return stops


def test_the_simulation_stops_where_the_rule_does() -> None:
    rates = TRUTH * (1 + 0.05 * noise(CAP, 0.5, seed=1, trials=8))
    for series, stop in zip(rates.T, stopped_at(rates), strict=True):
        asked = (count for count in range(1, CAP) if intervals.twice_precise(series[:count], HALF_WIDTH))
        assert next(asked, CAP) == stop


@pytest.mark.parametrize("phi", [0.0, 0.5], ids=["independent", "autocorrelated"])
@pytest.mark.parametrize(
    "spread", [0.04, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (0.02, 0.06, 0.1))]
)
def test_a_95_percent_interval_holds_the_truth_with_the_stopping_rule_active(spread: float, phi: float) -> None:
    rates = TRUTH * (1 + spread * noise(CAP, phi, seed=round(1000 * (spread + phi)), trials=TRIALS))
    stops = stopped_at(rates)
    held = 0
    for count in np.unique(stops).tolist():
        stopped = rates[:count, stops == count]
        held += int((np.abs(stopped.mean(axis=0) - TRUTH) <= intervals.mean_half_width(stopped)).sum())
    assert 0.93 <= held / TRIALS <= 0.99
    assert (stops < CAP).mean() > 0.05 or spread == 0.1  # the rule had a say


@pytest.mark.parametrize("length_s", coverage.LENGTHS_S[:1])
def test_lasting_changes_and_stalls_are_not_steady_and_noise_is(length_s: int) -> None:
    processes = {each.name: each for each in coverage.CATALOGUE}

    def steady(name: str) -> float:
        return coverage.simulate(processes[name], length_s, WINDOWS, seed=2).steady

    for name in (
        "one stall of 2 s",
        "a third slower from somewhere in the last tenth",
        "a warm-up that fades from 30 %",
    ):
        assert steady(name) <= 0.03, name
    for name in ("a third slower in the first half", "a third slower in the first third"):
        assert steady(name) == 0, name
    for name in ("independent noise of 2 %", "AR(1) of 5 %, φ 0.5 a second"):
        assert steady(name) >= 0.95, name
