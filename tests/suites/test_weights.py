"""Weights: the same bits everywhere, exact in their class only, zero in sum."""

from __future__ import annotations

import hashlib
import math
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmark.harness.contracts.protocols import Spec, Weights
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.weights import GRAINS, GROUP, RMS, Draw, Synthetic, generator, philox_key, remainder

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float32]


def read(weights: Weights, name: str) -> Floats:
    shape = [size for size in weights.spec(name).shape if isinstance(size, int)]
    into = np.full(shape, np.nan, np.float32)
    weights.read(name, into)
    return into


def draw(
    *shape: int,
    bits: WeightClass = 4,
    suite: str = "llm",
    name: str = "w",
    seed: int = 0,
    gain: float = 1.0,
    threads: int = 1,
) -> Floats:
    return read(Synthetic(suite, {name: Spec(shape)}, lambda name, shape: Draw(gain), bits, seed, threads), name)


def integers(*shape: int, bits: WeightClass, seed: int = 0, gain: float = 1.0) -> Floats:
    """A draw in units of its scale."""
    return draw(*shape, bits=bits, seed=seed, gain=gain) / np.float32(Draw(gain).scale(shape, bits))


CLASSES = get_args(WeightClass)
GOLDEN: dict[tuple[WeightClass, tuple[int, ...]], str] = {
    (4, (8, 64)): "683ac732d84ca490",
    (4, (4, 3, 7, 7)): "34c96757ee835780",
    (4, (70,)): "aeff6ac31d4b4d36",
    (4, (600, 1056)): "532d507415a9ed90",
    (8, (8, 64)): "74d793b8e83d7cb0",
    (8, (4, 3, 7, 7)): "bbb71e828f34cc9e",
    (16, (8, 64)): "c96ac472683e3bb8",
    (16, (4, 3, 7, 7)): "75b8c38e8da853c7",
    (16, (600, 1056)): "23d6ed712979b3a9",
}


@pytest.mark.parametrize(("bits", "shape"), GOLDEN, ids=str)
def test_the_bits_never_change(bits: WeightClass, shape: tuple[int, ...]) -> None:
    drawn = draw(*shape, bits=bits).astype("<f4").tobytes()
    assert hashlib.sha256(drawn).hexdigest()[:16] == GOLDEN[bits, shape]


def test_a_draw_of_signs_has_one_magnitude_and_the_signs_of_a_draw() -> None:
    signs = read(Synthetic("llm", {"w": Spec((128,))}, lambda name, shape: Draw(0.25, signs_only=True), 16), "w")
    assert (abs(signs) == 0.25).all()
    assert (np.signbit(signs) == np.signbit(draw(128, bits=16))).all()


