"""Reads the TOML files that users write."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import UsageError, explained
from mixmark.harness.contracts.text import plain

LARGEST = 1e15
"""The largest number that is reckoned with; the smallest above 0 is its inverse. No product of several overflows."""


def is_reckonable(value: float) -> bool:
    """Whether a number is 0, or finite and between 1 / LARGEST and LARGEST, above or below 0."""
    return value == 0 or 1 / LARGEST <= abs(value) <= LARGEST  # also false for NaN


def read_toml(path: Path, what: str, hint: str = "") -> dict[str, Any]:
    """The content of a file in UTF-8, with a byte order mark or without.

    what: the file in words, such as `the configuration`. hint: what to do about a file that is missing or is no TOML,
    such as the page that shows one. Raises UsageError, also for a number that nothing can be reckoned with.
    """
    with explained(f"cannot read {what} {path}", hint):
        content = path.read_bytes()
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number of thousands of digits
        raise UsageError(f"cannot read {what} {path}: {error}", hint) from error
    for key, value in _numbers(found):
        if not is_reckonable(value):
            raise UsageError(
                f"{path}: {key} = {plain(str(value), 40)} is too large, too small or no number",
                "give a finite number: 0, or one between 1e-15 and 1e15",
            )
    return found


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a table. `dim.height = 640`, a table in it, is the entry `dim.height`."""
    inner = {key: value if isinstance(value, dict) else {"": value} for key, value in table.items()}
    return {f"{key}.{name}".rstrip("."): each for key, value in inner.items() for name, each in value.items()}


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number below a value with the keys that lead to it, joined by dots."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
    elif isinstance(value, (int, float)):
        yield key, value
