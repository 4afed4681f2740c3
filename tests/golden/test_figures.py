"""No redesign moves a figure: the assessments of made-up results and of the published ones, to the digit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.golden.figures import files

pytestmark = pytest.mark.slow


@cache
def known(file: Path) -> dict[str, Any]:
    of_file: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return of_file


@pytest.mark.parametrize(
    ("file", "result"),
    [(file, result) for file in files() for result in sorted({name.partition(" / ")[0] for name in known(file)})],
)
def test_the_figures_of_a_result_are_the_same(file: Path, result: str) -> None:
    found, before = (
        {name: value for name, value in every.items() if name.partition(" / ")[0] == result}
        for every in (files()[file](), known(file))
    )
    assert found.keys() == before.keys()
    assert {name: (found[name], value) for name, value in before.items() if not same(found[name], value)} == {}


def same(one: Any, other: Any) -> bool:
    """Whether values are equal; the last digits of a float may differ between processors."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return one == pytest.approx(other, rel=1e-9, abs=1e-12)
    return bool(one == other)
