"""docs/json.md and the published JSON Schema agree with the code, and say what a field holds."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import judge
from mixmark.reporters import data
from tests.docs import json_page
from tests.docs.test_docs import table
from tests.fakes.machine import one_run
from tests.golden.sample import sample, unmetered
from tests.record.test_store import written

PUBLISHED = json_page.DOCS.parent / "submissions" / "entries"
PAGE = json_page.PAGE.read_text("utf-8")
SHAPES = json_page.KEPT


def contradictions(value: Any, shape: str) -> list[str]:
    """Where a value of the JSON is not as the schema says."""
    validator = Draft202012Validator({"$ref": f"#/$defs/{shape}", "$defs": SHAPES})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def interrupted() -> Result:
    return sample().model_copy(update={"finished": False})


@pytest.mark.parametrize("result", [sample(), unmetered(), interrupted(), one_run(300.0, runs=3), one_run(None)])
def test_a_report_has_exactly_the_fields_types_and_words_of_the_schema(result: Result) -> None:
    assessment = judge(result)
    assert contradictions(json.loads(data.as_json(assessment)), "Assessment") == []


def test_a_report_that_departs_from_the_schema_is_found() -> None:
    told = json.loads(data.as_json(judge(sample())))
    told["runs"][0] |= {"status": "scouted", "feeds": 1.5, "pace": 1}
    assert len(contradictions(told, "Assessment")) == 3


def test_the_arrays_of_raw_files_are_those_of_the_page(tmp_path: Path) -> None:
    whole = sample()
    written(tmp_path / "run", whole)
    ends = ("outputs.npz", "energy.npz", "npz")
    arrays: dict[str, dict[str, set[tuple[str, int]]]] = {end: defaultdict(set) for end in ends}
    for path in [*(tmp_path / "run/raw").iterdir(), *PUBLISHED.glob("*/*/*/results/1/raw/*.npz")]:
        with np.load(path) as file:
            for name in (each for each in file.files if not re.search(r"_[1-9]$", each)):
                kind = "text" if file[name].dtype.kind == "U" else str(file[name].dtype)
                arrays[next(end for end in ends if path.name.endswith(end))][name].add((kind, file[name].ndim))
    told = [[cell.strip("`") for cell in row] for row in table(PAGE, "file", "array")]
    for end, found in arrays.items():
        assert set(found) == {array for file, array, *_ in told if file.partition(".")[2] == end}, end
    for file, array, kinds, axes, _ in told:
        most = len(axes.split(",")) if axes else 0
        seen = arrays[file.partition(".")[2]][array]
        assert {kind for kind, _ in seen} <= set(kinds.split(", ")), (file, array)
        assert all(ndim == most or ("…" in axes and ndim >= most - 1) for _, ndim in seen), (file, array)


@pytest.mark.parametrize("path", re.findall(r"`([a-z_][a-z_.\[\]]+)`", PAGE.split("## A report")[1].split("## ")[0]))
def test_a_field_that_the_page_names_is_in_the_schema(path: str) -> None:
    """An optional object on the way is the object that it holds; `[]` is each element of a list or a map."""
    shape: Mapping[str, Any] = SHAPES["Assessment"]
    *above, last = path.split(".")
    for name in (*above, last):
        (held,) = set(re.findall(r"#/\$defs/(\w+)", json.dumps(shape))) if "properties" not in shape else (None,)
        shape = (SHAPES[held] if held else shape)["properties"][name.removesuffix("[]")]
        holds_many = shape.get("type") == "array" or isinstance(shape.get("additionalProperties"), dict)
        assert name is last or name.endswith("[]") == holds_many, name
