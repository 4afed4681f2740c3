"""Text of strangers: whatever a vendor's library, a driver or a file wrote, before it is kept or shown."""

from __future__ import annotations

import re

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?")


def plain(text: str, most: int | None = None) -> str:
    """On one line, at most so many letters: no control character, escape sequence or mark that turns the direction of
    text survives, nor half a surrogate pair, which no file could hold."""
    text = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    return " ".join(text.split())[:most]
