"""An entrant who has only the wheel types what the page submit.md says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.installed import blocks, write
from tests.submissions.test_commands import PAGE

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def test_an_entry_is_made_checked_and_audited_as_the_page_says(outsider: Callable[[str], str]) -> None:
    write(outsider, PAGE.replace('"desktop"', '"other"'))  # the tests may run in a virtual machine, which tells
    assert [each.split()[1] for each in blocks(PAGE)] == ["run", "submit", "submit", "check", "audit", "compare"]
    for each in blocks(PAGE):
        outsider(each)
    shown = re.findall(r"^    ([a-z.A-Z0-9/]+) ", PAGE, re.MULTILINE)
    there = outsider(
        "cd submissions/entries/acme/acme-one/smoke-1-16-bit; find . -maxdepth 1 -type f; find . -name 1"
    ).split()
    assert {each.rstrip("/") for each in shown} == {each.removeprefix("./") for each in there}
