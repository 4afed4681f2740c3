"""A few hundred folders that were altered at random; `python -m bench.fuzz N` tries thousands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from bench.fuzz import CAREFUL, CARELESS, Counts, fuzz, gained

MUTANTS = 250


@pytest.fixture(autouse=True)
def _twice_in_one_zip() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        yield


def test_a_careless_mutant_is_refused_or_the_same() -> None:
    counts = fuzz(MUTANTS, 7, CARELESS)
    assert counts.noted == []
    assert counts.outcomes.keys() <= {"refused", "no score", "same"}
    assert counts.outcomes["refused"] > MUTANTS / 2


def test_a_careful_mutant_raises_nothing_else() -> None:
    counts: Counts = fuzz(MUTANTS, 8, CAREFUL)
    assert not counts.outcomes["traceback"], counts.noted
    assert counts.outcomes["refused"] > MUTANTS / 2


def test_what_is_gained_is_what_is_larger_or_new() -> None:
    assert gained({"TX": 1.0, "grade": 2}, {"TX": 1.0 + 1e-12, "grade": 1}) == []
    assert gained({"TX": 1.0}, {"TX": 1.1, "MX": 2.0}) == ["TX from 1.0 to 1.1", "MX from None to 2"]
