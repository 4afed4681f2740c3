"""The plan beside other policies, to the digit, and in a whole run."""

from __future__ import annotations

import numpy as np
import pytest

from bench.policies import by
from mixmark.harness.capabilities.policies.experiment import PolicyRuns
from mixmark.harness.capabilities.policies.policies import FastestDevice
from mixmark.harness.contracts.schema import Completions, Phase
from mixmark.harness.judge.assessment import Assessment, judge
from tests.fakes.machine import GPU_AND_CPU, MIX, QUANTA, Machine, one_run, phase, record
from tests.judge.found import not_none

OWN = {"purpose": "experiment", "experiment": "policies", "facts": {"policy": "fastest-device"}}


def compared(judged: Assessment) -> tuple[PolicyRuns, ...]:
    found = judged.experiments["policies"]
    assert isinstance(found, tuple)
    return found


def whole_spans(spans: list[tuple[int, int]], units: int) -> Completions:
    begins, ends = (np.array(column) for column in zip(*spans, strict=True))
    return Completions(begins, begins, np.arange(1, len(begins) + 1), ends, np.full(len(begins), units))


def test_policies_are_compared_with_the_plan_of_the_same_minutes() -> None:
    base = one_run(None, runs=3)
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, source=by(FastestDevice))
    machine.run(600)
    placement = not_none(base.phases[0].placement)
    phases, records = [], []
    for run in (1, 2, 3):
        own = [
            record(f"fastest-device{run}", pair, whole_spans(spans, QUANTA[pair]), (0, machine.now_ns))
            for pair, spans in machine.done.items()
            if spans
        ]
        whole = phase(own, placement).model_dump() | OWN
        phases.append(Phase.model_validate(whole))
        records += own
    result = base.model_copy(
        update={
            "experiments": {"policies": {"policies": ["fastest-device"]}},
            "phases": (*base.phases, *phases),
            "records": (*base.records, *records),
        }
    )
    judged = judge(result)
    [found] = compared(judged)
    assert found.gain is not None and judged.score is not None and judged.score.mixes_per_hour is not None
    by_policy = found.mixes_per_hour.estimate if found.mixes_per_hour else 0
    assert found.gain.estimate == pytest.approx(judged.score.mixes_per_hour.estimate / by_policy, rel=1e-6)
    assert found.gain.half_width == pytest.approx(0.025, abs=0.01), "runs of the plan are 1 % apart"
    missing = judge(result.model_copy(update={"phases": base.phases, "records": base.records}))
    assert compared(missing)[0].gain is None
    assert [each.code for each in compared(missing)[0].problems] == ["mix_complete.unfinished"]
