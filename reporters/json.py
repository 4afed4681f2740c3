"""The result as it is stored, and beside it every number that follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from harness.judge.diagnosis import Diagnosis
from harness.judge.figures import Row
from harness.judge.judgement import Judgement
from harness.text import escaped


def report(judgement: Judgement) -> str:
    """Keys sorted; a reader may rely on `result`, `derived`, `ceilings`, `score`, `matrix`, `trust`, `against` and
    `findings`; unknown is null."""
    result, compared = judgement.result, judgement.matrix
    content = {
        "result": result.model_dump(mode="json"),
        "derived": {row.record.key: _derived(row) for row in judgement.rows},
        "ceilings": [
            {"device": device, "adapter": adapter, "precision": precision, **asdict(ceiling)}
            for (device, adapter, precision), ceiling in judgement.ceilings.items()
        ],
        "score": _score(judgement),
        "matrix": None if compared is None else asdict(compared),
        "trust": {"verdict": judgement.trust.verdict, "reasons": [asdict(each) for each in judgement.trust.reasons]},
        "against": [each.model_dump(mode="json") for each in judgement.against],
        "findings": [finding.model_dump(mode="json") for finding in judgement.findings],
    }
    return escaped(json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)) + "\n"


def _derived(row: Row) -> dict[str, Any]:
    return {
        "status": row.status,
        "feeds": row.feeds,
        "units": row.units,
        "throughput_per_s": row.throughput_per_s,
        "half_width": row.half_width,
        "latency": asdict(row.latency),
        "first_mark": asdict(row.first_mark),
        "time_per_unit": asdict(row.time_per_unit),
        "roofline_fraction": row.roofline,
        "energy": None if row.energy is None else asdict(row.energy),
    }


ENERGY = (
    "boundary", "joules", "watts", "domains", "unmetered", "reasons", "edge_uncertainty", "idle_watts",
)  # fmt: skip


def _score(judgement: Judgement) -> dict[str, Any] | None:
    """The score without the single readings of the meters and without the plans, which are in the phases."""
    found = judgement.score
    if found is None:
        return None
    runs = []
    for run in found.runs:
        runs.append(
            {
                "phase": run.phase,
                "window_ns": [run.begin_ns, run.end_ns],
                "steady": run.steady,
                "mixes": run.mixes,
                "mixes_per_s": asdict(run.mixes_per_s),
                "mixes_per_kj": run.mixes_per_kj and asdict(run.mixes_per_kj),
                "streams": [asdict(stream) for stream in run.streams],
                "energy": {name: getattr(run.total, name) for name in ENERGY},
                "problems": [asdict(each) for each in run.problems],
                "diagnosis": _diagnosis(judgement.diagnoses[run.phase]),
            }
        )
    return {
        "headline": found.headline,
        "mix": found.mix.name,
        "mixes_per_s": found.mixes_per_s and asdict(found.mixes_per_s),
        "mixes_per_kj": found.mixes_per_kj and asdict(found.mixes_per_kj),
        "boundary": found.boundary,
        "grade": found.grade,
        "missing": found.missing,
        "unranked": found.unranked,
        "weight_class": found.weight_class,
        "problems": [asdict(each) for each in found.problems],
        "unmeasured": found.unmeasured,
        "runs": runs,
    }


def _diagnosis(seen: Diagnosis) -> dict[str, Any]:
    return {
        "bound_per_s": seen.bound_per_s,
        "bound_is_estimate": seen.estimate,
        "unproven": seen.unproven,
        "kappa": asdict(seen.kappa),
        "busy": seen.busy,
        "surplus": seen.surplus,
        "parts": [asdict(part) | {"retained": part.retained} for part in seen.parts],
        "best_kind": seen.best_kind,
        "heterogeneity_gain": seen.gain,
        "other_plan": seen.other and seen.other.model_dump(mode="json"),
    }
