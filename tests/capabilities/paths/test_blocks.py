"""The tables of the paths between memories, digit by digit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mixmark.harness.capabilities.paths import blocks
from mixmark.harness.capabilities.paths.facts import CopyFault, PathRecord
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.reporters import report
from mixmark.reporters.document import Block, Chart, Table
from tests.capabilities.paths.fakes import PATH
from tests.capabilities.paths.test_figures import KIB, MIB, figures_of, line, on_line, result, samples
from tests.reporters.parsed import Page

ENDS = ("host", "gpu:0", "fake/copy (direct)", "pinned")
SIZES = (4 * KIB, 16 * KIB, MIB, 64 * MIB)


@pytest.fixture(scope="module")
def measured() -> Assessment:
    return judge(result(PathRecord(path=PATH, samples=on_line(*SIZES))))


def section(assessment: Assessment) -> list[Block]:
    return [*blocks.in_full(assessment.result, figures_of(assessment))]


def tables(assessment: Assessment) -> dict[str, Sequence[Sequence[str]]]:
    return {block.title: block.rows for block in section(assessment) if isinstance(block, Table)}


def test_a_wrong_path_has_its_reason_and_no_figure() -> None:
    fault = CopyFault(kind="short", size_bytes=4 * KIB, first_byte=4000)
    wrong = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)), fault=fault)))
    assert blocks.table(figures_of(wrong)).rows == [(*ENDS, "its copies were wrong", "–")]
    assert not any(tables(wrong).values())


def test_a_run_without_paths_has_no_table() -> None:
    assert "Paths between memories" not in report.full(judge(result()))


def test_the_page_draws_the_rate_by_the_size_of_a_copy(measured: Assessment) -> None:
    (chart,) = [block for block in section(measured) if isinstance(block, Chart)]
    assert chart.title == "host to gpu:0: fake/copy"
    text = " ".join(Page(str(chart.drawn)).words)
    assert "0.581 GB/s at 4 KiB; 1.24 GB/s at 16 KiB; 1.98 GB/s at 1,024 KiB; 2.00 GB/s at 65,536 KiB." in text
    assert "KiB, logarithmic" in text
    dots = [float(value) for tag, name, value in Page(str(chart.drawn)).attributes if (tag, name) == ("circle", "cx")]
    steps = np.diff(dots)
    assert steps[1:] == pytest.approx(steps[0] * np.array((3, 3)), rel=0.01), "16 times as large, 64 and 64 times"
