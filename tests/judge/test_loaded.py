"""The judge is pure at run time, too: it loads no room that measures, writes or shows."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import Result
from mixmark.harness.plugins.manifest import BUILT_IN, NEEDS
from mixmark.harness.record import store
from tests.golden import reports
from tests.golden.sample import sample

SCRIPT = """
import pickle, sys
result = pickle.load(sys.stdin.buffer)
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules.consistency import SuiteClaims
judge(result, claims=SuiteClaims())
assert all(name in judge(result).experiments for name in sys.argv[1:]), "a figure is missing"
print(*(name for name in sys.modules if name.startswith("mixmark.")))
"""
PURE = r"mixmark\.harness(\.(contracts|judge|plan|plugins)(\..*)?|\.capabilities)?"


def golden() -> Iterator[tuple[str, Result]]:
    """(name, result) of each golden report and each published entry."""
    yield "sample", sample()
    yield from ((file.stem, assessment.result) for file, assessment in reports.reports())
    for folder in sorted(Path("submissions/entries").glob("*/*/*/results/*")):
        yield str(folder), store.open(folder)


def modules(*kinds: str) -> set[str]:
    return {spec.partition(":")[0] for kind in kinds for spec in BUILT_IN[kind].values()}


@pytest.mark.slow
def test_judging_loads_the_pure_rooms_and_the_figures_of_capabilities_alone() -> None:
    with_figures = {name.rpartition(".")[0] for name in modules("figures", "contradictions", "rules", "mixes")}
    with_figures |= {f"mixmark.harness.capabilities.{name}" for needed in NEEDS.values() for name in needed}
    for name, result in golden():
        told = [sys.executable, "-c", SCRIPT, *result.experiments]
        done = subprocess.run(told, input=pickle.dumps(result), capture_output=True, check=True)
        loaded = {each for each in done.stdout.decode().split() if not re.fullmatch(PURE, each)}
        others = {each for each in loaded if not {each, each.rpartition(".")[0]} & with_figures}
        assert others | loaded & modules("stages", "sections") == set(), name
