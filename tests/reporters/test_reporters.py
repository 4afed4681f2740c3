from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from harness.schema import Failure
from reporters import console, figures, markdown
from reporters import csv as csv_reporter
from tests.golden.sample import FOLDER, REPORTERS, closed_loop, record, result, sample


@pytest.mark.parametrize("name", REPORTERS)
def test_every_reporter_writes_its_golden_file(name: str) -> None:
    assert REPORTERS[name](sample()) == (FOLDER / name).read_text(encoding="utf-8"), "python -m tests.golden rewrites"


def test_the_console_report_fits_a_terminal() -> None:
    assert max(map(len, console.report(sample()).splitlines())) <= console.WIDTH


def test_a_run_without_any_record_can_be_reported() -> None:
    for report in REPORTERS.values():
        assert report(result(finished=False))


HOSTILE = Failure(kind="crashed", message="\x1b]0;owned\x07\x1b[31m|<script>\n=cmd()")


def test_a_message_with_escape_sequences_stays_text() -> None:
    whole = result(record("a", "llm", "token", error=HOSTILE))
    for report in REPORTERS.values():
        assert "\x1b" not in report(whole)
        assert "\x07" not in report(whole)
    assert "<script" not in markdown.report(whole)
    assert "\n=cmd" not in markdown.report(whole)


def test_a_spreadsheet_finds_no_formula() -> None:
    whole = result(record("a", "=cmd()", "@token", closed_loop([[5]])))
    row = next(csv.DictReader(csv_reporter.report(whole).splitlines()))
    assert (row["suite"], row["unit"]) == ("'=cmd()", "'@token")


def test_unknown_is_empty_in_csv_and_null_in_json() -> None:
    rows = {row["key"]: row for row in csv.DictReader(REPORTERS["report.csv"](sample()).splitlines())}
    failed = rows["005.diffusion.onnxruntime.cpu-0.fp32"]
    assert (failed["status"], failed["throughput_per_s"], failed["service_mean_ns"]) == ("failed", "", "")
    assert all(row["energy_per_unit_j"] == "" for row in rows.values())
    derived = json.loads(REPORTERS["report.json"](sample()))["derived"]
    assert derived["005.diffusion.onnxruntime.cpu-0.fp32"]["throughput_per_s"] is None
    assert derived["001.llm.torch.cpu-0.fp32"]["service"]["p99_ns"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (5349.9, "5,350"),
        (12345, "12,300"),
        (4.1, "4.10"),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figures.significant(value) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "–"), (0, "0 ns"), (999, "999 ns"), (999_600, "1.00 ms"), (31_200_000_000, "31.2 s"), (1_234, "1.23 µs")],
)
def test_durations_have_si_units(ns: int | None, text: str) -> None:
    assert figures.duration(ns) == text


def test_devices_keep_short_names_apart() -> None:
    one, other = "gpu:GPU-5d1cae40-1", "gpu:GPU-5d1cbe40-2"
    whole = result(*(record(str(i), "llm", "token", closed_loop([[5]]), device=d) for i, d in enumerate((one, other))))
    names = figures.device_names(whole)
    assert names["cpu:0"] == "cpu:0"
    assert (names[one], names[other]) == ("gpu:5d1cae", "gpu:5d1cbe") or names[one] != names[other]


@pytest.mark.parametrize(("n", "tail"), [(63, None), (100, ("p90", 90)), (1000, ("p99", 990)), (7000, ("p99.9", 6993))])
def test_the_tail_is_the_highest_percentile_that_the_sample_carries(n: int, tail: tuple[str, int] | None) -> None:
    assert figures.latency(np.arange(1, n + 1)).tail == tail
