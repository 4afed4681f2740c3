"""A cheat on a part of the feeds, in simulated audits."""

from __future__ import annotations

import re

import pytest

from tests.suites.separation import Row
from tests.suites.separation.__main__ import AUDITED, caught, in_part

pytestmark = pytest.mark.slow

RIGHT = Row("fp32", "16 bits", (0.0, 0.01))
SKIPPED = Row("a layer skipped", "", (0.3, 0.4))


@pytest.mark.parametrize("part", [1 / 4, 1 / 10])
def test_who_fails_on_every_cheated_feed_is_caught_where_one_is_audited(part: float) -> None:
    assert caught(SKIPPED, RIGHT, part, at_most=0.2) == pytest.approx(1 - (1 - part) ** AUDITED, abs=0.01)


def test_a_cheat_that_some_feeds_forgive_is_caught_less() -> None:
    half = Row("mild", "", (0.1, 0.3))
    assert caught(half, RIGHT, 1 / 10, at_most=0.2) == pytest.approx(1 - 0.95**AUDITED, abs=0.02)
    assert caught(half, RIGHT, 1, at_most=0.35) == 0


def test_the_mildest_of_the_cheats_is_told() -> None:
    told = in_part([RIGHT, Row("zeros", "", (2.0,)), SKIPPED], at_most=0.35)
    assert re.search(r"quarter of the feeds in 9[78]\.", told), told  # 1 − 0.875^30 = 98.2 %
