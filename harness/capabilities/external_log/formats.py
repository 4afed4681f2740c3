"""The logs of instruments and tools, recognised by their header: `recipes.toml` describes them.

Any other table is read if the options `column` and `time` name its columns, with `unit` and `time_format`. Lines above
the header, such as a banner, are skipped. The exports of Yokogawa's and Rigol's software differ by version: name their
columns.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mixmark.harness.capabilities.external_log.lines import NUMBER, number, shown
from mixmark.harness.capabilities.external_log.tables import Columns, Reading, Table, split, trimmed
from mixmark.harness.contracts.text import Reason

SEPARATORS = (";", "\t", "|", ",", " ")  # a space is any run of spaces and tabs
SHOWN_LINES = 3
RECIPES = tomllib.loads((pkgutil.get_data(__package__, "recipes.toml") or b"").decode())
TABLES = [Columns(**table) for table in RECIPES["tables"]]
BARE = Columns("plain", devices=TABLES[-1].devices)
"""A table without timestamps, which only a program can send: its readings get their time of arrival."""


@dataclass(frozen=True)
class Lines:
    """A log that is no table, as `recipes.toml` describes it."""

    name: str
    line: str
    unit: str
    time_format: str
    lacks: str
    timed = True

    def reading(self, text: str) -> Reading:
        match = re.match(self.line, text)
        if match is None:
            raise ValueError(self.lacks)
        return match[1], number(match[2], self.unit)


Format = Table | Lines


def recognised(line: str, options: Mapping[str, str], live: bool = False) -> Format | None:
    """The format of a log if the line is its header. None if it is not. Raises ValueError if the columns are not clear.

    options: column, time, unit, time_format and where (see the meter `external`). live: whether the time of
    arrival of a line is known, so that it may have no timestamp.
    """
    for recipe in RECIPES["lines"]:
        if re.match(recipe["line"], line):
            return Lines(**recipe)
    for separator, names in _headers(line):
        for columns in _known(options, live and separator != " "):
            if columns.fits(names):
                return Table(columns, names, separator, options)
    return None


def bare_values(line: str, options: Mapping[str, str]) -> Format | None:
    """The format of lines without a header, if this is such a line: a reading, or a timestamp and a reading."""
    row = split(line, ",")
    if len(row) not in (1, 2) or not NUMBER.fullmatch(row[-1]):
        return None
    times = ["timestamp"][: len(row) - 1]
    return Table(Columns("plain", times), [*times, "value"], ",", {"unit": "W", **options, "column": "value"})


def _headers(line: str) -> Iterator[tuple[str, list[str]]]:
    """The line as a header, by each separator that it has."""
    text = line.strip("\r\n").lstrip("\ufeff#")
    for separator in SEPARATORS:
        if separator in text or (separator == "," and " " not in text.strip()):
            with suppress(ValueError):
                names = trimmed(split(text, separator))
                if names and not any(NUMBER.fullmatch(name) for name in names):
                    yield separator, names


def _known(options: Mapping[str, str], arrives: bool) -> Sequence[Columns]:
    """The table of the options column and time; or else all that are known, and any with this column. arrives: whether
    the time of arrival of a line is the time of its reading."""
    column = options.get("column")
    if "time" in options:
        times = [name.strip() for name in options["time"].split("+")]
        return [Columns("a table", times, column=column, devices=RECIPES["devices_of_other_tables"])]
    tables = [*TABLES, BARE] if arrives else TABLES
    return [*tables, *(replace(table, column=column) for table in tables if table.name == "plain" and column)]


def unknown(lines: Sequence[str]) -> Reason:
    """Why no format fits: what was found, and the options that name the columns."""
    text = [line for line in lines if line.strip()]
    if not text:
        return "it has no whole line yet: start its writer before the run"
    found = " | ".join(map(shown, text[:SHOWN_LINES]))
    known = ", ".join(table.name for table in TABLES)
    return (
        f"it is of no known format ({known}): its first lines are {found}. "
        "It needs a header such as timestamp,watts, or the options time, column and unit"
    )
