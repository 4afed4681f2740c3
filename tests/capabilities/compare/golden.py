"""The figures of the comparison of the published entries, and the page of one for the tests in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mixmark.harness.capabilities.compare import forms
from mixmark.harness.capabilities.compare.machines import compare_machines
from mixmark.harness.judge.assessment import judge
from tests.capabilities.compare.test_forms import hostile_result, scored, with_verdicts
from tests.golden.figures import as_json, below, published
from tests.golden.sample import sample
from tests.reporters.hostile import LONG


def compared() -> str:
    """The page of a comparison that has scores, tests, and hostile text."""
    sides = (
        scored(),
        with_verdicts(),
        compare_machines([("x", [judge(hostile_result(LONG))]), ("y", [judge(sample())]), ("z", [judge(sample())])]),
    )
    tests, strange = sides[1], sides[2]
    return forms.html(
        replace(sides[0], rows=(*sides[0].rows, *strange.rows), verdicts=tests.verdicts, uncompared=strange.uncompared)
    )


def figures() -> dict[str, Any]:
    """The figures of the comparison of the entries, by their paths."""
    sides = [(name, [judged]) for name, judged in published().items()]
    return as_json(dict(below(json.loads(forms.json(compare_machines(sides))), "comparison")))


PAGES = {"comparison": compared}
FIGURES = {"entries.json": figures}
