"""The page of a comparison, for the tests in a browser."""

from __future__ import annotations

from dataclasses import replace

from mixmark.harness.capabilities.compare import forms
from mixmark.harness.capabilities.compare.machines import compare_machines
from mixmark.harness.judge.assessment import judge
from tests.capabilities.compare.test_forms import hostile_result, scored, with_verdicts
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


PAGES = {"comparison": compared}
