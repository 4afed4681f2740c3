"""No redesign moves a figure that the planner takes from a result.

python -m tests.capabilities.plan.test_figures    writes figures.json; only a change of a formula needs that
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mixmark.harness.capabilities.plan import catalogue
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from mixmark.harness.record import store
from tests.fakes.machine import EDGE, one_run
from tests.golden.figures import as_json, below, written
from tests.golden.test_figures import assert_same

pytestmark = pytest.mark.slow  # it judges a published entry

FILE = Path(__file__).with_name("figures.json")
ENTRIES = Path(__file__).parents[3] / "submissions" / "entries"


def of_machine(judged: Assessment) -> dict[str, Any]:
    """The speeds that the planner takes from a result."""
    assert judged.result.mix is not None
    machine = catalogue.measured_machine("this", judged, judged.result.mix, 16)
    return {
        kind.unmarked: [
            [each.suite, each.units_per_s.estimate, each.units_per_s.half_width, each.extra_watts, each.memory_bytes]
            for each in kind.speeds
        ]
        + [kind.idle_watts, kind.owned, kind.threads, dict(kind.pool_bytes)]
        for kind in machine.kinds
    }


def figures() -> dict[str, Any]:
    """The figures of a made-up machine and of the published ones, by their paths."""
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        found = dict(below(of_machine(judge(one_run(600.0))), "machine"))
    for folder in sorted(ENTRIES.glob("*/*/*/results/*")):
        found |= below(of_machine(judge(store.open(folder))), f"{folder.parents[2].name} / machine")
    return as_json(found)


def test_the_figures_are_the_same() -> None:
    known: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    if not ENTRIES.exists():
        known = {name: values for name, values in known.items() if name.startswith("machine")}
    assert_same(figures(), known)


if __name__ == "__main__":
    FILE.write_text(written(figures()), encoding="utf-8")
