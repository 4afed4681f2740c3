"""A vendor who has only the wheel types what the page start.md says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.capabilities.kit.template_pages import PAGES
from tests.installed import blocks

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def test_a_vendor_comes_from_nothing_to_a_measured_adapter(outsider: Callable[[str], str]) -> None:
    new, listed, run = (outsider(block) for block in blocks((PAGES / "start.md").read_text("utf-8")))
    assert "mixmark-acme/mixmark_acme.py" in new
    assert re.search(r"^cpu:0 .* acme \(fp32\)", listed, re.MULTILINE), listed
    assert len(re.findall(r"^(?:llm|diffusion|dlrm|resnet50) .* acme fp32\b", run, re.MULTILINE)) == 4, run
