"""Formats numbers for all texts: three digits, a unit with its prefix, percent, a count with its noun."""

from __future__ import annotations

import math

UNKNOWN = "–"
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6))


def significant(value: float, digits: int = 3) -> str:
    """12345.6 -> 12,300; 0.012345 -> 0.0123."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def bare(value: float, digits: int = 3) -> str:
    """Without trailing zeros: 5 for 5.00."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def prefixed(value: float | None, unit: str) -> str:
    """149 GFLOP/s for 1.49e11 and FLOP/s."""
    if value is None:
        return UNKNOWN
    prefix, size = _prefix(value)
    return f"{significant(value / size)} {prefix}{unit}"


def _prefix(value: float) -> tuple[str, float]:
    return next((each for each in PREFIXES if value >= each[1] * 0.9995), ("", 1.0))


def gibibytes(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / 2**30)} GiB"


def filesize(size_bytes: float) -> str:
    """16.3 MB for 16266232, and 2 GB for 2e9."""
    prefix, size = _prefix(size_bytes)
    return f"{bare(size_bytes / size)} {prefix}B"


def rate_unit(short: str) -> str:
    """The unit of a rate, by the short name of a unit: tok/s. Seconds of something, such as `audio s`, that are done in
    a second are multiples of real time."""
    return "× real time" if short.endswith(" s") else f"{short}/s"


def duration(value_ns: float | None) -> str:
    if value_ns is None:
        return UNKNOWN
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value_ns >= size_ns * 0.9995:  # 999.5 µs rounds to 1.00 ms
            return f"{significant(value_ns / size_ns)} {unit}"
    return f"{significant(value_ns)} ns"


def percent(fraction: float) -> str:
    """1.2 %, 0.3 %, 0.001 %, 35 %, 350 %. Only less than a millionth is 0.0 %."""
    if 1e-6 <= abs(fraction) < 0.0005:
        return f"{significant(fraction * 100, 1)} %"
    return f"{fraction * 100:.1f} %" if abs(fraction) < 0.0995 else f"{fraction * 100:,.0f} %"


def counted(count: int, noun: str) -> str:
    """A count with its noun, given in the singular: 1 feed, 12,300 feeds, 2 entries, 3 processes."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Feeds, entries, processes, batches."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
