"""What the parent asks of a window, and what it says ended it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Completion, LatencyLimits, Limits, ScenarioName
from mixmark.harness.measure import solo
from mixmark.harness.measure.phase import Part, stamped
from mixmark.harness.resources import clock
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.outputs import Commitments
from tests.fakes.clock import JumpingClock
from tests.golden.sample import closed_loop

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


@pytest.mark.parametrize(
    ("yields", "first_ns", "ended_ns", "kept"),
    [
        ((150, 4), None, 210, ((210, 4),)),  # the parent's time, whatever the worker says
        ((990, 4), None, 210, ((210, 4),)),
        ((150, 1, 170, 3), 160, 210, ((160, 1), (210, 3))),
        ((150, 1, 170, 1, 180, 2), 160, 210, ((160, 1), (170, 1), (210, 2))),
        ((1, 1, 2, 1, 3, 2), 160, 210, ((160, 1), (160, 1), (210, 2))),  # between the two, the worker's within them
        ((150, 1, 990, 1, 991, 2), 160, 210, ((160, 1), (210, 1), (210, 2))),
    ],
)
def test_a_feed_has_the_parents_times(
    yields: tuple[int, ...], first_ns: int | None, ended_ns: int, kept: tuple[tuple[int, int], ...]
) -> None:
    assert stamped(90, 100, yields, first_ns, ended_ns) == Completion(90, 100, kept)


@pytest.mark.parametrize(
    ("yields", "first_ns", "ended_ns"),
    [
        ((), None, 210),
        ((150, 0), None, 210),
        ((150, 1, 140, 1), 160, 210),  # time runs backwards
        ((150, 1, 170, 1), None, 210),  # the first yield was not reported
        ((150, 2), 160, 210),
        ((150, 2), None, 99),  # it ended before its turn
        ((150, 1, 170, 1), 99, 210),
        ((150, 1, 170, 1), 220, 210),
    ],
)
def test_what_cannot_be_times_is_refused(yields: tuple[int, ...], first_ns: int | None, ended_ns: int) -> None:
    with pytest.raises(ValueError):
        stamped(90, 100, yields, first_ns, ended_ns)


def part_of(scenario: ScenarioName, sent: list[tuple[int, int]], concurrency: int = 1, **draft: Any) -> Part:
    """sent: gets each turn that is revealed, and when."""

    def send(method: object, *, key: str, turn: int, secret: int) -> None:
        assert secret == seeds.secret(7, turn)
        sent.append((turn, clock.now_ns()))

    part = SimpleNamespace(
        share=SimpleNamespace(scenario=scenario),
        name="a",
        draft=SimpleNamespace(seed=7, **draft),
        worker=SimpleNamespace(send=send),
        commitments=Commitments(reported=True, chains=concurrency),
        concurrency=concurrency,
    )
    return cast(Part, part)


def test_a_turn_of_a_closed_loop_comes_with_the_output_that_makes_room(jumping_clock: JumpingClock) -> None:
    sent: list[tuple[int, int]] = []
    part = part_of("offline", sent, concurrency=2)
    with solo._revealing(part, 1_000) as seed:
        assert (seed, [turn for turn, _ in sent]) == (7, [0, 1])
        for number, serial in enumerate((1, 0, 2), 2):
            jumping_clock.time_ns = 1_000 + 100 * number
            part.commitments.feed_finished(key="a", serial=serial, digest="")
            assert [turn for turn, _ in sent] == [*range(number + 1)]
    done = [*solo._by_parent(part, closed_loop([[5], [5], [5]]), [0, 1, 2], 1_000)]
    assert [(each.issued_ns, each.done_ns) for each in done] == [(1_000, 1_300), (1_000, 1_200), (1_200, 1_400)]


@pytest.mark.usefixtures("jumping_clock")
def test_no_secret_of_a_server_leaves_before_its_feed_is_due() -> None:
    sent: list[tuple[int, int]] = []
    begin_ns = clock.now_ns()
    with solo._revealing(part_of("server", sent, rate_per_s=500.0), begin_ns) as seed:
        assert seed == seeds.arrivals(7)
        clock.sleep(10)
    first_ns = {due // seeds.SLOT_NS: begin_ns + due for due in reversed(seeds.schedule(500, seed, 6000).tolist())}
    assert dict(sent) == {turn: at_ns for turn, at_ns in first_ns.items() if at_ns <= begin_ns + 10_000_000_000}


@pytest.mark.parametrize(
    ("scenario", "feed_ms", "concurrency", "rate_per_s", "reported"),
    [
        ("single-stream", 20, 4, None, True),
        ("single-stream", 19, 1, None, False),
        ("offline", 80, 4, None, True),
        ("offline", 79, 4, None, False),
        ("probe", 80, 1, None, False),
        ("server", 1, 16, 250.0, True),
        ("server", 1, 16, 251.0, False),
    ],
)
def test_feeds_are_reported_where_it_costs_at_most_a_hundredth(
    scenario: ScenarioName, feed_ms: int, concurrency: int, rate_per_s: float | None, reported: bool
) -> None:
    part = SimpleNamespace(
        share=SimpleNamespace(scenario=scenario, limits=LIMITS),
        draft=SimpleNamespace(rate_per_s=rate_per_s),
        feed_ns=feed_ms * 10**6,
        concurrency=concurrency,
    )
    assert solo._reported(cast(Part, part)) is reported
    part.share.limits = LIMITS.model_copy(update={"screening": True})
    assert scenario == "server" or not solo._reported(cast(Part, part))
