"""Whoever checks a result makes its feeds and its arrivals again, from the seed that stands in it."""

from __future__ import annotations

from mixmark.harness.contracts import seeds


def test_what_follows_from_a_seed_stays_what_it_is() -> None:
    assert seeds.nonce(7, 0) == 2_348_172_455_875_364_510
    assert seeds.nonce(7, 1, before=b"digest") == 8_837_341_483_451_786_849
    assert (seeds.pool(7), seeds.arrivals(7)) == (1_023_568_572_567_858_858, 3_082_939_557_874_774_997)
