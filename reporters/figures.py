"""How a figure is written for a reader: digits, units, prefixes, names. Unknown is None in a `Row`, "–" in text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from mixmark.harness.contracts.schema import Finding, Record, Result
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.rows import Energy, Latency, Relative, Row

UNKNOWN = "–"
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6))
NUMBER = re.compile(r"(?<![\w.,:/×-])(?>\d+(?:,\d{3})*(?:\.\d+)?)(?!\w|\.\d)")  # in a message; no part of a name
FEW_LETTERS = 48  # that the names of what a message is about may take
LONGEST_UNIT, LONGEST_NAME, LONGEST = 16, 60, 2000  # letters of a unit, a name, a message with its hint


def significant(value: float, digits: int = 3) -> str:
    """12345.6 -> 12,300; 0.012345 -> 0.0123."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def duration(value_ns: float | None) -> str:
    if value_ns is None:
        return UNKNOWN
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value_ns >= size_ns * 0.9995:  # 999.5 µs rounds to 1.00 ms
            return f"{significant(value_ns / size_ns)} {unit}"
    return f"{significant(value_ns)} ns"


def rate(per_s: float | None, short: str) -> str:
    """Units per second, by the short name of the unit: 4.11 tok/s."""
    return UNKNOWN if per_s is None else f"{significant(per_s)} {name(short, LONGEST_UNIT)}/s"


HOSTED = "Hosted services: not audited, and in no score"
"""Stands above the table of what has weights of its own."""


def throughput(row: Row) -> tuple[str, ...]:
    """(4.11 tok/s, ±1.2 % of 5 runs, median 4.10 tok/s), as far as known; why not where there is none, or where it
    counts for nothing. The speed of a screening run stands behind the word screened."""
    if row.status in ("invalid", "screened") and row.throughput_per_s is not None:
        return row.status, rate(row.throughput_per_s, row.names.short)
    if row.status not in ("ok", "unaudited"):
        return (row.status,)
    told = [rate(row.throughput_per_s, row.names.short)]
    several = row.runs > 1
    if row.half_width is not None:
        told.append(f"±{percent(row.half_width)}" + (f" of {row.runs} runs" if several else ""))
    elif several:
        told.append(f"interval of {row.runs} runs not known")
    if several:
        told.append(f"median {rate(row.median_per_s, row.names.short)}")
    if row.batches:
        told.append(f"batches of {', '.join(map(str, row.batches))}")
    return tuple(told)


def spent(energy: Energy | None) -> tuple[str, ...]:
    """(963 mJ, 235 W, devices): energy per unit, mean power, energy boundary; – where that is not known."""
    if energy is None:
        return (UNKNOWN,)
    return prefixed(energy.joules_per_unit, "J"), prefixed(energy.watts, "W"), energy.boundary


def told(measured: Iterable[Row]) -> int:
    """How many parts of `spent` a table shows: the boundary only where not all rows have the same one."""
    return 3 if len({row.energy.boundary for row in measured if row.energy}) > 1 else 2


def scope(measured: Iterable[Row]) -> str:
    """The energy boundary and what lies outside of it, for the head of a report; empty where there is no energy."""
    kinds = dict.fromkeys((row.energy.boundary, row.energy.left_out) for row in measured if row.energy)
    parts = [f"{boundary} (without {', '.join(left_out)})" if left_out else boundary for boundary, left_out in kinds]
    return f"energy of the {' or the '.join(parts)}, idle included" if parts else ""


def idle(energy: Energy) -> str:
    """61.2 W before, 64.0 W after."""
    told = zip(energy.idle_watts, ("before", "after"), strict=False)
    return ", ".join(f"{prefixed(watts, 'W')} {when}" for watts, when in told if watts is not None) or UNKNOWN


def prefixed(value: float | None, unit: str) -> str:
    """With an SI prefix: 1.49e11, FLOP/s -> 149 GFLOP/s."""
    if value is None:
        return UNKNOWN
    for prefix, size in PREFIXES:
        if value >= size * 0.9995:
            return f"{significant(value / size)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def gibibytes(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{significant(size_bytes / 2**30)} GiB"


