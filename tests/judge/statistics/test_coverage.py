"""Do intervals hold the truth as often as they say, although the run stops once they are narrow? By simulation."""

from __future__ import annotations

import numpy as np
import pytest

from bench import coverage
from mixmark.harness.judge.compare.solo import SpeedVerdict, ratio_of_runs, verdict_of
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("length_s", coverage.LENGTHS_S)
@pytest.mark.parametrize("process", coverage.CATALOGUE, ids=lambda process: process.name)
def test_where_steady_is_said_no_false_interval_stands(process: coverage.Process, length_s: int) -> None:
    seen = coverage.simulate(process, length_s, WINDOWS, seed=1)
    assert seen.false <= 0.07
    if seen.given > 0.2:  # else the rate wanders too slowly for the window, and hardly any interval is given
        assert seen.held >= 0.93


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


@pytest.mark.parametrize("turbo", [False, True], ids=["AR(1), φ 0.9 a second", "turbo every 20 s"])
def test_a_false_interval_of_the_mix_is_rare(turbo: bool) -> None:
    """Four streams of one machine whose speed wanders; each has noise of its own, which the others make up for."""
    random = np.random.default_rng(21)
    name = "turbo of 10% on and off every 20 s" if turbo else "AR(1) of 5 %, φ 0.9 a second"
    [shared] = [each for each in coverage.CATALOGUE if each.name == name]
    paces, truth = shared.rates(120, 600, random), shared.truth(120)
    false = 0
    for pace in paces.T:
        own = 0.1 * random.standard_normal((60, 4))
        progress = pace[:, None] * (1 + own - own.mean(axis=1, keepdims=True))
        mean = progress.mean(axis=1)
        if intervals.is_steady(mean) and (interval := intervals.mean_interval(mean)) is not None:
            low, high = interval.ends
            false += not low <= truth <= high
    assert false / 600 <= 0.07


@pytest.mark.exhaustive
@pytest.mark.parametrize("phi", [0.0, 0.5], ids=["independent", "autocorrelated"])
def test_windows_tell_a_tenth_slower_and_do_not_invent_it(phi: float) -> None:
    spread = 0.03  # with which 60 blocks end at ± 0.8 % and ± 1.7 %
    a, b = (TRUTH * (1 + spread * noise(60, phi, seed=seed, trials=200)) for seed in (11, 12))
    alike: list[SpeedVerdict] = []
    slowed: list[SpeedVerdict] = []
    for before, after in zip(a.T, b.T, strict=True):
        for verdicts, factor in ((alike, 1), (slowed, 0.9)):
            around = [intervals.mean_interval(each, 0.99) for each in (before, factor * after)]
            if around[0] and around[1]:
                verdicts.append(verdict_of(around[1].ratio(around[0]), delta=0.01))
    assert sum(verdict in ("faster", "slower") for verdict in alike) <= 10
    assert "faster" not in slowed
    assert slowed.count("slower") >= 150


def test_runs_tell_a_tenth_slower_and_do_not_invent_it() -> None:
    runs = np.exp(0.02 * np.random.default_rng(13).standard_normal((2, 200, 5)))
    alike = [verdict_of(ratio_of_runs(a.tolist(), b.tolist()), 0.01) for a, b in zip(*runs, strict=True)]
    slowed = [verdict_of(ratio_of_runs(a.tolist(), (0.9 * b).tolist()), 0.01) for a, b in zip(*runs, strict=True)]
    assert sum(verdict in ("faster", "slower") for verdict in alike) <= 10
    assert slowed.count("slower") >= 190


@pytest.mark.exhaustive
def test_intervals_of_a_ratio_of_runs_hold_it_as_often_as_they_say() -> None:
    random = np.random.default_rng(14)
    held = 0
    for _ in range(2000):
        a, b = np.exp(0.01 * random.standard_normal(5)), 1.1 * np.exp(0.04 * random.standard_normal(4))
        low, high = ratio_of_runs(a.tolist(), b.tolist()).ends
        held += low <= 1.1 <= high
    assert 0.93 <= held / 2000 <= 0.97
