from __future__ import annotations

import numpy as np
import pytest

from harness.judge import intervals, roofline, stamps
from harness.schema import Completions, Cost
from tests.golden.sample import closed_loop, probe, record


def test_a_feed_of_three_tokens_has_all_its_times() -> None:
    done = closed_loop([[100, 10, 12], [200, 20, 23]])
    assert stamps.units(done) == 6
    assert stamps.in_flight_ns(done) == 365
    assert stamps.throughput_per_s(done) == 6e9 / 365
    assert stamps.latencies_ns(done).tolist() == [122, 243]
    assert stamps.first_mark_ns(done).tolist() == [100, 200]
    assert stamps.time_per_unit_ns(done).tolist() == [11, 21]  # 22 / 2, 43 / 2 rounded down


def test_feeds_in_flight_together_count_the_time_once() -> None:
    columns = ([0, 5], [0, 5], [1, 2], [100, 40], [1, 3])
    done = Completions(*(np.array(column) for column in columns))
    assert stamps.in_flight_ns(done) == 100
    assert stamps.latencies_ns(done).tolist() == [100, 35]


def test_making_the_next_feed_is_not_in_flight() -> None:
    columns = ([0, 150, 160, 300], [0, 150, 160, 300], [1, 2, 3, 4], [100, 250, 200, 330], [1, 1, 1, 1])
    done = Completions(*(np.array(column) for column in columns))
    assert stamps.in_flight_ns(done) == 100 + 100 + 30
    assert stamps.throughput_per_s(done) == 4e9 / 230


def test_time_per_unit_divides_by_the_units_behind_the_first_mark() -> None:
    columns = ([0, 0], [0, 0], [2, 3], [10, 40, 50], [5, 3, 4])
    done = Completions(*(np.array(column) for column in columns))
    assert stamps.time_per_unit_ns(done).tolist() == [10]  # 30 / 3; the second feed has one mark
    assert stamps.time_per_unit_ns(closed_loop([[5], [6]])).tolist() == []


def test_no_rate_while_the_clock_stands_still() -> None:
    assert stamps.throughput_per_s(closed_loop([[0]])) is None


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


def test_a_percentile_below_the_median_is_no_tail() -> None:
    with pytest.raises(ValueError, match=r"0\.5"):
        intervals.sample_needed(0.1)


@pytest.mark.parametrize(
    ("n", "q", "ranks"),
    [
        (5, 0.5, None),
        (6, 0.5, (1, 6)),
        (10, 0.5, (2, 9)),
        (20, 0.5, (6, 15)),
        (30, 0.5, (10, 21)),
        (35, 0.9, None),
        (367, 0.99, None),
        (500, 0.99, (490, 500)),
        (1000, 0.99, (983, 997)),
        (3000, 0.99, (2959, 2981)),
        (0, 0.5, None),
        (1, 0.5, None),
    ],
)
def test_a_percentile_lies_between_two_order_statistics(n: int, q: float, ranks: tuple[int, int] | None) -> None:
    shuffled = np.random.default_rng(1).permutation(np.arange(1, n + 1))
    assert intervals.percentile_interval(shuffled, q) == ranks


def test_intervals_of_a_percentile_hold_it_as_often_as_they_say() -> None:
    samples = (np.random.default_rng(2).exponential(1e6, (1000, 200))).astype(np.int64)
    truth = -np.log(0.1) * 1e6
    bounds = [intervals.percentile_interval(sample, 0.9) for sample in samples]
    assert np.mean([bound is not None and bound[0] <= truth <= bound[1] for bound in bounds]) >= 0.94


