"""Parses the texts of the meter `external`: encodings, numbers, timestamps, and readings that cannot be true."""

from __future__ import annotations

import codecs
import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.common import UNITS

Reading = tuple[str, float]
"""A timestamp, which is empty if a line has none, and a value in the unit of the log."""
UNIT_OF_WORD = {unit.lower(): unit for unit in UNITS} | {
    "watt": "W",
    "milliwatt": "mW",
    "kilowatt": "kW",
    "joule": "J",
    "kilojoule": "kJ",
    "watt hour": "Wh",
    "kilowatt hour": "kWh",
}
NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)")
IN_BRACKETS = re.compile(r"[\[(]\s*([^\])]+?)\s*[\])]")
DIGITS_PER_SECOND = ((11, 0), (14, 3), (17, 6), (20, 9))  # whole digits below which an epoch is in s, ms, µs, ns
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AHEAD_NS = 100_000_000  # if a timestamp is further in the future, the clocks disagree
BEHIND_NS = 10_000_000_000  # if a line arrives later after its timestamp, the clocks disagree or its writer buffers
CLOCKS = "the clocks disagree (NTP, timezone, late_s)"
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
PACKED = ((b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "a zip file, such as a workbook"), (b"SQLite", "a database"))


def encoding(first: bytes) -> str:
    """The encoding of a log by its first bytes: UTF-16 or UTF-32, with a byte order mark or without; `utf-8` if each
    character of ASCII is one byte. Raises ValueError, which names the kind, if it is no text."""
    for mark, name in PACKED:
        if first.startswith(mark):
            raise ValueError(f"it is {name} and not text")
    for mark, name in MARKS:
        if first.startswith(mark):
            return name
    even, odd = first[0::2].count(0), first[1::2].count(0)
    half = len(first) // 2
    if half and max(even, odd) * 2 > half and min(even, odd) * 10 < half:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8"


def decoded(line: bytes) -> str:
    """The text of a line in UTF-8, or else in the code page of Windows, whose ASCII is the same."""
    try:
        return line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        return line.decode("cp1252", "replace").strip("\r\n")


def unit_of(name: str) -> str | None:
    """The unit that the name of a column carries: `P [kW]`, `power_mw`, `watts`, `PkgWatt`. None if it has none."""
    if found := IN_BRACKETS.findall(name):
        return _unit(found[-1])
    words = re.split(r"[\s_.\-]+", name.strip())
    for end in (" ".join(words[-2:]), words[-1]):
        if unit := _unit(end):
            return unit
    return "W" if re.search(r"[a-z]Watt$", name.strip()) else None


def _unit(word: str) -> str | None:
    """A unit by its sign or its name. A megawatt is none, and no milliwatt."""
    singular = re.sub(r"(?i)([tre])s\b", r"\1", word.strip().replace("_", " "))
    return None if singular.startswith("MW") and len(singular) < 4 else UNIT_OF_WORD.get(singular.lower())


def number(text: str, unit: str) -> float:
    """A value with a decimal point and at most its unit behind it. Raises ValueError for another unit, a decimal comma,
    a separator of thousands, or no number."""
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        comma = ": write decimals with a point and no separator of thousands" if re.search(r"\d[,' ]\d", text) else ""
        raise ValueError(f"{text!a} is not a number{comma}")
    if match[2] and _unit(match[2]) != unit:
        raise ValueError(f"its value is in {match[2]}, but its column is in {unit}")
    return float(match[1])


def epoch_ns(text: str, zone: tzinfo | None, time_format: str | None = None, last_ns: int = 0) -> int:
    """A timestamp in nanoseconds since 1970, from ISO 8601, `time_format`, or seconds, milliseconds, microseconds or
    nanoseconds since 1970. Raises ValueError.

    last_ns: the timestamp of the line above. When daylight saving ends, an hour occurs twice; the second one is chosen
    if time would run backwards with the first.
    """
    if time_format is None and re.fullmatch(r"\d+(\.\d*)?", text):
        digits = len(text.partition(".")[0].lstrip("0"))
        for most, power in DIGITS_PER_SECOND:
            if digits <= most:
                return int(Decimal(text) * 10 ** (9 - power))
        raise ValueError(f"{text} is no time since 1970")
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
