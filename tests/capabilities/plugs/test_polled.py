"""A meter that is asked in a thread of its own."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.plugs.polled import MOST_FAILURES, Poll
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Sample
from tests.capabilities.plugs.servers import gathered

EVERY_NS = 1_000_000_000


def test_it_is_asked_once_a_second_and_nobody_waits_for_it() -> None:
    now_ns = 0
    asked: list[int] = []

    def ask() -> float:
        asked.append(now_ns)
        return 5.0

    poll = Poll(ask, EVERY_NS, lambda: now_ns)
    assert gathered(poll.take) == [Sample(5.0)]
    now_ns = EVERY_NS - 1
    assert poll.take() == []
    assert asked == [0]
    now_ns = EVERY_NS
    assert gathered(poll.take) == [Sample(5.0)]
    assert asked == [0, EVERY_NS]


def test_an_answer_that_nobody_took_in_time_is_dropped() -> None:
    now_ns = 0
    poll = Poll(lambda: 5.0, EVERY_NS, lambda: now_ns)
    poll.take()
    assert poll._thread is not None
    poll._thread.join()
    now_ns = EVERY_NS
    assert poll.take() == []  # and asks again
    assert gathered(poll.take) == [Sample(5.0)]


def test_a_failure_now_and_then_is_a_gap_but_several_in_a_row_are_the_end() -> None:
    answers: list[float | Exception] = [7.0, OSError("busy"), 8.0]
    answers += [MixmarkError("gone")] * MOST_FAILURES

    def ask() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    poll = Poll(ask, 0)
    assert gathered(poll.take) == [Sample(7.0)]
    assert gathered(poll.take) == [Sample(8.0)]
    for _ in range(2):
        with pytest.raises(MixmarkError, match="gone"):
            gathered(poll.take)
    assert not answers
