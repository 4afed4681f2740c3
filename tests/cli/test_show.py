"""What a command prints and refuses, whatever its output is connected to; no worker is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mixmark.harness.cli import machine_lock as reservation
from mixmark.harness.cli import show
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Result
from mixmark.harness.discover import machine_lock
from mixmark.harness.discover.machine import other_load
from mixmark.harness.judge.judgement import judge
from mixmark.harness.measure import metering
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import suite_claims
from mixmark.harness.record import store
from tests.fakes.machine import EDGE, one_run
from tests.golden.sample import apart, closed_loop, record, result
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
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
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
    with pytest.raises(UsageError, match="the result in b has a score of the mix edge-9, this one of smoke-1"):
        show.references([Path("b")], EDGE.model_copy(update={"name": "smoke-1"}))
    with pytest.raises(UsageError, match="this one of another mix of that name"):
        show.references([Path("b")], EDGE.model_copy(update={"units": {"llm": 1.0}}))
    with pytest.raises(UsageError, match="and this one has no mix"):
        show.references([Path("b")], None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--adapter", "torhc"), "there is no adapter 'torhc'"),
        (("selftest", "--adapter", "torhc"), "there is no adapter 'torhc'"),
        (("run", "--out", "used"), "used exists and is not an empty folder"),
        (("selftest", "--out", "used"), "used exists and is not an empty folder"),
    ],
)
def test_misuse_is_told_before_anything_is_waited_for(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: object) -> None:
        raise AssertionError("it waited for an idle machine")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used/notes.txt").touch()
    monkeypatch.setattr(other_load, "wait", waits)
    monkeypatch.setattr(reservation, "_lock", waits)
    done = CliRunner().invoke(main, [*words, "--wait-idle", "60"], catch_exceptions=False)
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_efficiency_without_a_meter_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(machine_lock.VARIABLE, str(tmp_path / "lock"))
    monkeypatch.setattr(metering, "metered", lambda devices, adapters, config: Meters(config, (), {}))
    acme = f"{ROOT / 'tests/fakes/acme.py'}:Acme"
    words = ["run", "--tier", "smoke", "--adapter", acme, "--objective", "efficiency", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 2
    assert "--objective efficiency plans with watts, and no meter can be read" in done.stderr
    assert not (tmp_path / "out").exists()
