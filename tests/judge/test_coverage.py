"""Do intervals hold the truth as often as they say, although the run stops once they are narrow? By simulation."""

from __future__ import annotations

import numpy as np
import pytest

from harness.compare import Verdict, ratio_of_blocks, ratio_of_runs, verdict_of
from harness.judge import intervals, steady
from harness.judge.stamps import Floats
from tests.judge.test_steady import noise

TRIALS = 4000
CAP = 240
HALF_WIDTH = 0.02
TRUTH = 100.0


def stopped_at(rates: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[trials], the number of blocks at which `steady.stop_reason` ends each series of rates [blocks, trials]."""
    checks = steady.checks(CAP)
    narrow = [steady.precise(rates[:count], HALF_WIDTH) for count in checks]
    stops = np.full(rates.shape[1], CAP)
    for count, before, now in reversed(list(zip(checks[1:], narrow, narrow[1:], strict=False))):
        stops[before & now] = count
    return stops


def test_the_simulation_stops_where_the_rule_does() -> None:
    rates = TRUTH * (1 + 0.05 * noise(CAP, 0.5, seed=1, trials=8))
    for series, stop in zip(rates.T, stopped_at(rates), strict=True):
        asked = [steady.stop_reason(series[:count], HALF_WIDTH, CAP) for count in range(1, CAP + 1)]
        assert next(count for count, reason in enumerate(asked, 1) if reason) == stop


@pytest.mark.parametrize("phi", [0.0, 0.5], ids=["independent", "autocorrelated"])
@pytest.mark.parametrize("spread", [0.02, 0.04, 0.06, 0.1], ids="blocks ± {}".format)
def test_a_95_percent_interval_holds_the_truth_with_the_stopping_rule_active(spread: float, phi: float) -> None:
    rates = TRUTH * (1 + spread * noise(CAP, phi, seed=round(1000 * (spread + phi)), trials=TRIALS))
    stops = stopped_at(rates)
    held = 0
    for count in np.unique(stops).tolist():
        low, high = intervals.block_bootstrap(rates[:count, stops == count])
        held += int(((low <= TRUTH) & (high >= TRUTH)).sum())
    assert 0.93 <= held / TRIALS <= 0.97
    assert (stops < CAP).mean() > 0.05 or spread == 0.1  # the rule had a say


@pytest.mark.parametrize("phi", [0.0, 0.5], ids=["independent", "autocorrelated"])
def test_single_runs_tell_a_tenth_slower_and_do_not_invent_it(phi: float) -> None:
    spread = 0.03  # with which 60 blocks end at ± 0.8 % and ± 1.7 %
    a, b = (TRUTH * (1 + spread * noise(60, phi, seed=seed, trials=200)) for seed in (11, 12))
    alike: list[Verdict] = []
    slowed: list[Verdict] = []
    for before, after in zip(a.T, b.T, strict=True):
        for verdicts, factor in ((alike, 1), (slowed, 0.9)):
            verdicts.append(verdict_of(ratio_of_blocks(before, factor * after), delta=0.01))
    assert sum(verdict in ("faster", "slower") for verdict in alike) <= 10
    assert "faster" not in slowed
    assert slowed.count("slower") >= 190


def test_runs_tell_a_tenth_slower_and_do_not_invent_it() -> None:
    runs = np.exp(0.02 * np.random.default_rng(13).standard_normal((2, 200, 5)))
    alike = [verdict_of(ratio_of_runs(a.tolist(), b.tolist()), 0.01) for a, b in zip(*runs, strict=True)]
    slowed = [verdict_of(ratio_of_runs(a.tolist(), (0.9 * b).tolist()), 0.01) for a, b in zip(*runs, strict=True)]
    assert sum(verdict in ("faster", "slower") for verdict in alike) <= 10
    assert slowed.count("slower") >= 190


def test_intervals_of_a_ratio_of_runs_hold_it_as_often_as_they_say() -> None:
    random = np.random.default_rng(14)
    held = 0
    for _ in range(2000):
        a, b = np.exp(0.01 * random.standard_normal(5)), 1.1 * np.exp(0.04 * random.standard_normal(4))
        ratio = ratio_of_runs(a.tolist(), b.tolist())
        held += ratio.low <= 1.1 <= ratio.high
    assert 0.93 <= held / 2000 <= 0.97
