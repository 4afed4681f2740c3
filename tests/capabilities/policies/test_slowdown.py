"""How much slower the machine was in one phase than in another, and what a gain then claims."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.capabilities.policies.slowdown import slowdown
from mixmark.harness.capabilities.serving.gain import gain
from mixmark.harness.contracts.schema import Result
from mixmark.harness.plan.placement import place
from tests.fakes.machine import completions, device, of_experiment, phase, record, solo
from tests.golden.sample import result as bare
from tests.judge.found import not_none

SECOND = 10**9
RATES = solo({("a", "gpu:0"): 10.0, ("b", "gpu:0"): 20.0, ("b", "cpu:0"): 5.0})


def made(**seconds: dict[tuple[str, str], float]) -> Result:
    """Phases with one feed of 10 units of each pair, which take so many seconds, one after the other."""
    plan, phases, records = place({"a": 10, "b": 10}, RATES, [device("gpu:0"), device("cpu:0")]), [], []
    for name, feeds in seconds.items():
        own, begin_ns = [], 0
        for pair, took_s in feeds.items():
            end_ns = begin_ns + round(took_s * SECOND)
            own.append(record(name, pair, completions([(begin_ns, end_ns)], 10), (0, end_ns)))
            begin_ns = end_ns
        records += own
        phases.append(of_experiment("policies", {}, phase(own, plan)))
    return bare(*records).model_copy(update={"phases": tuple(phases)})


@pytest.mark.parametrize(
    ("other", "slower"),
    [
        ({("a", "gpu:0"): 1.25}, 1.0),
        ({("a", "gpu:0"): 2.5}, 2.0),
        ({("a", "gpu:0"): 0.5}, 0.4),
        ({("b", "gpu:0"): 0.625}, 1.0),
        ({("b", "gpu:0"): 1.25, ("a", "gpu:0"): 1.25}, 4 / 3),
        ({("a", "gpu:0"): 1.25, ("b", "cpu:0"): 10.0}, 3.0),
    ],
)
def test_work_is_compared_with_the_time_that_it_takes_alone(other: dict[tuple[str, str], float], slower: float) -> None:
    """The plan's phase takes 1.25 s for 1 s of work, on the GPU alone. The feed of the CPU takes 2 s alone."""
    result = made(planned={("a", "gpu:0"): 1.25}, other=other)
    assert slowdown(result, "planned", "other") == pytest.approx(slower)


def test_a_gain_between_equals_is_as_often_above_1_as_below() -> None:
    """Three pairs of runs of two equal policies, on machines whose devices scatter by 2 %."""
    random = np.random.default_rng(1)
    for devices in (2, 4, 8):
        above = below = 0
        for _ in range(400):
            speeds = np.exp(0.02 * random.standard_normal((2, 3, devices))).mean(axis=2)
            noise = np.exp(0.005 * random.standard_normal(3))
            low, high = not_none(gain(list(speeds[0] / speeds[1] * noise), list(speeds[0] / speeds[1]))).ends
            above, below = above + (low > 1), below + (high < 1)
        assert max(above, below) <= 0.025 * 400


def test_a_turn_that_is_slowed_on_purpose_gains_nothing() -> None:
    slowed = not_none(gain([1.30, 1.31, 1.29], [1.30, 1.30, 1.30]))
    assert slowed.estimate == pytest.approx(1.3, rel=1e-4) and slowed.ends[0] < 1 < slowed.ends[1]
    assert not_none(gain([1.30, 1.31, 1.29], [1.0, 1.0, 1.0])).ends[0] > 1.25
    assert not_none(gain([1.3], [1.0])).low is None and gain([], []) is None


def test_a_gain_by_avoided_contention_is_no_gain() -> None:
    """The policy has both devices work where they share a memory: each takes 1.5 times as long as alone."""
    alone = {("a", "gpu:0"): 1.0, ("b", "cpu:0"): 2.0}
    result = made(planned=alone, other={pair: 1.5 * took_s for pair, took_s in alone.items()})
    slower = slowdown(result, "planned", "other")
    low, high = not_none(gain([1.49, 1.5, 1.51], [slower] * 3)).ends
    assert slower == 1.5 and low < 1 < high
