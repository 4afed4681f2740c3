"""The noise floors of this machine between two runs: each tier has its own."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.machine import noise_floor
from mixmark.harness.resources.cgroups import CpuQuota

EDGE = NoiseFloor(fraction=0.012, tier="edge", created_utc="2026-11-21T12:00:00+00:00")
SMOKE = NoiseFloor(fraction=0.2, tier="smoke", created_utc="2026-11-22T12:00:00+00:00")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_floor_of_one_tier_is_that_of_no_other() -> None:
    noise_floor.keep(EDGE)
    noise_floor.keep(SMOKE)
    assert noise_floor.floors() == {"edge": EDGE, "smoke": SMOKE}
    newer = EDGE.model_copy(update={"fraction": 0.01})
    noise_floor.keep(newer)
    assert noise_floor.floors() == {"edge": newer, "smoke": SMOKE}


@pytest.mark.parametrize("damage", ["", "[" * 99_999, '{"machine": [], "floors": {}}', "\0"])
def test_what_is_damaged_or_of_another_machine_is_nothing(damage: str) -> None:
    path = noise_floor.keep(EDGE)
    path.write_text(damage)
    assert noise_floor.floors() == {}
    noise_floor.keep(SMOKE)
    assert noise_floor.floors() == {"smoke": SMOKE}


def test_a_floor_holds_for_the_machine_with_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_floor.keep(EDGE)
    for cpus in (0.5, 1.5):
        monkeypatch.setattr(
            "mixmark.harness.resources.cpus.quota", lambda cpus=cpus: CpuQuota(cpus, Path("cpu.max"), "max")
        )
        assert noise_floor.floors() == {}
        noise_floor.keep(EDGE)
        assert noise_floor.floors() == {"edge": EDGE}


def test_no_floor_holds_for_an_unknown_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmark.harness.resources.processor.name", lambda: None)
    noise_floor.keep(EDGE)
    assert noise_floor.floors() == {}, "it may be of another one"


def test_a_folder_that_cannot_be_written_is_told(data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(ResultError, match=r"cannot store the noise floor in .*: ") as told:
        noise_floor.keep(EDGE)
    assert "XDG_DATA_HOME" in told.value.hint
    assert noise_floor.floors() == {}


@pytest.mark.parametrize("answer", ["~/.local/share/mixmark", RuntimeError("no home folder")])
def test_a_user_without_a_home_has_no_floor(monkeypatch: pytest.MonkeyPatch, answer: str | Exception) -> None:
    def folder(name: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(platformdirs, "user_data_dir", folder)
    assert noise_floor.floors() == {}
    with pytest.raises(ResultError, match="this user has no home folder"):
        noise_floor.keep(EDGE)
    assert not os.path.exists("~")
