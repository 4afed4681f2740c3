"""An assessment is made once: each conclusion is computed as often as there is something to conclude, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mixmark.harness.contracts.schema import Failure, Result
from mixmark.harness.judge import score
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import registered
from mixmark.harness.judge.statistics import intervals
from mixmark.reporters import report
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import closed_loop, record, result, sample

RUNS = 5


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the expensive conclusions is drawn."""
    counted: Counter[str] = Counter()

    def count(where: Any, name: str, by: str) -> None:
        original: Callable[..., object] = getattr(where, name)

        def wrapped(*args: object, **named: object) -> object:
            counted[by] += 1
            return original(*args, **named)

        monkeypatch.setattr(where, name, wrapped)

    count(score, "score", "score")
    count(registered, "findings", "rules")
    count(intervals, "other_level", "intervals")
    return counted


def test_one_report_of_five_runs_concludes_once(calls: Counter[str]) -> None:
    """Five runs, no solo window is long enough to tell whether it is steady: one look at the window of each run."""
    five = one_run(WATTS_AT_THE_WALL, runs=RUNS)
    calls.clear()  # of what made the result up
    told = report.full(judge(five))
    assert "mixed.5" in told
    assert calls == {"score": 1, "rules": 3, "intervals": RUNS}


def test_a_window_is_looked_at_once(calls: Counter[str]) -> None:
    told = judge(sample())
    windows = [each.window for each in told.measured.values() if each.is_solo]
    assert calls["intervals"] == sum(window is not None and window.steady is not None for window in windows) > 0


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (one_run(WATTS_AT_THE_WALL).model_copy(update={"seed": 7}), 0),
        (result(finished=False), 130),
        (result(), 1),
        (result(record("a", "llm", "token", error=Failure(kind="crashed", message="gone"))), 1),
        (result(record("a", "llm", "token", closed_loop([[10]]))), 0),
        (result(record("a", "p", "kernel", closed_loop([[10]]), scenario="probe")), 1),
    ],
    ids=["a mix", "interrupted", "empty", "crashed", "measured", "only probed"],
)
def test_the_exit_code_is_part_of_the_assessment(told: Result, code: int) -> None:
    assert judge(told).exit_code == code


class Later(Result):
    """The result of a version that has one more field."""

    more: int | None = None


def test_a_result_keeps_its_id_if_a_later_version_knows_more_fields() -> None:
    later = Later.model_validate(dict(sample()))
    assert judge(later).provenance.result_id == judge(sample()).provenance.result_id
    other = later.model_copy(update={"more": 1})
    assert judge(other).provenance.result_id != judge(sample()).provenance.result_id
