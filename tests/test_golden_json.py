"""docs/json.md and the published JSON Schema are those of the code, and say what a field holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from harness.judge.judgement import judge
from harness.judge.score import Figure
from harness.schema import Record
from reporters import json as json_reporter
from reporters.lines import columns
from tests import golden_json
from tests.golden.sample import sample

AGAIN = "python -m tests.golden_json"


def test_the_reference_is_that_of_the_code() -> None:
    assert golden_json.PAGE.read_text("utf-8") == golden_json.page(), AGAIN
    assert golden_json.SCHEMA.read_text("utf-8") == golden_json.schema(), AGAIN


def test_the_reference_has_a_row_for_every_key_of_a_report_and_every_column() -> None:
    page = golden_json.page()
    keys: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            keys.update(value)
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    told = json.loads(json_reporter.report(judge(sample())))
    walk(told["findings"])
    walk(told["trust"])
    keys |= {*told, *told["result"], *told["result"]["records"][0], *next(iter(told["derived"].values()))}
    keys |= set(columns())
    assert {key for key in keys if f"| `{key}` |" not in page} == set()


@dataclass(frozen=True)
class Shown:
    """A thing."""

    took_ns: int | None
    """How long it took. None: not
    known."""
    undocumented: str
    figure_per_s: tuple[Figure, ...]
    """A list."""


def test_a_docstring_becomes_a_row_with_its_unit() -> None:
    assert golden_json.docstrings(Shown) == {
        "": "A thing.",
        "took_ns": "How long it took. None: not known.",
        "figure_per_s": "A list.",
    }
    row = golden_json._row("took_ns", int | None, golden_json.docstrings(Shown)["took_ns"])
    assert row == "| `took_ns` | integer or null | ns | How long it took. null: not known. |"
    with pytest.raises(AssertionError, match="undocumented has no docstring"):
        golden_json._section(Shown)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (Literal["a", "b"] | None, "`a`, `b` or null"),
        (tuple[int, ...], "array of integer"),
        (tuple[int, str], "array of two: integer; text"),
        (Mapping[str, Figure | None], "object, text to [Figure](#figure) or null"),
        (bool, "true or false"),
    ],
)
def test_types_are_told_as_json_has_them(hint: Any, kind: str) -> None:
    assert golden_json.kind(hint) == kind


def test_what_is_not_written_is_not_in_the_reference() -> None:
    assert "completions" in Record.model_fields and "completions" not in golden_json._hints(Record)
