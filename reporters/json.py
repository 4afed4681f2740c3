"""The result as it is stored, and beside it every number that follows from it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from harness import stats, validate
from harness.schema import Result
from reporters import figures


def report(result: Result) -> str:
    """Keys sorted; a reader may rely on `result`, `derived`, `ceilings` and `findings`; unknown is null."""
    content = {
        "result": result.model_dump(mode="json"),
        "derived": {row.record.key: _derived(row) for row in figures.rows(result)},
        "ceilings": [
            {"device": device, "adapter": adapter, "precision": precision, **asdict(ceiling)}
            for (device, adapter, precision), ceiling in stats.ceilings(result.records).items()
        ],
        "findings": [finding.model_dump(mode="json") for finding in validate.findings(result)],
    }
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def _derived(row: figures.Row) -> dict[str, Any]:
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
