"""The plan beside other policies, to the digit, and in a whole run."""

from __future__ import annotations

from statistics import geometric_mean

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


@pytest.mark.parametrize(("pace", "slower"), [(1.0, (1.0, 1.01, 1.0)), (0.25, (4.0, 4.04, 3.96))])
def test_policies_are_compared_with_the_plan_at_its_speed(pace: float, slower: tuple[float, float, float]) -> None:
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
    assert found.gain.estimate == pytest.approx(as_run / geometric_mean(slower), rel=1e-6)
    assert found.gain.estimate == pytest.approx(1.067, rel=0.01)
    assert found.slowdown == pytest.approx(max(slower))
    assert ("slower, which is left out" in report.full(judged)) == (pace < 1)
    assert 0 < not_none(found.gain.half_width) < 0.02, "the runs of the plan are 1 % apart"
    missing = judge(result.model_copy(update={"phases": base.phases, "records": base.records}))
    assert compared(missing)[0].gain is None
    assert [each.code for each in compared(missing)[0].problems] == ["mix_complete.unfinished"]
