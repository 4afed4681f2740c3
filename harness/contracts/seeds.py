"""Derives independent seeds by SHA-256: the output of one reveals nothing about another."""

from __future__ import annotations

import hashlib


def derived(seed: int, *use: object) -> int:
    """A seed of 63 bits that depends on another seed and on its use."""
    text = "/".join(map(str, (seed, *use)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def nonce(seed: int, serial: int, before: bytes = b"") -> int:
    """The nonce of the feed with this serial number, counted from 0, in the window with this seed.

    before: the digest of the previous output of the same issue thread, without which the feed cannot be predicted;
    empty for the first feed of a thread, and if the parent hands out each feed.
    """
    return derived(seed, "feed", serial, before.hex())


def pool(seed: int) -> int:
    """The seed of the pool from which a suite generates the feeds of the window with this seed."""
    return derived(seed, "pool")


def arrivals(seed: int) -> int:
    """The seed of the arrivals in the window with this seed."""
    return derived(seed, "arrivals")
