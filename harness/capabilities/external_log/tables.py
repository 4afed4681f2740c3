"""Reads the rows of a table strictly: one row an instant, one device a source, the fields of the header and no others.

A row that could be read in two ways raises ValueError, so a reading is never of another column, device or unit. A row
of another device, or a second row of one instant, raises `Several`, which names the options that decide.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mixmark.harness.capabilities.external_log.lines import NUMBER, Reading, number

SEPARATORS = (";", "\t", "|", ",", " ")  # a space is any run of spaces and tabs
OTHER_HEADER = "its header has other columns than the header of the log: begin a new log"


class Several(ValueError):
    """The table holds several devices, and the options do not say which of them is the source."""


@dataclass(frozen=True)
class Choice:
    """What the user says of a table's rows."""

    where: Mapping[str, str] = field(default_factory=dict)
    """The value that a column must have: other rows are of other devices."""
    sum: bool = False
    """Whether the rows of one instant are added."""


class Table:
    """times: the columns that are joined to a timestamp; none if readings get their time of arrival. devices: the
    columns that name a device. labelled: whether a row of labels follows the header. Raises ValueError if the header
    lacks a column or names it twice."""

    def __init__(
        self,
        names: Sequence[str],
        separator: str,
        times: Sequence[str],
        value: str,
        unit: str,
        devices: Sequence[str] = (),
        choice: Choice | None = None,
        labelled: bool = False,
    ) -> None:
        self._names, self._separator, self._unit = names, separator, unit
        self._times = [position(names, name) for name in times]
        self._value = position(names, value)
        self._choice = choice or Choice()
        self._where = {position(names, name): text for name, text in self._choice.where.items()}
        lower = [name.lower() for name in names]
        self._devices = [lower.index(name) for name in devices if name in lower]
        if self._choice.sum and not self._times and not self._devices:
            raise ValueError("sum needs timestamps or a column that names the device")
        self._device: tuple[str, ...] | None = None
        self._at: str | None = None
        self._group: dict[tuple[str, ...], float] = {}
        self._group_at = ""
        self._members: set[tuple[str, ...]] = set()
        self._begun, self._labelled = False, labelled
        self._trailing: bool | None = None

    def __call__(self, text: str) -> Reading | None:
        row = split(text, self._separator)
        if not any(row) or self._is_header(row):
            return None
        if any(column < len(row) and row[column] != wanted for column, wanted in self._where.items()):
            return None
        self._refuse_other_width(row)
        at = " ".join(row[column] for column in self._times)
        if self._times and not at.strip():
            if NUMBER.fullmatch(row[self._value]):
                raise ValueError("it has no timestamp")
            return None  # a footer
        value = number(row[self._value], self._unit)
        device = tuple(row[column] for column in self._devices)
        if self._choice.sum:
            return self._summed(at, device, value)
        if self._device is not None and device != self._device:
            raise Several(self._several(row))
        if self._times and at == self._at:
            raise Several(f"it is of the same instant as the row above: {self._several(row)}")
        self._device, self._at = device, at
        return at, value

    def _summed(self, at: str, device: tuple[str, ...], value: float) -> Reading | None:
        """The sum of the instant above, once a row of the next one is read. The first instant may lack rows, and is not
        counted."""
        above, above_at = self._group, self._group_at
        same = device not in above if self._devices else at == above_at
        if above and same:
            above[device or (str(len(above)),)] = value
            return None
        self._group, self._group_at = {device or ("0",): value}, at
        if not above or not self._begun:
            self._begun = bool(above)
            return None
        self._members = self._members or set(above)
        if set(above) != self._members:
            raise ValueError(f"the instant above has {len(above)} rows, not {len(self._members)}")
        return above_at, sum(above.values())

    def _is_header(self, row: Sequence[str]) -> bool:
        """Whether a row is the header again, as a restarted logger writes it, or its labels. Raises ValueError if the
        columns changed."""
        marked = self._times or [self._value]
        names = numbered(row)
        if names == list(self._names):
            return True
        if self._labelled:
            if not row[0]:
                raise ValueError(OTHER_HEADER)
            return row[0].isalpha()
        if all(column < len(names) and bare(names[column]) == bare(self._names[column]) for column in marked):
            raise ValueError(OTHER_HEADER)
        return False

    def _refuse_other_width(self, row: Sequence[str]) -> None:
        """One empty field may follow the last column, if each row has it."""
        extra = len(row) - len(self._names)
        trailing = extra == 1 and not row[-1]
        if (extra and not trailing) or self._trailing not in (None, trailing):
            comma = "; a decimal comma? let it write decimal points" if extra > 0 else ""
            raise ValueError(f"it has {len(row)} fields, not {len(self._names)}{comma}")
        self._trailing = trailing

    def _several(self, row: Sequence[str]) -> str:
        columns = self._devices or [
            column for column in range(len(row)) if column not in (*self._times, self._value) and row[column]
        ]
        options = [f'where = {{"{self._names[column]}" = "{row[column]}"}}' for column in columns[:3]]
        choices = " or ".join([*options, "sum = true"])
        why = "it is of another device than the rows above" if self._devices else "the log may hold several devices"
        finer = "" if self._devices else "; if it is one device, its timestamps are too coarse"
        return f"{why}: choose {choices}{finer}"


def split(text: str, separator: str) -> list[str]:
    """The fields of a line; none for an empty line or a comment. Raises ValueError if it is no text or its quotes are
    not closed."""
    text = text.strip(" \r\n") if separator == "\t" else text.strip()
    if not text or text.startswith("#"):
        return []
    if "\0" in text:
        raise ValueError("it has NUL bytes: UTF-16 was appended to another encoding, as PowerShell's >> does")
    if not text.replace("\t", "").isprintable():
        raise ValueError("control characters")
    if separator == " ":
        return text.split()
    try:
        [row] = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(str(error)) from error
    return [each.strip() for each in row]


def numbered(row: Sequence[str]) -> list[str]:
    """The names of a header without an empty last one. Columns of one name get a number: `P [W] (1)`, `P [W] (2)`."""
    names = list(row[:-1] if len(row) > 1 and not row[-1] else row)
    count, seen = Counter(map(bare, names)), Counter[str]()
    for column, name in enumerate(names):
        if name and count[bare(name)] > 1:
            seen[bare(name)] += 1
            names[column] = f"{name} ({seen[bare(name)]})"
    return names


def position(names: Sequence[str], wanted: str) -> int:
    """Raises ValueError if the header lacks the column or has several of its name."""
    lower = [bare(name) for name in names]
    if bare(wanted) in lower:
        return lower.index(bare(wanted))
    twins = [name for name in names if re.fullmatch(re.escape(bare(wanted)) + r" \(\d+\)", bare(name))]
    if twins:
        raise ValueError(f"{len(twins)} columns are called {wanted!a}: choose one of {', '.join(twins)}")
    raise ValueError(f"its header has no column {wanted!a}")


def bare(name: str) -> str:
    return name.strip().lower()
