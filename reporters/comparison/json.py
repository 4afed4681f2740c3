"""Results side by side as JSON: the keys are the fields and properties of `SideBySide`. docs/json.md lists them."""

from __future__ import annotations

from mixmark.harness.judge.compare.machines import SideBySide
from mixmark.reporters.json import written


def report(found: SideBySide) -> str:
    """Keys are sorted; unknown is null."""
    return written(found)
