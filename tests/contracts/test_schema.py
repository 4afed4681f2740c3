"""Limits and defaults of the facts of a result, where nothing else depends on them."""

from __future__ import annotations

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Completions, Conditions, Placement


def test_a_feed_without_a_yield_is_refused() -> None:
    at_ns = np.array([10, 20])
    with pytest.raises(ValueError, match="a feed has no yield"):
        Completions(at_ns, at_ns, np.array([0, 2]), at_ns + 5, np.array([1, 1]))


def test_an_interval_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        Conditions(begin_ns=5, end_ns=5)


def test_a_bound_of_zero_is_no_plan() -> None:
    with pytest.raises(ValueError, match=r"bound_per_s\n  Input should be greater than 0"):
        Placement.model_validate({"bound_per_s": 0})
