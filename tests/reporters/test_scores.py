"""What the reporters say of a mixed run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO

import pytest

import mixmark.reporters.csv
import mixmark.reporters.full
import mixmark.reporters.html
import mixmark.reporters.json
import mixmark.reporters.markdown
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.judgement import Judgement, judge
from mixmark.reporters import figures, scores, summary
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import closed_loop, record
from tests.golden.sample import result as bare
from tests.judge.test_score import loaded

Report = Callable[[Judgement], str]
LINES: tuple[Report, ...] = (mixmark.reporters.full.report, mixmark.reporters.markdown.report)
TEXTS: tuple[Report, ...] = (*LINES, mixmark.reporters.html.report)


@pytest.fixture(scope="module")
def measured() -> Result:
    return one_run(WATTS_AT_THE_WALL, runs=3)


@pytest.mark.parametrize("report", LINES)
def test_the_headline_comes_first_with_all_that_belongs_to_it(report: Report, measured: Result) -> None:
    text = report(judge(measured))
    assert " mixes per kWh ± " in text
    assert "mixes per hour ± 2.4 % (edge-9, ranked, 16-bit weights, wall)" in text
    assert text.index("mixes per kWh") < text.index("throughput")


def test_the_page_begins_with_the_score_and_draws_its_power(measured: Result) -> None:
    page = mixmark.reporters.html.report(judge(measured))
    score = scores.score_text(judge(measured))
    assert score is not None
    assert [(name, unit) for name, _, unit in score.numbers] == [("MX", "mixes per kWh"), ("TX", "mixes per hour")]
    for name, value, unit in score.numbers:
        assert f"<dt>{name}</dt><dd>{value} <small>{unit}</small>" in page
    assert score.numbers[1][1].startswith("853") and " ± " in score.numbers[1][1]
    assert "edge-9 · ranked · 16-bit weights · wall" in page
    assert "<span>Power of the wall</span>" in page
    assert "600 W on average" in page
    assert page.index("What each device did over the") < page.index("Each suite alone")
    assert 'class="trouble' not in page


def test_the_page_says_loudly_what_is_no_score(measured: Result) -> None:
    cut = measured.model_copy(
        update={"records": tuple(each for each in measured.records if each.route.suite != "resnet50")}
    )
    score = scores.score_text(judge(cut))
    assert score is not None and not score.numbers and score.trouble.startswith("NO SCORE: ")
    assert f'<p class="trouble bad">{score.trouble}</p>' in mixmark.reporters.html.report(judge(cut))
    assert '<p class="trouble">EFFICIENCY NOT MEASURED: no' in mixmark.reporters.html.report(judge(one_run(None)))


@pytest.mark.parametrize("report", TEXTS)
def test_a_run_that_ended_before_its_mix_says_that_there_is_no_score(report: Report, measured: Result) -> None:
    unreached = measured.model_copy(update={"records": (), "phases": (), "meterings": (), "finished": False})
    assert "NO SCORE: the run ended before its mix, edge-9" in report(judge(unreached))
    assert "SCORE" not in report(judge(unreached.model_copy(update={"mix": None})))


@pytest.mark.parametrize("report", TEXTS)
def test_without_a_meter_the_headline_says_why_there_is_no_efficiency(report: Report) -> None:
    text = report(judge(one_run(None)))
    assert "EFFICIENCY NOT MEASURED: no meter was read" in text
    assert "kWh" not in text
    unmetered = one_run(WATTS_AT_THE_WALL).model_copy(update={"meterings": ()})  # though the plan knew watts
    assert "kWh" not in report(judge(unmetered))


def test_streams_devices_and_plans_explain_the_score(measured: Result) -> None:
    score = scores.score_text(judge(measured))
    assert score
    facts = dict(score.facts)
    assert facts["grade"] == "ranked, not official: 3 of 5 runs"
    assert facts["best possible, λ*"] == "855 mixes per hour, proven by its prices"
    assert facts["surplus"] == "0.1 % of the work, which no mix counts"
    assert facts["plan"] == "for throughput: 855 mix/h, 614 W, 1,390 mix/kWh predicted"
    assert facts["the other plan"] == "for efficiency: 800 mix/h, 527 W, 1,520 mix/kWh predicted"
    assert facts["heterogeneity gain"].endswith("× the best possible of the gpu devices alone")
    streams, devices, _ = score.tables
    assert [row[0] for row in streams.rows] == ["llm", "diffusion", "dlrm", "resnet50"]
    assert [row[:2] for row in devices.rows] == [
        ("gpu:0", "llm"),
        ("", "diffusion"),
        ("", "resnet50"),
        ("cpu:0", "llm"),
        ("", "dlrm"),
    ]
    assert {row[-1] for row in devices.rows} == {"100 %"}


def test_several_runs_are_listed() -> None:
    score = scores.score_text(judge(one_run(WATTS_AT_THE_WALL, runs=2)))
    assert score
    assert [row[0] for row in score.tables[-1].rows] == ["mixed.1", "mixed.2"]


def test_a_run_that_is_left_out_is_shown_as_such() -> None:
    found = judge(loaded(one_run(WATTS_AT_THE_WALL, runs=3), "mixed.2"))
    text = mixmark.reporters.full.report(found)
    assert "mixed.2, left out" in text and "mixed.1, left out" not in text
    assert "the score leaves out mixed.2, which was disturbed: other programs used 10 % of the machine" in text
    rows = {row["key"]: row for row in csv.DictReader(StringIO(mixmark.reporters.csv.report(found)))}
    assert (rows["mixed.2"]["status"], rows["mixed.1"]["status"]) == ("left out", "indicative")
    assert rows["mixed.2"]["reason"] == "other programs used 10 % of the machine"


def test_numbers_for_machines(measured: Result) -> None:
    report = json.loads(mixmark.reporters.json.report(judge(measured)))
    score = report["score"]
    assert score["grade"] == "ranked"
    assert score["runs"][0]["suites"][1]["suite"] == "diffusion"
    assert report["diagnoses"]["mixed.1"]["kappa"]["estimate"] == pytest.approx(1, abs=0.01)
    *_, row = csv.DictReader(StringIO(mixmark.reporters.csv.report(judge(measured))))
    assert (row["scenario"], row["status"], row["boundary"]) == ("mixed", "ranked", "wall")
    assert float(row["mixes_per_kwh"]) == score["runs"][2]["mixes_per_kwh"]["estimate"]
    assert json.loads(mixmark.reporters.json.report(judge(bare())))["score"] is None


def beside() -> Result:
    return bare(
        record("a", "llm", "token", closed_loop([[1000]] * 8)),
        record("b", "llm", "token", closed_loop([[100]] * 8), device="gpu:a"),
        record("c", "dlrm", "sample", closed_loop([[100]] * 8)),
        record("d", "dlrm", "sample", closed_loop([[400]] * 8), device="gpu:a"),
        record("e", "diffusion", "image", closed_loop([[400]] * 8), device="gpu:a"),
    ).model_copy(
        update={
            "devices": (
                bare().devices[0],
                bare().devices[1].model_copy(update={"id": "gpu:a"}),
            )
        }
    )


def test_the_matrix_compares_every_device_with_the_first() -> None:
    compared = judge(beside()).matrix
    assert compared
    assert compared.baseline == "cpu:0"
    assert {suite: [figures.ratio(each) for each in relatives] for suite, relatives in compared.rows} == {
        "llm": ["1.00×", "10.0×"],
        "dlrm": ["1.00×", "0.250×"],
        "diffusion": ["–", "–"],
    }
    page = mixmark.reporters.html.report(judge(beside()))
    assert '<td class="number" style="--tint: 100%">10.0×<small>10,000,000 tok/s</small></td>' in page
    assert '<td class="number behind" style="--tint: 60%">0.250×<small>2,500,000 samples/s</small></td>' in page
    assert "10.0×" in mixmark.reporters.full.report(judge(beside()))
    assert "10.0×" in mixmark.reporters.markdown.report(judge(beside()))


def test_one_device_has_nothing_to_be_compared_with() -> None:
    assert judge(bare(record("a", "llm", "token", closed_loop([[1000]] * 8)))).matrix is None


def test_a_manager_reads_what_took_the_time_and_what_was_reached(measured: Result) -> None:
    words = summary.summary(judge(measured)).limits
    begin, end = words.split(" (54 %); ")
    assert begin == "The largest part of its time goes into llm"
    assert end == "with all suites at once it reaches 100 % of the best possible."
    assert words in mixmark.reporters.html.report(judge(measured))
    unscored = measured.model_copy(update={"records": (), "phases": (), "finished": False})
    assert summary.summary(judge(unscored)).limits == ""
