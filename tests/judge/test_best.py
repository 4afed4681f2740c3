"""`Solo` and `best`: the measurements that count, their runs merged, and the fastest of them."""

from __future__ import annotations

from typing import Any

import pytest

from mixmark.harness.judge.solo import best, by_suite, solos
from tests.fakes.solos import solo


@pytest.mark.parametrize(("rates", "middle"), [((3.0, 1.0, 2.0), 3), ((1.0, 4.0), 1), ((5.0, 2.0, 4.0, 3.0), 4)])
def test_all_but_the_rate_is_of_the_run_in_the_middle(rates: tuple[float, ...], middle: int) -> None:
    """The lower of two in the middle."""
    runs = [solo(f"k{run}", rate, run=run, feeds=run) for run, rate in enumerate(rates, 1)]
    [found] = solos(runs)
    assert (found.runs, found.key, found.feeds) == (len(rates), f"k{middle}", middle)


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        ({"scenario": "single-stream"}, True),
        ({"scenario": "server"}, False),
        ({"status": "invalid"}, False),
        ({"status": "not audited yet"}, False),
        ({"status": "screened"}, False),
        ({"status": "unaudited"}, False),
        ({"status": "failed", "units_per_s": None}, False),
        ({"units_per_s": None}, False),
    ],
)
def test_what_counts_is_a_valid_rate_that_the_machine_chose(changed: dict[str, Any], counts: bool) -> None:
    fast, slow = solo("fast", 9.0, adapter="acme", **changed), solo("slow", 2.0)
    assert best([slow, fast], by_suite)["resnet50"].key == ("fast" if counts else "slow")
    assert fast.counts is counts


def test_the_best_is_asked_for_by_anything_and_the_first_of_equals_wins() -> None:
    known = [solo("a", 2.0), solo("b", 2.0, adapter="acme"), solo("c", 1.0, device="cpu:1")]
    assert {device: each.key for device, each in best(known, lambda each: each.route.device).items()} == {
        "cpu:0": "a",
        "cpu:1": "c",
    }
    assert best([], by_suite) == {}
