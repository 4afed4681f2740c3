"""What somebody typed, against what there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from harness.errors import UsageError


def pick(what: str, asked: Sequence[str], existing: Iterable[str]) -> tuple[str, ...]:
    """The asked ones, or all where nothing is asked. Raises UsageError with what was meant and what exists."""
    names = tuple(existing)
    for name in asked:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no {what} {name!r}", hint=f"{meant}there is: {', '.join(names) or 'none'}")
    return tuple(dict.fromkeys(asked)) or names
