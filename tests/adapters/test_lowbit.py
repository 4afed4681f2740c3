"""Weights in 8 and 4 bits: exact digits, and exactness wherever a weight consists of whole steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mixmark.harness.adapters.lowbit import GROUP, Quantised, in_groups, packed, per_channel
from mixmark.harness.contracts.schema import WeightClass
from mixmark.harness.contracts.weights import read_weight
from mixmark.suites.llm import Llm

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 70))
WHOLE = hnp.arrays(np.int8, SIZES, elements=st.integers(-8, 7))
"""What synthetic weights are in steps."""


def product(quantised: Quantised) -> Any:
    """The weight that the integers and scales stand for."""
    scales = quantised.scales
    return quantised.integers * scales.reshape(*scales.shape, *[1] * (quantised.integers.ndim - scales.ndim))


def test_a_tensor_takes_the_step_at_which_its_largest_value_is_eight() -> None:
    got = per_channel(np.array([[-4, 3.5], [1, 0]], np.float32))
    assert (got.integers.tolist(), got.scales.tolist(), got.exact) == ([[-8, 7], [2, 0]], [0.5, 0.5], True)


def test_channels_that_a_batch_norm_scaled_have_steps_of_their_own() -> None:
    got = per_channel(np.array([[-8, 3], [7, 6], [0, 0]], np.float32) * np.array([[0.3], [-0.7123], [1]], np.float32))
    assert got.exact
    assert got.scales == pytest.approx([0.3, 0.7123, 1])
    assert got.integers.tolist() == [[-8, 3], [-7, -6], [0, 0]]


def test_weights_without_a_step_are_rounded_at_the_scale_of_their_largest_value() -> None:
    weight = np.array([[127.0, -0.6, 50.4]], np.float32)
    assert (per_channel(weight).integers.tolist(), per_channel(weight).exact) == ([[127, -1, 50]], False)
    got = in_groups(np.array([[8, -7.9, 0.4, 3.6]], np.float32), group=4)  # the largest value is positive: -8 · -1
    assert (got.integers.tolist(), got.scales.tolist(), got.exact) == ([[[-8, 7, 0, -4]]], [[-1]], False)


def test_groups_are_filled_up_and_have_scales_of_their_own() -> None:
    weight = np.concatenate((np.full(4, 0.3), [1e-3, -5e-3, 0]))[None].astype(np.float32)
    got = in_groups(weight, group=4)
    assert got.exact
    assert got.integers.tolist() == [[[-8, -8, -8, -8], [1, -5, 0, 0]]]
    assert got.scales[0] == pytest.approx([-0.3 / 8, 1e-3])


def test_the_first_of_two_integers_lies_in_the_low_half_of_a_byte() -> None:
    assert packed(np.array([[-8, 7, 0, 1]], np.int8)).tolist() == [[0xF0, 0x98]]


@given(WHOLE, st.integers(-20, 20))
def test_whole_steps_of_a_power_of_two_are_exact_to_the_bit(steps: Any, exponent: int) -> None:
    weight = np.ldexp(steps.astype(np.float32), exponent)
    for bits in (8, 4):
        got = per_channel(weight, bits)
        assert got.exact
        assert np.array_equal(product(got), weight)
        groups = in_groups(weight, bits)
        assert groups.exact
        assert np.array_equal(product(groups).reshape(len(weight), -1)[:, : weight.shape[1]], weight)


@given(WHOLE, st.data())
def test_whole_steps_of_any_size_are_exact_up_to_rounding(steps: Any, data: st.DataObject) -> None:
    size = st.floats(2.0**-10, 2.0**10, width=32)
    factors = data.draw(hnp.arrays(np.float32, len(steps), elements=size))
    weight = steps * factors[:, None]
    for bits in (8, 4):
        got = per_channel(weight, bits)
        assert got.exact
        assert np.abs(product(got) - weight).max() <= 1e-6 * factors.max() * 8


ANY = hnp.arrays(np.float32, SIZES, elements=st.floats(-1e3, 1e3, width=32).map(lambda x: x if abs(x) > 1e-3 else 0))


@given(ANY)
def test_any_weight_is_rounded_to_the_nearest_integer(weight: Any) -> None:
    got = per_channel(weight)
    assert np.abs(got.integers).max() <= 127
    error = np.abs(product(got) - weight)
    assert (error <= 0.501 * got.scales.reshape(-1, 1)).all()
    assert not got.exact or error.max() <= 2e-5 * np.abs(weight).max()


@given(ANY)
def test_in_four_bits_only_the_opposite_of_the_largest_value_is_off_by_more_than_half_a_step(weight: Any) -> None:
    got = in_groups(weight)
    values = np.pad(weight, ((0, 0), (0, -weight.shape[1] % GROUP))).reshape(got.integers.shape)
    assert (got.integers.min() >= -8) & (got.integers.max() <= 7)
    off = np.abs(product(got) - values) / np.abs(got.scales[..., None])
    assert (off <= np.where(got.integers == 7, 1.001, 0.501)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_drawn_weights_are_exact_in_the_bits_of_their_class_and_not_in_fewer(bits: WeightClass) -> None:
    weights = Llm("smoke", {}, bits).weights()
    for name in weights.names():
        weight = read_weight(weights, name)
        assert in_groups(weight, bits).exact, name
        assert np.abs(in_groups(weight, bits).integers).max() <= 64
        if weight.ndim > 1:
            assert in_groups(weight, 4).exact == (bits == 4), name