def share(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def ratio(relative: Relative) -> str:
    return UNKNOWN if relative.ratio is None else f"{significant(relative.ratio)}×"


def percent(share: float) -> str:
    """A half-width: 1.2 %, 0.3 %, 350 %."""
    return f"{share * 100:.1f} %" if share < 0.1 else f"{share * 100:,.0f} %"


def typical(latency: Latency) -> str:
    """The median where the sample carries one, else the mean, named."""
    if latency.p50_ns is not None:
        return f"p50 {duration(latency.p50_ns)}"
    return UNKNOWN if latency.mean_ns is None else f"mean {duration(latency.mean_ns)}"


def tail(latency: Latency) -> str:
    return UNKNOWN if latency.tail is None else f"{latency.tail[0]} {duration(latency.tail[1])}"


def work(record: Record) -> str:
    """Scenario and batch, or arrivals: `offline ×2048`, `server 5/s`, `server max 12.3/s`."""
    if record.rate_per_s is not None:
        return f"{record.scenario} {'max ' if record.rate_trials else ''}{bare(record.rate_per_s)}/s"
    return f"{record.scenario} ×{record.batch}" if (record.batch or 1) > 1 else record.scenario


def bare(value: float, digits: int = 3) -> str:
    """Without zeros behind the point: 5.00 -> 5."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def device_names(result: Result) -> dict[str, str]:
    """Device id -> short name, unique in the result: gpu:GPU-5d1cae40-… -> gpu:5d1c."""
    ids = list(dict.fromkeys([*(each.id for each in result.devices), *(one.route.device for one in result.records)]))
    parts = {each: plain(each).partition(":")[2].removeprefix("GPU-") for each in ids}
    length = 4
    while len({parts[each][:length] for each in ids if len(parts[each]) > 6}) < len(
        {parts[each] for each in ids if len(parts[each]) > 6}
    ):
        length += 1
    return {
        each: name(f"{plain(each).partition(':')[0]}:{part[:length] if len(part) > 6 else part}")
        for each, part in parts.items()
    }


def merged(result: Result, findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    """(severity, about, message), worst first; the same message about several things is said once.

    Where it differs in nothing but its figures, these become ranges, unless something is invalid: then each counts.
    """
    labels = {record.key: label(record, device_names(result)) for record in result.records}
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    findings = tuple(findings)
    for severity in ("invalid", "warning", "note"):
        for each in (finding for finding in findings if finding.severity == severity):
            words = each.message if severity == "invalid" else NUMBER.sub("#", each.message)
            alike.setdefault((severity, each.rule, words), []).append(each)
    found = []
    for (severity, _, _), same in alike.items():
        abouts = ", ".join(dict.fromkeys(labels.get(each.about, each.about) for each in same))
        about = abouts if len(same) == 1 or len(abouts) <= FEW_LETTERS else f"{len(same)} results"
        found.append((severity, about, _ranged([each.message for each in same])))
    return found


def _ranged(messages: list[str]) -> str:
    """One message for several that differ in nothing but their figures: kept 1.04 to 1.65 of 2 CPUs busy."""
    words, columns = NUMBER.split(messages[0]), zip(*map(NUMBER.findall, messages), strict=True)
    ranges = []
    for column in columns:
        low, high = (edge(column, key=lambda figure: float(figure.replace(",", ""))) for edge in (min, max))
        ranges.append(low if float(low.replace(",", "")) == float(high.replace(",", "")) else f"{low} to {high}")
    return "".join(word + figure for word, figure in zip(words, [*ranges, ""], strict=True))


def name(text: str, most: int = LONGEST_NAME) -> str:
    """The name of a thing as plain text, cut where it is too long."""
    text = plain(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def label(record: Record, names: dict[str, str]) -> str:
    route = record.route
    of_route = f"{name(route.suite)} on {names[route.device]} by {name(route.adapter)} in {route.precision}"
    return of_route if record.scenario == "probe" else f"{of_route}, {work(record)}"
