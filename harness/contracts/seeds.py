"""Seeds that are derived from others: who has seen what comes of one cannot tell what comes of another."""

from __future__ import annotations

import hashlib


def derived(seed: int, *use: object) -> int:
    """A seed of 63 bits that depends on another one and on what it is used for."""
    text = "/".join(map(str, (seed, *use)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def nonce(seed: int, serial: int, before: bytes = b"") -> int:
    """The nonce of the feed with this number, counted from 0, in the window with this seed.

    before: the digest of the output before it in the same lane, so that nobody can know the feed earlier; empty for the
    first one in a lane, and where the parent hands out each feed.
    """
    return derived(seed, "feed", serial, before.hex())


def pool(seed: int) -> int:
    """The seed of the pool from which a suite makes the feeds of the window with this seed."""
    return derived(seed, "pool")


def arrivals(seed: int) -> int:
    """The seed of the arrivals in the window with this seed."""
    return derived(seed, "arrivals")
