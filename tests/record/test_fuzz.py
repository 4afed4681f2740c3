"""Result folders that were altered at random: none shows a better figure by accident, and none raises a traceback."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.coverage import CLASSES
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.record import store
from tests.fakes.folders import Maker, rehash, write
from tests.fakes.mutations import alter_array, alter_bytes, alter_files, alter_json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # numpy and zipfile warn of the changes
GRADES = ("indicative", "ranked", "official")
EXACT = 1e-9  # sums of the same numbers in another order


@cache
def original() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mixmark-fuzz-")) / "original"
    write(folder, Maker().result())
    return folder


@contextmanager
def mutant() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mixmark-fuzz-") as scratch:
        yield Path(shutil.copytree(original(), Path(scratch) / "mutant"))


def shown(assessment: Assessment) -> dict[str, float]:
    """The numbers that a reader sees of a result; larger ones are better."""
    seen: dict[str, float] = {"exit code": -assessment.exit_code, "finished": assessment.result.finished}
    score = assessment.score
    if score is not None and not score.problems:
        for name, figure in (("TX", score.mixes_per_hour), ("MX", score.mixes_per_kwh)):
            if figure is not None:
                seen[name] = figure.estimate
                seen[f"{name}, known to"] = -1.0 if figure.half_width is None else -figure.half_width
        seen["grade"] = GRADES.index(score.grade)
        seen["ranked"] = -len(score.unranked)
        seen["bits"] = score.weight_class
        seen["boundary"] = -CLASSES.index(score.boundary) if score.boundary in CLASSES else -len(CLASSES)
    for row in assessment.runs:
        if row.units_per_s and row.status not in ("invalid", "not audited yet"):
            seen[f"{row.key}: units per second"] = row.speed
            if row.energy is not None:
                seen[f"{row.key}: units per joule"] = 1 / row.energy.joules_per_unit
    return seen


def opened(folder: Path) -> Assessment | None:
    """What a reader sees of a folder; None where it is refused with an error that can be printed."""
    try:
        return judge_stored(store.open(folder))
    except ResultError as error:
        f"{error}; {error.hint}".encode()
        return None


def raw_file(data: st.DataObject, folder: Path) -> Path:
    return data.draw(st.sampled_from(sorted((folder / "raw").iterdir())))


@given(st.data())
def test_an_accident_makes_no_figure_better(data: st.DataObject) -> None:
    """One file is changed and nothing else agrees with it."""
    before = opened(original())
    assert before is not None
    with mutant() as folder:
        how = data.draw(st.sampled_from(("json", "bytes", "array", "files")))
        if how == "json":
            alter_json(data, folder / "result.json")
        elif how == "bytes":
            alter_bytes(data, data.draw(st.sampled_from(sorted(p for p in folder.rglob("*") if p.is_file()))))
        elif how == "array":
            alter_array(data, raw_file(data, folder))
        else:
            alter_files(data, folder)
        after = opened(folder)
    was, now = shown(before), shown(after) if after else {}
    assert {name: value for name, value in now.items() if value > was.get(name, -1e99) + EXACT * abs(value)} == {}


@given(st.data())
def test_a_forgery_with_right_hashes_raises_no_traceback(data: st.DataObject) -> None:
    with mutant() as folder:
        how = data.draw(st.sampled_from(("json", "json", "bytes", "array")))
        content = json.loads((folder / "result.json").read_text())
        if how == "json":
            alter_json(data, folder / "result.json")
            content = json.loads((folder / "result.json").read_text())
        elif how == "bytes":
            alter_bytes(data, raw_file(data, folder))
        else:
            alter_array(data, raw_file(data, folder))
        rehash(folder, content)
        opened(folder)
