"""The logs of instruments and tools, recognised by their header.

    plain            timestamp,watts                       (or another unit)
    SPEC PTDaemon    Time,02-25-2023 11:35:56.788,Watts,9.032000,Volts,…
    nvidia-smi       timestamp, uuid, power.draw [W]       --query-gpu=timestamp,uuid,power.draw --format=csv -lms 100
    nvidia-smi dmon  #Date Time gpu pwr                    -s p -o DT
    turbostat        Time_Of_Day_Seconds  PkgWatt          --quiet --Summary --show Time_Of_Day_Seconds,PkgWatt
    powermetrics     *** Sampled system activity (…) ***   --samplers cpu_power -i 1000
    HWiNFO           Date,Time,…,"CPU Package Power [W]"
    LibreHardwareMonitor   ,/intelcpu/0/load/0,/intelcpu/0/power/0,…   the second line begins with Time
    any other        a header with the columns that the options `column` and `time` name, with `unit` and `time_format`

All but PTDaemon's and powermetrics' are tables: a recipe names their columns, and `tables` reads their rows. Lines
above the header, such as a banner, are skipped.

Of the formats of tools, only PTDaemon's was tested on a real log, from MLPerf's results. The others were written from
documentation, examples and source code. The exports of Yokogawa's and Rigol's software differ by version: name their
columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mixmark.harness.capabilities.external_log.lines import IN_BRACKETS, NUMBER, UNITS, Reading, number, shown, unit_of
from mixmark.harness.capabilities.external_log.tables import SEPARATORS, Choice, Table, bare, numbered, position, split
from mixmark.harness.contracts.text import Reason

PTDAEMON = re.compile(r"Time,\d\d-\d\d-\d{4} [\d:.]+,Watts,")
SAMPLED = re.compile(r"\*\*\* Sampled system activity \((.+?)\)")
POWERMETRICS = re.compile(
    r"(?:Combined Power \(CPU \+ GPU \+ ANE\)|Package Power|Intel energy model derived package power[^:]*):\s*"
    r"([\d.,]+)\s*(m?W)"
)
TWIN = re.compile(r" \(\d+\)$")
WHERE = "where."
GPU = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial", "name", "gpu_name")
DEVICES = ("device", "device_id", "gpu", "host", "hostname", "sensor", "outlet", "channel", "socket", "plug", "meter")
HEAD = 8  # characters in which rows and headers differ
SHOWN_LINES, SHOWN_COLUMNS = 3, 12


@dataclass(frozen=True)
class Format:
    """The format of a log."""

    name: str
    unit: str
    reading: Callable[[str], Reading | None]
    """Returns the reading of a line; None if it has none. Raises ValueError if the line does not fit."""
    time_format: str | None = None
    """As in `strptime`. None for ISO 8601 or a time since 1970."""
    timed: bool = True
    """Whether the lines have timestamps."""
    anonymous: bool = False
    """Whether rows of several devices look alike: the format names devices, and this log leaves that out."""

    def repeats(self, line: str, header: str) -> bool:
        """Whether a line of a table may be its header again."""
        return isinstance(self.reading, Table) and line[:HEAD] == header[:HEAD]


@dataclass(frozen=True)
class Recipe:
    """The columns of one tool's table. Names are patterns of the lower-case name."""

    name: str
    times: tuple[str, ...]
    value: str
    """The columns that may be the reading; the option `column` chooses if there are several."""
    unit: str | None = None
    """None: the name of the column carries it."""
    time_format: str | None = None
    devices: tuple[str, ...] = ()
    labelled: bool = False
    """Whether a row of labels follows, and the column of the time has no name."""

    def values(self, names: Sequence[str]) -> list[str]:
        """The columns in a known unit that may be the reading."""
        return [
            name
            for name in names
            if re.fullmatch(self.value, bare(name)) and (self.unit or unit_of(TWIN.sub("", name)))
        ]

    def lacking(self, names: Sequence[str]) -> list[str]:
        """The columns that the header lacks for this recipe."""
        lower = [*map(bare, names), *map(single, names)]
        lacks = [time for time in self.times if time not in lower]
        return lacks if self.values(names) else [*lacks, f"a column of {self.unit or 'W'}"]


