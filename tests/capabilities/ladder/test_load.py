"""How much arrives at a level of load."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.capabilities.ladder.load import due_ns, load_at
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.plan.presets import PRESETS, SECOND

RANKED = PRESETS["ranked"].mix
MIX = {"llm": 50.0, "resnet50": 900.0}
UNITS = {"llm": 128, "resnet50": 4}


def test_a_level_lasts_for_a_hundred_requests_of_the_coarsest_suite_if_there_is_time() -> None:
    """A request of llm is 2.56 mixes. At half of 10 mixes a second 100 arrive in 51.2 s; 120 s are the least."""
    load = load_at(0.5, 10.0, MIX, UNITS, RANKED, seed=1)
    assert load.requests["llm"] == 235  # 120 s / 0.512 s, rounded up
    assert load.length_ns == pytest.approx(235 * 0.512 * SECOND)
    assert load.requests["resnet50"] == round(235 * 2.56 * 900 / 4), "the other suites in the proportion of the mix"
    slower = load_at(0.5, 2.0, MIX, UNITS, RANKED, seed=1)
    assert slower.requests["llm"] == 100
    assert slower.length_ns == pytest.approx(256 * SECOND)
    slowest = load_at(0.5, 0.1, MIX, UNITS, RANKED, seed=1)
    assert slowest.requests["llm"] == 11
    assert slowest.length_ns == pytest.approx(563.2 * SECOND), "600 s at most"


def test_a_level_that_cannot_hold_one_request_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"10 %.*llm.*2,560 s") as refused:
        load_at(0.1, 0.01, MIX, UNITS, RANKED, seed=1)
    assert "--preset official" in refused.value.hint


@pytest.mark.exhaustive
def test_arrivals_lie_like_those_of_a_poisson_process_given_their_number() -> None:
    load = load_at(0.9, 1000.0, MIX, UNITS, RANKED, seed=3)
    due = due_ns(load)
    assert {suite: len(times) for suite, times in due.items()} == load.requests
    times = due["resnet50"]
    assert (np.diff(times) >= 0).all() and times[0] >= 0 and times[-1] <= load.length_ns
    gaps = np.diff(times) / np.diff(times).mean()
    assert gaps.std() == pytest.approx(1, rel=0.01), "exponential gaps scatter as much as their mean"
    assert np.quantile(gaps, 0.5) == pytest.approx(np.log(2), rel=0.01)
    assert not np.array_equal(due["llm"][:5], times[:5])
    again = due_ns(load.model_copy(update={"seed": 4}))
    assert not np.array_equal(times, again["resnet50"])
