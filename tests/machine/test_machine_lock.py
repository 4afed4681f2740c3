"""The machine's lock: taken, refused, left behind by a killed run, and impossible."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mixmark.harness.machine import machine_lock

ME = machine_lock.Holder(pid=os.getpid(), folder="/home/a/results/x", since_utc="2026-11-22T05:00:00+00:00")
OTHER = machine_lock.Holder(pid=7, folder="/home/b/results/y", since_utc="2026-11-22T05:01:00+00:00")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(machine_lock.VARIABLE, str(tmp_path / "lock"))
    return tmp_path / "lock"


def test_the_second_is_told_who_holds_the_machine(path: Path) -> None:
    with machine_lock.hold(ME) as problem:
        assert problem is None
        with pytest.raises(machine_lock.Taken) as taken, machine_lock.hold(OTHER):
            pass
        assert taken.value.holder == ME
        assert str(taken.value) == (
            f"process {ME.pid}, since 2026-11-22T05:00:00+00:00, which writes to /home/a/results/x"
        )
    with machine_lock.hold(OTHER) as problem:
        assert problem is None


def test_every_user_may_lock_the_file_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        with machine_lock.hold(ME):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_a_file_that_a_killed_run_left_behind_locks_nothing(path: Path) -> None:
    script = (
        "import os, sys; from mixmark.harness.machine import machine_lock as lock; holder = lock.Holder(1, 'x', '')\n"
        "with lock.hold(holder): print('held', flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None and held.stdin is not None
    assert held.stdout.readline() == "held\n"
    with pytest.raises(machine_lock.Taken, match="which writes to x"), machine_lock.hold(ME):
        pass
    held.kill()
    held.wait()
    held.stdin.close()
    held.stdout.close()
    assert json.loads(path.read_text())["folder"] == "x"
    with machine_lock.hold(ME) as problem:
        assert problem is None


@pytest.mark.parametrize("said", ["", "garbage", '{"pid": 1}', "[" * 60_000, '{"pid": "x", "folder": 1}'])
def test_a_holder_that_says_nothing_useful_is_a_holder(path: Path, said: str) -> None:
    with machine_lock.hold(ME):
        path.write_text(said)
        with pytest.raises(machine_lock.Taken, match="does not name") as taken, machine_lock.hold(OTHER):
            pass
        assert taken.value.holder is None


def test_what_any_user_may_write_is_cleaned(path: Path) -> None:
    with machine_lock.hold(ME):
        path.write_text(json.dumps({"pid": 1, "folder": "\x1b[2Jx\n" + "y" * 9999, "since_utc": "z"}))
        with pytest.raises(machine_lock.Taken) as taken, machine_lock.hold(OTHER):
            pass
        assert "\x1b" not in str(taken.value)
        assert len(str(taken.value)) < 1200


@pytest.mark.parametrize("kind", ["folder", "link", "nowhere", "no locks"])
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
        case "nowhere":
            monkeypatch.setenv(machine_lock.VARIABLE, str(precious / "lock"))
        case "no locks":  # of its file system
            monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with machine_lock.hold(ME) as problem, machine_lock.hold(OTHER):
        assert problem and re.search(r"cannot be locked: (No locks available)?", problem)
    assert precious.read_text() == "mine"
