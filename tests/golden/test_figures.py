"""No redesign moves a figure: the assessments of made-up results, to the digit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.golden.figures import FILE, figures

pytestmark = pytest.mark.slow

KNOWN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("result", sorted({name.partition(" / ")[0] for name in KNOWN}))
def test_the_figures_of_a_result_are_the_same(result: str) -> None:
    found, known = (
        {name: value for name, value in every.items() if name.partition(" / ")[0] == result}
        for every in (figures(), KNOWN)
    )
    assert_same(found, known)


def assert_same(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    assert found.keys() == known.keys()
    assert {name: (found[name], value) for name, value in known.items() if not same(found[name], value)} == {}


def same(one: Any, other: Any) -> bool:
    """Whether values are equal; the last digits of a float may differ between processors."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return one == pytest.approx(other, rel=1e-9, abs=1e-12)
    return bool(one == other)
