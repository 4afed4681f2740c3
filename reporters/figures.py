"""Formats figures for readers: digits, units, prefixes, names. An unknown figure is None in data and "–" in text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import UNKNOWN as UNKNOWN
from mixmark.harness.contracts.numbers import bare as bare
from mixmark.harness.contracts.numbers import counted as counted
from mixmark.harness.contracts.numbers import duration as duration
from mixmark.harness.contracts.numbers import gibibytes as gibibytes
from mixmark.harness.contracts.numbers import percent as percent
from mixmark.harness.contracts.numbers import plural as plural
from mixmark.harness.contracts.numbers import prefixed as prefixed
from mixmark.harness.contracts.numbers import rate_unit as rate_unit
from mixmark.harness.contracts.numbers import significant as significant
from mixmark.harness.contracts.schema import Finding, Record, Result, Route, System
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.findings import is_like, words_of_all
from mixmark.harness.judge.solo import Energy, Latency, Relative, Solo

SEVERITIES = ("invalid", "pending", "warning", "note")
LONGEST_SUBJECTS = 48  # letters of the subjects of a message; longer lists are counted
LONGEST_UNIT, LONGEST_NAME, LONGEST = 16, 60, 2000  # letters of a unit, a name, a message with its hint


def number(figure: Estimate) -> str:
    """12.3 of a figure of 12.3 ± 1.5 %; of a bracket both ends: 12.3 to 14.5."""
    if figure.is_bracket and figure.high is not None:
        return f"{significant(figure.estimate)} to {significant(figure.high)}"
    return significant(figure.estimate)


def within(figure: Estimate) -> str:
    """± 1.5 %. Empty if no interval is known."""
    half = figure.half_width
    return "" if half is None else f"± {percent(half)}"


def estimate(figure: Estimate | None, unit: str = "") -> str:
    """12.3 mix/h ± 1.5 %; of a bracket 12.3 to 14.5 mix/h."""
    return UNKNOWN if figure is None else " ".join(filter(None, (number(figure), unit, within(figure))))


def rate(per_s: float | Estimate | None, short: str) -> str:
    """Units per second: 4.11 tok/s. short: the short name of the unit."""
    if isinstance(per_s, Estimate):
        per_s = per_s.estimate
    return UNKNOWN if per_s is None else f"{significant(per_s)} {rate_unit(name(short, LONGEST_UNIT))}"


def status(row: Solo) -> str:
    """The status in the words of a reader, who knows no screening runs."""
    return "quick check" if row.status == "screened" else row.status


HOSTED = "Hosted services: not audited, and in no score"
"""The title of the table of hosted services."""


def throughput(row: Solo) -> tuple[str, ...]:
    """(4.11 tok/s, ±1.2 % of 5 runs), as far as it is known.

    If the row has no throughput, or one that does not count, the status comes first: (quick check, 4.11 tok/s).
    """
    if row.status != "ok" and not (row.status == "unaudited" and row.route.hosted):
        return (status(row), *(() if row.units_per_s is None else (rate(row.units_per_s, row.names.short),)))
    parts = [rate(row.units_per_s, row.names.short)]
    several = row.runs > 1
    if row.units_per_s and (half := within(row.units_per_s)):
        parts.append(half + (f" of {row.runs} runs" if several else ""))
    elif several:
        parts.append(f"of {row.runs} runs, interval not known")
    if row.batches:
        parts.append(f"batches of {', '.join(map(str, row.batches))}")
    return tuple(parts)


def spent(energy: Energy | None) -> tuple[str, ...]:
    """(963 mJ, 235 W, devices): energy per unit, mean power, energy boundary. (–,) if the energy is not known."""
    if energy is None:
        return (UNKNOWN,)
    return prefixed(energy.joules_per_unit, "J"), prefixed(energy.watts, "W"), energy.boundary


def energy_parts(rows: Iterable[Solo]) -> int:
    """The number of parts of `spent` that a table shows: the boundary only if the rows have different boundaries."""
    return 3 if len({row.energy.boundary for row in rows if row.energy}) > 1 else 2


def scope(rows: Iterable[Solo]) -> str:
    """The energy boundary and what lies outside of it, for the head of a report. Empty if no row has energy."""
    kinds = dict.fromkeys((row.energy.boundary, row.energy.left_out) for row in rows if row.energy)
    parts = [f"{boundary} (without {', '.join(left_out)})" if left_out else boundary for boundary, left_out in kinds]
    return f"of the {' or the '.join(parts)}, idle included" if parts else ""


def idle(energy: Energy) -> str:
    """61.2 W before, 64.0 W after."""
    known = zip(energy.idle_watts, ("before", "after"), strict=False)
    return ", ".join(f"{prefixed(watts, 'W')} {when}" for watts, when in known if watts is not None) or UNKNOWN


EXTENSIONS = {
    "amx_tile": "AMX",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
    "sme": "SME",
    "sve2": "SVE2",
    "sve": "SVE",
    "asimd": "Neon",
}
"""The extension that says most of a processor first, by its flag."""


def processor(machine: System) -> str:
    """The processor's model. A name without a number, as hypervisors give, is no model, so its extension says what it
    can do: AMD EPYC (model not disclosed, AVX2)."""
    model = machine.cpu_model or "unknown processor"
    widest = next((words for flag, words in EXTENSIONS.items() if flag in machine.cpu_flags), None)
    return name(model if not widest or re.search("[0-9]", model) else f"{model} (model not disclosed, {widest})")


def system(machine: System, accelerators: Iterable[str]) -> str:
    """What a machine is: Acme Quartz, 4 cores, 8 threads, 2 of 8 CPUs by quota, 64.0 GiB, 2 × Acme Topaz.

    accelerators: the name of each.
    """
    totals = ((machine.cpu_cores, "core"), (machine.cpu_threads, "thread"))
    counts = [counted(count, word) for count, word in totals if count] + [*filter(None, [machine.quota_in_words])]
    named = [f"{count} × {each}" if count > 1 else each for each, count in Counter(map(name, accelerators)).items()]
    memory = [] if machine.memory_bytes is None else [gibibytes(machine.memory_bytes)]
    return ", ".join([processor(machine), *counts, *memory, *(named or ["no accelerator"])])


def whole_percent(fraction: float | None) -> str:
    """A fraction in whole percent: 43 %."""
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f} %"


def roofline(fraction: float | None) -> str:
    """A fraction of the roofline: 43 %. A route faster than the probe shows that the probe found too low a limit, so
    no more than 100 % is claimed: ≥ 100 %."""
    return "≥ 100 %" if fraction is not None and fraction > 1.005 else whole_percent(fraction)


def ratio(relative: Relative) -> str:
    return UNKNOWN if relative.ratio is None else f"{significant(relative.ratio)}×"


def typical(latency: Latency) -> str:
    """p50 1.20 s, or mean 1.20 s if the sample is too small for a median."""
    if latency.p50_ns is not None:
        return f"p50 {duration(latency.p50_ns)}"
    return UNKNOWN if latency.mean_ns is None else f"mean {duration(latency.mean_ns)}"


def tail(latency: Latency) -> str:
    """p99 1.80 s: the highest percentile that the sample is large enough for."""
    return UNKNOWN if latency.tail is None else f"{latency.tail[0]} {duration(latency.tail[1])}"


def latencies(row: Solo) -> tuple[str, ...]:
    """The typical latency and its tail; if a feed yields its units singly, also of the first unit and of each unit."""
    if row.time_per_unit.mean_ns is None:
        return (_latency("", row.latency),)
    each = f"/{name(row.names.short, LONGEST_UNIT)}"
    spans = (("feed", row.latency), ("first", row.first_unit), (each, row.time_per_unit))
    parts = [_latency(span, latency) for span, latency in spans]
    if row.gap_p99 is not None and row.gap_most is not None:
        parts.append(f"gaps p99 {significant(row.gap_p99)} ×, most {significant(row.gap_most)} ×")
    return tuple(parts)


def _latency(span: str, latency: Latency) -> str:
    known = [text for text in (typical(latency), tail(latency)) if text != UNKNOWN]
    return " ".join([*filter(None, [span]), ", ".join(known) or UNKNOWN])


def jitter(row: Solo) -> str:
    """How even a stream of units is: p99 1.12 ×, longest 3.40 × the median gap. Empty if not known."""
    if row.gap_p99 is None or row.gap_most is None:
        return ""
    return f"p99 {significant(row.gap_p99)} ×, longest {significant(row.gap_most)} × the median gap"


def scenario(record: Record | Solo) -> str:
    """The scenario with its batch or arrivals: offline ×2048, server 5/s, server max 12.3/s."""
    if record.rate_per_s is not None:
        return f"{record.scenario} {'max ' if record.is_highest_rate else ''}{bare(record.rate_per_s)}/s"
    return f"{record.scenario} ×{record.batch}" if (record.batch or 1) > 1 else record.scenario


def device_names(result: Result) -> dict[str, str]:
    """A short name for each device id, unique in the result: gpu:5d1c for gpu:GPU-5d1cae40-…."""
    ids = [*(device.id for device in result.devices), *(record.route.device for record in result.records)]
    parts = {id: plain(id).partition(":")[2].removeprefix("GPU-") for id in ids}
    long = {part for part in parts.values() if re.search("[0-9a-f]{8}", part)}  # a serial number, and no word
    length = 4
    while len({part[:length] for part in long}) < len(long):
        length += 1
    return {
        id: name(f"{plain(id).partition(':')[0]}:{part[:length] if part in long else part}")
        for id, part in parts.items()
    }


def merged(findings: Iterable[Finding], labels: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(severity, about, words), the most serious first. Findings that differ only in their numbers are one with ranges;
    invalid findings stay apart. The subject of a finding about the whole run is empty.

    labels: the label of each record, by its key. A subject without a label stays as it is.
    """
    alike: dict[object, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)):
        same = finding.model_dump_json() if finding.severity == "invalid" else is_like(finding)
        alike.setdefault(same, []).append(finding)
    found: list[tuple[str, str, str]] = []
    for group in alike.values():
        subjects = dict.fromkeys(labels.get(finding.about, finding.about) for finding in group)
        about = ", ".join(subjects)
        if len(subjects) > 1 and len(about) > LONGEST_SUBJECTS:  # a device, a host or a run of the mix is one word
            about = counted(len(subjects), "measurement" if all(" " in each for each in subjects) else "part")
        found.append((group[0].severity, "" if about == "run" else about, words_of_all(group)))
    return found


def void(problem: Finding, result: Result) -> str:
    """Why a run does not count, with the name of a route in place of its record's key."""
    ((_, about, words),) = merged([problem], labels(result))
    return f"does not count: {about}{': ' if about else ''}{words}"


def name(text: str, most: int = LONGEST_NAME) -> str:
    """A name as plain text of at most `most` letters."""
    text = plain(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def labels(result: Result) -> dict[str, str]:
    """The label of each record by its key, and of each device by its id."""
    names = device_names(result)
    return names | {record.key: label(record, names) for record in result.records}


def label(record: Record, names: dict[str, str]) -> str:
    """llm on cpu:0 by torch in bf16, offline ×8."""
    text = route_label(record.route, names)
    return text if record.scenario == "probe" else f"{text}, {scenario(record)}"


def route_label(route: Route, names: Mapping[str, str]) -> str:
    """llm on cpu:0 by torch in bf16."""
    device = names.get(route.device) or name(route.device)
    return f"{name(route.suite)} on {device} by {name(route.adapter)} in {route.precision}"
