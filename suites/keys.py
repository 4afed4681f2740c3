"""Keys of the counter-based generators that draw weights and feeds: the same on every platform."""

from __future__ import annotations

import hashlib

import numpy as np


def key(text: str) -> int:
    """128 bits that depend on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def generator(*words: object) -> np.random.Generator:
    """A generator that depends on these words alone; those of other words are independent of it."""
    return np.random.Generator(np.random.Philox(key=key("/".join(map(str, words)))))
