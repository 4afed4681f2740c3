"""What the page of an entry shows, in words: its score, its classes with reasons, its runs, the whole disclosure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from mixmark.harness.contracts.schema import Finding
from mixmark.reporters import figures
from mixmark.submissions import page
from mixmark.submissions.board import formats, rank, row
from mixmark.submissions.board.row import Axis, Site, Standing
from mixmark.submissions.entry import Entry, Estimate, SoloMeasurement

SEVERITIES = ("invalid", "warning", "note")


def facts(entry: Entry, site: Site, standings: Sequence[Standing], reports: Sequence[str]) -> dict[str, Any]:
    """What the template of an entry's page takes."""
    told, claim = entry.declaration, entry.claim
    url = site.url + row.page_of(entry)
    return {
        "script": False,
        "narrow": True,
        "heading": f"{told.organisation} {told.system}, {claim.mix}",
        "entry": entry,
        "told": told,
        "sentence": row.sentence(entry, site),
        "standings": [(each.key.title, row.board_page(each.key), each.words) for each in standings],
        "headline": list(_headline(entry)),
        "stale": rank.stale(entry, site.today, site.versions),
        "classes": list(page.classes(entry)),
        "runs": _runs(entry),
        "suites": _suites(entry),
        "findings": _findings(entry.findings),
        "machine": list(_machine(entry)),
        "declared": list(_declared(entry)),
        "total": row.price(entry),
        "commands": list(dict.fromkeys(shlex.join(("mixmark", *each)) for each in entry.commands)),
        "reports": reports,
        "url": url,
        "badge": site.url + row.page_of(entry).replace(row.PAGE, "badge.svg"),
        "alt": f"Mixmark {claim.mix}: {formats.headline(entry)}",
    }


