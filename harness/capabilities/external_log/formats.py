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
from datetime import UTC

from mixmark.harness.capabilities.external_log.lines import NUMBER, epoch_ns, number, shown
from mixmark.harness.capabilities.external_log.tables import (
    Columns,
    Reading,
    Several,
    Table,
    bare,
    numbered,
    single,
    split,
)
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.units import UNITS, is_other, units_of_name

SEPARATORS = (";", "\t", "|", ",", " ")  # a space is any run of spaces and tabs
SHOWN_LINES, SHOWN_COLUMNS = 3, 12
RECIPES = tomllib.loads((pkgutil.get_data(__package__, "recipes.toml") or b"").decode())
TABLES = [Columns(**table) for table in RECIPES["tables"]]
BARE = Columns("plain", devices=TABLES[-1].devices)
"""A table without timestamps, which only a program can send: its readings get their time of arrival."""


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


def recognised(line: str, options: Mapping[str, str], live: bool = False) -> Format | None:
    """The format of a log if the line is its header. None if it is not. Raises ValueError if the columns are not clear.

    options: column, time, unit, time_format, sum and where (see the meter `external`). live: whether the time of
    arrival of a line is known, so that it may have no timestamp.
    """
    for recipe in RECIPES["lines"]:
        if re.match(recipe["first"], line):
            return Lines(**recipe)
    for separator, names in _headers(line):
        for columns in _known(options, live and separator != " "):
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


def _known(options: Mapping[str, str], arrives: bool = False) -> Sequence[Columns]:
    """The table of the options column and time, or else all that are known. arrives: whether the time of arrival of a
    line is the time of its reading."""
    if "time" in options:
        times = [name.strip() for name in options["time"].split("+")]
        return [Columns("a table", times, column=options["column"], devices=RECIPES["devices_of_other_tables"])]
    return [*TABLES, BARE] if arrives else TABLES


def unknown(lines: Sequence[str], options: Mapping[str, str]) -> Reason:
    """Why no format fits: what was found, what comes nearest, and the options that would read it."""
    text = [line for line in lines if line.strip()]
    if not text:
        return "it has no whole line yet: start its writer before the run"
    found = "its first lines are " + " | ".join(map(shown, text[:SHOWN_LINES]))
    for other in RECIPES["other_files"]:
        if re.match(other["begins"], text[0]):
            return f"{other['advice']} ({found})"
    headers = [names for line in text for _, names in _headers(line) if len(names) > 1]
    lacking = [(table.lacking(names), table) for names in headers for table in _known(options)]
    fits = [(len(lacks) / (len(table.times) + 1), table.name, lacks) for lacks, table in lacking]
    share, name, lacks = min(fits, default=(1, "", []))
    known = f"Known: {', '.join(table.name for table in TABLES)}"
    near = f"Nearest: {name} lacks {' and '.join(lacks)}" if share < 1 else known
    return f"it is of no known format: {found}. {near}. {_proposal(text)}"


def _proposal(lines: Sequence[str]) -> str:
    """The options that would read the log. They were tried on its first rows."""
    for above, line in enumerate(lines):
        names = next((names for _, names in _headers(line)), [])
        rows = lines[above + 1 : above + 1 + SHOWN_LINES]
        time = "+".join([name for name in names if re.search(r"time|date|when|clock", bare(name))][:2])
        powers = [name for name in names if re.search(r"power|watt|pwr|energy", bare(name)) and not is_other(name)]
        for column in (*(name for name in names if units_of_name(single(name))), *powers) if time else ():
            if (lacks := _lacks({"time": time, "column": column}, line, rows)) is not None:
                rest = f", and {' and '.join(lacks)}, as the documentation of its tool has it" if lacks else ""
                return f'To read it: time = "{time}", column = "{column}"{rest}'
    return "To be read it needs a header such as timestamp,watts, or the options time, column and unit"


def _lacks(options: Mapping[str, str], header: str, rows: Sequence[str]) -> list[str] | None:
    """The options that these lack to read the rows below a header. None if they cannot read them."""
    units = units_of_name(single(options["column"]))
    lacks = [] if len(units) == 1 else ["unit"]
    try:
        found = recognised(header, {**options, "unit": (*units, "W")[0]})
        readings = [reading for row in rows if found and (reading := found.reading(row))]
    except Several:
        return lacks
    except ValueError:
        return None
    try:
        for at, _ in readings:
            epoch_ns(at, UTC)
    except ValueError:
        lacks.append("time_format")
    return lacks if readings or not rows else None
