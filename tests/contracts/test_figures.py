"""Figures and their intervals."""

from __future__ import annotations

import math

import pytest

from mixmark.harness.contracts.figures import Estimate


def test_a_figure_of_zero_has_no_relative_width() -> None:
    zero, two = Estimate.within(0.0, 0.1), Estimate.within(2.0, 0.1)
    assert zero.half_width is None and two.half_width == pytest.approx(0.1)
    assert zero.ratio(two) == Estimate(0.0)
    assert two.ratio(two).half_width == pytest.approx(math.expm1(0.1 * 2**0.5))
    assert Estimate(100.0, 99.0, 103.0).half_width == pytest.approx(0.03), "the longer side"
