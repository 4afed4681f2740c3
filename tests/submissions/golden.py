"""The figures of the published entries and of their results."""

from __future__ import annotations

from typing import Any

from mixmark.submissions import references
from tests.golden.figures import as_json, below, of_assessment, published


def figures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, assessment in published().items():
        found |= of_assessment(assessment, name)
    for entry in references.published():
        found |= below(entry.model_dump(mode="json"), f"entries / {entry.path}")
        found |= below(references.reference(entry).model_dump(mode="json"), f"entries / {entry.path} / reference")
    return as_json(found)


FIGURES = {"figures.json": figures}
