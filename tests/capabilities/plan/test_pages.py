"""The pages of the planner show what it prints now."""

from __future__ import annotations

import pytest

from mixmark.harness.plugins import registry
from tests.capabilities.plan import plan_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("entries" not in registry.BUILT_IN["services"], reason="nothing reads the published entries"),
]


def test_the_output_of_the_plan_page_is_current() -> None:
    page = plan_page.PAGE.read_text("utf-8")
    assert plan_page.renewed(page) == page, "run python -m tests.capabilities.plan.plan_page"
    assert "Cheapest machine for the work, predicted" in page, "it answers the question that it asks"