@pytest.mark.parametrize(
    ("n", "q", "value"),
    [
        (63, 0.9, None),
        (64, 0.9, 64),
        (80, 0.9, 80),
        (81, 0.9, 80),
        (97, 0.9, 95),
        (127, 0.9, 123),
        (661, 0.99, None),
        (662, 0.99, 662),
        (838, 0.99, 837),
        (1307, 0.99, 1303),
        (6635, 0.999, None),
        (6636, 0.999, 6636),
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
    assert intervals.percentile_interval(same, 0.99) == (42, 42)


def test_fewer_than_20_blocks_have_no_interval() -> None:
    rates = 100 + np.random.default_rng(1).standard_normal(20)
    assert intervals.throughput_interval(rates[:19]) is None
    assert intervals.throughput_interval(rates[:0]) is None
    assert intervals.throughput_interval(rates) is not None


def test_an_interval_repeats_to_the_last_digit() -> None:
    rates = 100 + np.random.default_rng(1).standard_normal(40)
    assert intervals.throughput_interval(rates) == intervals.throughput_interval(rates)
    again = [intervals.block_bootstrap(rates[:, None], seed=seed)[0] for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_the_bootstrap_agrees_with_the_t_interval_where_both_apply() -> None:
    rates = 100 + np.random.default_rng(4).standard_normal((50, 3))
    low, high = intervals.block_bootstrap(rates)
    assert (high - low) / 2 == pytest.approx(intervals.mean_half_width(rates), rel=0.05)


def test_the_bootstrap_draws_the_columns_of_one_moment_together() -> None:
    shared = np.random.default_rng(5).standard_normal((40, 1))
    both = np.hstack((100 + shared, 50 + shared))
    low, high = intervals.block_bootstrap(both, lambda means: means[:, 0] - means[:, 1])
    assert [float(low), float(high)] == pytest.approx([50, 50])


def test_blocks_that_resemble_their_neighbours_are_worth_less() -> None:
    white = np.random.default_rng(6).standard_normal(300)
    smooth = np.convolve(white, np.ones(4) / 2, mode="same")  # the same variance
    assert intervals.mean_half_width(smooth) > 1.4 * intervals.mean_half_width(white)


def test_over_runs_is_a_t_interval_on_the_logarithm() -> None:
    over = intervals.over_runs([100.0, 110.0, 121.0])
    assert over is not None
    assert over.geometric_mean == pytest.approx(110)
    assert over.median == 110
    half = 4.302653 * np.log(1.1) / np.sqrt(3)  # t with 2 degrees of freedom
    assert over.low == pytest.approx(110 * np.exp(-half))
    assert over.high == pytest.approx(110 * np.exp(half))


def test_one_run_has_no_interval_and_none_has_no_mean() -> None:
    assert intervals.over_runs([]) is None
    one = intervals.over_runs([5.0])
    assert one is not None
    assert one.geometric_mean == pytest.approx(5)
    assert (one.median, one.low, one.high, one.runs) == (5, None, None, 1)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_without_a_proper_figure_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        intervals.over_runs([1.0, bad])


def test_the_t_interval_over_runs_holds_the_truth_as_often_as_it_says() -> None:
    samples = np.exp(0.05 * np.random.default_rng(7).standard_normal((2000, 5)))
    found = [intervals.over_runs(sample.tolist()) for sample in samples]
    assert 0.93 <= np.mean([over is not None and (over.low or 0) <= 1 <= (over.high or 0) for over in found]) <= 0.97


def test_a_ceiling_is_the_best_of_all_probe_records() -> None:
    known = roofline.ceilings([probe("a", gemm_ns=100, read_ns=400), probe("b", gemm_ns=50, read_ns=500)])
    assert known == {("cpu:0", "torch", "fp32"): roofline.Ceiling(1e10 * 1e9 / 50, "gemm", 4e9 * 1e9 / 400, "read")}


def test_a_probe_kernel_of_several_yields_is_timed_by_its_fastest_one() -> None:
    costs = (Cost(name="gemm", flops=6, bytes=0, yields=3), Cost(name="read", flops=0, bytes=8))
    [ceiling] = roofline.ceilings(
        [record("a", "p", "kernel", closed_loop([[3, 9, 7, 4]]), scenario="probe", costs=costs)]
    ).values()
    assert ceiling == roofline.Ceiling(2e9, "gemm", 2e9, "read")


def test_a_ceiling_counts_what_all_feeds_in_flight_did_together() -> None:
    """Two streams, each on half of the device: alone, each would tell half of the ceiling."""
    costs = (Cost(name="gemm", flops=6, bytes=0), Cost(name="read", flops=0, bytes=8))
    columns = [0, 0], [0, 0], [2, 4], [3, 7, 3, 7], [1, 1, 1, 1]
    both = Completions(*map(np.array, columns))
    probed = record("a", "p", "kernel", both, scenario="probe", costs=costs)
    assert [*roofline.ceilings([probed]).values()] == [roofline.Ceiling(2e9, "gemm", 2e9, "read")]
    [together] = roofline.ceilings([probed.model_copy(update={"slots": 2})]).values()
    assert together == roofline.Ceiling(4e9, "gemm", 4e9, "read")


def test_what_uses_another_part_of_the_device_meanwhile_raises_no_ceiling() -> None:
    """While one feed multiplies, the other one reads: neither adds to the other's rate."""
    costs = (Cost(name="gemm", flops=6, bytes=0), Cost(name="read", flops=0, bytes=6))
    columns = [0, 3], [0, 3], [2, 4], [3, 6, 6, 9], [1, 1, 1, 1]
    probed = record("a", "p", "kernel", Completions(*map(np.array, columns)), scenario="probe", costs=costs)
    [ceiling] = roofline.ceilings([probed.model_copy(update={"slots": 2})]).values()
    assert ceiling == roofline.Ceiling(2e9, "gemm", 2e9, "read")


def known(
    flops_per_s: float | None, bytes_per_s: float | None, adapter: str = "torch"
) -> dict[roofline.CeilingKey, roofline.Ceiling]:
    return {("cpu:0", adapter, "fp32"): roofline.Ceiling(flops_per_s, "gemm", bytes_per_s, "read")}


COSTS = (Cost(name="prefill", flops=100, bytes=10), Cost(name="decode", flops=10, bytes=30, yields=2))


def test_the_roofline_takes_the_slower_of_compute_and_memory_at_each_yield() -> None:
    done = closed_loop([[200, 50, 50], [200, 50, 50]])
    least_s = 2 * (100 / 1e9 + 2 * 30 / 1e9)
    one = record("a", "llm", "token", done, costs=COSTS)
    assert roofline.achieved(one, known(1e9, 1e9)) == roofline.Achieved(least_s * 1e9 / 600)


def test_the_torch_adapters_ceiling_stands_in_and_is_named() -> None:
    one = record("a", "llm", "token", closed_loop([[100, 30, 30]]), costs=COSTS, adapter="acme")
    reached = roofline.achieved(one, known(1e9, 1e9))
    assert reached.fraction == pytest.approx(1.0)
    assert reached.note == "ceiling from adapter torch"
    assert roofline.achieved(one, known(1e9, 1e9) | known(2e9, 2e9, "acme")).fraction == pytest.approx(0.5)


def test_an_unknown_share_of_the_roofline_says_why() -> None:
    done = closed_loop([[1, 1, 1]])
    one = record("a", "llm", "token", done, costs=COSTS)
    assert roofline.achieved(one, {}) == roofline.Achieved(None, "cpu:0 was not probed in fp32")
    assert "lacks" in roofline.achieved(one, known(1e9, None)).note
    assert "no cost model" in roofline.achieved(record("a", "llm", "token", done), known(1, 1)).note
    short = record("a", "llm", "token", closed_loop([[1, 1]]), costs=COSTS)
    assert roofline.achieved(short, known(1, 1)).note == "the cost model has 3 yields a feed, the record 2 to 2"
    still = record("a", "llm", "token", closed_loop([[0, 0, 0]]), costs=COSTS)
    assert roofline.achieved(still, known(1, 1)) == roofline.Achieved(None, "the clock did not tick")
