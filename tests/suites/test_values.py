"""Weights and inputs that are zero would draw less power: they are not, and nobody can submit such."""

from __future__ import annotations

import numpy as np
import pytest

from bench.values import SUITES, bf16, inputs_of, values, weights_of
from mixmark.harness.plugins.registry import load_suite
from tests.marks import sweep


def test_the_figures_of_known_words() -> None:
    assert values(np.zeros(100, np.uint16), 16) == (zeros := values(np.zeros(9, np.uint16), 16))
    assert (zeros.zeros, zeros.entropy_bits, zeros.toggling) == (1, 0, 0)
    alternating = values(np.resize(np.array([0, 0xFFFF], np.uint16), 100), 16)
    assert (alternating.zeros, alternating.entropy_bits, alternating.toggling) == (0.5, 1, 1)
    random = values(np.random.default_rng(1).integers(0, 2**16, 1 << 18).astype(np.uint16), 16)
    assert random.toggling == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(*SUITES))
def test_no_suite_computes_with_zeros(name: str) -> None:
    suite = load_suite(name, "smoke")
    weights = values(bf16(weights_of(suite)), 16)
    assert weights.zeros < 0.01
    assert weights.entropy_bits > 3
    assert weights.toggling > 0.1
    for input, array in inputs_of(suite):
        assert float((array == 0).mean()) < 0.25, input
        assert len(np.unique(array)) > 16, input