def _headline(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(name, figure, what is to be known of it)."""
    claim, told = entry.claim, entry.declaration
    if claim.mixes_per_kj is None:
        yield "MX, mixes per kilojoule", "not measured", entry.unmeasured
    else:
        told_of = f"{row.half_width(claim.mixes_per_kj)}, energy of the {claim.boundary}".lstrip(", ")
        yield "MX, mixes per kilojoule", f"{row.value(claim.mixes_per_kj)} mix/kJ", told_of
    yield "TX, mixes per second", f"{row.value(claim.mixes_per_s)} mix/s", row.half_width(claim.mixes_per_s)
    if claim.watts:
        yield "Power", figures.prefixed(claim.watts, "W"), f"mean of {_count(claim.runs, 'run')}, idle included"
    if told.provisioned_watts:
        yield "Provisioned power", figures.prefixed(told.provisioned_watts, "W"), "declared, not measured"
    if claim.price:
        yield "Price", row.price(entry), "declared, items below"


def _runs(entry: Entry) -> dict[str, Any]:
    """The score of each run on one axis, with that of all runs."""
    metric = "MX" if entry.claim.mixes_per_kj else "TX"
    whole = entry.claim.mixes_per_kj or entry.claim.mixes_per_s
    rows = [
        (run, found)
        for run in entry.runs
        if (found := run.mixes_per_kj if metric == "MX" else run.mixes_per_s) is not None
    ]
    axis = row.axis([*(found for _, found in rows), whole])
    several = len({run.result for run in entry.runs}) > 1
    return {
        "unit": row.UNITS["MX" if metric == "MX" else "TX"],
        "rows": [
            {
                "name": f"result {run.result}, {figures.name(run.phase)}" if several else figures.name(run.phase),
                "seconds": f"{run.seconds:,.0f} s",
                "value": f"{row.value(found)} {row.half_width(found)}".strip(),
                "other": row.value(run.mixes_per_s),
                "watts": figures.prefixed(run.watts, "W"),
                **_drawn(axis, found),
            }
            for run, found in rows
        ],
        "whole": {"value": f"{row.value(whole)} {row.half_width(whole)}".strip(), **_drawn(axis, whole)},
        "metric": metric,
    }


def _drawn(axis: Axis, found: Estimate) -> dict[str, float]:
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return {"low": axis(low), "mid": axis(found.value), "high": axis(high)}


def _suites(entry: Entry) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each suite with its cells, the fastest first; a bar is as long as its share of the fastest."""
    found: dict[str, list[SoloMeasurement]] = {}
    for cell in entry.solo_measurements:
        found.setdefault(f"{figures.name(cell.suite)} {figures.name(cell.suite_version)}", []).append(cell)
    told = []
    for suite, cells in found.items():
        cells = sorted(cells, key=lambda each: -each.units_per_s.value)
        most = max(max(each.units_per_s.high or 0.0, each.units_per_s.value) for each in cells) or 1.0
        told.append((suite, [_cell(entry, each, Axis(0.0, most, False)) for each in cells]))
    return told


def _cell(entry: Entry, cell: SoloMeasurement, axis: Axis) -> dict[str, Any]:
    batch = f" ×{cell.batch}" if (cell.batch or 1) > 1 else ""
    return {
        "route": f"{row.device_name(entry, cell.device)} · {figures.name(cell.adapter)} {cell.precision}",
        "how": f"{cell.scenario}{batch}",
        "rate": figures.rate(cell.units_per_s.value, cell.short_unit),
        "half": row.half_width(cell.units_per_s),
        "joules": f"{figures.prefixed(cell.joules_per_unit, 'J')} a {figures.name(cell.unit, 16)}"
        if cell.joules_per_unit is not None
        else "",
        **_drawn(axis, cell.units_per_s),
    }


def _findings(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """(severity, message, what it is about), the worst first; what is said of several is said once."""
    about: dict[tuple[str, str], list[str]] = {}
    for each in sorted(findings, key=lambda each: SEVERITIES.index(each.severity)):
        about.setdefault((each.severity, each.message), []).append(each.about)
    return [
        (severity, message, abouts[0] if len(set(abouts)) == 1 else f"{len(abouts)} times")
        for (severity, message), abouts in about.items()
    ]


def _machine(entry: Entry) -> Iterator[tuple[str, str]]:
    machine = entry.machine
    cores = f"{_count(machine.cpu_cores, 'core')}, {_count(machine.cpu_threads, 'thread')}"
    yield "CPU", f"{machine.cpu_model or figures.UNKNOWN}; {cores}"
    yield "Memory", _gib(machine.memory_bytes)
    yield from (each.summary for each in machine.hosts)
    for device in entry.machine.devices:
        memory = f", {_gib(device.memory_bytes)}" if device.memory_bytes else ""
        yield f"Device {device.id}", f"{device.kind}: {device.name or figures.UNKNOWN}{memory}"
    yield "Operating system", machine.operating_system or figures.UNKNOWN
    yield "Kernel", machine.kernel
    yield "Virtualisation", machine.virtualization or "none"
    for each in machine.software:
        packages = ", ".join(f"{name} {version}" for name, version in {**each.packages, **each.vendor}.items())
        kit = {True: "kit passed", False: "kit failed", None: "no report of the kit"}[entry.kits.get(each.adapter)]
        yield f"Adapter {each.adapter}", f"{each.origin}; {each.python}; {packages or 'no packages told'}; {kit}"
    yield "Suites", ", ".join(f"{name} {version}" for name, version in entry.suites.items())
    yield "Mixmark", entry.claim.mixmark
    yield "Runs", f"{_count(entry.claim.runs, 'mixed run')}, from {entry.began_utc} to {entry.ended_utc}"
    signed = {"none": "no", "not verified": "yes, not verified by this board", "good": f"by {entry.signed.signer}"}
    yield "Signed", signed[entry.signed.state]


def _declared(entry: Entry) -> Iterator[tuple[str, str]]:
    told = entry.declaration
    yield "Availability", f"{told.availability}{f', from {told.available_on}' if told.available_on else ''}"
    yield "Form and cooling", f"{told.form_factor}; {told.cooling}"
    yield "Origin", told.origin
    if told.licence:
        yield "Licence", told.licence
    if told.provisioned_watts:
        yield "Provisioned power", f"{told.provisioned_watts:,} W"
    for line in told.notes.split("\n"):
        if line:
            yield "Notes", line


def _count(count: int | None, what: str) -> str:
    return f"unknown {what}s" if count is None else f"{count} {what}{'' if count == 1 else 's'}"


def _gib(value: int | None) -> str:
    return "not disclosed" if value is None else f"{figures.significant(value / 2**30)} GiB"