RECIPES = (
    Recipe("nvidia-smi", ("timestamp",), r"power\.draw.*", "W", "%Y/%m/%d %H:%M:%S.%f", GPU),
    Recipe("nvidia-smi dmon", ("date", "time"), "pwr", "W", "%Y%m%d %H:%M:%S", ("gpu",)),
    Recipe("turbostat", ("time_of_day_seconds",), "pkgwatt", "W", None, ("package", "core", "cpu")),
    Recipe("LibreHardwareMonitor", ("",), r"/.*/power/\d+", "W", "%m/%d/%Y %H:%M:%S", labelled=True),
    Recipe("HWiNFO", ("date", "time"), r".*\[w\]( \(\d+\))?", "W", "%d.%m.%Y %H:%M:%S.%f"),
    Recipe("plain", ("timestamp",), ".*", None, None, DEVICES),
)
BARE = Recipe("plain", (), ".*", None, None, DEVICES)
"""A table without timestamps, which only a program or a peer can send: its readings get their time of arrival."""


def single(name: str) -> str:
    """The lower-case name of a column without the number that tells it from another of its name."""
    return TWIN.sub("", bare(name))


def recognised(line: str, options: Mapping[str, str], live: bool = False) -> Format | None:
    """The format of a log if the line is its header. None if it is not. Raises ValueError if the columns are not clear.

    options: column, time, unit, time_format, sum and where (see the meter `external`). live: whether the time of
    arrival of a line is known, so that it may have no timestamp.
    """
    if PTDAEMON.match(line):
        return Format("SPEC PTDaemon", "W", _ptdaemon, "%m-%d-%Y %H:%M:%S.%f")
    if line.startswith("Machine model:") or SAMPLED.match(line):
        return Format("powermetrics", "mW", _Powermetrics(), "%a %b %d %H:%M:%S %Y %z")
    for separator, names in _headers(line):
        if "time" in options:  # and column
            times = [name.strip() for name in options["time"].split("+")]
            if {bare(name) for name in (*times, options["column"])} <= {*map(bare, names), *map(single, names)}:
                return _named(names, separator, times, options)
            continue
        for recipe in (*RECIPES, BARE) if live and separator != " " else RECIPES:
            if not recipe.lacking(names):
                return _from(recipe, names, separator, options)
    return None


def bare_values(line: str, options: Mapping[str, str]) -> Format | None:
    """The format of lines without a header, if this is such a line: a reading, or a timestamp and a reading."""
    row = split(line, ",")
    if len(row) not in (1, 2) or not NUMBER.fullmatch(row[-1]):
        return None
    unit, times = options.get("unit", "W"), ["timestamp"][: len(row) - 1]
    read = Table([*times, "value"], ",", times, "value", unit, choice=_choice(options))
    return Format("plain", unit, read, timed=bool(times))


def _headers(line: str) -> Iterator[tuple[str, list[str]]]:
    """The line as a header, by each separator that it has."""
    text = line.strip("\r\n").lstrip("\ufeff#")
    for separator in SEPARATORS:
        if separator in text or (separator == "," and " " not in text.strip()):
            with suppress(ValueError):
                names = numbered(split(text, separator))
                if len(names) > 0 and not any(NUMBER.fullmatch(name) for name in names):
                    yield separator, names


def _from(recipe: Recipe, names: Sequence[str], separator: str, options: Mapping[str, str]) -> Format:
    """Raises ValueError if the options do not decide between columns."""
    values = recipe.values(names)
    column = options.get("column") or values[0]
    if len(values) > 1 and "column" not in options:
        raise ValueError(f'several columns have a unit; add column = "{values[0]}", or one of {", ".join(values[1:])}')
    usual = recipe.unit if bare(column) in map(bare, values) else None
    unit = _unit(names, column, options, usual)
    choice = _choice(options)
    devices = [name for name in recipe.devices if name in map(bare, names)]
    read = Table(names, separator, recipe.times, column, unit, devices, choice, recipe.labelled)
    time_format = options.get("time_format", recipe.time_format)
    anonymous = recipe.devices is GPU and not devices
    return Format(recipe.name, unit, read, time_format, bool(recipe.times), anonymous)


