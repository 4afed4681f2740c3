"""Results that have what the sample has not: of each the full report, byte for byte, in full-NAME.txt. Those of a
capability lie beside its tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from tests.fakes.machine import EDGE, one_run
from tests.golden import figures
from tests.golden.sample import FOLDER
from tests.judge import test_score


def reports() -> Iterator[tuple[Path, Assessment]]:
    """(golden file, what is reported in it) of each."""
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        for module in figures.rooms():
            for name, found in module.reports() if hasattr(module, "reports") else ():
                assessment = found if isinstance(found, Assessment) else judge(found)
                yield Path(str(module.__file__)).with_name(f"full-{name}.txt"), assessment
        yield FOLDER / "full-runs.txt", judge(test_score.loaded(one_run(600.0, runs=4), "mixed.2"))
