"""Figures of one record from its stamps."""

from __future__ import annotations

import numpy as np

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Completions, ServiceLimits
from mixmark.harness.judge.statistics import timestamps
from tests.golden.sample import closed_loop, record


def test_a_feed_of_three_tokens_has_all_its_times() -> None:
    done = closed_loop([[100, 10, 12], [200, 20, 23]])
    assert timestamps.units(done) == 6
    assert timestamps.in_flight_ns(done) == 365
    assert timestamps.throughput_per_s(done) == 6e9 / 365
    assert timestamps.latencies_ns(done).tolist() == [122, 243]
    assert timestamps.first_unit_ns(done).tolist() == [100, 200]
    assert timestamps.time_per_unit_ns(done).tolist() == [11, 21]  # 22 / 2, 43 / 2 rounded down


def test_the_most_in_flight_are_those_inside_of_the_window() -> None:
    columns = ([0, 5, 40], [0, 5, 40], [1, 2, 3], [40, 30, 50], [1, 1, 1])
    done = Completions(*(np.array(column) for column in columns))
    assert timestamps.most_in_flight(done) == 2
    assert timestamps.most_in_flight(done, inside=(30, 50)) == 1
    assert timestamps.most_in_flight(done, inside=(60, 70)) == 0


def test_suites_that_overlap_on_a_device_share_its_time() -> None:
    """Two feeds of the first begin at 0 and end at 10 and 20. A feed of the second goes on from 10 to 40."""
    first = Completions(*(np.array(column) for column in ([0, 0], [0, 0], [1, 2], [10, 20], [1, 1])))
    second = Completions(*(np.array(column) for column in ([10], [10], [1], [40], [1])))
    assert timestamps.part_in_flight_ns(first, [first, second]) == 10 + 5
    assert timestamps.part_in_flight_ns(second, [first, second]) == 5 + 20
    assert timestamps.part_in_flight_ns(first, [first]) == timestamps.in_flight_ns(first)


def test_making_the_next_feed_is_not_in_flight() -> None:
    columns = ([0, 150, 160, 300], [0, 150, 160, 300], [1, 2, 3, 4], [100, 250, 200, 330], [1, 1, 1, 1])
    done = Completions(*(np.array(column) for column in columns))
    assert timestamps.in_flight_ns(done) == 100 + 100 + 30
    assert timestamps.throughput_per_s(done) == 4e9 / 230


def test_time_per_unit_divides_by_the_units_behind_the_first_unit() -> None:
    columns = ([0, 0], [0, 0], [2, 3], [10, 40, 50], [5, 3, 4])
    done = Completions(*(np.array(column) for column in columns))
    assert timestamps.time_per_unit_ns(done).tolist() == [10]  # 30 / 3; the second feed has one mark
    assert timestamps.time_per_unit_ns(closed_loop([[5], [6]])).tolist() == []


def test_the_window_of_a_server_opens_one_gap_before_its_first_arrival() -> None:
    """Six arrivals at 4/s in a burst after a gap of 1.5 s: from the first arrival on they look like 17.6 feeds per
    second, and with that gap they are 3.25."""
    seed = 1224
    due_ns = seeds.schedule(4.0, seeds.arrivals(seed), 6)
    assert (due_ns[0], due_ns[-1]) == (1_505_123_616, 1_835_181_746)
    at_ns = 5_000_000_000 + due_ns - due_ns[0]
    done = Completions(at_ns, at_ns, np.arange(1, 7), at_ns + 10_000_000, np.ones(6, np.int64))
    served = record("a", "resnet50", "image", done, scenario="server")
    served = served.model_copy(update={"rate_per_s": 4.0, "seed": seed})
    assert timestamps.rate_per_s(served) == 6e9 / 1_845_181_746
    within = ServiceLimits(total_ns=1)
    assert timestamps.rate_per_s(served, within) == 0, "the same window, of the feeds within the limits"
