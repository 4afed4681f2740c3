"""No redesign moves a figure: the assessments of the published entries and of made-up results, to the digit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.figures import FILE, figures, flat

pytestmark = pytest.mark.slow  # it judges a published entry

KNOWN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_same_figures_exist() -> None:
    assert dict(flat(figures())).keys() == KNOWN.keys()


@pytest.mark.parametrize("result", sorted({name.partition(" / ")[0] for name in KNOWN}))
def test_every_figure_of_a_result_is_the_same(result: str) -> None:
    found = dict(flat(figures()))
    own = {name: value for name, value in KNOWN.items() if name.partition(" / ")[0] == result}
    assert own
    different = {name: (found.get(name), value) for name, value in own.items() if not same(found.get(name), value)}
    assert not different


def same(one: Any, other: Any) -> bool:
    """Whether values are equal; the last digits of a float may differ between processors."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return one == pytest.approx(other, rel=1e-9, abs=1e-12)
    return bool(one == other)
