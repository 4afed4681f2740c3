"""The plan beside other policies, to the digit, and in a whole run."""

from __future__ import annotations

import pytest

from bench.policies import by
from mixmark.harness.capabilities.policies.experiment import PolicyRuns
from mixmark.harness.capabilities.policies.policies import FastestDevice
from mixmark.harness.judge.assessment import Assessment, judge
from tests.fakes.machine import example, one_run, recorded, turn, with_turns
from tests.judge.found import not_none


def compared(judged: Assessment) -> tuple[PolicyRuns, ...]:
    found = judged.experiments["policies"]
    assert isinstance(found, tuple)
    return found


def test_policies_are_compared_with_the_plan_of_the_same_minutes() -> None:
    base = one_run(None, runs=3)
    machine = example(source=by(FastestDevice))
    placement = not_none(base.phases[0].placement)
    runs = (recorded(machine, f"fastest-device{run}", {})[0] for run in (1, 2, 3))
    turns = [turn("policies", {"policy": "fastest-device"}, records, placement) for records in runs]
    result = with_turns(base, {"policies": {"policies": ["fastest-device"]}}, *turns)
    judged = judge(result)
    [found] = compared(judged)
    assert found.gain is not None and judged.score is not None and judged.score.mixes_per_hour is not None
    by_policy = found.mixes_per_hour.estimate if found.mixes_per_hour else 0
    assert found.gain.estimate == pytest.approx(judged.score.mixes_per_hour.estimate / by_policy, rel=1e-6)
    assert found.gain.half_width == pytest.approx(0.025, abs=0.01), "runs of the plan are 1 % apart"
    missing = judge(result.model_copy(update={"phases": base.phases, "records": base.records}))
    assert compared(missing)[0].gain is None
    assert [each.code for each in compared(missing)[0].problems] == ["mix_complete.unfinished"]
