"""Every figure of a result as independent lines, for tables and databases that hold many results.

The reporters csv, jsonl and sql write these lines. docs/json.md lists the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from mixmark.harness.contracts.schema import Environment, Result
from mixmark.harness.judge import hosts
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.grade import Grade
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.mixed_run import HOUR_S, KWH_J, ScoredRun
from mixmark.harness.judge.provenance import Provenance, provenance
from mixmark.harness.judge.rows import Energy, Latency, Row, Status
from mixmark.harness.judge.score import Score

Value = str | int | float | None
NO_LATENCY = Latency()


@dataclass(frozen=True, kw_only=True)
class TableLine(Provenance):
    """One solo measurement of a suite, or one run of the mix. Unknown is None.

    The columns of the route are None for a run of the mix.
    """

    key: str
    """The name of the record, or of the run of the mix. It is unique in the result."""
    suite: str
    """The suite; for a run of the mix, the name of the mix."""
    suite_version: str | None = None
    suite_options: str | None = None
    """As a JSON object."""
    device: str | None = None
    """The id of the device. Null for a run of the mix, as all columns of the route."""
    device_name: str | None = None
    """The model of the device."""
    adapter: str | None = None
    adapter_options: str | None = None
    """As a JSON object."""
    software: str | None = None
    """The packages that the adapter's worker ran with, with versions, as a JSON object."""
    precision: str | None = None
    weight_class: int
    """The bits of a weight, 16, 8 or 4; fp32 counts as 16. For a mix, the fewest of any part."""
    weights: str | None = None
    """`synthetic`, or the checkpoint's name and hash."""
    scenario: str
    batch: int | None = None
    """The samples in a feed."""
    rate_per_s: float | None = None
    """The arrival rate of a server, in feeds per second."""
    run: int
    """The number of the run. Each run has a fresh process."""
    status: Status | Grade | Literal["no score", "left out"]
    """ok, or why the figure does not count. For a run of the mix: its grade, `no score` or `left out`."""
    reason: str | None = None
    """Why there is no figure. For a run of the mix: why it is left out, or what the next better grade lacks."""
    feeds: int | None
    """The feeds that finished."""
    unit: str
    units: float | None
    """The units that were finished: tokens, images, samples or mixes."""
    throughput_per_s: float | None
    """Units per second. For a run of the mix: mixes per second."""
    half_width: float | None
    """Half the width of the throughput's 95 % interval, as a fraction of the throughput: 0.02 is ± 2 %."""
    latency: Latency = NO_LATENCY
    """The time from when a feed was due to its last unit."""
    first_unit: Latency = NO_LATENCY
    """The time from when a feed was due to its first unit: an LLM's time to first token."""
    time_per_unit: Latency = NO_LATENCY
    """The mean time of a feed's further units: an LLM's time per output token."""
    gap_p99: float | None = None
    """The 99th percentile of the time between neighbouring units of a feed, over its median."""
    gap_most: float | None = None
    """The longest such time over the median."""
    roofline_fraction: float | None = None
    """The fraction of the device's measured ceiling that was reached."""
    energy_per_unit_j: float | None
    """Joules per unit, idle included. For a run of the mix: joules per mix."""
    energy_j: float | None
    """The energy of the boundary in the window, in joules."""
    power_w: float | None
    """The mean power of the boundary in the window, in watts."""
    idle_before_w: float | None
    """The power before the work, in watts."""
    idle_after_w: float | None
    """The power after the work, in watts."""
    energy_boundary: str | None
    """What the joules are of: wall, node or devices."""
    energy_edge_uncertainty: float | None
    """How far the window's edges may put the joules off, as a fraction."""
    load_ns: int | None = None
    """The time that loading took."""
    peak_pss_bytes: int | None = None
    """The peak of the memory of the worker's processes, loading included."""


def columns() -> dict[str, type]:
    """The columns of every line with the type of their values, str, int or float; each may be None."""
    found: dict[str, type] = {}
    for name, hint in get_type_hints(TableLine).items():
        if hint is Latency:
            found |= {f"{name}_{field.name}": int for field in fields(Latency)}
        else:
            found[name] = _bare(hint)
    return found


