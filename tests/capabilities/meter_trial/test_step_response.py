"""Made-up sources around a load of ten seconds, to the digit."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.capabilities.meter_trial.trial import StepResponse, step_response
from mixmark.harness.contracts.schema import Samples
from tests.fakes.machine import WALL

SECOND = 1_000_000_000
WHOLE, LOAD = (0, 30 * SECOND), (10 * SECOND, 20 * SECOND)


def seen(lag_s: float, every_s: float = 0.1, noise_w: float = 0.0, full_w: float = 160.0) -> StepResponse:
    at_s = np.arange(-2, 31, every_s)
    watts = np.where((at_s - lag_s >= 10) & (at_s - lag_s < 20), full_w, 60.0)
    watts = watts + noise_w * np.resize((1, 1, 1, 1, -1, -1, -1, -1), len(at_s)) + 1e-6 * np.arange(len(at_s))
    at_ns = (at_s * SECOND).astype(np.int64)
    return step_response(WALL, Samples(at_ns, at_ns, watts), WHOLE, LOAD, parts=6)


@pytest.mark.parametrize("lag_s", [-0.5, 0.0, 0.3, 2.5])
def test_the_lag_of_a_source_is_found_within_its_period(lag_s: float) -> None:
    found = seen(lag_s)
    assert found.lag_ns == pytest.approx(lag_s * SECOND, abs=0.1 * SECOND)
    assert found.idle_watts == pytest.approx(60, abs=1)
    assert found.full_watts == pytest.approx(160, abs=1)


def test_the_chart_is_the_mean_of_equal_parts_and_the_scatter_that_about_the_two_levels() -> None:
    found = seen(0.0, noise_w=2.0)
    assert found.watts == pytest.approx((60, 60, 160, 160, 60, 60), abs=2)
    assert found.noise_watts == pytest.approx(5, abs=4)


def test_a_source_that_does_not_follow_has_no_lag() -> None:
    assert seen(0.0, full_w=60.0).lag_ns is None
    assert seen(0.0, noise_w=80.0, full_w=70.0).lag_ns is None


def test_a_source_that_gave_nothing_has_nothing() -> None:
    empty = np.zeros(0, np.int64)
    found = step_response(WALL, Samples(empty, empty, np.zeros(0)), WHOLE, LOAD, parts=3)
    assert found == StepResponse(None, None, None, None, (None, None, None))
