"""The clock that jumps in tests, and the guard that keeps tests from waiting in real time."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mixmark.harness.resources import clock
from tests.fakes.clock import BEGIN_NS, RealWait, Stuck, jumping, refuse_real_waits

SECOND = 1_000_000_000


def elapsed_s() -> float:
    return clock.now_s() - BEGIN_NS / 1e9


@pytest.mark.usefixtures("jumping_clock")
def test_threads_that_wait_for_each_other_keep_no_time_from_passing() -> None:
    """For the end of a thread, a future, a queue, or a notification that comes in time or too late."""
    changed = threading.Condition()
    inbox: queue.SimpleQueue[float] = queue.SimpleQueue()

    def notify() -> None:
        clock.sleep(1)
        with changed:
            changed.notify_all()
        inbox.put(elapsed_s())

    with ThreadPoolExecutor(2) as pool:
        notified = pool.submit(notify)
        with changed:
            assert clock.wait(changed, 4) and elapsed_s() == 1
        assert (inbox.get(), notified.result(), elapsed_s()) == (1, None, 1)
        pool.submit(clock.sleep, 4)
        with changed:
            assert not clock.wait(changed, 3) and elapsed_s() == 4
    assert elapsed_s() == 5, "the pool waits for its threads"


def test_a_wait_that_never_ends_is_an_error_and_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    jumping(monkeypatch, stuck_s=0.02)
    with pytest.raises(Stuck, match=r"test_a_wait_that_never_ends(.|\n)*wait"):
        threading.Event().wait()


@pytest.mark.realtime
@pytest.mark.parametrize(
    "wait", [lambda s: time.sleep(s), lambda s: clock.sleep(s), lambda s: clock.wait(threading.Event(), s)]
)
def test_a_real_wait_is_an_error(monkeypatch: pytest.MonkeyPatch, wait: object) -> None:
    assert callable(wait)
    with monkeypatch.context() as inner:
        waits = refuse_real_waits(inner, harness_may=False)
        wait(0.001)
        assert not waits
        with pytest.raises(RealWait, match=r"test_clock\.py.* waited \d+\.\d\d s"):
            wait(0.06)
        assert len(waits) == 1
