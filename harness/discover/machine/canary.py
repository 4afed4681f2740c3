"""A fixed loop, timed before and after each measurement, that shows whether one core is still as fast."""

from __future__ import annotations

import time
from collections.abc import Callable

from mixmark.harness.contracts.schema import Conditions

STEPS = 60_000
TIMES = 5
WARMUP_NS = 20_000_000  # a governor takes about this long to raise an idle CPU's clock


def canary(clock: Callable[[], int] = time.monotonic_ns) -> Conditions:
    """The loop's times in ns. Run it before, between and after measurements, never beside a worker."""
    begin_ns = clock()
    warm_ns = time.monotonic_ns() + WARMUP_NS
    while time.monotonic_ns() < warm_ns:
        _fixed_work()
    times = []
    for _ in range(TIMES):
        start_ns = clock()
        _fixed_work()
        times.append(clock() - start_ns)
    return Conditions(begin_ns=begin_ns, end_ns=clock(), canary_ns=tuple(times))


def _fixed_work() -> int:
    """Does integer arithmetic in registers and cache, so that its time follows the clock and nothing else."""
    total = 0
    for step in range(STEPS):
        total = (total * 31 + step) & 0xFFFF
    return total
