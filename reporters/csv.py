"""One line for each record but the probes', and one for each run of the mix, its unit a mix; unknown is empty.

Units are in the header's names.
"""

from __future__ import annotations

import csv
from io import StringIO

from harness.judge.figures import Energy, Row
from harness.judge.judgement import Judgement
from harness.judge.score import Run, Score
from harness.text import plain

LATENCIES = ("mean_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns")
STREAMS = ("latency", "first_mark", "time_per_unit")
COLUMNS = (
    "key", "suite", "suite_version", "tier", "device", "adapter", "precision", "weights", "scenario", "batch",
    "rate_per_s", "run", "status", "reason", "feeds", "unit", "units", "throughput_per_s", "half_width",
    *(f"{stream}_{name}" for stream in STREAMS for name in LATENCIES),
    "roofline_fraction", "energy_per_unit_j", "energy_j", "power_w", "idle_before_w", "idle_after_w",
    "energy_boundary", "energy_edge_uncertainty", "load_ns", "peak_pss_bytes",
)  # fmt: skip


def report(judgement: Judgement) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(row) for row in judgement.rows)
    if found := judgement.score:
        writer.writerows(_mixed(found, number, run) for number, run in enumerate(found.runs, start=1))
    return text.getvalue()


def _row(row: Row) -> list[object]:
    record, route, error = row.record, row.record.route, row.record.error
    streams = (row.latency, row.first_mark, row.time_per_unit)
    return [
        record.key,
        *(safe(text) for text in (route.suite, route.suite_version, route.tier, route.device, route.adapter)),
        route.precision,
        safe(route.weights),
        record.scenario,
        record.batch,
        record.rate_per_s,
        record.run,
        row.status,
        safe(f"{error.kind}: {error.message}") if error else "",
        row.feeds,
        safe(record.unit),
        row.units,
        row.throughput_per_s,
        row.half_width,
        *(getattr(latency, name) for latency in streams for name in LATENCIES),
        row.roofline,
        *_energy(row.energy),
        record.load_ns,
        record.peak_pss_bytes,
    ]


def _mixed(found: Score, number: int, run: Run) -> list[object]:
    energy, idle = run.total, (*run.total.idle_watts, None, None)
    valid = not run.problems
    known: dict[str, object] = {
        "key": safe(run.phase),
        "suite": safe(found.mix.name),
        "tier": found.mix.tier,
        "scenario": "mixed",
        "run": number,
        "status": found.grade if valid else "no score",
        "reason": safe("; ".join([each.text for each in run.problems] or found.missing)),
        "feeds": sum(stream.feeds for stream in run.streams),
        "unit": "mix",
        "units": run.mixes,
        "throughput_per_s": run.mixes_per_s.estimate if valid else None,
        "half_width": run.mixes_per_s.half_width if valid else None,
        "energy_per_unit_j": 1000 / run.mixes_per_kj.estimate if valid and run.mixes_per_kj else None,
        "energy_j": energy.joules,
        "power_w": energy.watts,
        "idle_before_w": idle[0],
        "idle_after_w": idle[1],
        "energy_boundary": energy.boundary,
        "energy_edge_uncertainty": energy.edge_uncertainty,
    }
    return [known.get(column) for column in COLUMNS]


def _energy(energy: Energy | None) -> tuple[object, ...]:
    if energy is None:
        return (None,) * 7
    before, after = (*energy.idle_watts, None, None)[:2]
    joules = (energy.joules_per_unit, energy.joules, energy.watts, before, after)
    return (*joules, energy.boundary, energy.edge_uncertainty)


def safe(text: str) -> str:
    """The text of a cell that no spreadsheet takes for a formula: they run what starts with =, +, - or @."""
    text = plain(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