def _named(names: Sequence[str], separator: str, times: Sequence[str], options: Mapping[str, str]) -> Format:
    """The table whose columns the options name. Raises ValueError if it lacks one."""
    unit = _unit(names, options["column"], options, None)
    read = Table(names, separator, times, options["column"], unit, (*GPU[1:], *DEVICES), _choice(options))
    return Format("a table", unit, read, options.get("time_format"))


def _unit(names: Sequence[str], column: str, options: Mapping[str, str], usual: str | None) -> str:
    """Raises ValueError if the options and the name of the column contradict one another."""
    name = TWIN.sub("", names[position(names, column)])
    named, told = unit_of(name) or usual, options.get("unit")
    if told and told not in UNITS:
        raise ValueError(f"{told!a} is not a unit; known: {', '.join(UNITS)}")
    if told and named and told != named:
        raise ValueError(f"column {column!a} is in {named} by its name, and unit = {told!a}")
    if not (told or named) and IN_BRACKETS.search(name):
        raise ValueError(f"column {column!a} is in no unit of power or energy; if it is, add unit")
    return told or named or "W"


def _choice(options: Mapping[str, str]) -> Choice:
    where = {name.removeprefix(WHERE): value for name, value in options.items() if name.startswith(WHERE)}
    return Choice(where, options.get("sum") == "true")


def _ptdaemon(text: str) -> Reading | None:
    row = text.split(",")
    if len(row) < 4 or (row[0], row[2]) != ("Time", "Watts"):
        raise ValueError("it lacks Time and Watts")
    return row[1], number(row[3], "W")


class _Powermetrics:
    """Reads the reports of macOS's powermetrics, which have a block of lines for each sample. Its values are in mW."""

    def __init__(self) -> None:
        self._at: str | None = None

    def __call__(self, text: str) -> Reading | None:
        if sampled := SAMPLED.search(text):
            if self._at:
                raise ValueError("the sample above has no package or combined power: add --samplers cpu_power")
            self._at = sampled[1]
        elif (power := POWERMETRICS.search(text)) and self._at:
            at, self._at = self._at, None
            return at, number(power[1], power[2]) * (1000 if power[2] == "W" else 1)
        return None


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
    names = max(headers, key=lambda each: max(_fit(recipe, each) for recipe in RECIPES), default=[])
    named = [recipe for recipe in RECIPES if recipe.name.split()[0].lower() in " ".join(text).lower()]
    near = named or [recipe for recipe in sorted(RECIPES, key=lambda each: -_fit(each, names)) if _fit(recipe, names)]
    nearest = "; ".join(f"{recipe.name} lacks {' and '.join(recipe.lacking(names))}" for recipe in near[:2])
    known = f"Nearest: {nearest}" if near else f"Known: {', '.join(recipe.name for recipe in RECIPES)}"
    read = f"To read it: {_proposal(names)}" if names else "It needs a header such as timestamp,watts"
    return f"it is of no known format: {found}. {known}. {read}"


def _fit(recipe: Recipe, names: Sequence[str]) -> float:
    return 1 - len(recipe.lacking(names)) / (len(recipe.times) + 1)


def _proposal(names: Sequence[str]) -> str:
    """The lines of mixmark.toml that would read a table with these columns."""
    times = [name for name in names if re.search(r"time|date|when|clock", bare(name))]
    powers = [name for name in names if unit_of(TWIN.sub("", name)) or re.search("power|watt|pwr|energy", bare(name))]
    if not times or not powers:
        return f'time = "…" and column = "…" of the columns {", ".join(names[:SHOWN_COLUMNS])}, with unit'
    unit = unit_of(TWIN.sub("", powers[0])) or "W"
    others = f" (or another of {', '.join(powers[1:SHOWN_COLUMNS])})" if powers[1:] else ""
    return f'time = "{"+".join(times[:2])}", column = "{powers[0]}"{others}, unit = "{unit}"'
