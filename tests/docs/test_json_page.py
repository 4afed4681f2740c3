"""docs/json.md and the published JSON Schema are those of the code, and say what a field holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from mixmark.harness.contracts.schema import Record
from mixmark.harness.judge.judgement import judge
from mixmark.harness.judge.mixed_run import Figure
from mixmark.reporters import json as json_reporter
from mixmark.reporters.lines import columns
from tests.docs import json_page
from tests.golden.sample import sample

AGAIN = "python -m tests.docs.json_page"


def test_the_reference_is_that_of_the_code() -> None:
    assert json_page.PAGE.read_text("utf-8") == json_page.page(), AGAIN
    assert json_page.SCHEMA.read_text("utf-8") == json_page.schema(), AGAIN


def test_the_reference_has_a_row_for_every_key_of_a_report_and_every_column() -> None:
    page = json_page.page()
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
    walk(told["verdict"])
    keys |= {*told, *told["result"], *told["result"]["records"][0], *told["rows"][0]}
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
    assert json_page.docstrings(Shown) == {
        "": "A thing.",
        "took_ns": "How long it took. None: not known.",
        "figure_per_s": "A list.",
    }
    row = json_page._row("took_ns", int | None, json_page.docstrings(Shown)["took_ns"])
    assert row == "| `took_ns` | integer or null | ns | How long it took. null: not known. |"
    with pytest.raises(AssertionError, match="undocumented has no docstring"):
        json_page._section(Shown)


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
    assert json_page.kind(hint) == kind


def test_what_is_not_written_is_not_in_the_reference() -> None:
    assert "completions" in Record.model_fields and "completions" not in json_page._hints(Record)
