"""`Solo` and `best`: the measurements that count, their runs merged, and the fastest of them."""

from __future__ import annotations

from typing import Any

import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.solo import Solo, adaptability, best, by_suite, merged, solos
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


def test_screening_runs_have_their_median_and_no_interval() -> None:
    runs = [solo(f"k{run}", rate, run=run, status="screened") for run, rate in enumerate((1.0, 4.0, 2.0, 3.0), 1)]
    found = merged(runs)
    assert (found.units_per_s, found.runs, found.status) == (Estimate(2.5), 4, "screened")


def kept(suite: str, fraction: float | None, **changed: Any) -> Solo:
    return solo(f"{suite} {changed}", suite=suite, roofline_fraction=fraction, **changed)


def test_adaptability_divides_the_fractions_of_the_fastest_routes_of_a_device() -> None:
    slower = kept("llm", 0.9, per_s=0.5, adapter="acme")
    void = kept("ssm", 0.9, per_s=9.0, adapter="acme", status="invalid")
    gpu = [kept(suite, fraction, device="gpu:0") for suite, fraction in (("llm", 0.5), ("ssm", 0.6))]
    found = adaptability([kept("llm", 0.8), slower, kept("ssm", 0.2, precision="int8"), void, *gpu])
    assert [(each.device, each.ratio) for each in found] == [("cpu:0", 0.25), ("gpu:0", pytest.approx(1.2))]
    assert (found[0].llm.precision, found[0].ssm.precision) == ("fp32", "int8")


@pytest.mark.parametrize(
    "rows",
    [
        [kept("llm", 0.8)],
        [kept("ssm", 0.8)],
        [kept("llm", 0.8), kept("ssm", None)],
        [kept("llm", None), kept("ssm", 0.8)],
        [kept("llm", 0.0), kept("ssm", 0.8)],
        [kept("llm", 0.8), kept("ssm", 0.8, device="gpu:0")],
        [kept("llm", 0.8), kept("ssm", 0.8, scenario="server")],
    ],
)
def test_without_both_fractions_there_is_no_adaptability(rows: list[Solo]) -> None:
    assert adaptability(rows) == ()
