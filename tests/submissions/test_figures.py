"""No redesign moves a figure of a published entry.

python -m tests.submissions.test_figures    writes figures.json; only a change of a formula or of a field needs that
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from mixmark.submissions import references
from mixmark.submissions.references import ENTRIES
from tests.golden.figures import as_json, below, of_assessment, written
from tests.golden.test_figures import assert_same
from tests.submissions import readme_page

pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("figures.json")


def figures() -> dict[str, Any]:
    """The figures of the entries and of their results, by their paths."""
    results = sorted(ENTRIES.glob("*/*/*/results/*"))
    judged = {folder.parents[2].name: judge(store.open(folder)) for folder in results}
    found: dict[str, Any] = {}
    for name, assessment in judged.items():
        found |= of_assessment(assessment, name)
    for entry in references.published():
        found |= below(entry.model_dump(mode="json"), f"entries / {entry.path}")
        found |= below(references.reference(entry).model_dump(mode="json"), f"entries / {entry.path} / reference")
    return as_json(found)


def test_the_figures_are_the_same() -> None:
    assert_same(figures(), json.loads(FILE.read_text("utf-8")))


def test_the_readme_shows_the_first_entry() -> None:
    readme = readme_page.PAGE.read_text("utf-8")
    assert readme_page.page(readme) == readme, "python -m tests.submissions.readme_page"


if __name__ == "__main__":
    FILE.write_text(written(figures()), encoding="utf-8")
