"""Parses the lines of the meter `external`: encodings, numbers, timestamps, and readings that cannot be true."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal

from mixmark.harness.capabilities.external_log.units import units_of_word
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.text import Reason

NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Zµμ]*)")
DIGITS_PER_SECOND = ((11, 0), (14, 3), (17, 6), (20, 9))  # whole digits below which an epoch is in s, ms, µs, ns
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AHEAD_NS = 100_000_000  # if a timestamp is further in the future, the clocks disagree
BEHIND_NS = 10_000_000_000  # if a line arrives later after its timestamp, the clocks disagree or its writer buffers
CLOCKS = "the clocks disagree (NTP, timezone, late_s)"
NO_DATE = "its time has no date: let its tool write one, as xpu-smi dump --date and nvidia-smi dmon -o DT do"
NO_EPOCH = (
    "a time since the begin of the log, a day number of a spreadsheet, or a date that needs time_format: let its tool "
    "write dates with the time of day"
)
YEARS_NS = range(946_684_800_000_000_000, 4_102_444_800_000_000_000)  # 2000 to 2099
LONGEST_LINE = 1 << 18  # bytes; a table of several thousand columns fits


class Lost(MixmarkError):
    """The source cannot be read any more."""


class Splitter:
    """Splits what a source gives into lines of text. `count` is the number of lines so far."""

    def __init__(self) -> None:
        self.count = 0
        self.rest = b""

    def lines(self, new: bytes) -> list[str]:
        """The lines that `new` completes. Raises Lost if a line is too long.

        Of a text that is not UTF-8 the other characters are lost; ASCII, in which readings are written, is kept.
        """
        *lines, self.rest = (self.rest + new).split(b"\n")
        if any(len(line) > LONGEST_LINE for line in (*lines, self.rest)):
            raise Lost(f"line {self.count + 1} or a later one is longer than {LONGEST_LINE} bytes")
        return [decoded(line) for line in lines]


def decoded(line: bytes) -> str:
    return line.decode("utf-8-sig", "replace").strip("\r\n")


def number(text: str, unit: str) -> float:
    """A value with a decimal point and at most its unit behind it. Raises ValueError for another unit, a decimal comma,
    a separator of thousands, or no number."""
    match = NUMBER.fullmatch(text.strip())
    if match is None:
        comma = ": write decimals with a point and no separator of thousands" if re.search(r"\d[,' ]\d", text) else ""
        raise ValueError(f"{text!a} is not a number{comma}")
    if match[2] and unit not in units_of_word(match[2]):
        raise ValueError(f"its value is in {match[2]}, but its column is in {unit}")
    return float(match[1])


def epoch_ns(text: str, zone: tzinfo | None, time_format: str | None = None) -> int:
    """A timestamp in nanoseconds since 1970, from ISO 8601, `time_format`, or seconds, milliseconds, microseconds or
    nanoseconds since 1970. Raises ValueError."""
    if time_format is None and re.fullmatch(r"-?\d+(\.\d*)?", text):
        digits = len(text.partition(".")[0].lstrip("0"))
        for most, power in DIGITS_PER_SECOND:
            at_ns = int(Decimal(text) * 10 ** (9 - power))
            if digits <= most and at_ns in YEARS_NS:
                return at_ns
        raise ValueError(f"{text} is no time since 1970, but {NO_EPOCH}")
    if time_format is None and re.fullmatch(r"\d\d?:\d\d.*", text):
        raise ValueError(NO_DATE)
    if time_format is None and re.fullmatch(r"\d{4}[-/.]\d\d[-/.]\d\d", text):
        raise ValueError("its time is a date alone: let its tool write the time of day, too")
    try:
        moment = datetime.strptime(text, time_format) if time_format else datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!a} is no time as {time_format or 'ISO 8601 has it: add time_format'}") from None
    if moment.year == 1900:  # the format has no year
        raise ValueError(NO_DATE)
    if moment.tzinfo is None and zone is None:
        raise ValueError("its timestamp has no zone: add timezone=UTC, or the log's zone")
    return ((moment if moment.tzinfo else moment.replace(tzinfo=zone)) - EPOCH) // timedelta(microseconds=1) * 1000


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


def shown(line: str) -> str:
    """The beginning of a line that could not be read, safe to print."""
    return ascii(line[:40])
