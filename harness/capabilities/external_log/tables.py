"""Reads the rows of a table strictly: one row an instant, one device a source, the fields of the header and no others.

A row that could be read in two ways raises ValueError, so a reading is never of another column, device or unit. A row
of another device, or a second row of one instant, raises `Several`, which names the options that decide.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.external_log.lines import NUMBER, number
from mixmark.harness.meters.units import unit_of, units_of_name

Reading = tuple[str, float]
"""A timestamp, which is empty if a line has none, and a value in the unit of the log."""
OTHER_HEADER = "its header has other columns than the header of the log: begin a new log"
TWIN = re.compile(r" \(\d+\)$")
WHERE = "where."


class Several(ValueError):
    """The table holds several devices, and the options do not say which of them is the source."""


@dataclass(frozen=True)
class Columns:
    """The columns of one tool's table, as `recipes.toml` describes them."""

    name: str
    times: Sequence[str] = ()
    """Empty if readings get their time of arrival."""
    value: str = ".*"
    unit: str | None = None
    time_format: str | None = None
    devices: Sequence[str] = ()
    bursts: str = ""
    labelled: bool = False
    column: str | None = None
    """The column of the value, if the owner names it."""

    def values(self, names: Sequence[str]) -> list[str]:
        """The columns that may be the reading: the named one, or those in a known unit."""
        if self.column:
            return [name for name in names if bare(self.column) in (bare(name), bare(single(name)))]
        fitting = [name for name in names if re.fullmatch(self.value, bare(name))]
        return [name for name in fitting if self.unit or units_of_name(single(name))]

    def lacking(self, names: Sequence[str]) -> list[str]:
        """The columns that the header lacks."""
        known = {bare(each) for name in names for each in (name, single(name))}
        lacks = [time for time in self.times if bare(time) not in known]
        return lacks if self.values(names) else [*lacks, self.column or f"a column of {self.unit or 'W'}"]


class Table:
    """A table with these columns. options: column, unit, time_format, sum and where (see the meter `external`). Raises
    ValueError if they do not decide between the columns of the header, or contradict it."""

    def __init__(self, columns: Columns, names: Sequence[str], separator: str, options: Mapping[str, str]) -> None:
        values = columns.values(names)
        if len(values) > 1 and "column" not in options:
            others = ", ".join(values[1:])
            raise ValueError(f'several columns have a unit; add column = "{values[0]}", or one of {others}')
        self.name, self.names, self._separator, self._labelled = columns.name, names, separator, columns.labelled
        self._times = [position(names, name) for name in columns.times]
        self._value = position(names, options.get("column") or values[0])
        value = names[self._value]
        self.unit = unit_of(single(value), options.get("unit"), columns.unit if value in values else None)
        self.time_format = options.get("time_format", columns.time_format)
        self.timed = bool(columns.times)
        given = {name.removeprefix(WHERE): value for name, value in options.items() if name.startswith(WHERE)}
        self._where = {position(names, name): text for name, text in given.items()}
        self._devices = [column for column, name in enumerate(names) if bare(name) in columns.devices]
        self.bursts = columns.bursts if not self._devices else ""
        """The advice if rows come in bursts, since they are then of several devices that no column names."""
        self._sum = options.get("sum") == "true"
        if self._sum and not self._times and not self._devices:
            raise ValueError("sum needs timestamps or a column that names the device")
        self._device: tuple[str, ...] | None = None
        self._at: str | None = None
        self._instants: list[dict[tuple[str, ...], float]] = []
        """The first two instants of a sum and the newest one, each with the values of its devices."""
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
            if NUMBER.fullmatch(row[self._value]):
                raise ValueError("it has no timestamp")
            return None  # a footer
        value = number(row[self._value], self.unit)
        device = tuple(row[column] for column in self._devices)
        if self._sum:
            return self._summed(at, device, value)
        if self._device not in (None, device):
            raise Several(self._several(row))
        if self._times and at == self._at:
            raise Several(f"it is of the same instant as the row above: {self._several(row)}")
        self._device, self._at = device, at
        return at, value

    def _summed(self, at: str, device: tuple[str, ...], value: float) -> Reading | None:
        """The sum of an instant at its last row. The first instant may lack rows, and the second one shows how many an
        instant has, so sums begin with the third."""
        above = self._instants
        if not above or (device in above[-1] if self._devices else at != self._at):
            self._instants, self._at = [*above[:2], {}], at
        newest = self._instants[-1]
        newest[device or (str(len(newest)),)] = value
        if self._instants is not above and len(above) == 3 and above[2].keys() != above[1].keys():
            raise ValueError(f"the instant above has {len(above[2])} rows, not {len(above[1])}")
        complete = len(self._instants) == 3 and newest.keys() == self._instants[1].keys()
        return (self._at or "", sum(newest.values())) if complete else None

    def _is_header(self, row: Sequence[str]) -> bool:
        """Whether a row is the header again, as a restarted logger writes it, or its labels. Raises ValueError if the
        columns changed."""
        names = numbered(row)
        if names == list(self.names):
            return True
        marked = self._times or [self._value]
        if all(column < len(names) and bare(names[column]) == bare(self.names[column]) for column in marked):
            raise ValueError(OTHER_HEADER)
        return self._labelled and row[0].isalpha()

    def _refuse_other_width(self, row: Sequence[str]) -> None:
        """One empty field may follow the last column, if each row has it."""
        extra = len(row) - len(self.names)
        trailing = extra == 1 and not row[-1]
        if (extra and not trailing) or self._trailing not in (None, trailing):
            comma = "; a decimal comma? let it write decimal points" if extra > 0 else ""
            raise ValueError(f"it has {len(row)} fields, not {len(self.names)}{comma}")
        self._trailing = trailing

    def _several(self, row: Sequence[str]) -> str:
        others = [column for column, text in enumerate(row) if text and column not in (*self._times, self._value)]
        options = [f'where = {{"{self.names[each]}" = "{row[each]}"}}' for each in (self._devices or others)[:3]]
        why = "it is of another device than the rows above" if self._devices else "the log may hold several devices"
        finer = "" if self._devices else "; if it is one device, its timestamps are too coarse"
        return f"{why}: choose {' or '.join([*options, 'sum = true'])}{finer}"


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
    twins = [name for name in names if bare(single(name)) == bare(wanted)]
    if twins:
        raise ValueError(f"{len(twins)} columns are called {wanted!a}: choose one of {', '.join(twins)}")
    raise ValueError(f"its header has no column {wanted!a}")


def bare(name: str) -> str:
    return name.strip().lower()


def single(name: str) -> str:
    """The name of a column without the number that tells it from another of its name."""
    return TWIN.sub("", name)
