"""Copies are found by their steps, and series that are alike by chance are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mixmark.harness.judge.statistics.timestamps import ALIKE, DIFFERENT_STEPS, FIRST_STEPS, Floats, copies, fingerprint

MARKS_NS = np.cumsum(np.arange(DIFFERENT_STEPS + 1) * 3_000 + 5_000)
"""One mark more than steps are needed, and no two steps are alike."""


def telling(values: npt.NDArray[Any]) -> Floats:
    steps = fingerprint(values)
    assert steps is not None
    return steps


def are_copies(*series: npt.NDArray[Any]) -> bool:
    return [*copies(enumerate(map(telling, series)))] == [(0, 1)]


@pytest.mark.parametrize("at", [1, DIFFERENT_STEPS // 2, DIFFERENT_STEPS])
@pytest.mark.parametrize(("by_ns", "same"), [(0, True), (ALIKE, True), (-ALIKE, True), (ALIKE + 1, False)])
def test_steps_within_a_microsecond_are_the_same(at: int, by_ns: int, same: bool) -> None:
    moved = MARKS_NS + by_ns * (np.arange(len(MARKS_NS)) >= at)
    assert are_copies(MARKS_NS, moved + 77 * 10**9) is same


def test_a_part_of_a_copy_is_a_copy() -> None:
    assert are_copies(np.concatenate((MARKS_NS, MARKS_NS[-1] + MARKS_NS)), MARKS_NS)


def test_too_few_different_steps_tell_nothing() -> None:
    assert fingerprint(MARKS_NS) is not None
    assert fingerprint(MARKS_NS[:-1]) is None
    regular = np.arange(10_000) * 20_000_000 + np.arange(10_000) % 10 * 90  # steps that differ by less than 1 µs
    assert fingerprint(regular) is None


def test_the_first_steps_of_a_long_series_are_compared() -> None:
    marks = np.cumsum(np.random.default_rng(1).integers(10**6, 2 * 10**6, FIRST_STEPS + 2))
    other = marks.copy()
    other[-1] += 10**6
    assert are_copies(marks, other)
    other[-2] += 10**6
    assert not are_copies(marks, other)


def test_samples_count_in_billionths_of_their_unit() -> None:
    joules = np.cumsum(np.random.default_rng(1).random(100))
    assert are_copies(joules, joules + 1234.5)
    assert not are_copies(joules, joules + 1e-5 * np.arange(100))


def test_the_holders_of_all_pairs_are_named_in_their_order() -> None:
    steps, others = telling(MARKS_NS), telling(2 * MARKS_NS)
    assert [*copies([("a", steps), ("b", others), ("c", steps), ("d", steps)])] == [("a", "c"), ("a", "d"), ("c", "d")]
