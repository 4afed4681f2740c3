"""Parses the lines of the meter `external`: its header, its timestamps, and readings that cannot be true."""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.text import Reason

UNITS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "J": 1.0, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6}
POWER = {"W", "mW", "kW"}
UNIT_OF_COLUMN = {
    **{unit.lower(): unit for unit in UNITS},
    "watts": "W",
    "milliwatts": "mW",
    "kilowatts": "kW",
    "joules": "J",
    "kilojoules": "kJ",
    "watt_hours": "Wh",
    "kilowatt_hours": "kWh",
}
HEADER = "timestamp,watts (or joules, kilowatt_hours, …)"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AHEAD_NS = 100_000_000  # if a timestamp is further in the future, the clocks disagree
BEHIND_NS = 10_000_000_000  # if a line arrives later after its timestamp, the clocks disagree or its writer buffers
CLOCKS = "the clocks disagree (NTP, timezone, late_s)"


@dataclass(frozen=True)
class Columns:
    """The positions of the fields of a line. timestamp: None if lines have none."""

    count: int
    timestamp: int | None
    value: int
    unit: str


def fields(line: bytes) -> list[str]:
    """The fields of a line; none for a comment or an empty line. Raises ValueError if the line is not CSV text."""
    text = line.decode("utf-8-sig").strip()
    if not text or text.startswith("#"):
        return []
    if not text.replace("\t", "").isprintable():
        raise ValueError("control characters")
    try:
        (row,) = csv.reader([text], delimiter=";" if ";" in text else ",", strict=True)
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return [field.strip() for field in row]


def header(line: bytes) -> Columns | None:
    """The columns that a header names: `timestamp` and one unit. None if the line is no header."""
    with suppress(ValueError):
        names = [name.lower().replace(" ", "_") for name in fields(line)]
        units = [name for name in names if name in UNIT_OF_COLUMN]
        if "timestamp" in names and len(units) == 1:
            return Columns(len(names), names.index("timestamp"), names.index(units[0]), UNIT_OF_COLUMN[units[0]])
    return None


def epoch_ns(text: str, zone: tzinfo | None, time_format: str | None = None, last_ns: int = 0) -> int:
    """A timestamp in nanoseconds since 1970, from ISO 8601, seconds since 1970, or `time_format`. Raises ValueError.

    last_ns: the timestamp of the line above. When daylight saving ends, an hour occurs twice; the second one is chosen
    if time would run backwards with the first.
    """
    if time_format is None and text.replace(".", "", 1).isdecimal():
        return int(Decimal(text) * 1_000_000_000)
    moment = datetime.strptime(text, time_format) if time_format else datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        return _since_1970_ns(moment)
    if zone is None:
        raise ValueError("its timestamp has no zone: add timezone=UTC, or the log's zone")
    first_ns, second_ns = (_since_1970_ns(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return second_ns if first_ns < last_ns <= second_ns else first_ns


def _since_1970_ns(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def implausible(sample: Sample, last: Sample | None, emptied_ns: int, now_ns: int) -> Reason | None:
    """Why a reading cannot be true. None if it may be true. A counter may fall: the harness checks that.

    The reading arrived between `emptied_ns`, when the source had nothing left to read, and `now_ns`.
    """
    at_ns = sample.at_ns or 0
    if not math.isfinite(sample.value):
        return "it is not a number"
    if sample.value < 0:
        return f"{sample.value:g} is negative"
    if at_ns - now_ns > AHEAD_NS:
        return f"its timestamp is {(at_ns - now_ns) / 1e9:.1f} s in the future: {CLOCKS}"
    if emptied_ns - at_ns > BEHIND_NS:
        late_s = (emptied_ns - at_ns) / 1e9
        return f"it arrived {late_s:.0f} s or more after its timestamp: {CLOCKS}, or its writer buffers"
    if last is not None and at_ns < (last.at_ns or 0):
        return f"its timestamp is {((last.at_ns or 0) - at_ns) / 1e9:.1f} s before the timestamp of the line above"
    return None


def shown(line: bytes) -> str:
    """The beginning of a line that could not be read, safe to print."""
    return ascii(line[:40].decode("utf-8", "replace"))
