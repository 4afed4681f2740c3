"""Chooses by name, with a suggestion for a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from mixmark.harness.contracts.errors import UsageError


def choose_by_name(what: str, asked: Sequence[str], existing: Iterable[str]) -> tuple[str, ...]:
    """Returns the requested names without repetition, or all names if none is requested. Raises UsageError for a name
    that does not exist, with the most similar name and all names in its hint."""
    names = tuple(existing)
    for name in asked:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no {what} {name!r}", hint=f"{meant}known: {', '.join(names) or 'none'}")
    return tuple(dict.fromkeys(asked)) or names
