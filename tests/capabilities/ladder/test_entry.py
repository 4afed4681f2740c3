from __future__ import annotations

import pytest

from mixmark.harness.judge.assessment import judge
from tests.capabilities.ladder.test_levels import LEVELS, ladder_of, level_of, with_ladder
from tests.fakes.machine import one_run

conclude = pytest.importorskip("mixmark.submissions.conclude")
classes = pytest.importorskip("tests.submissions.test_classes")


def test_the_load_of_an_entry_is_that_of_its_first_result_with_a_ladder() -> None:
    base = one_run(600.0)
    judged = judge(with_ladder(base, *(level_of(base, level) for level in LEVELS)))
    found = classes.concluded(
        conclude.contribution_of(1, judge(base), "0" * 64), conclude.contribution_of(2, judged, "1" * 64)
    ).load
    assert found is not None
    assert (found.highest, found.lowest) == (0.75, 0.25)
    assert found.mixes_per_kwh == ladder_of(judged).mixes_per_kwh
    assert found.idle_over_full == pytest.approx(1 / 6, rel=1e-3)
    assert classes.CLOSED.load is None
