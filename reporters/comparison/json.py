"""Results side by side for machines. docs/json.md has all fields."""

from __future__ import annotations

import json
from dataclasses import asdict

from harness.side_by_side import SideBySide
from harness.text import escaped


def report(found: SideBySide) -> str:
    """Unknown is null; keys sorted."""
    content = {
        "machines": [asdict(one) for one in found.machines],
        "mixes_per_s": [each and asdict(each) for each in found.mixes_per_s],
        "mixes_per_kj": [each and asdict(each) for each in found.mixes_per_kj],
        "rows": [asdict(row) | {"names": row.names.model_dump(mode="json")} for row in found.rows],
        "verdicts": {label: [each.told() for each in compared] for label, compared in found.verdicts.items()},
        "uncompared": [asdict(each) for each in found.uncompared],
        "comparable": found.comparable,
    }
    return escaped(json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)) + "\n"
