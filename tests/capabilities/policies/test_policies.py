"""The plan beside other policies, to the digit, and in a whole run."""

from __future__ import annotations

import pytest

from bench.capabilities.policies.gain import by
from mixmark.harness.capabilities.policies.figures import PolicyRuns
from mixmark.harness.capabilities.policies.policies import FastestDevice
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.reporters import report
from tests.fakes.machine import example, one_run, recorded, turn, with_turns
from tests.judge.found import not_none


def compared(judged: Assessment) -> tuple[PolicyRuns, ...]:
    found = judged.experiments["policies"]
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(("pace", "slowdown"), [(1.0, 1.01), (0.25, 4.04)])
def test_policies_are_compared_with_the_plan_as_run_and_at_its_speed(pace: float, slowdown: float) -> None:
    """The plan's runs have the paces 1, 1.01 and 0.99. Workers that are slow in the policy's runs gain it nothing."""
    base = one_run(None, runs=3)
    machine = example(pace, until_s=600 / pace, source=by(FastestDevice))
    placement = not_none(base.phases[0].placement)
    runs = (recorded(machine, f"fastest-device{run}", {})[0] for run in (1, 2, 3))
    turns = [turn("policies", {"policy": "fastest-device"}, records, placement) for records in runs]
    result = with_turns(base, {"policies": {"policies": ["fastest-device"]}}, *turns)
    judged = judge(result)
    [found] = compared(judged)
    assert found.gain is not None and judged.score is not None and judged.score.mixes_per_hour is not None
    by_policy = found.mixes_per_hour.estimate if found.mixes_per_hour else 0
    as_run = judged.score.mixes_per_hour.estimate / by_policy
    assert found.gain.estimate == pytest.approx(as_run, rel=1e-6)
    assert found.slowdown == pytest.approx(slowdown, rel=0.01)
    assert ("× slower in its runs" in report.full(judged)) == (pace < 1)
    low, high = found.gain.ends
    assert low == pytest.approx(1.06, abs=0.02) and high == pytest.approx(1.08 / pace, rel=0.03)
    missing = judge(result.model_copy(update={"phases": base.phases, "records": base.records}))
    assert compared(missing)[0].gain is None
    assert [each.code for each in compared(missing)[0].problems] == ["mix_complete.unfinished"]
