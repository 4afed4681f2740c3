"""Derives independent seeds by SHA-256, so that none reveals another, and arrival times from a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import UsageError

LONGEST_GAP = 37  # times the mean: no uniform number of 53 bits gives more
SLOT_NS = 4_000_000
"""The feeds of a server that are due within one slot share a secret. Sending it takes up to 1 % of a slot."""
LOWEST_PER_S = 1e-6  # one arrival in twelve days; at much lower rates the times exceed 64 bits


def derived(seed: int, *use: object) -> int:
    """A seed of 63 bits that depends on another seed and on its use."""
    text = "/".join(map(str, (seed, *use)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def nonce(seed: int, serial: int, before: bytes = b"") -> int:
    """The nonce of the feed with this serial number, counted from 0, in the window with this seed.

    before: the digest of the previous output of the same issue thread, which makes the feed unpredictable; empty for
    the first feed of a thread, and if the parent hands out each feed.
    """
    return derived(seed, "feed", serial, before.hex())


def pool(seed: int) -> int:
    """The seed of the pool from which a suite generates the feeds of the window with this seed."""
    return derived(seed, "pool")


def secret(seed: int, turn: int) -> int:
    """What the nonces of a turn's feeds are derived from in place of the window's seed. The parent keeps it until the
    turn comes.

    turn: of a server, the slot of SLOT_NS that the feeds are due in, from the begin of the window; of a closed loop,
    the number of the feed.
    """
    return derived(seed, "turn", turn)


def arrivals(seed: int) -> int:
    """The seed of the arrivals in the window with this seed."""
    return derived(seed, "arrivals")


def poisson(rate_per_s: float, seed: int) -> Iterator[int]:
    """An endless iterator of due times in ns from 0, with independent exponential gaps.

    The times are equal on every platform, since they are computed from raw bits of Philox: numpy may change its
    distributions. Raises UsageError, at the call, for a rate that is not a finite number from 1e-6 up.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s >= LOWEST_PER_S):
        raise UsageError(
            f"a rate of {rate_per_s:g} requests per second cannot be offered",
            hint=f"choose a number from {LOWEST_PER_S:g} up",
        )
    return _due_ns(1e9 / rate_per_s, np.random.Philox(seed))


def schedule(rate_per_s: float, seed: int, count: int) -> npt.NDArray[np.int64]:
    """The first `count` due times of `poisson`, computed ten times as fast. Raises UsageError like `poisson`, and if
    the times exceed 64 bits."""
    poisson(rate_per_s, seed)
    mean_gap_ns = 1e9 / rate_per_s
    if count * mean_gap_ns * LONGEST_GAP > 2**62:
        raise UsageError(f"{count} arrivals at a rate of {rate_per_s:g} take longer than any run")
    uniform = _uniform(count, seed)
    logarithms = np.fromiter(map(math.log, uniform.tolist()), np.float64, count)
    return np.cumsum(np.rint(-logarithms * mean_gap_ns).astype(np.int64))


def arrivals_within(length_ns: int, count: int, seed: int) -> npt.NDArray[np.int64]:
    """[count], the due times in ns of `count` arrivals from 0 to `length_ns`, in order.

    Given their count, the arrivals of a Poisson process are uniformly distributed. So the load is exactly the target,
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
