"""A comparison as JSON: the keys are the fields and properties of `MachineComparison`. docs/json.md lists them."""

from __future__ import annotations

from mixmark.harness.judge.compare.machines import MachineComparison
from mixmark.reporters.json import written


def report(found: MachineComparison) -> str:
    """Keys are sorted; unknown is null."""
    return written(found)
