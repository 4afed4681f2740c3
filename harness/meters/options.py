"""Options of meters that name one of several words, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mixmark.harness.contracts.errors import UsageError


def choice(meter: str, options: Mapping[str, str], name: str, allowed: Iterable[str]) -> str | None:
    """The option. None: it was not given. Raises UsageError for another word."""
    value = options.get(name)
    if value is not None and value not in (words := list(allowed)):
        raise UsageError(f"the meter {meter} takes {name} {', '.join(words)}, and not {value!r}")
    return value


def number(meter: str, options: Mapping[str, str], name: str, signed: bool = False) -> float | None:
    """The option as a number; `1%` is 0.01. None: it was not given. Raises UsageError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (not signed and value <= 0):
        raise UsageError(f"the meter {meter} takes a number for {name}, and not {text!r}")
    return value
