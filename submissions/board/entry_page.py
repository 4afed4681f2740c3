"""The words of an entry's page: its score, its classes with reasons, its runs, the whole disclosure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.schema import Finding, Hosts
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import figures
from mixmark.submissions.board import formats, rank, row, verdict_text
from mixmark.submissions.board.rank import Metric
from mixmark.submissions.board.row import IntervalAxis, Standing, Website
from mixmark.submissions.entry import Entry


def facts(entry: Entry, site: Website, standings: Sequence[Standing], reports: Sequence[str]) -> dict[str, Any]:
    """The variables of the template of an entry's page."""
    declared = entry.declaration
    url = site.url + row.page_of(entry)
    return {
        "heading": f"{declared.organisation} {declared.system}, {entry.mix}",
        "entry": entry,
        "declaration": declared,
        "sentence": row.sentence(entry, site),
        "preview": row.page_of(entry).replace(row.PAGE, "preview.png"),
        "description": row.sentence(entry, site),
        "hardware": row.hardware(entry),
        "standings": [(standing.key.title, row.board_page(standing.key), standing.words) for standing in standings],
        "headline": list(_headline(entry)),
        "stale": rank.stale(entry, site.today, site.versions),
        "classes": list(verdict_text.classes(entry)),
        "runs": _runs(entry),
        "suites": (suites := _suites(entry)),
        "several": any(len(measurements) > 1 for _, measurements in suites),
        "findings": _findings(entry.findings),
        "machine": list(_machine(entry)),
        "declared": list(_declared(entry)),
        "commands": list(dict.fromkeys(shlex.join(("mixmark", *command)) for command in entry.commands)),
        "reports": reports,
        "url": url,
        "badge": f"{url.removesuffix(row.PAGE)}badge.svg",
        "citation": formats.citation(entry, site),
        "alt": f"Mixmark {entry.mix}: {formats.headline(entry)}",
    }


