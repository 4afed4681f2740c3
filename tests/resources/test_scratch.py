"""The temporary folder of a process, and what processes that were killed left."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mixmark.harness.resources import scratch
from tests.cli.shell import ROOT

LIVES = """
import sys, tempfile
from mixmark.harness.resources import scratch
with scratch.own_folder():
    print(tempfile.mkdtemp(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_temporary_files_of_a_process_go_with_it(temporary: Path) -> None:
    with scratch.own_folder():
        inside = Path(tempfile.mkdtemp())
        assert inside.parent.parent == temporary
    assert not [*temporary.iterdir()] and tempfile.gettempdir() == str(temporary)
    with scratch.own_folder():
        scratch.remove()
        assert not [*temporary.iterdir()]
    scratch.remove()
    assert temporary.exists(), "it is no folder of this process"


@pytest.mark.slow
def test_the_next_start_removes_what_a_killed_process_left_and_nothing_else(temporary: Path) -> None:
    (temporary / "mixmark-of-another-program").mkdir()
    environment = {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", LIVES]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    with start() as left, start() as living:
        assert left.stdout and living.stdout
        folders = [Path(each.readline().decode().strip()) for each in (left.stdout, living.stdout)]
        left.kill()
        left.wait()
        assert all(each.exists() for each in folders)
        with scratch.own_folder():
            assert [each.exists() for each in folders] == [False, True]
            assert (temporary / "mixmark-of-another-program").exists()
        living.communicate(b"\n", timeout=60)
    assert [each.name for each in temporary.iterdir()] == ["mixmark-of-another-program"]
