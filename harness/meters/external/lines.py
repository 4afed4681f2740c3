"""Parses the lines of the meter `external`: its header, its timestamps, and readings that cannot be true."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.meters.external.sources import Lost

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
DECIMAL_COMMA = re.compile(r"\d+,\d+")  # not converted: 1,234 may be one or a thousand
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = 1_000_000
AHEAD_NS = 100 * MS  # a timestamp further in the future: the clocks disagree
BEHIND_NS = 10_000 * MS  # a line that arrives later after its timestamp: the clocks disagree, or its writer buffers
CLOCKS = "the clocks disagree (NTP, timezone, late_s)"
JUMP = 500.0  # a larger factor between two readings: a confusion of milli and kilo
MOST_WATTS = 100_000.0  # no machine that this program runs on draws more


@dataclass(frozen=True)
class Columns:
    """The fields of a line, by position. timestamp: None if lines have none."""

    count: int
    timestamp: int | None
    value: int
    unit: str


def fields(line: bytes) -> list[str]:
    """The fields of a line; none for a comment or an empty line. Raises ValueError for anything else than CSV text."""
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


def header(row: Sequence[str], unit: str | None) -> Columns | None:
    """The columns that a header names; None if the row is no header.

    unit: the declared one. Raises Lost if the header names another unit.
    """
    names = [field.lower().replace(" ", "_") for field in row]
    if not names or any(_is_number(name) for name in names):
        return None
    timestamp = names.index("timestamp") if "timestamp" in names else None
    known = [name for name in names if name in UNIT_OF_COLUMN]
    if len(known) != 1 and not (unit and not known and "value" in names):
        return None
    named = UNIT_OF_COLUMN[known[0]] if known else unit or "W"
    if unit and named != unit:
        raise Lost(f"its header says {named}, and the options say {unit}")
    return Columns(len(names), timestamp, names.index(known[0] if known else "value"), named)


def epoch_ns(text: str, zone: tzinfo | None) -> int:
    """Nanoseconds since 1970 of a timestamp: ISO 8601, or a number whose size shows its unit. Raises ValueError."""
    if _is_number(text):
        size = abs(float(text))
        unit_ns = next((unit for most, unit in ((1e11, 1000 * MS), (1e14, MS), (1e17, 1000)) if size < most), 1)
        return int(Decimal(text) * unit_ns)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("its timestamp has no zone: add timezone=UTC, or the zone that it is in")
        moment = moment.replace(tzinfo=zone)
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def implausible(sample: Sample, last: Sample | None, is_power: bool, emptied_ns: int, now_ns: int) -> str | None:
    """Why a reading cannot be true. A counter may fall: the harness judges that.

    The reading arrived between `emptied_ns`, when the source had nothing left to read, and `now_ns`.
    """
    at_ns = sample.at_ns or 0
    if not math.isfinite(sample.value):
        return "it is no number"
    if sample.value < 0:
        return f"{sample.value:g} is negative"
    if at_ns - now_ns > AHEAD_NS:
        return f"its timestamp is {(at_ns - now_ns) / 1e9:.1f} s in the future: {CLOCKS}"
    if emptied_ns - at_ns > BEHIND_NS:
        late_s = (emptied_ns - at_ns) / 1e9
        return f"it came {late_s:.0f} s or more after its timestamp: {CLOCKS}, or its writer holds it back"
    if last is None or last.at_ns is None:
        return f"{sample.value:g} W: are these milliwatts?" if is_power and sample.value > MOST_WATTS else None
    if at_ns < last.at_ns:
        return f"its timestamp is {(last.at_ns - at_ns) / 1e9:.1f} s before that of the line above"
    watts = sample.value
    if not is_power:
        watts = (sample.value - last.value) / max((at_ns - last.at_ns) / 1e9, 1)  # timestamps may be of whole seconds
    elif sample.value and last.value and not 1 / JUMP < sample.value / last.value < JUMP:
        return f"{last.value:g} W and then {sample.value:g} W: are the units mixed up?"
    return f"{watts:g} W: are the units mixed up?" if watts > MOST_WATTS else None


def shown(line: bytes) -> str:
    """The beginning of a line that could not be read, safe to print."""
    return ascii(line[:40].decode("utf-8", "replace"))


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False
