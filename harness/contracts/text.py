"""Cleans text of vendors' libraries, drivers and files, and names the facts that differ between two mappings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

Reason = str
"""Why a check failed, in a sentence. `Reason | None` is the type of a check's result: None if it passed."""

ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?")


def plain(text: str, most: int | None = None) -> str:
    """Returns the text on one line, with at most `most` characters. Control characters, escape sequences, marks that
    change the direction of text, and unpaired surrogates, which cannot be written to a file, are removed."""
    if not text.isprintable():  # most texts are printable, and reports have many
        text = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    return " ".join(text.split())[:most]


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> tuple[str, ...]:
    """The facts that differ, with their names and both values: `tier: edge and smoke`. A missing or empty fact is
    `none`."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return tuple(f"{name}: {_fact(first.get(name))} and {_fact(second.get(name))}" for name in names)


def _fact(value: object) -> str:
    return "none" if value is None or value == "" else str(value)


def unnamed(label: str) -> str:
    """The label of weights without the name of their file or folder. Weights are the same if these are equal."""
    return label[max(0, label.rfind("sha256:")) :]


def days_between(earlier: str, later: str) -> int | None:
    """The whole days between two times in ISO 8601. None if one is not a time, or only one has a time zone."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).days
    except (ValueError, TypeError):
        return None
