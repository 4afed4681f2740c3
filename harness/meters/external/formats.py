"""The logs of instruments and tools, recognised by their first line.

    plain            timestamp,watts                       (or another unit, see `lines`)
    SPEC PTDaemon    Time,02-25-2023 11:35:56.788,Watts,9.032000,Volts,…
    nvidia-smi       timestamp, uuid, power.draw [W]       --query-gpu=timestamp,uuid,power.draw --format=csv -lms 100
    turbostat        Time_Of_Day_Seconds  PkgWatt          --quiet --Summary --show Time_Of_Day_Seconds,PkgWatt
    powermetrics     *** Sampled system activity (…) ***   --samplers cpu_power -i 1000
    HWiNFO           Date,Time,…,"CPU Package Power [W]"
    LibreHardwareMonitor   ,/intelcpu/0/load/0,/intelcpu/0/power/0,…   the second line begins with Time
    any other        a header with the columns that the options `column` and `time` name, with `unit` and `time_format`

Of the formats of tools, only PTDaemon's was tested on a real log, from MLPerf's results. The others were written from
documentation, examples and source code. The exports of Yokogawa's and Rigol's software differ by version: name their
columns.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from mixmark.harness.meters.external import lines
from mixmark.harness.meters.external.lines import UNITS, Columns

Reading = tuple[str, str]
"""A timestamp and a value, as texts."""
PTDAEMON = re.compile(r"Time,\d\d-\d\d-\d{4} [\d:.]+,Watts,")
SAMPLED = re.compile(r"\*\*\* Sampled system activity \((.+?)\)")
POWERMETRICS = re.compile(r"(?:Combined Power \(CPU \+ GPU \+ ANE\)|Package Power): (\d+(?:\.\d+)?) mW")
TIME_FORMATS = {
    "hwinfo": "%d.%m.%Y %H:%M:%S.%f",
    "librehardwaremonitor": "%m/%d/%Y %H:%M:%S",
    "nvidia-smi": "%Y/%m/%d %H:%M:%S.%f",
}


@dataclass(frozen=True)
class Format:
    """The format of a log."""

    name: str
    unit: str
    reading: Callable[[str], Reading | None]
    """Returns the reading of a line; None if it has none. Raises ValueError if the line does not fit."""
    time_format: str | None = None
    """As in `strptime`. None for ISO 8601 or seconds since 1970."""


def recognised(first_line: bytes, options: Mapping[str, str]) -> Format | None:
    """The format of a log by its first line. None if it is unknown. Raises ValueError if the columns are not clear.

    options: column, time, unit, time_format and only (see the meter `external`).
    """
    if columns := lines.header(first_line):
        return Format("plain", columns.unit, partial(_plain, columns=columns))
    text = first_line.decode("utf-8-sig", "replace").strip()
    if PTDAEMON.match(text):
        return Format("SPEC PTDaemon", "W", _ptdaemon, "%m-%d-%Y %H:%M:%S.%f")
    if text.startswith("Machine model:") or SAMPLED.match(text):
        return Format("powermetrics", "mW", _Powermetrics(), "%a %b %d %H:%M:%S %Y %z")
    names = _split(text)
    bare = [name.lower() for name in names]
    if "time_of_day_seconds" in bare and "pkgwatt" in bare:
        return _table("turbostat", names, ["Time_Of_Day_Seconds"], options.get("column", "PkgWatt"), "W", None, "")
    if "timestamp" in bare and "power.draw [w]" in bare:
        column = options.get("column", "power.draw [W]")
        return _table(
            "nvidia-smi", names, ["timestamp"], column, "W", TIME_FORMATS["nvidia-smi"], options.get("only", "")
        )
    if len(names) > 1 and not names[0] and all(name.startswith("/") for name in names[1:]):
        column = options.get("column") or _only_watts(names, "/power/")
        sensors = ["Time", *names[1:]]
        return _table("LibreHardwareMonitor", sensors, ["Time"], column, "W", TIME_FORMATS["librehardwaremonitor"], "")
    unit, time_format = options.get("unit", "W"), options.get("time_format")
    if "column" in options and "time" in options:
        times = [name.strip() for name in options["time"].split("+")]
        return _table("a table", names, times, options["column"], unit, time_format, "")
    if bare[:2] == ["date", "time"] and any(name.endswith("[w]") for name in bare):
        column = options.get("column") or _only_watts(names)
        return _table("HWiNFO", names, ["Date", "Time"], column, unit, time_format or TIME_FORMATS["hwinfo"], "")
    return None


def _plain(text: str, columns: Columns) -> Reading | None:
    row = lines.fields(text.encode())
    if not row or lines.header(text.encode()) == columns:  # a restarted logger repeats its header
        return None
    if len(row) != columns.count:
        raise ValueError(f"it has {len(row)} fields, not {columns.count}")
    return row[columns.timestamp or 0], row[columns.value]


def _ptdaemon(text: str) -> Reading | None:
    row = text.split(",")
    if len(row) < 4 or (row[0], row[2]) != ("Time", "Watts"):
        raise ValueError("it lacks Time and Watts")
    return row[1], row[3]


class _Powermetrics:
    """Reads the reports of macOS's powermetrics, which have a block of lines for each sample."""

    def __init__(self) -> None:
        self._at: str | None = None

    def __call__(self, text: str) -> Reading | None:
        if sampled := SAMPLED.search(text):
            self._at = sampled[1]
        elif (power := POWERMETRICS.search(text)) and self._at:
            at, self._at = self._at, None
            return at, power[1]
        return None


def _table(
    name: str, names: Sequence[str], times: Sequence[str], column: str, unit: str, time_format: str | None, only: str
) -> Format:
    """A table with a header. times: the columns that are joined to a timestamp. only: the uuid of one GPU."""
    known = {each.lower(): index for index, each in reversed(list(enumerate(names)))}
    for wanted in (*times, column):
        if wanted.lower() not in known:
            raise ValueError(f"its header has no column {wanted!a}")
    if unit not in UNITS:
        raise ValueError(f"{unit!a} is not a unit; known: {', '.join(UNITS)}")
    at, value = [known[each.lower()] for each in times], known[column.lower()]
    uuid = known.get("uuid")
    seen: set[str] = set()

    def reading(text: str) -> Reading | None:
        row = _split(text)
        if not row:
            return None
        if len(row) < len(names):
            raise ValueError(f"it has {len(row)} fields, not {len(names)}")
        if row[at[0]] in ("", names[at[0]]):  # a header; some logs repeat it
            return None
        if uuid is not None:
            seen.add(row[uuid])
            if only and row[uuid] != only:
                return None
            if not only and len(seen) > 1:
                raise ValueError("it is of another GPU than the lines above; choose one with only = UUID")
        return " ".join(row[each] for each in at), row[value].removesuffix(f" {unit}")

    return Format(name, unit, reading, time_format)


def _only_watts(names: Sequence[str], mark: str = "[w]") -> str:
    """The only column of a table in watts. mark: the part of its name that says so."""
    watts = [name for name in names if mark in name.lower()]
    if len(watts) != 1:
        raise ValueError(f"several columns are in watts; set column to one of {', '.join(watts)}")
    return watts[0]


def _split(text: str) -> list[str]:
    """The fields of a line, separated by commas, semicolons, tabs or spaces."""
    if "," in text or ";" in text:
        with suppress(csv.Error):
            [row] = csv.reader([text], delimiter=";" if ";" in text else ",", skipinitialspace=True)
            return [field.strip() for field in row]
    return text.split()
