"""Results that have what the sample has not: of each the full report, byte for byte, in full-NAME.txt.

A capability has such results in tests/capabilities/NAME/golden.py, and their reports beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Move, PathRecord
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.energy.copies import CopyEnergy
from mixmark.harness.judge.paths import PathCeiling
from mixmark.harness.plan import mixes
from tests.fakes.copies import PATH
from tests.fakes.machine import EDGE, WALL, one_run
from tests.golden import figures
from tests.judge import test_caps, test_paths, test_score


def paths() -> Assessment:
    """A path alone, against another, beside the mix, with a conversion, and with a meter."""
    sizes = (test_paths.KIB * 4, test_paths.KIB * 16, test_paths.MIB, test_paths.MIB * 64)
    copies = sum((test_paths.samples(size, *[test_paths.line(size)] * 6) for size in sizes), ())
    moved = (Move(suite="llm", what="weights", size_bytes=100 << 20),)
    whole = one_run(600.0).model_copy(update={"paths": (PathRecord(path=PATH, samples=copies),), "moves": moved})
    judged = judge(whole.model_copy(update={"domains": (WALL,)}))
    (alone,) = judged.paths
    energy = CopyEnergy(Estimate(2e-9, 1.9e-9, 2.1e-9), 100.0, "wall", ("wall",))
    seen = (
        replace(alone, ceilings=(PathCeiling("llm", "gpu:0", 30.0, 20.0, 1.5),), energy=energy),
        replace(alone, opposing="fake/back", left=Estimate(0.5, 0.4, 0.6), energy_reason="the meters were not read"),
        replace(alone, beside="path", left=Estimate(0.25), mix_left=Estimate(0.9, 0.85, 0.95)),
        replace(alone, beside="path", mix_reason="the mixed runs have no rate"),
        replace(alone, path=PATH.model_copy(update={"converts": "layout"}), bytes_per_s=None, latency_s=None),
    )
    return replace(judged, paths=seen)


def reports() -> Iterator[tuple[Path, Assessment]]:
    """(its golden file, what is reported) of each."""
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        core = {
            "paths": paths(),
            "runs": judge(test_score.loaded(one_run(600.0, runs=4), "mixed.2")),
            "load": judge(figures.policies()),
            "caps": judge(test_caps.capped(one_run(600.0), (0.8, 1.0, 600), (0.6, 0.9, 400))),
        }
        yield from ((figures.FILE.with_name(f"full-{name}.txt"), judged) for name, judged in core.items())
        for module in figures.capabilities().values():
            for name, result in getattr(module, "reported", dict)().items():
                yield Path(str(module.__file__)).with_name(f"full-{name}.txt"), judge(result)
