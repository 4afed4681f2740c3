"""Reads the rows of a table strictly: one row an instant, one device a source, the fields of the header and no others.

A row that could be read in two ways raises ValueError, so a reading is never of another column, device or unit. A row
of another device, or a second row of one instant, is refused with the options that decide.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.external_log.identity import Visits
from mixmark.harness.capabilities.external_log.lines import NUMBER, number
from mixmark.harness.capabilities.external_log.units import is_bound, unit_of, units_of_name

Reading = tuple[str, float]
"""A timestamp, which is empty if a line has none, and a value in the unit of the log."""
OTHER_HEADER = "its header has other columns than the header of the log: begin a new log"
WHERE = "where."
ANY_COLUMN = ".*"


@dataclass(frozen=True)
class Columns:
    """The columns of one tool's table, as `recipes.toml` describes them."""

    name: str
    times: Sequence[str] = ()
    """Empty if readings get their time of arrival."""
    value: str = ANY_COLUMN
    unit: str | None = None
    time_format: str | None = None
    devices: Sequence[str] = ()
    needs_device: str = ""
    column: str | None = None
    """The column of the value, if the owner names it."""

    def values(self, names: Sequence[str], bounds: bool = False) -> list[str]:
        """The columns that may be the reading: the named one, or those in a known unit. bounds: the limits and the like
        in their place."""
        if self.column:
            return [name for name in names if bare(name) == bare(self.column)]
        fitting = [name for name in names if self.describes(name) and is_bound(name) is bounds]
        return [name for name in fitting if self.unit or units_of_name(name, bounds)]

    def describes(self, name: str) -> bool:
        """Whether the tool's documentation says what a column holds."""
        return bool(re.fullmatch(self.value, bare(name)))

    def fits(self, names: Sequence[str]) -> bool:
        """Whether a header has these columns."""
        return set(map(bare, self.times)) <= set(map(bare, names)) and bool(self.values(names))


class Table:
    """A table with these columns. options: those of the meter `external`. Raises ValueError if they do not
    decide between the columns of the header, or contradict it."""

    def __init__(self, columns: Columns, names: Sequence[str], separator: str, options: Mapping[str, str]) -> None:
        values = columns.values(names)
        if len(values) > 1 and "column" not in options:
            others = ", ".join((*values[1:], *columns.values(names, bounds=True)))
            raise ValueError(f'several columns have a unit; add column = "{values[0]}", or one of {others}')
        self.name, self.names, self._separator = columns.name, names, separator
        self._times = [position(names, name) for name in columns.times]
        self.value = position(names, options.get("column") or values[0])
        value = names[self.value]
        self.unit = unit_of(value, options.get("unit"), columns.unit if columns.describes(value) else None)
        self.time_format = options.get("time_format", columns.time_format)
        self.timed = bool(columns.times)
        given = {name.removeprefix(WHERE): value for name, value in options.items() if name.startswith(WHERE)}
        self._where = {position(names, name): text for name, text in given.items()}
        self._devices = [column for column, name in enumerate(names) if bare(name) in columns.devices]
        if columns.needs_device and not self._devices:
            raise ValueError(columns.needs_device)
        self._documented = columns.value != ANY_COLUMN
        self._visits: dict[int, Visits] = {}
        if not self._documented and options.get("one_device") == "true":
            self._devices = []
        elif not self._documented:
            known = (*self._times, self.value, *self._devices)
            self._visits = {column: Visits(name) for column, name in enumerate(names) if column not in known}
        self._device: list[str] | None = None
        self._at: str | None = None
        self._trailing: bool | None = None

    def reading(self, text: str) -> Reading | None:
        """The reading of a line. None for a header, a footer, a comment, or a row that is not chosen. Raises ValueError
        if the row can be read in two ways or in none."""
        row = split(text, self._separator)
        if not any(row) or self._is_header(row):
            return None
        if any(column < len(row) and row[column] != wanted for column, wanted in self._where.items()):
            return None
        self._refuse_other_width(row)
        at = " ".join(row[column] for column in self._times)
        if self._times and not at.strip():
            if NUMBER.fullmatch(row[self.value]):
                raise ValueError("it has no timestamp")
            return None  # a footer
        value = number(row[self.value], self.unit)
        device = [row[column] for column in self._devices]
        if self._device not in (None, device):
            raise ValueError(self._several(row))
        if self._times and at == self._at:
            raise ValueError(f"it is of the same instant as the row above: {self._several(row)}")
        for column, visits in self._visits.items():
            if visits.tell_apart(row[column], value):
                raise ValueError(self._several(row, [column]))
        self._device, self._at = device, at
        return at, value

    def refuse_other_header(self, text: str) -> None:
        """Raises ValueError if a line is a header with other columns."""
        self._is_header(split(text, self._separator))

    def _is_header(self, row: Sequence[str]) -> bool:
        """Whether a row is the header again, as a restarted logger writes it. Raises ValueError if the columns
        changed."""
        if trimmed(row) == list(self.names):
            return True
        marked = self._times or [self.value]
        if all(column < len(row) and bare(row[column]) == bare(self.names[column]) for column in marked):
            raise ValueError(OTHER_HEADER)
        return False

    def _refuse_other_width(self, row: Sequence[str]) -> None:
        """One empty field may follow the last column, if each row has it."""
        extra = len(row) - len(self.names)
        trailing = extra == 1 and not row[-1]
        if (extra and not trailing) or self._trailing not in (None, trailing):
            comma = "; a decimal comma? let it write decimal points" if extra > 0 else ""
            raise ValueError(f"it has {len(row)} fields, not {len(self.names)}{comma}")
        self._trailing = trailing

    def _several(self, row: Sequence[str], apart: Sequence[int] = ()) -> str:
        """apart: the columns whose values tell devices apart."""
        others = [column for column, text in enumerate(row) if text and column not in (*self._times, self.value)]
        named = apart or self._devices
        options = [f'where = {{"{self.names[each]}" = "{row[each]}"}}' for each in (named or others)[:3]]
        why = "it is of another device than the rows above" if named else "the log may hold several devices"
        one = "" if self._documented else "; or one_device = true if all rows are of one"
        finer = one if named else "; if it is one device, its timestamps are too coarse"
        return f"{why}: choose {' or '.join(options) or 'a where'}{finer}"


def split(text: str, separator: str) -> list[str]:
    """The fields of a line; none for an empty line or a comment. Raises ValueError if it is no text or its quotes are
    not closed."""
    text = text.strip(" \r\n") if separator == "\t" else text.strip()
    if not text or text.startswith("#"):
        return []
    if "\0" in text:
        raise ValueError("it has NUL bytes, as UTF-16 has: let its writer use UTF-8")
    if not text.replace("\t", "").isprintable():
        raise ValueError("control characters")
    if separator == " ":
        return text.split()
    try:
        [row] = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(str(error)) from error
    return [each.strip() for each in row]


def trimmed(row: Sequence[str]) -> list[str]:
    """The names of a header, without an empty last one."""
    return list(row[:-1] if len(row) > 1 and not row[-1] else row)


def position(names: Sequence[str], wanted: str) -> int:
    """Raises ValueError if the header lacks the column or has several of its name."""
    found = [column for column, name in enumerate(names) if bare(name) == bare(wanted)]
    if len(found) != 1:
        raise ValueError(f"its header has {len(found)} columns {wanted!a}: give each sensor a name of its own")
    return found[0]


def bare(name: str) -> str:
    return name.strip().lower()
