"""The pages of the planner show what it prints now."""

from __future__ import annotations

import pytest

from mixmark.harness.plugins import registry
from tests.capabilities.plan import claims_page, plan_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("entries" not in registry.BUILT_IN["services"], reason="nothing reads the published entries"),
]


@pytest.mark.exhaustive
def test_the_output_of_the_plan_page_is_current() -> None:
    page = plan_page.PAGE.read_text("utf-8")
    assert plan_page.renewed(page) == page, "run python -m tests.capabilities.plan.plan_page"


def test_the_page_of_claims_is_current() -> None:
    page = claims_page.PAGE.read_text("utf-8")
    assert claims_page.renewed(page) == page, "run python -m tests.capabilities.plan.claims_page"
