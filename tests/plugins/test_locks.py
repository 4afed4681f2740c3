"""The lock of a run's folder."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.plugins import locks
from mixmark.harness.record import store
from tests.golden import sample


def test_a_folder_is_live_while_its_journal_is_locked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    store.create(folder, sample.result().model_copy(update={"records": (), "meterings": (), "finished": False}))
    assert not store.live(folder)
    with store.locked(folder):
        assert store.live(folder)
        assert store.open(folder).live
        with pytest.raises(ResultError, match="still going on"), store.locked(folder):
            pass
        with pytest.raises(ResultError) as used:
            store.create(folder, store.open(folder))
        assert used.value.hint == "choose another --out"
    assert not store.open(folder).live
    with pytest.raises(ResultError) as used:
        store.create(folder, store.open(folder))
    assert "--resume" in used.value.hint
    assert not store.live(tmp_path / "none")


def test_a_file_system_without_locks_has_every_file_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with (tmp_path / "one").open("wb") as first, (tmp_path / "one").open("rb") as second:
        assert locks.acquire(first.fileno()) and locks.acquire(second.fileno())
