from __future__ import annotations

import numpy as np
import pytest

from harness import stats
from harness.schema import Completions, Cost
from tests.golden.sample import closed_loop, probe, record


def test_a_feed_of_three_tokens_has_all_its_times() -> None:
    done = closed_loop([[100, 10, 12], [200, 20, 23]])
    assert stats.units(done) == 6
    assert stats.in_flight_ns(done) == 365
    assert stats.throughput_per_s(done) == 6e9 / 365
    assert stats.service_times_ns(done).tolist() == [122, 243]
    assert stats.first_mark_ns(done).tolist() == [100, 200]
    assert stats.time_per_unit_ns(done).tolist() == [11, 21]  # 22 / 2, 43 / 2 rounded down


def test_feeds_in_flight_together_count_the_time_once() -> None:
    columns = ([0, 5], [0, 5], [1, 2], [100, 40], [1, 3])
    done = Completions(*(np.array(column) for column in columns))
    assert stats.in_flight_ns(done) == 100
    assert stats.service_times_ns(done).tolist() == [100, 35]


def test_making_the_next_feed_is_not_in_flight() -> None:
    columns = ([0, 150, 160, 300], [0, 150, 160, 300], [1, 2, 3, 4], [100, 250, 200, 330], [1, 1, 1, 1])
    done = Completions(*(np.array(column) for column in columns))
    assert stats.in_flight_ns(done) == 100 + 100 + 30
    assert stats.throughput_per_s(done) == 4e9 / 230


def test_time_per_unit_divides_by_the_units_behind_the_first_mark() -> None:
    columns = ([0, 0], [0, 0], [2, 3], [10, 40, 50], [5, 3, 4])
    done = Completions(*(np.array(column) for column in columns))
    assert stats.time_per_unit_ns(done).tolist() == [10]  # 30 / 3; the second feed has one mark
    assert stats.time_per_unit_ns(closed_loop([[5], [6]])).tolist() == []


def test_no_rate_while_the_clock_stands_still() -> None:
    assert stats.throughput_per_s(closed_loop([[0]])) is None


@pytest.mark.parametrize(("q", "needed"), [(0.5, 6), (0.75, 24), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_a_percentile_needs_as_many_as_early_stopping_says(q: float, needed: int) -> None:
    assert stats.sample_needed(q) == needed
    assert stats.percentile(np.arange(needed - 1), q) is None
    assert stats.percentile(np.arange(needed), q) is not None


@pytest.mark.parametrize(
    ("n", "q", "value"), [(7, 0.5, 4), (8, 0.5, 4), (70, 0.9, 63), (100, 0.9, 90), (1000, 0.99, 990)]
)
def test_percentiles_are_nearest_ranks(n: int, q: float, value: int) -> None:
    shuffled = np.random.default_rng(1).permutation(np.arange(1, n + 1))
    assert stats.percentile(shuffled, q) == value


def test_a_percentile_below_the_median_is_no_tail() -> None:
    with pytest.raises(ValueError, match=r"0\.5"):
        stats.sample_needed(0.1)


def test_a_ceiling_is_the_best_of_all_probe_records() -> None:
    known = stats.ceilings([probe("a", gemm_ns=100, read_ns=400), probe("b", gemm_ns=50, read_ns=500)])
    assert known == {("cpu:0", "torch", "fp32"): stats.Ceiling(1e10 * 1e9 / 50, "gemm", 4e9 * 1e9 / 400, "read")}


def test_a_probe_kernel_of_several_yields_is_timed_by_its_fastest_one() -> None:
    costs = (Cost(name="gemm", flops=6, bytes=0, yields=3), Cost(name="read", flops=0, bytes=8))
    [ceiling] = stats.ceilings([record("a", "probe", "kernel", closed_loop([[3, 9, 7, 4]]), costs=costs)]).values()
    assert ceiling == stats.Ceiling(2e9, "gemm", 2e9, "read")


def known(
    flops_per_s: float | None, bytes_per_s: float | None, adapter: str = "torch"
) -> dict[stats.CeilingKey, stats.Ceiling]:
    return {("cpu:0", adapter, "fp32"): stats.Ceiling(flops_per_s, "gemm", bytes_per_s, "read")}


COSTS = (Cost(name="prefill", flops=100, bytes=10), Cost(name="decode", flops=10, bytes=30, yields=2))


def test_the_roofline_takes_the_slower_of_compute_and_memory_at_each_yield() -> None:
    done = closed_loop([[200, 50, 50], [200, 50, 50]])
    least_s = 2 * (100 / 1e9 + 2 * 30 / 1e9)
    one = record("a", "llm", "token", done, costs=COSTS)
    assert stats.achieved(one, known(1e9, 1e9)) == stats.Achieved(least_s * 1e9 / 600)


def test_the_torch_adapters_ceiling_stands_in_and_is_named() -> None:
    one = record("a", "llm", "token", closed_loop([[100, 30, 30]]), costs=COSTS, adapter="acme")
    reached = stats.achieved(one, known(1e9, 1e9))
    assert reached.fraction == pytest.approx(1.0)
    assert reached.note == "ceiling from adapter torch"
    assert stats.achieved(one, known(1e9, 1e9) | known(2e9, 2e9, "acme")).fraction == pytest.approx(0.5)


def test_an_unknown_share_of_the_roofline_says_why() -> None:
    done = closed_loop([[1, 1, 1]])
    one = record("a", "llm", "token", done, costs=COSTS)
    assert stats.achieved(one, {}) == stats.Achieved(None, "cpu:0 was not probed in fp32")
    assert "lacks" in stats.achieved(one, known(1e9, None)).note
    assert "no cost model" in stats.achieved(record("a", "llm", "token", done), known(1, 1)).note
    short = record("a", "llm", "token", closed_loop([[1, 1]]), costs=COSTS)
    assert stats.achieved(short, known(1, 1)).note == "the cost model has 3 yields a feed, the record 2 to 2"
    still = record("a", "llm", "token", closed_loop([[0, 0, 0]]), costs=COSTS)
    assert stats.achieved(still, known(1, 1)) == stats.Achieved(None, "the clock did not tick")