@given(rows=st.integers(1, 5), length=st.integers(1, 200), seed=st.integers(0, 2**64), gain=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_every_group_of_class_4_is_the_multiset_and_every_rest_its_pairs(
    rows: int, length: int, seed: int, gain: float
) -> None:
    drawn = integers(rows, length, bits=4, seed=seed, gain=gain)
    whole = length // GROUP * GROUP
    for group in drawn[:, :whole].reshape(-1, GROUP):
        assert sorted(group) == sorted(GRAINS[4].multiset)
    for rest in drawn[:, whole:]:
        assert sorted(rest) == sorted(remainder(length - whole))


@given(rows=st.integers(1, 5), length=st.integers(2, 200), seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_every_group_of_class_8_is_pairs_within_63_and_every_rest_sums_to_zero(
    rows: int, length: int, seed: int
) -> None:
    drawn = integers(rows, length, bits=8, seed=seed)
    whole = length // GROUP * GROUP
    assert (drawn == np.rint(drawn)).all() and np.abs(drawn).max() <= 63
    for group in drawn[:, :whole].reshape(-1, GROUP):
        assert (np.sort(group) == np.sort(-group)).all()
    if length - whole != 1:  # a single value cannot sum to zero
        assert not drawn[:, whole:].sum(1).any()


@given(rows=st.integers(1, 5), length=st.integers(2, 200), seed=st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_every_group_and_every_rest_of_class_16_sums_to_zero_up_to_its_rounding(
    rows: int, length: int, seed: int
) -> None:
    drawn = integers(rows, length, bits=16, seed=seed)
    whole = length // GROUP * GROUP
    rounding = np.abs(drawn) / 2**8  # at least half a step of eight significant bits
    groups, roundings = (part[:, :whole].reshape(-1, GROUP) for part in (drawn, rounding))
    assert (np.abs(groups.sum(1)) <= roundings.sum(1) + 1e-6).all()
    if length - whole != 1:
        assert (np.abs(drawn[:, whole:].sum(1)) <= rounding[:, whole:].sum(1) + 1e-6).all()


def test_the_remainders_sum_to_zero() -> None:
    assert np.abs(GRAINS[4].multiset).max() == 8
    assert [int(remainder(n).sum()) for n in range(2, GROUP)] == [0] * (GROUP - 2)
    assert remainder(1).tolist() == [4]
    assert remainder(5).tolist() == [-3, 2, 1, 4, -4]


def rounded(weights: Floats, bits: int, top: int) -> Any:
    """The variance of the rounding to integers of `bits` bits, over the variance of the weights.

    The scale of a row is its largest magnitude over `top`.
    """
    scale = np.abs(weights).max(axis=1, keepdims=True) / top
    whole = np.clip(np.rint(weights / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return np.mean((whole * scale - weights) ** 2) / np.mean(weights**2)


def in_bf16(weights: Floats) -> Any:
    """Whether the weights are exact; bf16 is the upper half of a float32."""
    return not (weights.view(np.uint32) & 0xFFFF).any()


@given(length=st.sampled_from([32, 75, 160]), gain=st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_class_8_survives_eight_bits_and_sixteen_and_not_four(length: int, gain: float) -> None:
    weights = draw(40, length, bits=8, gain=gain)
    whole = weights / np.float32(Draw(gain).scale(weights.shape, 8))
    assert (whole == whole.astype(np.int8)).all()
    assert (weights.astype(np.float16) == weights).all() and in_bf16(weights)
    assert 0.003 < rounded(weights[:, :32], 4, top=8) < 0.011


@given(length=st.sampled_from([32, 75, 160]), gain=st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_class_16_survives_bf16_and_fp16_and_neither_eight_bits_nor_four(length: int, gain: float) -> None:
    weights = draw(40, length, bits=16, gain=gain)
    assert (weights.astype(np.float16) == weights).all() and in_bf16(weights)
    assert 2e-5 < rounded(weights[:, :32], 8, top=127) < 6e-5
    assert 0.007 < rounded(weights[:, :32], 4, top=8) < 0.015


@pytest.mark.parametrize(("bits", "entropy_bits"), [(4, 3.3), (8, 6.5), (16, 9.5)])
def test_a_value_cannot_be_packed_into_the_bits_of_a_narrower_class(bits: WeightClass, entropy_bits: float) -> None:
    _, counts = np.unique(draw(1000, 320, bits=bits), return_counts=True)
    fractions = counts / counts.sum()
    assert -(fractions * np.log2(fractions)).sum() > entropy_bits


@pytest.mark.parametrize("bits", CLASSES)
def test_groups_are_not_alike_and_no_place_follows_from_the_others(bits: WeightClass) -> None:
    """Each place but one is free, so no pair of places has a constant sum."""
    groups = integers(20_000, GROUP, bits=bits)
    assert len(np.unique(groups, axis=0)) == len(groups)
    together = np.corrcoef(groups.T) - np.eye(GROUP)
    assert np.abs(together + (1 - np.eye(GROUP)) / 31).max() < 0.06  # -1/31 without replacement
    where = (groups == groups.min()).sum(axis=0)
    assert bits != 4 or np.abs(where - 625).max() < 125, "its one -8 has no place of its own: sigma is 25"


@given(fan_in=st.integers(1, 100_000), gain=st.floats(0.001, 1000))
def test_the_scale_is_a_power_of_two_that_keeps_the_variance(fan_in: int, gain: float) -> None:
    scale = Draw(gain).scale((7, fan_in), 4)
    assert math.frexp(scale)[0] == 0.5
    assert 0.7 < scale * RMS * math.sqrt(fan_in) / gain < 1.42
    assert Draw(gain).scale((fan_in,), 4) == Draw(gain).scale((1, 1), 4)  # a vector has no fan-in


def test_a_tensor_has_the_same_gain_in_every_class() -> None:
    deviations = [float(draw(200, 320, bits=bits).std()) for bits in CLASSES]
    assert deviations == pytest.approx([RMS * Draw().scale((200, 320), 4)] * 3, rel=0.02)


@pytest.mark.parametrize("bits", CLASSES)
@pytest.mark.parametrize("shape", [(70_000, 64), (40_000, 37), (3, 5)])
def test_threads_do_not_change_the_bits(shape: tuple[int, ...], bits: WeightClass) -> None:
    assert (draw(*shape, bits=bits, threads=1) == draw(*shape, bits=bits, threads=4)).all()


def test_suite_name_and_seed_each_give_another_draw() -> None:
    draws: list[Floats] = [draw(4, 64), draw(4, 64, suite="dlrm"), draw(4, 64, name="v"), draw(4, 64, seed=1)]
    assert len({tensor.tobytes() for tensor in draws}) == len(draws)


def test_a_wrong_buffer_is_refused() -> None:
    weights = Synthetic("llm", {"w": Spec((4, 64))}, lambda name, shape: Draw(), 16)
    wrong: tuple[Any, ...] = (
        np.empty((4, 32), np.float32),
        np.empty((64, 4), np.float32).T,
        np.empty((4, 64), np.float64),
    )
    for into in wrong:
        with pytest.raises(ValueError, match="w needs"):
            weights.read("w", into)


def test_a_generator_is_philox_keyed_by_its_words() -> None:
    expected = np.random.Generator(np.random.Philox(key=philox_key("feed/1"))).random(5)
    assert generator("feed", 1).random(5).tolist() == expected.tolist()
