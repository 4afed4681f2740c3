"""The clock that Mixmark measures and waits by.

It is used as a module, `clock.now_ns()`, so the functions are looked up at each call, and a test can replace them by a
clock that jumps (tests/fakes/clock.py). No option and no variable of the environment reaches it.

What waits for another process or for the system keeps the real time of `time`, since no clock of ours can hurry it: the
sockets of workers and agents, the end of a process and of its descendants, a file lock, the CPU time of idle processes,
HTTP, and whatever built-in meters and adapters read. The CPU time of a thread is real, too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

now_ns: Callable[[], int] = time.monotonic_ns
"""The time in nanoseconds. A loop that reads it often binds it once: this is the function of `time` itself."""
sleep: Callable[[float], None] = time.sleep
"""Waits some seconds."""


def now_s() -> float:
    """The time in seconds."""
    return now_ns() / 1e9


def wait(condition: threading.Event | threading.Condition, seconds: float | None) -> bool:
    """Waits for an event, or for the notification of a condition whose lock is held. False: the time ran out. seconds:
    None means that there is no limit."""
    return condition.wait(seconds)


def get(inbox: queue.SimpleQueue[T], seconds: float) -> T:
    """The next item of a queue. Raises queue.Empty if the time ran out."""
    return inbox.get(timeout=seconds)
