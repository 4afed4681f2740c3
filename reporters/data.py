"""An assessment as data: the reporters json, csv and jsonl. docs/json.md lists the keys and the columns.

json writes the result as it is stored and every figure that follows from it; the keys are what the classes of the
assessment publish. csv and jsonl write independent lines, for tables and databases that hold many results. A line is a
view: it selects figures and names columns. The names hold the units.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from io import StringIO
from typing import Any

from pydantic import BaseModel

from mixmark.harness.contracts.figures import published
from mixmark.harness.contracts.schema import Environment
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import Assessment, Provenance
from mixmark.harness.judge.findings import in_full, words
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.score import Score

Value = str | int | float | None
SPANS = ("latency", "first_unit", "time_per_unit")
SOLO: Mapping[str, str] = {
    "key": "key",
    "suite": "route.suite",
    "suite_version": "route.suite_version",
    "suite_options": "route.suite_options",
    "device": "route.device",
    "device_name": "device_name",
    "adapter": "route.adapter",
    "adapter_options": "route.options",
    "precision": "route.precision",
    "weight_class": "route.weight_class",
    "weights": "route.weights",
    "scenario": "scenario",
    "batch": "batch",
    "rate_per_s": "rate_per_s",
    "run": "run",
    "status": "status",
    "reason": "failure.message",
    "feeds": "feeds",
    "unit": "unit",
    "units": "units",
    "units_per_s": "units_per_s.estimate",
    "units_per_s_low": "units_per_s.low",
    "units_per_s_high": "units_per_s.high",
    **{f"{span}_{name}_ns": f"{span}.{name}_ns" for span in SPANS for name in ("mean", "p50", "p90", "p99", "p999")},
    "gap_p99": "gap_p99",
    "gap_most": "gap_most",
    "roofline_fraction": "roofline_fraction",
    "joules_per_unit": "energy.joules_per_unit",
    "load_ns": "load_ns",
    "peak_pss_bytes": "peak_pss_bytes",
}
"""The columns of a solo measurement, each with its path in `Solo`."""
MIXED: Mapping[str, str] = {
    "key": "phase",
    "mixes": "mixes",
    **{
        f"{figure}{end}": f"{figure}.{field}"
        for figure in ("mixes_per_hour", "mixes_per_kwh")
        for end, field in (("", "estimate"), ("_low", "low"), ("_high", "high"))
    },
}
"""The columns of a run of the mix, each with its path in `ScoredRun`."""
ENERGY: Mapping[str, str] = {
    "joules": "joules",
    "watts": "watts",
    "boundary": "boundary",
    "edge_uncertainty": "edge_uncertainty",
}
"""The columns of the energy in the window, of both."""


def as_json(assessment: Assessment) -> str:
    """One JSON object. Keys are sorted; unknown is null."""
    return written(assessment)


def written(value: object) -> str:
    """The JSON text of dataclasses and models: keys sorted, safe on a terminal."""
    data = json_data(value)
    return json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n"


def json_data(value: object) -> Any:
    """Dataclasses and models as objects, arrays and plain values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: json_data(getattr(value, name)) for name in published(type(value))}
    if isinstance(value, Mapping):
        return {key: json_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [json_data(item) for item in value]
    return value


def as_csv(assessment: Assessment) -> str:
    """The lines as a CSV table. Unknown is empty."""
    text = StringIO()
    writer = csv.DictWriter(text, columns(), lineterminator="\n")
    writer.writeheader()
    for line in lines(assessment):
        writer.writerow({name: _safe(value) if isinstance(value, str) else value for name, value in line.items()})
    return text.getvalue()


def as_json_lines(assessment: Assessment) -> str:
    """One JSON object a line, so that several results can be appended to one file. Unknown is null."""
    return "".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines(assessment))


def _safe(text: str) -> str:
    """The text with a leading apostrophe if a spreadsheet would run it as a formula: after =, +, - or @."""
    text = plain(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def columns() -> list[str]:
    """The names of all columns, in their order: where the figures come from, then the figures."""
    origin = [field.name for field in fields(Provenance)]
    return list(dict.fromkeys((*origin, *SOLO, "software", *MIXED, *ENERGY)))


def lines(assessment: Assessment) -> list[dict[str, Value]]:
    """One line for each record but the probes', then one for each run of the mix: column -> value."""
    origin = asdict(assessment.provenance)
    nothing = {**dict.fromkeys(columns()), **origin}
    found = []
    for run in assessment.runs:
        software = _software(assessment.result.environment_of(run.route))
        found.append({**nothing, **picked(run, SOLO), "software": software, **picked(run.energy, ENERGY)})
    if score := assessment.score:
        for number, mixed in enumerate(score.runs, start=1):
            found.append({**nothing, **_mixed(score, number, mixed), **picked(mixed.total, ENERGY)})
    return found


def _mixed(score: Score, number: int, run: ScoredRun) -> dict[str, Value]:
    """A run without a score has no rate, although it finished units."""
    left_out = run.phase in score.left_out
    why = words(run.disturbed) if run.disturbed and left_out else None
    return {
        **picked(run, MIXED if not run.problems else {"key": "phase"}),
        "suite": score.mix.name,
        "weight_class": score.weight_class,
        "scenario": "mixed",
        "run": number,
        "status": "no score" if run.problems else "left out" if left_out else score.grade,
        "reason": "; ".join(map(in_full, run.problems)) or why,
    }


def picked(of: object, paths: Mapping[str, str]) -> dict[str, Value]:
    """The values at these paths. None where a part of the path is None."""
    return {column: _at(of, path) for column, path in paths.items()}


def _at(of: Any, path: str) -> Value:
    for name in path.split("."):
        of = getattr(of, name, None)
    if isinstance(of, Mapping):
        return json.dumps(of, sort_keys=True, ensure_ascii=False)
    assert not is_dataclass(of), path
    value: Value = of
    return value


def _software(environment: Environment | None) -> str | None:
    """The packages that the adapter's worker ran with, with versions, as a JSON object."""
    if environment is None:
        return None
    versions = {"Python": environment.python, **environment.packages, **environment.vendor}
    return json.dumps(versions, sort_keys=True, ensure_ascii=False)
