"""What the reporters say of a mixed run."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest

import mixmark.reporters.data
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import judge
from mixmark.reporters import figures, report
from mixmark.reporters.summary import limits
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import closed_loop, record
from tests.golden.sample import result as bare
from tests.judge.found import not_none
from tests.judge.test_score import loaded


@pytest.fixture(scope="module")
def measured() -> Result:
    return one_run(WATTS_AT_THE_WALL, runs=3)


def test_without_readings_no_efficiency_is_shown_though_the_plan_knew_watts() -> None:
    unmetered = one_run(WATTS_AT_THE_WALL).model_copy(update={"meterings": ()})
    assert "kWh" not in report.full(judge(unmetered))


def test_a_run_that_is_left_out_is_shown_as_such() -> None:
    found = judge(loaded(one_run(WATTS_AT_THE_WALL, runs=3), "mixed.2"))
    text = report.full(found)
    assert "mixed.2, left out" in text and "mixed.1, left out" not in text
    rows = {row["key"]: row for row in csv.DictReader(StringIO(mixmark.reporters.data.as_csv(found)))}
    assert (rows["mixed.2"]["status"], rows["mixed.1"]["status"]) == ("left out", "indicative")
    assert "10 %" in rows["mixed.2"]["reason"]


def beside() -> Result:
    return bare(
        record("a", "llm", "token", closed_loop([[1000]] * 8)),
        record("b", "llm", "token", closed_loop([[100]] * 8), device="gpu:a"),
        record("c", "dlrm", "sample", closed_loop([[100]] * 8)),
        record("d", "dlrm", "sample", closed_loop([[400]] * 8), device="gpu:a"),
        record("e", "diffusion", "image", closed_loop([[400]] * 8), device="gpu:a"),
    ).model_copy(update={"devices": (bare().devices[0], bare().devices[1].model_copy(update={"id": "gpu:a"}))})


def test_the_matrix_compares_every_device_with_the_first() -> None:
    compared = not_none(judge(beside()).matrix)
    assert compared.baseline == "cpu:0"
    assert {suite: [figures.ratio(each) for each in relatives] for suite, relatives in compared.rows} == {
        "llm": ["1.00×", "10.0×"],
        "dlrm": ["1.00×", "0.250×"],
        "diffusion": ["–", "–"],
    }
    assert re.search(r"0.250×\s*<small>2,500,000 samples/s", report.html(judge(beside())))


def test_one_device_has_nothing_to_be_compared_with() -> None:
    assert judge(bare(record("a", "llm", "token", closed_loop([[1000]] * 8)))).matrix is None


def test_a_manager_reads_what_took_the_time_and_what_was_reached(measured: Result) -> None:
    words = limits(judge(measured))
    begin, end = words.split(" (54 %); ")
    assert begin == "The largest part of its time goes into llm"
    assert end == "with all suites at once it reaches 100 % of what the speeds of the suites alone allow."
    assert words in report.html(judge(measured))
    unscored = measured.model_copy(update={"records": (), "phases": (), "finished": False})
    assert limits(judge(unscored)) == ""
