"""Cleans untrusted text from vendors' libraries, drivers and files before it is stored or shown."""

from __future__ import annotations

import re

Reason = str
"""A sentence that says why something fails or is refused. `Reason | None` is the type of a check: None if it passed."""

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?")

UNUSUAL = re.compile(r"[^ -~\n]")


def plain(text: str, most: int | None = None) -> str:
    """Returns the text on one line, with at most `most` characters. Control characters, escape sequences and marks that
    change the direction of text are removed, and so are unpaired surrogates, which cannot be written to a file."""
    if not text.isprintable():  # else there is nothing to remove; most texts are so, and reports have many
        text = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    return " ".join(text.split())[:most]


def escaped(json: str) -> str:
    """Returns equal JSON that is safe on a terminal: characters that one could obey are written as numbers."""
    return UNUSUAL.sub(_escaped, json)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return letter if letter.isprintable() else "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
