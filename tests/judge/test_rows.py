"""The rows of a report: what becomes of the runs of one measurement."""

from __future__ import annotations

import pytest

from mixmark.harness.contracts.schema import UnitNames
from mixmark.harness.judge.rows import Row, merge_runs
from tests.golden.sample import closed_loop, record

NAMES = UnitNames(short="img", work="images")


@pytest.mark.parametrize(("rates", "middle"), [((3.0, 1.0, 2.0), 3), ((1.0, 4.0), 1), ((5.0, 2.0, 4.0, 3.0), 4)])
def test_all_but_the_throughput_is_of_the_run_in_the_middle(rates: tuple[float, ...], middle: int) -> None:
    """The lower of two in the middle."""
    records = [
        record(f"k{run}", "resnet50", "image", closed_loop([[100]])).model_copy(update={"run": run})
        for run in range(1, len(rates) + 1)
    ]
    runs = [Row(each, NAMES, feeds=each.run, throughput_per_s=rate) for each, rate in zip(records, rates, strict=True)]
    [row] = merge_runs(runs)
    assert (row.runs, row.key, row.feeds) == (len(rates), f"k{middle}", middle)
