"""What it takes to come from one feed to the next: the feed is made, and the output before is kept and hashed.

It is measured in the parent, which no adapter can patch, when the window is over and the workers wait.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from statistics import median

LONGEST_NS = 200_000_000  # for all samples of one measurement
SAMPLES = 32


def cost_ns(make: Callable[[], object], output_bytes: int) -> int:
    """The time that one gap between two feeds takes on an idle machine, in nanoseconds.

    make: makes the next feed. output_bytes: the size of the output for one.
    """
    parts = [bytes(output_bytes)]
    make()  # where the suite makes a pool
    return _median_ns(make) + _median_ns(lambda: hashlib.sha256(b"".join(parts)).digest())


def _median_ns(work: Callable[[], object]) -> int:
    samples: list[int] = []
    while len(samples) < SAMPLES and (len(samples) < 3 or sum(samples) < LONGEST_NS):
        begin_ns = time.perf_counter_ns()
        work()
        samples.append(time.perf_counter_ns() - begin_ns)
    return int(median(samples))
