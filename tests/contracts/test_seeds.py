"""A checker of a result recomputes its feeds and arrivals from the seed in it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.seeds import poisson, schedule


def first(count: int, rate_per_s: float, seed: int) -> list[int]:
    return list(itertools.islice(poisson(rate_per_s, seed), count))


def test_a_schedule_repeats_to_the_nanosecond() -> None:
    assert first(5, 5.0, 7) == [151508348, 322103079, 524783650, 812424243, 1207461501]
    assert first(3, 5.0, 8) != first(3, 5.0, 7)


@pytest.mark.parametrize("rate_per_s", [1e-3, 5.0, 1e5])
def test_a_whole_schedule_is_the_same_to_the_nanosecond(rate_per_s: float) -> None:
    assert schedule(rate_per_s, 7, 10_000).tolist() == first(10_000, rate_per_s, 7)


@pytest.mark.parametrize(("rate_per_s", "count"), [(0.0, 1), (1e-9, 1), (1e-6, 10**6), (1e-6, 1000)])
def test_a_schedule_beyond_any_run_is_refused(rate_per_s: float, count: int) -> None:
    with pytest.raises(UsageError):
        schedule(rate_per_s, 7, count)


def test_gaps_are_exponential_and_independent() -> None:
    gaps_s = np.diff(first(50_001, 4.0, 3)) / 1e9
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps_s.std() == pytest.approx(0.25, rel=0.02)
    assert (gaps_s > 0.25).mean() == pytest.approx(np.exp(-1), abs=0.01)
    assert abs(np.corrcoef(gaps_s[1:], gaps_s[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e-300])
def test_an_impossible_rate_is_refused_when_asked_for_not_when_first_used(rate_per_s: float) -> None:
    with pytest.raises(UsageError, match="requests per second"):
        poisson(rate_per_s, 1)


def test_what_follows_from_a_seed_stays_what_it_is() -> None:
    assert seeds.nonce(7, 0) == 2_348_172_455_875_364_510
    assert seeds.nonce(7, 1, before=b"digest") == 8_837_341_483_451_786_849
    assert (seeds.pool(7), seeds.arrivals(7)) == (1_023_568_572_567_858_858, 3_082_939_557_874_774_997)
