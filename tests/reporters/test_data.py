"""The lines of a result, as a table and as JSON lines."""

from __future__ import annotations

import csv
import json
from io import StringIO

import pytest

from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import judge
from mixmark.reporters.data import as_csv, as_json_lines, columns, lines
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import sample
from tests.reporters.hostile import HOSTILE, LONG, hostile


def test_both_forms_have_the_same_lines() -> None:
    assessment = judge(sample())
    expected = lines(assessment)
    assert [list(line) for line in expected] == [columns()] * len(expected)
    assert [json.loads(line) for line in as_json_lines(assessment).splitlines()] == expected
    written = list(csv.DictReader(StringIO(as_csv(assessment))))
    assert [{name: "" if value is None else str(value) for name, value in line.items()} for line in expected] == written


def test_a_run_of_the_mix_is_a_line_with_the_score_in_it() -> None:
    assessment = judge(one_run(WATTS_AT_THE_WALL))
    score = assessment.score
    assert score is not None and score.mixes_per_kwh is not None
    [mixed] = [line for line in lines(assessment) if line["scenario"] == "mixed"]
    assert (mixed["suite"], mixed["status"], mixed["boundary"]) == ("edge-9", "indicative", "wall")
    assert mixed["mixes_per_hour"] == score.runs[0].mixes_per_hour.estimate
    assert mixed["mixes_per_kwh"] == pytest.approx(score.mixes_per_kwh.estimate)
    assert mixed["watts"] == pytest.approx(WATTS_AT_THE_WALL, rel=1e-3)


def test_a_run_without_a_score_has_no_rate_and_says_why() -> None:
    whole = one_run(WATTS_AT_THE_WALL)
    cut = whole.model_copy(update={"records": tuple(each for each in whole.records if each.route.suite != "resnet50")})
    [mixed] = [line for line in lines(judge(cut)) if line["scenario"] == "mixed"]
    assert (mixed["status"], mixed["mixes_per_hour"], mixed["mixes_per_kwh"]) == ("no score", None, None)
    assert "resnet50: no feed finished" in str(mixed["reason"])


def test_lines_of_many_results_are_told_apart_by_their_result() -> None:
    first, second = sample(), sample().model_copy(update={"created_utc": "2026-02-02T03:04:05+00:00"})
    rows = [json.loads(line) for line in (as_json_lines(judge(first)) + as_json_lines(judge(second))).splitlines()]
    assert len({(row["result_id"], row["key"]) for row in rows}) == 2 * len(lines(judge(first)))


@pytest.mark.parametrize("text", [HOSTILE, LONG], ids=["hostile", "long"])
def test_hostile_text_is_a_value_of_its_column(text: str) -> None:
    assessment = judge(hostile(text))
    assert [json.loads(line)["suite"] for line in as_json_lines(assessment).splitlines()] == [plain(text, 200), "llm"]
    assert all(letter.isprintable() for letter in as_json_lines(assessment).replace("\n", ""))


def test_a_result_without_records_is_an_empty_table() -> None:
    empty = sample().model_copy(update={"records": (), "meterings": ()})
    assert as_json_lines(judge(empty)) == "" and len(as_csv(judge(empty)).splitlines()) == 1
