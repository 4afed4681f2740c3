from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.measure.request import RunRequest
from mixmark.harness.measure.run import prepare
from mixmark.harness.plan import mixes
from tests.docs.test_docs import DOCS, table
from tests.plan.test_mixes import SUITES, check_limits, check_units

ALL = (*SUITES, "train", "speech", "ssm")
PAGE = (DOCS / "capabilities/broad.md").read_text("utf-8")


@pytest.mark.parametrize("tier", ["edge", "server", "smoke"])
def test_the_broad_mix_has_all_suites_and_no_rank(tier: str) -> None:
    """The suites of the ranked mix have the same units in it."""
    mix = mixes.frozen()[f"{tier}-broad-1"]
    ranked = mixes.frozen()[f"{tier}-1"].units
    assert tuple(mix.units) == ALL and {suite: mix.units[suite] for suite in SUITES} == ranked
    check_units(mix)
    check_limits(mix)
    assert mixes.load("broad-1", mix.tier, ALL) is mix and mix.name in mixes.without_rank()
    units = [f"{mix.units[suite]:g}" for suite in ALL]
    assert [row[3:] for row in table(PAGE, "broad mix") if row[0] == mix.name] == [units]


def test_a_run_of_the_broad_mix_measures_all_suites(tmp_path: Path) -> None:
    run = prepare(RunRequest(tier="smoke", mix="broad-1", out=tmp_path / "out"))
    assert {workload.name for workload in run.workloads} == {*ALL}
