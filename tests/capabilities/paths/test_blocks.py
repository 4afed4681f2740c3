"""The tables of the paths between memories, digit by digit."""

from __future__ import annotations

from mixmark.harness.capabilities.paths import blocks
from mixmark.harness.capabilities.paths.facts import CopyFault, PathRecord
from mixmark.harness.judge.assessment import judge
from mixmark.reporters.document import Table
from tests.capabilities.paths.fakes import PATH
from tests.capabilities.paths.test_figures import KIB, MIB, figures_of, line, result, samples

ENDS = ("host", "gpu:0", "fake/copy", "pinned")


def test_a_wrong_path_has_its_reason_and_no_figure() -> None:
    fault = CopyFault(kind="corrupted", size_bytes=4 * KIB, first_byte=4000)
    wrong = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)), fault=fault)))
    assert blocks.table(figures_of(wrong)).rows == [(*ENDS, "its copies were wrong", "–")]
    shown = blocks.in_full(wrong.result, figures_of(wrong))
    assert not any(block.rows for block in shown if isinstance(block, Table))
