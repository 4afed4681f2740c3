"""When requests are due: the server scenario's schedule, from a rate and a seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from harness.errors import UsageError

LOWEST_PER_S = 1e-6  # one in twelve days; much below it the stamps leave 64 bits


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """Yields due times in ns from 0 without end: independent exponential gaps, whatever the system under test does.

    The same on every platform: raw bits of Philox, no distribution of numpy's, whose streams may change.
    Raises UsageError, at the call, for a rate that is no finite number from 1e-6 up.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s >= LOWEST_PER_S):
        raise UsageError(
            f"a rate of {rate_per_s:g} requests per second cannot be offered",
            hint=f"choose a number from {LOWEST_PER_S:g} up",
        )
    return _due_ns(1e9 / rate_per_s, np.random.Philox(seed))


def _due_ns(mean_gap_ns: float, bits: np.random.Philox) -> Iterator[int]:
    due_ns = 0
    while True:
        uniform = ((bits.random_raw() >> 11) + 0.5) / 2**53  # never 0, so the logarithm is finite
        due_ns += round(-math.log(uniform) * mean_gap_ns)
        yield due_ns
