"""What the parent asks of a window, and what it says ended it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from mixmark.harness.contracts.schema import LatencyLimits, Limits, ScenarioName
from mixmark.harness.measure import solo
from mixmark.harness.measure.phase import Part
from mixmark.harness.worker.failures import WorkerFailed

LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=10, max_ns=100, min_feeds=3)
PRECISE = LIMITS.model_copy(update={"half_width": 0.01})


@pytest.mark.parametrize(
    ("limits", "open_loop", "elapsed_ns", "feeds", "ended_by"),
    [
        (LIMITS, False, 10, 3, "time"),
        (LIMITS, False, 100, 1, "time"),
        (PRECISE, False, 10, 3, "precision"),
        (PRECISE, False, 99, 3, "precision"),
        (PRECISE, False, 100, 1, "cap"),
        (PRECISE, True, 100, 3, "time"),
        (PRECISE, True, 9, 3, "time"),  # the next feed was due later
    ],
)
def test_the_parent_says_what_ended_a_window(
    limits: Limits, open_loop: bool, elapsed_ns: int, feeds: int, ended_by: str
) -> None:
    assert solo._ended_by(limits, open_loop, elapsed_ns, feeds) == ended_by


@pytest.mark.parametrize(
    ("open_loop", "elapsed_ns", "feeds"), [(False, 9, 3), (False, 10, 2), (False, 99, 2), (True, 100, 2)]
)
def test_a_window_that_nothing_ended_has_no_result(open_loop: bool, elapsed_ns: int, feeds: int) -> None:
    with pytest.raises(WorkerFailed, match=rf"ended its window after .* with {feeds} feeds of at least 3"):
        solo._ended_by(PRECISE, open_loop, elapsed_ns, feeds)


def least(scenario: ScenarioName, rate_per_s: float | None, percentile: float = 0.9, min_feeds: int = 3) -> int:
    """The fewest feeds of a window of up to 10 s."""
    limits = LIMITS.model_copy(update={"max_ns": 10**10, "min_feeds": min_feeds})
    part = SimpleNamespace(
        share=SimpleNamespace(limits=limits, scenario=scenario),
        draft=SimpleNamespace(rate_per_s=rate_per_s),
        suite=SimpleNamespace(latency=LatencyLimits(percentile=percentile, total_ns=1, source="a test")),
    )
    return solo._limits(cast(Part, part)).min_feeds


def test_a_server_has_the_feeds_that_its_percentile_needs_if_they_arrive_in_time() -> None:
    assert least("server", 6.4) == 64
    assert least("server", 6.3) == 3
    assert least("server", 6.4, min_feeds=100) == 100
    assert least("single-stream", None) == least("offline", None) == 3