def _headline(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(name, figure, remark)."""
    if entry.mixes_per_kwh is None:
        yield "MX, mixes per kWh", "not measured", entry.unmeasured
    else:
        remark = f"{figures.within(entry.mixes_per_kwh)}, energy of the {entry.boundary}".lstrip(", ")
        yield "MX, mixes per kWh", f"{figures.number(entry.mixes_per_kwh)} mix/kWh", remark
    yield "TX, mixes per hour", f"{figures.number(entry.mixes_per_hour)} mix/h", figures.within(entry.mixes_per_hour)
    if entry.watts:
        yield "Power", row.watts(entry), f"mean of {_count(len(entry.runs), 'run')}, idle included"
    if load := row.load(entry):
        yield f"Load, {load['levels']}", f"{load['per_kwh']} mix/kWh", "MX of the ladder, the ready idle included"
        yield "Ready idle", load["idle"], load["over"]
        yield "Goodput", load["goodput"], "the highest load that keeps all latency limits"
    if entry.declaration.provisioned_watts:
        watts = figures.prefixed(entry.declaration.provisioned_watts, "W")
        yield "Provisioned power", watts, "declared, not measured"
    if entry.declaration.price:
        yield "Price", row.price(entry), f"declared; {row.worth(entry)} per mix/h"


def _runs(entry: Entry) -> dict[str, Any]:
    """The score of each run on one axis, with that of all runs."""
    metric: Metric = "MX" if entry.mixes_per_kwh else "TX"
    whole = rank.figure_of(entry, metric)
    scores = [(run, run.mixes_per_kwh if metric == "MX" else run.mixes_per_hour) for run in entry.runs]
    runs = [(run, figure) for run, figure in scores if figure is not None]
    axis = IntervalAxis.of([*(figure for _, figure in runs), whole])
    several = len(entry.results) > 1
    return {
        "unit": row.UNITS[metric],
        "rows": [
            {
                "name": f"result {run.result}, {figures.name(run.phase)}" if several else figures.name(run.phase),
                "seconds": f"{run.seconds:,.0f} s",
                "value": figures.estimate(figure),
                "other": figures.number(run.mixes_per_hour),
                "watts": figures.prefixed(run.watts, "W"),
                **axis.interval(figure),
            }
            for run, figure in runs
        ],
        "whole": {"value": figures.estimate(whole), **axis.interval(whole)},
        "metric": metric,
    }


def _suites(entry: Entry) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each suite with its solo measurements, the fastest first; a bar is as long as its share of the fastest."""
    suites: dict[str, list[Solo]] = {}
    for solo in entry.solos:
        suites.setdefault(f"{figures.name(solo.route.suite)} {figures.name(solo.route.suite_version)}", []).append(solo)
    rows = []
    for suite, of_suite in suites.items():
        axis = IntervalAxis(0.0, max(solo.units_per_s.ends[1] for solo in of_suite if solo.units_per_s) or 1.0)
        of_suite = sorted(of_suite, key=lambda solo: -solo.speed)
        rows.append((suite, [_solo_row(entry, solo, axis) for solo in of_suite]))
    return rows


def _solo_row(entry: Entry, solo: Solo, axis: IntervalAxis) -> dict[str, Any]:
    batch = f" ×{solo.batch}" if (solo.batch or 1) > 1 else ""
    joules = figures.prefixed(solo.energy.joules_per_unit, "J") if solo.energy else ""
    rate = solo.units_per_s or Estimate(0.0)
    route = solo.route
    return {
        "route": f"{row.device_name(entry, route.device)} · {figures.name(route.adapter)} {route.precision}",
        "how": f"{solo.scenario}{batch}",
        "rate": figures.rate(rate, solo.names.short),
        "half": figures.within(rate),
        "joules": joules and f"{joules} a {figures.name(solo.unit, 16)}",
        **axis.interval(rate),
    }


def _findings(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """(severity, message, subject), the worst first; equal messages about several subjects once."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda finding: figures.SEVERITIES.index(finding.severity)):
        subjects.setdefault((finding.severity, words(finding)), []).append(finding.about)
    return [
        (severity, message, about[0] if len(set(about)) == 1 else f"{len(about)} times")
        for (severity, message), about in subjects.items()
    ]


def _machine(entry: Entry) -> Iterator[tuple[str, str]]:
    machine = entry.machine
    cores = f"{_count(machine.cpu_cores, 'core')}, {_count(machine.cpu_threads, 'thread')}"
    yield "CPU", f"{machine.cpu_model or figures.UNKNOWN}; {cores}"
    yield "Memory", _gib(machine.memory_bytes)
    yield from map(_hosts, machine.hosts)
    for device in machine.devices:
        memory = f", {_gib(device.memory_bytes)}" if device.memory_bytes else ""
        yield f"Device {device.id}", f"{device.kind}: {device.name or figures.UNKNOWN}{memory}"
    yield "Operating system", machine.operating_system or figures.UNKNOWN
    yield "Kernel", machine.kernel
    yield "Virtualisation", machine.virtualization or "none"
    for adapter, environment in machine.environments.items():
        versions = {**environment.packages, **environment.vendor}
        packages = ", ".join(f"{name} {version}" for name, version in versions.items()) or "no packages reported"
        kit = {True: "kit passed", False: "kit failed", None: "no report of the kit"}[entry.kits.get(adapter)]
        yield f"Adapter {adapter}", f"{environment.origin}; {environment.python}; {packages}; {kit}"
    yield "Suites", ", ".join(f"{name} {version}" for name, version in entry.suites.items())
    yield "Mixmark", entry.mixmark
    yield "Runs", f"{_count(len(entry.runs), 'mixed run')}, from {entry.began_utc} to {entry.ended_utc}"
    signed = {"none": "no", "not verified": "yes, not verified by this board", "good": f"by {entry.signed.signer}"}
    yield "Signed", signed[entry.signed.state]


def _hosts(group: Hosts) -> tuple[str, str]:
    """(2 hosts: host1, host2; the hardware and system of each)."""
    system = group.system
    memory = None if system.memory_bytes is None else f"{system.memory_bytes / 2**30:.3g} GiB"
    threads = None if system.cpu_threads is None else f"{system.cpu_threads} threads"
    parts = (system.cpu_model, threads, memory, system.operating_system, system.kernel, system.virtualization)
    return f"{_count(len(group.names), 'host')}: {', '.join(group.names)}", ", ".join(part for part in parts if part)


def _declared(entry: Entry) -> Iterator[tuple[str, str]]:
    declared = entry.declaration
    yield "Availability", declared.availability
    yield "Form", declared.form_factor
    yield "Origin", declared.origin
    if declared.meter:
        yield "Meter", declared.meter
    if declared.licence:
        yield "Licence", declared.licence
    if declared.provisioned_watts:
        yield "Provisioned power", f"{declared.provisioned_watts:,} W"
    for line in declared.notes.split("\n"):
        if line:
            yield "Notes", line


def _count(count: int | None, what: str) -> str:
    return f"unknown {figures.plural(what)}" if count is None else figures.counted(count, what)


def _gib(size_bytes: int | None) -> str:
    return "not disclosed" if size_bytes is None else figures.gibibytes(size_bytes)
