"""The page of a plan as a reader sees it, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.capabilities.plan import outlook, text
from mixmark.harness.capabilities.plan.machine import Limits, Planner
from mixmark.reporters import document
from tests.capabilities.plan.test_machine import MIX, host, kind
from tests.reporters.browser import CHROMIUM, tab
from tests.reporters.hostile import LONG
from tests.reporters.test_browser import fits_every_window

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


def test_a_plan_with_a_demand_prices_watts_and_a_long_name_fits_every_window(tmp_path: Path) -> None:
    kinds = [host(50), kind(LONG, 4, 1, 100, watts=100), kind("Y", 1, 4, 100, watts=50)]
    limits = Limits(mixes_per_hour=3600, budget=1e6)
    found = outlook.answered(Planner(kinds, MIX), limits)
    (tmp_path / "plan.html").write_text(document.html(text.plan(found, LONG, {"a": LONG, "b": "s"})), "utf-8")
    with tab(tmp_path / "profile") as opened:
        opened.open(tmp_path / "plan.html")
        fits_every_window(opened)
