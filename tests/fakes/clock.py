"""A clock that jumps, as trio's MockClock: time stands still while any thread computes, and when all threads wait, it
jumps to the earliest time that one of them waits for. So a story takes no real time, and its digits are exact.

A thread waits if it waits for an event, a condition, a queue, a future or the end of a thread without a limit, or with
a limit by `mixmark.harness.resources.clock`. Whatever else holds it up, such as a reply of a real process, counts as
computing: time stands still meanwhile. Known are the thread that began the clock and the threads that known ones start.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import pytest

from mixmark.harness.resources import clock

REAL_WAIT, REAL_START, REAL_JOIN = threading.Condition.wait, threading.Thread.start, threading.Thread.join
LONGEST_REAL_S = 0.05  # a wait of a test that needs no mark: less than what polls take
BEGIN_NS = 1_000_000_000_000


class Stuck(Exception):
    """All threads wait, and none of them for a time."""


class _Over(BaseException):
    """The test is over, and nothing will wake the thread any more."""


class _Wait:
    """A thread that waits. It stands in for the lock that a waiter of a condition has."""

    def __init__(self, owner: JumpingClock, until_ns: float) -> None:
        self.owner, self.until_ns = owner, until_ns
        self.gate = threading.Lock()
        self.gate.acquire()
        self.notified = False

    def release(self) -> None:
        """Called by `Condition.notify`. Raises RuntimeError if the wait is over, so that another waiter is notified."""
        with self.owner.lock:
            if self not in self.owner.waiting:
                raise RuntimeError("its time ran out")
            self.notified = True
            self.owner.wake(self)


class JumpingClock:
    """stuck_s: the real seconds after which a story is stuck in which all threads wait and none for a time. A thread
    that is not known may still notify one."""

    def __init__(self, stuck_s: float = 5.0) -> None:
        self.time_ns = BEGIN_NS
        self.lock = threading.Lock()
        self.waiting: list[_Wait] = []
        self._stuck_s = stuck_s
        self._running = 1
        self._main = threading.get_ident()
        self._known = {self._main}
        self._over = False
        self._joins: dict[threading.Thread, list[_Wait]] = {}
        """The waits for the end of each known thread that was started and has not ended."""
        self._here = threading.local()

    # --- what stands in for `mixmark.harness.resources.clock` ---------------------------------------------------------

    def now_ns(self) -> int:
        return self.time_ns

    def sleep(self, seconds: float) -> None:
        assert threading.get_ident() in self._known, "a thread that the clock does not know"
        if seconds > 0:
            self._pass(self._begin(seconds))

    def wait(self, condition: threading.Event | threading.Condition, seconds: float | None) -> bool:
        with self._limited():
            return condition.wait(seconds)

    def get(self, inbox: Any, seconds: float) -> Any:
        with self._limited():
            return inbox.get(timeout=seconds)

    # --- what stands in for `threading` -------------------------------------------------------------------------------

    def wait_for(self, condition: Any, timeout: float | None = None) -> bool:
        """`Condition.wait`, on which events, semaphores, queues and futures are built."""
        limited = getattr(self._here, "limited", False)
        if threading.get_ident() not in self._known or (timeout is not None and not limited):
            return REAL_WAIT(condition, timeout)
        waited = self._begin(timeout, condition)
        saved = condition._release_save()
        try:
            self._pass(waited)
        finally:
            condition._acquire_restore(saved)
            with suppress(ValueError):
                condition._waiters.remove(waited)
        return waited.notified

    def start(self, thread: threading.Thread) -> None:
        """`Thread.start`."""
        if threading.get_ident() in self._known:
            run = thread.run

            def known() -> None:
                self._known.add(threading.get_ident())
                try:
                    with suppress(_Over):
                        run()
                finally:
                    self._end(thread)

            thread.run = known  # type: ignore[method-assign]
            with self.lock:
                self._running += 1
                self._joins[thread] = []
        REAL_START(thread)

    def join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        """`Thread.join`."""
        if threading.get_ident() in self._known and timeout is None:
            waited = _Wait(self, inf)
            with self.lock:
                joins = self._joins.get(thread)
                if joins is not None:
                    joins.append(waited)
                    self._rest(waited)
            if joins is not None:
                self._pass(waited)
        REAL_JOIN(thread, timeout)

    # ------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _limited(self) -> Iterator[None]:
        self._here.limited = True
        try:
            yield
        finally:
            self._here.limited = False

    def _begin(self, seconds: float | None, condition: Any = None) -> _Wait:
        waited = _Wait(self, inf if seconds is None else self.time_ns + round(max(0.0, seconds) * 1e9))
        if condition is not None:
            condition._waiters.append(waited)  # before this thread rests: its condition's lock keeps others from it
        with self.lock:
            self._rest(waited)
        return waited

    def _rest(self, waited: _Wait) -> None:
        self.waiting.append(waited)
        self._running -= 1
        self._jump()

    def _jump(self) -> None:
        if not self._running and self.waiting:
            first = min(self.waiting, key=lambda each: each.until_ns)
            if first.until_ns < inf:
                self.time_ns = max(self.time_ns, int(first.until_ns))
                self.wake(first)

    def wake(self, waited: _Wait) -> None:
        self.waiting.remove(waited)
        self._running += 1
        waited.gate.release()

    def _pass(self, waited: _Wait) -> None:
        """Holds this thread until it is woken. Raises Stuck in the thread that began the clock."""
        while not self._acquired(waited):
            with self.lock:
                stuck = not self._running and waited in self.waiting and threading.get_ident() == self._main
                if stuck:
                    self.wake(waited)
            if stuck:
                frames = sys._current_frames()
                stacks = ("".join(traceback.format_stack(frames[id])) for id in self._known if id in frames)
                raise Stuck("all threads wait, and none of them for a time\n\n" + "\n".join(stacks))
        if self._over and waited.until_ns < inf:
            raise _Over

    def _acquired(self, waited: _Wait) -> bool:
        try:
            return waited.gate.acquire(timeout=self._stuck_s)
        except KeyboardInterrupt:  # this thread runs on
            with self.lock:
                if waited in self.waiting:
                    self.wake(waited)
            raise

    def close(self) -> None:
        """Ends the threads that still wait for a time: nothing would wake them any more."""
        with self.lock:
            self._over = True
            for waited in [each for each in self.waiting if each.until_ns < inf]:
                self.wake(waited)

    def _end(self, thread: threading.Thread) -> None:
        with self.lock:
            self._known.discard(threading.get_ident())
            self._running -= 1
            for waited in self._joins.pop(thread):
                self.wake(waited)
            self._jump()


class Inbox:
    """`queue.SimpleQueue`, built on a condition."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._changed:
            if not self._items and block:
                self._changed.wait(timeout)
            if not self._items:
                raise queue.Empty
            return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)


