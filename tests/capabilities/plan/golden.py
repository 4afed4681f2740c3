"""The figures that the planner takes from a result."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from mixmark.harness.capabilities.plan import catalogue
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from tests.fakes.machine import EDGE, one_run
from tests.golden.figures import as_json, below, published


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
    for name, judged in published().items():
        found |= below(of_machine(judged), f"{name} / machine")
    return as_json(found)


FIGURES = {"figures.json": figures}
