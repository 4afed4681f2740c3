"""What `mixmark report` prints, whatever its output is connected to, and the scores beside which a score is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mixmark.harness.cli import show
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.judgement import judge
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import suite_claims
from mixmark.harness.record import store
from tests.fakes.machine import EDGE, one_run
from tests.golden.sample import apart, closed_loop, record, result
from tests.marks import linux
from tests.record.test_store import written

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    whole = apart(result(record("a", "llm", "token", closed_loop([[5, 6]]))))
    written(tmp_path / "run", whole).finish(whole)
    return tmp_path / "run"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of the shell, in which "$@" is mixmark."""
    line = ["sh", "-c", command, "sh", sys.executable, "-P", "-m", "mixmark"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_output_changes_nothing_but_what_is_seen(closed: str, folder: Path) -> None:
    done = shell(f'"$@" report {folder} {closed}')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@linux
def test_an_output_on_a_full_disk_is_an_error_of_one_sentence(folder: Path) -> None:
    done = shell(f'"$@" report {folder} >/dev/full')
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "mixmark: the output cannot be written: No space left on device",
    )
    assert "Traceback" not in done.stderr


def test_a_score_is_held_only_against_one_of_the_same_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    other: Result = one_run(None)
    monkeypatch.setattr(store, "open", lambda path: other)
    monkeypatch.setattr(suite_claims, "judge_stored", judge)
    assert [each.mix for each in show.references([Path("b")], EDGE)] == ["edge-9"]
    with pytest.raises(
        UsageError, match="the result in b has a score of the mix edge-9, and this result has the mix smoke-1"
    ):
        show.references([Path("b")], EDGE.model_copy(update={"name": "smoke-1"}))
    with pytest.raises(UsageError, match="this result has another mix of that name"):
        show.references([Path("b")], EDGE.model_copy(update={"units": {"llm": 1.0}}))
    with pytest.raises(UsageError, match="and this result has no mix"):
        show.references([Path("b")], None)
