"""A cheat on a part of the feeds, in simulated audits."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice

import pytest

from bench.separation import AUDITED, Row, caught, in_part

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


def test_what_is_trained_on_follows_from_two_tokens() -> None:
    """Six may follow any two classes, so there is something to learn, and attention is needed for it."""
    pytest.importorskip("torch")
    from bench.trained import CLASSES, SUCCESSORS, text
    from mixmark.suites.llm import SHAPES

    followed: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for ids in islice(text(SHAPES["smoke"]), 20):
        for row in ids[:, SHAPES["smoke"].tokens_in - 2 :].tolist():
            for one, other, token in zip(row, row[1:], row[2:], strict=False):
                followed[one % CLASSES, other % CLASSES].add(token)
    assert max(map(len, followed.values())) == SUCCESSORS
    assert len(followed) == CLASSES**2
