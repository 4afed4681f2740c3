from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Completions, Limits
from mixmark.harness.judge.statistics import intervals, timestamps
from mixmark.harness.judge.statistics.timestamps import Floats
from tests.golden.sample import closed_loop
from tests.judge.found import not_none

LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=1, max_ns=10**9, min_feeds=1, half_width=0.05)


def noise(blocks: int, phi: float, seed: int, trials: int = 1) -> Floats:
    """[blocks, trials] of AR(1) with variance 1."""
    white = np.random.default_rng(seed).standard_normal((blocks, trials))
    series = white.copy()
    for block in range(1, blocks):
        series[block] = phi * series[block - 1] + np.sqrt(1 - phi**2) * white[block]
    return series


def test_an_edge_inside_a_feed_counts_evenly_over_its_steps() -> None:
    blocks = not_none(intervals.block_rates(closed_loop([[10, 30], [20, 20], [20], [20], [20]]), 20))
    assert blocks.edges_ns.tolist() == [1000, 1020, 1040, 1060, 1080, 1100, 1120, 1140]
    assert blocks.units == pytest.approx([1 + 1 / 3, 2 / 3, 1, 1, 1, 1, 1])
    assert blocks.rates_per_s == pytest.approx(blocks.units / 20e-9)


def test_blocks_are_no_shorter_than_the_median_feed() -> None:
    for feeds in ([[100]] * 4, [[70, 20, 10]] * 4):
        blocks = not_none(intervals.block_rates(closed_loop(feeds, units=6), 1))
        assert blocks.units == pytest.approx([6 * len(feeds[0])] * 4)


def test_forty_feeds_of_an_llm_are_steady_with_every_prefill_in() -> None:
    done = closed_loop([[5_000, *[100] * 127]] * 40)
    seen = not_none(intervals.window(done))
    assert (seen.steady, seen.stretch, len(seen.blocks)) == (True, None, 40)
    assert seen.blocks.rates_per_s.mean() == pytest.approx(timestamps.throughput_per_s(done))
    assert intervals.enough(LIMITS, done)


def test_the_mean_of_the_blocks_is_the_throughput() -> None:
    steps = np.random.default_rng(3).integers(1, 1_000, (200, 3)).tolist()
    done = closed_loop(steps, units=7)
    for block_ns in (1, 999, 12_345, 10**9):
        blocks = not_none(intervals.block_rates(done, block_ns))
        assert blocks.rates_per_s.mean() == pytest.approx(timestamps.throughput_per_s(done))
        assert blocks.units.sum() == pytest.approx(4_200)


def test_time_between_feeds_counts_and_so_does_the_rest_of_the_bracket() -> None:
    issued = [0, 50, 150, 200]
    columns = (issued, issued, [1, 2, 3, 4], [50, 100, 200, 250], [5, 5, 10, 20])
    done = Completions(*(np.array(column) for column in columns))
    blocks = not_none(intervals.block_rates(done, 50))
    assert blocks.units == pytest.approx([5, 5, 0, 10, 20])
    assert blocks.edges_ns.tolist() == [0, 50, 100, 150, 200, 250]
    bracketed = not_none(intervals.block_rates(done, 50, (-50, 300)))
    assert bracketed.units == pytest.approx([0, 5, 5, 0, 10, 20, 0])
    assert bracketed.rates_per_s.mean() == pytest.approx(40 * 1e9 / 350)


def test_one_feed_is_one_block() -> None:
    blocks = not_none(intervals.block_rates(closed_loop([[7]]), 1))
    assert blocks.rates_per_s.tolist() == [1e9 / 7]
    assert intervals.is_steady(blocks.rates_per_s) is None
    assert intervals.mean_interval(blocks.rates_per_s) is None


def test_a_clock_that_does_not_tick_gives_no_blocks() -> None:
    assert intervals.block_rates(closed_loop([[0]]), 10) is None
    assert intervals.block_rates(closed_loop([[0, 0], [0]]), 10) is None


def test_a_step_in_which_the_clock_did_not_tick_still_counts() -> None:
    blocks = not_none(intervals.block_rates(closed_loop([[0, 40], [40, 0]], units=2), 40))
    assert blocks.units.tolist() == [4, 4]


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_a_ramp_is_refused(phi: float) -> None:
    ramp = np.linspace(100, 130, 60)[:, None]
    series = ramp + 1.5 * noise(60, phi, seed=2, trials=200)
    assert np.mean([intervals.is_steady(rates) for rates in series.T]) <= 0.05
    for blocks in (20, 60, 600):
        clean = np.linspace(100, 130, blocks)
        assert not intervals.is_steady(clean)
        assert not intervals.is_steady(clean[::-1])


def test_a_stall_is_found_where_it_is_and_what_it_costs_is_told() -> None:
    rates = np.full(60, 100.0) + noise(60, 0, seed=8)[:, 0]
    rates[17:21] = 0
    found = not_none(intervals.other_level(rates))
    assert (found.begin, found.end, found.relative) == (17, 21, 0)
    assert found.moved == pytest.approx(4 / 56, abs=1e-3)


def test_a_drop_at_the_very_end_is_found_to_the_last_block() -> None:
    found = not_none(intervals.other_level(np.concatenate((np.full(36, 100.0), np.full(4, 50.0)))))
    assert (found.begin, found.end, round(found.relative, 9)) == (36, 40, 0.5)


def test_a_window_that_did_all_of_its_work_at_once_is_compared_with_a_rest_that_has_some_of_it() -> None:
    found = not_none(intervals.other_level(np.where(np.arange(40) // 4 == 3, 1.0, 0.0)))
    assert (found.begin, found.end, found.relative) == (12, 15, 37)


def test_a_window_in_which_nothing_counts_tells_nothing() -> None:
    assert intervals.is_steady(np.zeros(40)) is None
    assert not intervals.can_judge_steadiness(np.ones(19)) and intervals.can_judge_steadiness(np.ones(20))


def test_a_step_that_moves_the_mean_by_less_than_half_a_percent_is_of_no_concern() -> None:
    assert intervals.is_steady(np.concatenate((np.full(30, 100.0), np.full(30, 100.9))))
    assert not intervals.is_steady(np.concatenate((np.full(30, 100.0), np.full(30, 101.2))))


def test_what_is_trimmed_off_the_squares_is_what_normal_noise_has_there() -> None:
    from scipy.stats import chi2

    assert pytest.approx(chi2.cdf(chi2.ppf(0.9, 1), 3) / 0.9, abs=1e-4) == intervals.TRIMMED


def test_looks_at_the_interval_are_few_and_wider_apart_each_time() -> None:
    assert intervals.checks(150) == [20, 30, 45, 68, 102]
    assert intervals.checks(19) == []


def test_a_quiet_run_is_precise_when_two_looks_in_turn_are_narrow_enough() -> None:
    rates = 100 + noise(60, 0, seed=5)[:, 0]
    asked = {count: intervals.twice_precise(rates[:count], 0.02) for count in (1, 20, 29, 30, 31)}
    assert asked == {1: False, 20: False, 29: False, 30: True, 31: True}


def test_a_window_that_was_not_steady_goes_on_however_narrow_its_interval_is() -> None:
    done = closed_loop([[1000]] * 46 + [[1040]] * 14)
    blocks = intervals.block_rates(done, 1)
    assert blocks is not None and intervals.twice_precise(blocks.rates_per_s, 0.05)
    assert not intervals.enough(LIMITS, done)
    assert not intervals.enough(LIMITS, closed_loop([[0]])), "a window without a tick of the clock does not end either"
