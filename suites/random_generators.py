"""Random generators for weights and feeds: counter-based (Philox), so equal on every platform."""

from __future__ import annotations

import hashlib

import numpy as np


def philox_key(text: str) -> int:
    """A 128-bit key from the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def generator(*words: object) -> np.random.Generator:
    """A generator seeded by these words. Generators of different words are independent."""
    return np.random.Generator(np.random.Philox(key=philox_key("/".join(map(str, words)))))
