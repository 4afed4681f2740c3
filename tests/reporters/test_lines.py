"""The lines of a result, as a table, as JSON lines and in a database."""

from __future__ import annotations

import csv
import json
import sqlite3
from io import StringIO
from typing import Any

import pytest

from mixmark.harness.judge.judgement import judge
from mixmark.harness.plugins import registry
from mixmark.reporters import csv as csv_reporter
from mixmark.reporters import jsonl, sql
from mixmark.reporters.lines import columns, lines
from tests.fakes.machine import WATTS_AT_THE_WALL
from tests.golden.sample import sample
from tests.judge.compare.test_machines import one_run
from tests.reporters.hostile import HOSTILE, LONG, hostile

INJECTED = "'); DROP TABLE mixmark; --\n.shell echo owned\n\x00"


def database(*texts: str) -> list[dict[str, Any]]:
    """The rows of a new database after the statements have run."""
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        for text in texts:
            connection.executescript(text)
        found = [dict(row) for row in connection.execute("SELECT * FROM mixmark")]
    connection.close()
    return found


def test_all_three_forms_have_the_same_lines() -> None:
    judgement = judge(sample())
    expected = lines(judgement)
    assert [list(line) for line in expected] == [list(columns())] * len(expected)
    found = registry.find("reporters")
    assert [found[name].load() for name in ("csv", "jsonl", "sql")] == [csv_reporter.report, jsonl.report, sql.report]
    assert [json.loads(line) for line in jsonl.report(judgement).splitlines()] == expected
    assert database(sql.report(judgement)) == expected
    written = list(csv.DictReader(StringIO(csv_reporter.report(judgement))))
    assert [{name: "" if value is None else str(value) for name, value in line.items()} for line in expected] == written


def test_a_line_can_be_read_by_itself() -> None:
    [llm, *_] = [line for line in lines(judge(sample())) if line["suite"] == "llm" and line["precision"] == "bf16"]
    assert llm["cpu_model"] == "Acme Quartz 9000" and llm["devices"] == llm["device_name"] == "Acme Topaz"
    assert (llm["mixmark"], llm["suite_version"], llm["weight_class"], llm["verdict"]) == ("0.1.0", "1", 16, "invalid")
    assert json.loads(str(llm["software"]))["torch"] == "2.9.0" and llm["adapter_options"] == "{}"
    failed = [line for line in lines(judge(sample())) if line["status"] == "failed"]
    assert [str(line["reason"])[:14] for line in failed] == ["out of memory:"] and failed[0]["throughput_per_s"] is None


def test_a_run_of_the_mix_is_a_line_with_the_score_in_it() -> None:
    judgement = judge(one_run(WATTS_AT_THE_WALL))
    score = judgement.score
    assert score is not None and score.mixes_per_kwh is not None
    [mixed] = [line for line in lines(judgement) if line["scenario"] == "mixed"]
    assert (mixed["suite"], mixed["unit"], mixed["status"], mixed["energy_boundary"]) == (
        *("edge-9", "mix", "indicative", "wall"),
    )
    assert mixed["throughput_per_s"] == score.runs[0].mixes_per_hour.estimate / 3600
    assert mixed["energy_per_unit_j"] == pytest.approx(3_600_000 / score.mixes_per_kwh.estimate)
    assert mixed["power_w"] == pytest.approx(WATTS_AT_THE_WALL, rel=1e-3)


def test_a_run_without_a_score_has_no_rate_and_says_why() -> None:
    whole = one_run(WATTS_AT_THE_WALL)
    cut = whole.model_copy(update={"records": tuple(each for each in whole.records if each.route.suite != "resnet50")})
    [mixed] = [line for line in lines(judge(cut)) if line["scenario"] == "mixed"]
    assert (mixed["status"], mixed["throughput_per_s"], mixed["energy_per_unit_j"]) == ("no score", None, None)
    assert "resnet50: no feed finished" in str(mixed["reason"])


def test_results_are_put_together_in_one_database_and_none_twice() -> None:
    first, second = sample(), sample().model_copy(update={"created_utc": "2026-02-02T03:04:05+00:00"})
    of_first, of_second = sql.report(judge(first)), sql.report(judge(second))
    rows = database(of_first, of_second, of_first)
    assert len(rows) == 2 * len(lines(judge(first)))
    assert len({row["result_id"] for row in rows}) == 2
    jsonl_rows = [json.loads(line) for line in (jsonl.report(judge(first)) + jsonl.report(judge(second))).splitlines()]
    assert len(jsonl_rows) == len(rows)


@pytest.mark.parametrize("text", [HOSTILE, LONG, INJECTED, "O'Brien''s"], ids=["hostile", "long", "injected", "quotes"])
def test_hostile_text_is_a_value_of_its_column(text: str) -> None:
    judgement = judge(hostile(text))
    rows = database(sql.report(judgement))
    assert len(rows) == len(lines(judgement)) == 2
    assert rows[0]["suite"].replace("''", "'").startswith(text[:5].replace("''", "'"))
    assert all(letter.isprintable() for letter in sql.report(judgement).replace("\n", ""))
    statements = sql.report(judgement).splitlines()
    assert not any(line.startswith(".") for line in statements), "which the sqlite3 shell would obey"
    assert [json.loads(line)["suite"] for line in jsonl.report(judgement).splitlines()] == [text, "llm"]
    assert all(letter.isprintable() for letter in jsonl.report(judgement).replace("\n", ""))


def test_a_result_without_records_is_an_empty_table() -> None:
    empty = sample().model_copy(update={"records": (), "meterings": ()})
    assert database(sql.report(judge(empty))) == [] and jsonl.report(judge(empty)) == ""
    assert csv_reporter.report(judge(empty)).splitlines() == [",".join(columns())]
