"""The arrival times of the server scenario and of a mix that is served. They follow from numbers and a seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import UsageError

LONGEST_GAP = 37  # times the mean: no uniform number of 53 bits gives more
LOWEST_PER_S = 1e-6  # one in twelve days; at much lower rates the times exceed 64 bits


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """An endless iterator of due times in ns from 0, with independent exponential gaps.

    The times are equal on every platform: they come from raw bits of Philox, because numpy may change its
    distributions. Raises UsageError, at the call, for a rate that is not a finite number from 1e-6 up.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s >= LOWEST_PER_S):
        raise UsageError(
            f"a rate of {rate_per_s:g} requests per second cannot be offered",
            hint=f"choose a number from {LOWEST_PER_S:g} up",
        )
    return _due_ns(1e9 / rate_per_s, np.random.Philox(seed))


def schedule(rate_per_s: float, seed: int, count: int) -> npt.NDArray[np.int64]:
    """The first `count` due times of `poisson`, in a tenth of its time. Raises UsageError like `poisson`, and if the
    times exceed 64 bits."""
    poisson(rate_per_s, seed)
    mean_gap_ns = 1e9 / rate_per_s
    if count * mean_gap_ns * LONGEST_GAP > 2**62:
        raise UsageError(f"{count} arrivals at a rate of {rate_per_s:g} take longer than any run")
    uniform = _uniform(count, seed)
    logarithms = np.fromiter(map(math.log, uniform.tolist()), np.float64, count)
    return np.cumsum(np.rint(-logarithms * mean_gap_ns).astype(np.int64))


def within(length_ns: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """[count], the due times in ns from 0 of so many arrivals in a time of this length, in order.

    Given their count, the arrivals of a Poisson process lie like uniform numbers. So the load is exactly the target,
    and no gap has to be stretched.
    """
    return np.sort((_uniform(count, seed) * length_ns).astype(np.int64))


def _uniform(count: int, seed: int) -> npt.NDArray[np.float64]:
    """[count], numbers above 0 and up to 1."""
    raw = np.random.Philox(seed).random_raw(count) >> np.uint64(11)
    return np.asarray((raw + 0.5) / 2**53, np.float64)


def _due_ns(mean_gap_ns: float, bits: np.random.Philox) -> Iterator[int]:
    due_ns = 0
    while True:
        uniform = ((bits.random_raw() >> 11) + 0.5) / 2**53  # never 0, so the logarithm is finite
        due_ns += round(-math.log(uniform) * mean_gap_ns)
        yield due_ns