def jumping(monkeypatch: pytest.MonkeyPatch, stuck_s: float = 5.0) -> JumpingClock:
    """Puts a clock that jumps in place of the real one."""
    made = JumpingClock(stuck_s)
    for name in ("now_ns", "sleep", "wait", "get"):
        monkeypatch.setattr(clock, name, getattr(made, name))
    monkeypatch.setattr(threading.Condition, "wait", lambda *given, **named: made.wait_for(*given, **named))
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.start(thread))
    monkeypatch.setattr(threading.Thread, "join", lambda thread, timeout=None: made.join(thread, timeout))
    monkeypatch.setattr(queue, "SimpleQueue", Inbox)
    return made


class RealWait(Exception):
    """A test waited in real time."""


def refuse_real_waits(monkeypatch: pytest.MonkeyPatch, harness_may: bool) -> list[str]:
    """Lets each wait of more than LONGEST_REAL_S raise. Returns the list of them, since a thread may swallow the error.
    harness_may: only the waits of test files raise, and not those of the harness and of fakes."""
    waits: list[str] = []

    def check(seconds: float) -> None:
        caller = sys._getframe(2)
        place = caller.f_code.co_filename
        own = "/test_" in place
        if seconds > LONGEST_REAL_S and (own or not harness_may):
            waits.append(f"{place}:{caller.f_lineno} waited {seconds:.2f} s")
            raise RealWait(f"{waits[-1]}: take the fixture `jumping_clock`, or mark the test as `realtime`")

    def guarded(real: Callable[[float], None]) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            check(seconds)
            real(seconds)

        return sleep

    real_wait, real_get = clock.wait, clock.get

    def wait(condition: threading.Event | threading.Condition, seconds: float | None) -> bool:
        begin_s = time.monotonic()
        woken = real_wait(condition, seconds)
        if not woken:
            check(time.monotonic() - begin_s)
        return woken

    def get(inbox: Any, seconds: float) -> Any:
        begin_s = time.monotonic()
        try:
            return real_get(inbox, seconds)
        except queue.Empty:
            check(time.monotonic() - begin_s)
            raise

    monkeypatch.setattr(time, "sleep", guarded(time.sleep))
    for name, function in (("sleep", guarded(clock.sleep)), ("wait", wait), ("get", get)):
        monkeypatch.setattr(clock, name, function)
    return waits
