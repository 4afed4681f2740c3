"""The page's table of tiers is that of the suite."""

from __future__ import annotations

from mixmark.harness.capabilities import train
from tests.docs.test_docs import TRANSFORMER, check_tiers


def test_tiers() -> None:
    check_tiers(
        "train", train.Train, train.SHAPES, TRANSFORMER, lambda shape: [str(train.SEQUENCES), str(shape.tokens_in)]
    )
