"""Measures the harness overhead per feed: the time to generate the next input and to hash the previous output.

It is measured in the parent, which no adapter can patch, when the window is over and the workers wait.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from statistics import median

LONGEST_NS = 200_000_000  # for all samples of one measurement
SAMPLES = 32


def measure_ns(make_feed: Callable[[], object], output_bytes: int) -> int:
    """Nanoseconds between two feeds on an idle machine.

    make_feed: generates the next feed. output_bytes: the size of the output of one.
    """
    parts = [bytes(output_bytes)]
    make_feed()  # the first one may make a pool
    return _median_ns(make_feed) + _median_ns(lambda: hashlib.sha256(b"".join(parts)).digest())


def _median_ns(work: Callable[[], object]) -> int:
    samples: list[int] = []
    while len(samples) < SAMPLES and (len(samples) < 3 or sum(samples) < LONGEST_NS):
        begin_ns = time.perf_counter_ns()
        work()
        samples.append(time.perf_counter_ns() - begin_ns)
    return int(median(samples))
