"""No redesign moves a figure of the comparison of published entries.

python -m tests.capabilities.compare.test_entries    writes entries.json; only a change of a formula or a field needs it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.compare import forms
from mixmark.harness.capabilities.compare.machines import compare_machines
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from tests.golden.figures import as_json, below, written
from tests.golden.test_figures import assert_same

FILE = Path(__file__).with_name("entries.json")
RESULTS = sorted((Path(__file__).parents[3] / "submissions/entries").glob("*/*/*/results/*"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not RESULTS, reason="no entry is there")]


def figures() -> dict[str, Any]:
    """The figures of the comparison of the entries, by their paths."""
    sides = [(folder.parents[2].name, [judge(store.open(folder))]) for folder in RESULTS]
    return as_json(dict(below(json.loads(forms.json(compare_machines(sides))), "comparison")))


def test_the_figures_are_the_same() -> None:
    assert_same(figures(), json.loads(FILE.read_text("utf-8")))


if __name__ == "__main__":
    FILE.write_text(written(figures()), encoding="utf-8")