def _bare(hint: type) -> type:
    """The type without its None."""
    args = get_args(hint)
    return next((kind for kind in (str, int, float) if kind is hint or kind in args), str)  # a Literal is of texts


def lines(judgement: Judgement) -> list[dict[str, Value]]:
    """One line for each record but the probes', then one for each run of the mix: column -> value."""
    origin = vars(provenance(judgement))
    found = [_solo(origin, row, judgement.result) for row in judgement.rows]
    if score := judgement.score:
        found += [_mixed(origin, score, number, run) for number, run in enumerate(score.runs, start=1)]
    return [_flat(line) for line in found]


def _flat(line: TableLine) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in vars(line).items():
        if isinstance(value, Latency):
            found |= {f"{name}_{percentile}": ns for percentile, ns in vars(value).items()}
        else:
            found[name] = value
    return found


def _solo(origin: dict[str, Any], row: Row, result: Result) -> TableLine:
    record, route, error = row.record, row.record.route, row.record.error
    return TableLine(
        **origin,
        key=record.key,
        suite=route.suite,
        suite_version=route.suite_version,
        suite_options=_object(route.suite_options),
        device=route.device,
        device_name=next((device.name for device in result.devices if device.id == route.device), None),
        adapter=route.adapter,
        adapter_options=_object(route.options),
        software=_software(hosts.environment(result, route)),
        precision=route.precision,
        weight_class=route.weight_class,
        weights=route.weights,
        scenario=record.scenario,
        batch=record.batch,
        rate_per_s=record.rate_per_s,
        run=record.run,
        status=row.status,
        reason=f"{error.kind}: {error.message}" if error else None,
        feeds=row.feeds,
        unit=record.unit,
        units=row.units,
        throughput_per_s=row.throughput_per_s,
        half_width=row.half_width,
        latency=row.latency,
        first_unit=row.first_unit,
        time_per_unit=row.time_per_unit,
        gap_p99=row.gap_p99,
        gap_most=row.gap_most,
        roofline_fraction=row.roofline_fraction,
        energy_per_unit_j=row.energy.joules_per_unit if row.energy else None,
        **_energy(row.energy),
        load_ns=record.load_ns,
        peak_pss_bytes=record.peak_pss_bytes,
    )


def _mixed(origin: dict[str, Any], score: Score, number: int, run: ScoredRun) -> TableLine:
    """A run without a score has no rate, although it finished units."""
    valid = not run.problems
    left_out = run.disturbed if run.phase in score.left_out else None
    reasons = [problem.text for problem in run.problems] or ([left_out] if left_out else score.missing)
    return TableLine(
        **origin,
        key=run.phase,
        suite=score.mix.name,
        weight_class=score.weight_class,
        scenario="mixed",
        run=number,
        status="no score" if not valid else "left out" if left_out else score.grade,
        reason="; ".join(reasons) or None,
        feeds=sum(stream.feeds for stream in run.suites),
        unit="mix",
        units=run.mixes,
        throughput_per_s=run.mixes_per_hour.estimate / HOUR_S if valid else None,
        half_width=run.mixes_per_hour.half_width if valid else None,
        energy_per_unit_j=KWH_J / run.mixes_per_kwh.estimate if valid and run.mixes_per_kwh else None,
        **_energy(run.total),
    )


def _energy(energy: Energy | MachineEnergy | None) -> dict[str, Any]:
    """The columns of the energy in the window."""
    before, after = (*(energy.idle_watts if energy else ()), None, None)[:2]
    return {
        "energy_j": energy.joules if energy else None,
        "power_w": energy.watts if energy else None,
        "idle_before_w": before,
        "idle_after_w": after,
        "energy_boundary": energy.boundary if energy else None,
        "energy_edge_uncertainty": energy.edge_uncertainty if energy else None,
    }


def _software(environment: Environment | None) -> str | None:
    if environment is None:
        return None
    return _object({"Python": environment.python, **environment.packages, **environment.vendor})


def _object(values: Mapping[str, str]) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False)
