"""Text of strangers: whatever a vendor's library, a driver or a file wrote, before it is kept or shown."""

from __future__ import annotations

import re

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?")

UNUSUAL = re.compile(r"[^ -~\n]")


def plain(text: str, most: int | None = None) -> str:
    """On one line, at most so many letters: no control character, escape sequence or mark that turns the direction of
    text survives, nor half a surrogate pair, which no file could hold."""
    text = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    return " ".join(text.split())[:most]


def escaped(json: str) -> str:
    """JSON that says the same, and that a terminal may be given: what it would obey is written by its number."""
    return UNUSUAL.sub(_escaped, json)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return letter if letter.isprintable() else "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
