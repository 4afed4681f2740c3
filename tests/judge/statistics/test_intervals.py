"""How sure a figure is."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.judge.statistics import intervals
from tests.judge.found import not_none


@pytest.mark.parametrize(("q", "needed"), [(0.5, 6), (0.75, 24), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_a_percentile_needs_as_many_as_early_stopping_says(q: float, needed: int) -> None:
    assert intervals.sample_needed(q) == needed
    assert intervals.percentile(np.arange(needed - 1), q) is None
    assert intervals.percentile(np.arange(needed), q) is not None


@pytest.mark.parametrize(
    ("n", "q", "value"), [(7, 0.5, 4), (8, 0.5, 4), (70, 0.9, 63), (100, 0.9, 90), (1000, 0.99, 990)]
)
def test_percentiles_are_nearest_ranks(n: int, q: float, value: int) -> None:
    shuffled = np.random.default_rng(1).permutation(np.arange(1, n + 1))
    assert intervals.percentile(shuffled, q) == value


@pytest.mark.parametrize(
    ("n", "q", "value"),
    [
        (63, 0.9, None),
        (64, 0.9, 64),
        (81, 0.9, 80),
        (97, 0.9, 95),
        (661, 0.99, None),
        (662, 0.99, 662),
        (0, 0.9, None),
        (1, 0.5, None),
        (11, 0.5, 11),
    ],
)
def test_early_stopping_discards_as_many_as_mlperf(n: int, q: float, value: int | None) -> None:
    shuffled = np.random.default_rng(1).permutation(np.arange(1, n + 1))
    assert intervals.early_stopping(shuffled, q) == value


def test_equal_latencies_have_the_same_percentiles_and_bounds() -> None:
    same = np.full(1000, 42)
    assert (intervals.percentile(same, 0.99), intervals.early_stopping(same, 0.99)) == (42, 42)


def test_fewer_than_20_blocks_have_no_interval() -> None:
    rates = 100 + np.random.default_rng(1).standard_normal(20)
    assert intervals.mean_interval(rates[:19]) is None
    assert intervals.mean_interval(rates[:0]) is None
    assert intervals.mean_interval(rates) is not None


def test_an_interval_is_the_wider_of_neighbours_and_parts() -> None:
    rates = np.tile([99.0, 101.0], 30)  # neighbours differ, the six parts do not
    interval = not_none(intervals.mean_interval(rates))
    worth = 60 * (1 - 2.5 * (1 - 4 * 59 / 60) / 60 * 0) / 1  # the autocorrelation is below 0, and counts as 0
    variance = 60 / (60 * (1 - 1 / worth))
    half = 2.0009953780883 * np.sqrt(variance / worth)  # t with 59 degrees of freedom
    assert interval.ends[1] - 100 == pytest.approx(half)
    levels = np.repeat([98.0, 102.0, 98.0, 102.0, 98.0, 102.0], 10)  # the six parts differ by more than neighbours say
    by_parts = 2.5705818356363 * 2 * np.sqrt(6 / 5) / np.sqrt(6)  # t with 5 degrees of freedom
    assert intervals.mean_half_width(levels + np.tile([-6.0, 6.0], 30)) == pytest.approx(by_parts)


def test_an_interval_that_is_too_wide_or_worth_too_few_blocks_is_not_known() -> None:
    wild = 100 + 150 * np.random.default_rng(2).standard_normal(60)
    assert intervals.mean_half_width(wild) > 0.25 * wild.mean()
    assert intervals.mean_interval(wild) is None
    walk = 100 + 0.01 * np.cumsum(np.random.default_rng(3).standard_normal(60))
    assert intervals.effective_sample_size(walk) < intervals.FEWEST_INDEPENDENT
    assert intervals.mean_interval(walk) is None


def test_the_interval_of_a_ratio_sees_that_both_move_together() -> None:
    shared = np.random.default_rng(5).standard_normal(60)
    together = intervals.ratio_interval(100 + shared, 50 + shared / 2)
    apart = intervals.ratio_interval(100 + shared, 50 - shared / 2)
    assert together is not None and apart is not None
    assert (together.low, together.high) == pytest.approx((2, 2))
    assert apart.half_width == pytest.approx(2 * intervals.mean_half_width(shared) / (100 + shared.mean()), rel=0.01)


def test_blocks_that_resemble_their_neighbours_are_worth_less() -> None:
    white = np.random.default_rng(6).standard_normal(300)
    smooth = np.convolve(white, np.ones(4) / 2, mode="same")  # the same variance
    assert intervals.mean_half_width(smooth) > 1.4 * intervals.mean_half_width(white)


def test_blocks_in_which_nothing_finished_are_independent() -> None:
    assert intervals.effective_sample_size(np.zeros(30)) == intervals.effective_sample_size(np.full(30, 7.0))


def test_over_runs_is_a_t_interval_on_the_logarithm() -> None:
    over = not_none(intervals.over_runs([100.0, 102.0, 104.04]))
    assert over.estimate == pytest.approx(102)
    half = 4.302653 * np.log(1.02) / np.sqrt(3)  # t with 2 degrees of freedom
    assert over.low == pytest.approx(102 * np.exp(-half))
    assert over.high == pytest.approx(102 * np.exp(half))


def test_two_runs_make_an_interval_unless_they_differ_by_a_tenth() -> None:
    close = intervals.over_runs([100.0, 101.0])
    assert close is not None and close.low is not None
    assert np.log(close.estimate / close.low) == pytest.approx(12.706205 * np.log(1.01) / 2)  # t of 1 degree
    over = not_none(intervals.over_runs([100.0, 110.0]))
    assert (over.low, over.high) == (None, None)


def test_one_run_has_no_interval_and_none_has_no_mean() -> None:
    assert intervals.over_runs([]) is None
    one = not_none(intervals.over_runs([5.0]))
    assert one.estimate == pytest.approx(5) and one.half_width is None


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_without_a_proper_figure_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        intervals.over_runs([1.0, bad])


@pytest.mark.exhaustive
def test_the_t_interval_over_runs_holds_the_truth_as_often_as_it_says() -> None:
    samples = np.exp(0.05 * np.random.default_rng(7).standard_normal((2000, 5)))
    found = [intervals.over_runs(sample.tolist()) for sample in samples]
    assert 0.93 <= np.mean([over is not None and (over.low or 0) <= 1 <= (over.high or 0) for over in found]) <= 0.97


@pytest.mark.parametrize(
    ("late", "of", "kept"), [(48, 60, False), (13, 60, False), (12, 60, None), (0, 60, None), (0, 64, True)]
)
def test_late_requests_refute_a_limit_before_enough_are_there_to_prove_it(
    late: int, of: int, kept: bool | None
) -> None:
    """More than 12 of 60 are late in 1 % of samples where a tenth is."""
    assert intervals.holds([(np.array([2] * late + [1] * (of - late)), 1)], 0.9) is kept
