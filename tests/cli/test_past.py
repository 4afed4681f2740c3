"""The table of past times: a run adds to it, and nothing depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixmark.harness.cli import past
from mixmark.harness.discover import noise_floor
from tests.traces import header

QUICK = header()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(past, "path", lambda: tmp_path / "data" / "past-times.json")
    return tmp_path / "data"


def test_a_run_leaves_its_times_for_the_next_one_like_it() -> None:
    assert past.recall(QUICK) == {}
    past.keep(QUICK, {"mix": 128.0, "prepare llm": 15.0})
    past.keep(header("standard"), {"mix": 900.0})
    assert past.recall(QUICK) == {"mix": 128.0, "prepare llm": 15.0}
    assert past.recall(header("standard")) == {"mix": 900.0}
    assert past.recall(QUICK.model_copy(update={"tier": "smoke"})) == {}


def test_a_slow_run_is_soon_forgotten() -> None:
    for seconds in (16.0, 80.0, 16.0, 16.0):
        past.keep(QUICK, {"prepare llm": seconds})
    assert past.recall(QUICK) == {"prepare llm": 24.0}


def test_a_run_that_timed_nothing_leaves_no_file(folder: Path) -> None:
    past.keep(QUICK, {})
    assert not folder.exists()


def test_another_machine_has_no_past_here(monkeypatch: pytest.MonkeyPatch) -> None:
    past.keep(QUICK, {"mix": 128.0})
    monkeypatch.setattr(noise_floor, "machine", lambda: ("another processor", 4, 1 << 34))
    assert past.recall(QUICK) == {}
    past.keep(QUICK, {"mix": 10.0})
    assert past.recall(QUICK) == {"mix": 10.0}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b" " * (past.MAX_BYTES + 1),
        json.dumps({"machine": noise_floor.machine(), "rows": {"edge quick": {"mix": -1}}}).encode(),
        json.dumps({"machine": noise_floor.machine(), "rows": {"edge quick": {"mix": 1e7}}}).encode(),
        json.dumps({"machine": noise_floor.machine(), "rows": {"edge quick": {"mix": float("nan")}}}).encode(),
        json.dumps({"machine": noise_floor.machine(), "rows": {"edge quick": {"x" * 301: 1}}}).encode(),
    ],
)
def test_a_damaged_table_is_no_table_and_is_replaced(folder: Path, damage: bytes) -> None:
    folder.mkdir()
    past.path().write_bytes(damage)
    assert past.recall(QUICK) == {}
    past.keep(QUICK, {"mix": 128.0})
    assert past.recall(QUICK) == {"mix": 128.0}
    assert [each.name for each in folder.iterdir()] == ["past-times.json"], "nothing half-written stays"


def test_where_nothing_can_be_written_nothing_happens(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    past.keep(QUICK, {"mix": 128.0})
    assert past.recall(QUICK) == {}


def test_what_is_no_time_is_not_kept_and_the_oldest_rows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    past.keep(QUICK, {"a": -1.0, "b": 2e6, "c" * 301: 1.0, "d": 1.0})
    assert past.recall(QUICK) == {"d": 1.0}
    monkeypatch.setattr(past, "MAX_ROWS", 2)
    past.keep(QUICK, {"e": 1.0, "f": 2.0})
    assert past.recall(QUICK) == {"e": 1.0, "f": 2.0}
