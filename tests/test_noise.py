"""The noise floors of this machine between two runs: each tier has its own."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from harness import noise
from harness.errors import ResultError
from harness.schema import NoiseFloor

EDGE = NoiseFloor(share=0.012, tier="edge", created_utc="2026-11-21T12:00:00+00:00")
SMOKE = NoiseFloor(share=0.2, tier="smoke", created_utc="2026-11-22T12:00:00+00:00")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_floor_of_one_tier_is_that_of_no_other() -> None:
    noise.keep(EDGE)
    noise.keep(SMOKE)
    assert noise.recall("edge") == EDGE
    assert noise.recall("smoke") == SMOKE
    assert noise.recall("server") is None
    newer = EDGE.model_copy(update={"share": 0.01})
    noise.keep(newer)
    assert noise.floors() == {"edge": newer, "smoke": SMOKE}


@pytest.mark.parametrize("damage", ["", "[" * 99_999, '{"machine": [], "floors": {}}', "\0"])
def test_what_is_damaged_or_of_another_machine_is_nothing(damage: str) -> None:
    path = noise.keep(EDGE)
    path.write_text(damage)
    assert noise.floors() == {}
    noise.keep(SMOKE)
    assert noise.floors() == {"smoke": SMOKE}


def test_a_floor_beyond_belief_is_nothing() -> None:
    noise.keep(EDGE.model_copy(update={"share": 11.0}))
    assert noise.recall("edge") is None


def test_a_folder_that_cannot_be_written_is_told(data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(ResultError, match=r"cannot store the noise floor in .*: ") as told:
        noise.keep(EDGE)
    assert "XDG_DATA_HOME" in told.value.hint
    assert noise.floors() == {}


@pytest.mark.parametrize("answer", ["~/.local/share/mixmark", RuntimeError("no home folder")])
def test_a_user_without_a_home_has_no_floor(monkeypatch: pytest.MonkeyPatch, answer: str | Exception) -> None:
    def folder(name: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(platformdirs, "user_data_dir", folder)
    assert noise.floors() == {}
    with pytest.raises(ResultError, match="this user has no home folder"):
        noise.keep(EDGE)
    assert not os.path.exists("~")
