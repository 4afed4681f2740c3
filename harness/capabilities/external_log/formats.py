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
from dataclasses import dataclass

from mixmark.harness.capabilities.external_log.lines import NUMBER, Reading, number, shown, unit_of
from mixmark.harness.capabilities.external_log.tables import (
    SEPARATORS,
    Columns,
    Table,
    bare,
    numbered,
    position,
    single,
    split,
)
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.common import UNITS

SHOWN_LINES, SHOWN_COLUMNS = 3, 12
RECIPES = tomllib.loads((pkgutil.get_data(__package__, "recipes.toml") or b"").decode())


@dataclass
class Lines:
    """A log that is no table, as `recipes.toml` describes it."""

    name: str
    first: str
    time: str
    value: str
    unit: str
    time_format: str
    lacks: str
    strict: bool = False
    timed = True
    bursts = ""
    _at: str | None = None

    def reading(self, text: str) -> Reading | None:
        if time := re.search(self.time, text):
            if self._at:
                raise ValueError(self.lacks)
            self._at = time[1]
        if self._at and (value := re.search(self.value, text)):
            at, self._at = self._at, None
            unit = value[2] or self.unit
            return at, number(value[1], unit) * UNITS[unit] / UNITS[self.unit]
        if self.strict:
            raise ValueError(self.lacks)
        return None


Format = Table | Lines
TABLES = [Columns(**table) for table in RECIPES["tables"]]
BARE = Columns("plain", devices=TABLES[-1].devices)
"""A table without timestamps, which only a program can send: its readings get their time of arrival."""


def recognised(line: str, options: Mapping[str, str], live: bool = False) -> Format | None:
    """The format of a log if the line is its header. None if it is not. Raises ValueError if the columns are not clear.

    options: column, time, unit, time_format, sum and where (see the meter `external`). live: whether the time of
    arrival of a line is known, so that it may have no timestamp.
    """
    for recipe in RECIPES["lines"]:
        if re.match(recipe["first"], line):
            return Lines(**recipe)
    for separator, names in _headers(line):
        if "time" in options:  # and column
            times = [name.strip() for name in options["time"].split("+")]
            known = {bare(each) for name in names for each in (name, single(name))}
            if {bare(name) for name in (*times, options["column"])} <= known:
                named = Columns("a table", times, devices=RECIPES["devices_of_other_tables"])
                return Table(named, names, separator, options)
            continue
        for columns in (*TABLES, BARE) if live and separator != " " else TABLES:
            if not columns.lacking(names):
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
                names = numbered(split(text, separator))
                if names and not any(NUMBER.fullmatch(name) for name in names):
                    yield separator, names


def unknown(lines: Sequence[str], options: Mapping[str, str]) -> Reason:
    """Why no format fits: what was found, what comes nearest, and the lines of mixmark.toml that would read it."""
    text = [line for line in lines if line.strip()]
    if not text:
        return "it has no whole line yet: start its writer before the run"
    found = "its first lines are " + " | ".join(shown(line.encode()) for line in text[:SHOWN_LINES])
    if text[0].lstrip().startswith(("<?xml", "<!DOCTYPE plist", "<plist")):
        return f"it is a property list: let powermetrics write text, without -f plist ({found})"
    if text[0].lstrip().startswith(("{", "[")):
        return f"it is JSON, not a table ({found})"
    headers = [names for line in text for _, names in _headers(line) if len(names) > 1]
    if "time" in options and headers:
        wanted = (options["column"], *options["time"].split("+"))
        names = max(headers, key=lambda each: sum(bare(name) in map(bare, each) for name in wanted))
        for name in wanted:
            position(names, name)
    names = max(headers, key=lambda each: max(_fit(table, each) for table in TABLES), default=[])
    named = [table for table in TABLES if table.name.split()[0].lower() in " ".join(text).lower()]
    near = named or [table for table in sorted(TABLES, key=lambda each: -_fit(each, names)) if _fit(table, names)]
    nearest = "; ".join(f"{table.name} lacks {' and '.join(table.lacking(names))}" for table in near[:2])
    known = f"Nearest: {nearest}" if near else f"Known: {', '.join(table.name for table in TABLES)}"
    read = f"To read it: {_proposal(names)}" if names else "It needs a header such as timestamp,watts"
    return f"it is of no known format: {found}. {known}. {read}"


def _fit(columns: Columns, names: Sequence[str]) -> float:
    return 1 - len(columns.lacking(names)) / (len(columns.times) + 1)


def _proposal(names: Sequence[str]) -> str:
    """The lines of mixmark.toml that would read a table with these columns."""
    times = [name for name in names if re.search(r"time|date|when|clock", bare(name))]
    powers = [name for name in names if unit_of(single(name)) or re.search("power|watt|pwr|energy", bare(name))]
    if not times or not powers:
        return f'time = "…" and column = "…" of the columns {", ".join(names[:SHOWN_COLUMNS])}, with unit'
    others = f" (or another of {', '.join(powers[1:SHOWN_COLUMNS])})" if powers[1:] else ""
    unit = unit_of(single(powers[0])) or "W"
    return f'time = "{"+".join(times[:2])}", column = "{powers[0]}"{others}, unit = "{unit}"'
