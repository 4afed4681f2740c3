"""The machine's lock and the lock of a run's folder: taken, refused, left behind, and where there can be none."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.plugins import locks
from mixmark.harness.record import store
from tests.golden import sample

ME = locks.Holder(pid=os.getpid(), folder="/home/a/results/x", since_utc="2026-11-22T05:00:00+00:00")
OTHER = locks.Holder(pid=7, folder="/home/b/results/y", since_utc="2026-11-22T05:01:00+00:00")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(locks.VARIABLE, str(tmp_path / "lock"))
    return tmp_path / "lock"


def test_the_second_is_told_who_holds_the_machine(path: Path) -> None:
    with locks.machine(ME) as problem:
        assert problem == ""
        with pytest.raises(locks.Taken) as taken, locks.machine(OTHER):
            pass
        assert taken.value.holder == ME
        assert str(taken.value) == (
            f"process {ME.pid}, since 2026-11-22T05:00:00+00:00, which writes to /home/a/results/x"
        )
    with locks.machine(OTHER) as problem:
        assert problem == ""


def test_every_user_may_lock_the_file_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        with locks.machine(ME):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_a_file_that_a_killed_run_left_behind_locks_nothing(path: Path) -> None:
    script = (
        "import os, sys; from mixmark.harness.plugins import locks; holder = locks.Holder(1, 'x', 'then')\n"
        "with locks.machine(holder): print('held', flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None and held.stdin is not None
    assert held.stdout.readline() == "held\n"
    with pytest.raises(locks.Taken, match="which writes to x"), locks.machine(ME):
        pass
    held.kill()
    held.wait()
    held.stdin.close()
    held.stdout.close()
    assert json.loads(path.read_text())["folder"] == "x"
    with locks.machine(ME) as problem:
        assert problem == ""


@pytest.mark.parametrize("said", ["", "garbage", '{"pid": 1}', "[" * 60_000, '{"pid": "x", "folder": 1}'])
def test_a_holder_that_says_nothing_useful_is_a_holder(path: Path, said: str) -> None:
    with locks.machine(ME):
        path.write_text(said)
        with pytest.raises(locks.Taken, match="does not say which") as taken, locks.machine(OTHER):
            pass
        assert taken.value.holder is None


def test_what_any_user_may_write_is_cleaned(path: Path) -> None:
    with locks.machine(ME):
        path.write_text(json.dumps({"pid": 1, "folder": "\x1b[2Jx\n" + "y" * 9999, "since_utc": "z"}))
        with pytest.raises(locks.Taken) as taken, locks.machine(OTHER):
            pass
        assert "\x1b" not in str(taken.value)
        assert len(str(taken.value)) < 1200


def test_a_file_that_is_removed_while_it_is_opened_is_opened_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    acquire = locks.acquire

    def removed(file: int) -> bool:
        if not opened:
            path.unlink()
        opened.append(file)
        return acquire(file)

    monkeypatch.setattr(locks, "acquire", removed)
    with locks.machine(ME):
        assert len(opened) == 2
        assert json.loads(path.read_text())["folder"] == ME.folder


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "nowhere"])
def test_where_no_file_can_be_locked_the_reason_is_given(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = path.with_name("precious")
    precious.write_text("mine")
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(precious)
        case "pipe":
            os.mkfifo(path)
        case "nowhere":
            monkeypatch.setenv(locks.VARIABLE, str(path / "none/lock"))
    with locks.machine(ME) as problem:
        assert "cannot be locked: " in problem
    assert precious.read_text() == "mine"


def test_a_file_system_without_locks_has_every_file_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with locks.machine(ME) as problem, locks.machine(OTHER) as other:
        assert (problem, other) == ("", "")


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
