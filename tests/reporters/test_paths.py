"""The tables of the paths between memories, digit by digit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import CopyFault, PathRecord
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.energy.copies import CopyEnergy
from mixmark.harness.judge.paths import PathCeiling
from mixmark.reporters import paths, report
from mixmark.reporters.document import Chart, Table
from tests.fakes.copies import PATH
from tests.fakes.machine import WALL
from tests.golden import sample
from tests.judge.found import not_none
from tests.judge.test_paths import KIB, MIB, line, result, samples
from tests.reporters.parsed import Page

ENDS = ("host", "gpu:0", "fake/copy (direct)", "pinned")
SIZES = (4 * KIB, 16 * KIB, MIB, 64 * MIB)


@pytest.fixture(scope="module")
def measured() -> Assessment:
    return judge(result(PathRecord(path=PATH, samples=sum((samples(size, *[line(size)] * 6) for size in SIZES), ()))))


def tables(assessment: Assessment) -> dict[str, Sequence[Sequence[str]]]:
    return {block.title: block.rows for block in paths.in_full(assessment) if isinstance(block, Table)}


def test_a_path_has_its_ends_its_latency_and_its_bandwidth(measured: Assessment) -> None:
    found = not_none(paths.table(measured))
    assert found.rows == [(*ENDS, "5.00 µs (5.00 µs to 5.00 µs)", "2.00 GB/s (2.00 GB/s to 2.00 GB/s)")]


def test_each_size_has_its_time_its_rate_and_the_call_alone(measured: Assessment) -> None:
    rows = tables(measured)[""]
    assert [row[:4] for row in rows] == [ENDS] * 4
    assert rows[0][4:] == ("4 KiB", "memory", "7.05 µs (7.05 µs to 7.05 µs)", "581 MB/s", "1.00 µs")
    assert rows[3][4:] == ("64 MiB", "memory", "33.6 ms (33.6 ms to 33.6 ms)", "2.00 GB/s", "1.00 µs")


def test_what_a_suite_moves_has_its_predicted_time(measured: Assessment) -> None:
    (row,) = tables(measured)["What the suites move"]
    assert row == ("llm", "weights", "105 MB", *ENDS, "52.4 ms (52.4 ms to 52.4 ms)")


def test_a_wrong_path_has_its_reason_and_no_figure() -> None:
    fault = CopyFault(kind="short", size_bytes=4 * KIB, first_byte=4000)
    wrong = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)), fault=fault)))
    found = not_none(paths.table(wrong))
    assert found.rows == [(*ENDS, "its copies were wrong", "–")]
    assert not any(tables(wrong).values())


def test_a_run_without_paths_has_no_table() -> None:
    without = judge(sample.result())
    assert paths.table(without) is None
    assert list(paths.in_full(without)) == []
    assert "Paths between memories" not in report.full(without)


def test_the_report_shows_them_in_each_form(measured: Assessment) -> None:
    for form in (report.console, report.full, report.markdown, report.html):
        assert "Paths between memories" in form(measured)


def test_a_path_against_another_and_a_conversion_have_rows_of_their_own() -> None:
    converting = PATH.model_copy(update={"converts": "layout"})
    of_size = samples(64 * MIB, *[line(64 * MIB)] * 6)
    records = (PathRecord(path=PATH, opposing="fake/back", samples=of_size), PathRecord(path=converting))
    found = not_none(paths.table(judge(result(*records))))
    assert [row[2] for row in found.rows] == [
        "fake/copy (direct), against fake/back",
        "fake/copy (converts the layout)",
    ]
    assert found.rows[0][4:] == ("–", "2.00 GB/s (2.00 GB/s to 2.00 GB/s)")


def test_the_page_draws_the_rate_by_the_size_of_a_copy(measured: Assessment) -> None:
    (chart,) = [block for block in paths.in_full(measured) if isinstance(block, Chart)]
    assert chart.title == "host to gpu:0: fake/copy"
    text = " ".join(Page(str(chart.drawn)).words)
    assert "0.581 GB/s at 4 KiB; 1.24 GB/s at 16 KiB; 1.98 GB/s at 1,024 KiB; 2.00 GB/s at 65,536 KiB." in text
    assert "KiB, logarithmic" in text
    dots = [float(value) for tag, name, value in Page(str(chart.drawn)).attributes if (tag, name) == ("circle", "cx")]
    steps = np.diff(dots)
    assert steps[1:] == pytest.approx(steps[0] * np.array((3, 3)), rel=0.01), "16 times as large, 64 and 64 times"


def test_what_a_path_would_limit_has_its_row(measured: Assessment) -> None:
    ceiling = PathCeiling("llm", "gpu:0", 30.0, 20.0, 1.5)
    (figure,) = measured.paths
    rows = tables(replace(measured, paths=(replace(figure, ceilings=(ceiling,)),)))["What the paths would limit"]
    assert rows == [("llm", "gpu:0", "fake/copy", "30.0 tok/s", "20.0 tok/s", "150 %")]


def test_what_sharing_leaves_has_its_row_or_its_reason(measured: Assessment) -> None:
    (figure,) = measured.paths
    against = replace(figure, opposing="fake/back", left=Estimate(0.5, 0.4, 0.6))
    mixed = replace(figure, beside="path", left=Estimate(0.25), mix_left=Estimate(0.9, 0.85, 0.95))
    unknown = replace(figure, beside="path", mix_reason="the mixed runs have no rate")
    rows = tables(replace(measured, paths=(figure, against, mixed, unknown)))["What sharing leaves"]
    assert [row[2:] for row in rows] == [
        ("fake/copy (direct), against fake/back", "pinned", "50 % (40 % to 60 %)", "–"),
        ("fake/copy (direct), beside the mix", "pinned", "25 %", "90 % (85 % to 95 %)"),
        ("fake/copy (direct), beside the mix", "pinned", "–", "the mixed runs have no rate"),
    ]


def test_the_joules_of_copies_have_their_boundary_or_their_reason(measured: Assessment) -> None:
    (figure,) = measured.paths
    energy = CopyEnergy(Estimate(2e-9, 1.9e-9, 2.1e-9), 100.0, "wall", ("wall",))
    metered = measured.result.model_copy(update={"domains": (WALL,)})
    evidence = replace(measured.evidence, result=metered)
    known, lacking = replace(figure, energy=energy), replace(figure, energy_reason="the meters were not read")
    rows = tables(replace(measured, evidence=evidence, paths=(known, lacking)))["Energy of copies"]
    assert [row[4:] for row in rows] == [
        ("wall", "wall", "2.00 J (1.90 J to 2.10 J)"),
        ("–", "–", "the meters were not read"),
    ]
    assert (
        tables(replace(measured, paths=(replace(lacking, energy_reason="no meter was read"),)))["Energy of copies"]
        == []
    )
