"""Keys of the counter-based generators that draw weights and feeds: the same on every platform."""

from __future__ import annotations

import hashlib


def key(text: str) -> int:
    """128 bits that depend on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
