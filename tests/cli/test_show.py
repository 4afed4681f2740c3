"""What `mixmark report` prints, whatever its output is connected to, and the scores beside which a score is shown."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Run

from mixmark.harness.cli import show
from mixmark.harness.cli.commands import main
from mixmark.harness.cli.options import Placed
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.verdict import Verdict, VerdictWord
from mixmark.harness.plan import mixes
from mixmark.harness.plugins.manifest import BUILT_IN
from tests.fakes.machine import EDGE, one_run
from tests.golden.sample import apart, closed_loop, record, result
from tests.marks import linux
from tests.record.test_store import written

ROOT = Path(__file__).parents[2]
ENTER = Placed("enter", section="Publish", publishes=lambda folder: folder == Path("out"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    whole = apart(result(record("a", "llm", "token", closed_loop([[5, 6]]))))
    written(tmp_path / "run", whole).finish(whole)
    return tmp_path / "run"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of the shell; "$@" stands for mixmark."""
    line = ["sh", "-c", command, "sh", sys.executable, "-P", "-m", "mixmark"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)


def mixmark(*words: object) -> Run:
    return CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)


def test_without_a_folder_the_newest_result_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    none = mixmark("report")
    assert (none.exit_code, none.stderr.splitlines()[0]) == (2, "mixmark: there is no result in ./results")
    for name in ("z", "a"):
        shutil.copytree(folder, tmp_path / "results" / name)
    os.utime(tmp_path / "results/z/SHA256SUMS", ns=(0, 0))
    newest = mixmark("report")
    assert newest.stderr == "newest result: results/a\n"
    assert newest.stdout == mixmark("report", "results/a").stdout


def test_a_stored_report_ends_as_the_run_did(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mixmark("report", folder).stdout.splitlines()[-2] == f"result  {folder}"
    (folder / show.PAGE).touch()
    for form in ((), ("--verbose",)):
        assert mixmark("report", folder, *form).stdout.splitlines()[-2] == f"page    {folder / show.PAGE}"
    assert "page  " not in mixmark("report", folder, "--format", "csv").stdout
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda *_: os.write(-1, b""))
        show.write_page(judge(one_run(None)), folder)
    assert not (folder / show.PAGE).stat().st_size, "a page that is not whole takes no place"
    begun = apart(result(record("a", "llm", "token", closed_loop([[5, 6]])))).model_copy(update={"finished": False})
    written(tmp_path / "my run", begun)
    shown = mixmark("report", tmp_path / "my run").stdout
    assert shown.splitlines()[-1] == f"next    mixmark run --resume '{tmp_path}/my run'"


@pytest.mark.parametrize(
    ("verdict", "changed", "following"),
    [
        ("unfinished", {}, "run --resume 'my run'"),
        (
            "unfinished",
            {"command": ("run", "--split-cpu=2", "--adapter", "torch", "--tier", "smoke", "--mix", "m.toml")},
            "run --resume 'my run' --split-cpu=2 --adapter torch --mix m.toml",
        ),
        ("invalid", {}, "report 'my run' --verbose"),
        ("partial", {"command": ("run", "--adapter", "acme", "--mix", "edge-1")}, "run --adapter acme --mix none"),
        ("disturbed", {"command": ("run", "--resume", "<path>", "--bits=8")}, "run --bits=8 --wait-idle 60"),
        (
            "disturbed",
            {"command": ("run", "--config=<path>", "--address", "<address>")},
            "run --config=PATH --address ADDRESS --wait-idle 60  # ADDRESS and PATH: as you typed, a result has none",
        ),
        ("fair", {"tier": "smoke", "command": ("run", "--tier=smoke", "--out", "<path>")}, "run --tier edge"),
        ("fair", {"command": ("run", "llm", "--adapter", "torch")}, "run --adapter torch"),  # the whole machine
    ],
)
def test_every_state_has_a_next_command(verdict: VerdictWord, changed: dict[str, object], following: str) -> None:
    assessment = judge(result(record("a", "llm", "token", closed_loop([[5, 6]]))).model_copy(update=changed))
    assessment = replace(assessment, verdict=Verdict(verdict, ()))
    assert show.next_command(assessment, Path("my run")) == f"mixmark {following}"


@pytest.mark.parametrize(("runs", "following"), [(1, "run --preset ranked"), (3, "enter out")])
def test_a_score_without_a_rank_asks_for_runs_and_one_with_a_rank_for_a_place(
    runs: int, following: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    monkeypatch.setitem(BUILT_IN, "commands", {"enter": f"{__name__}:ENTER"})
    assessment = judge(one_run(None, runs=runs).model_copy(update={"command": ("run", "--preset", "quick")}))
    assert show.next_command(assessment, Path("out")) == f"mixmark {following}"
    in_full = following if runs == 1 else "report in --verbose"
    assert show.next_command(assessment, Path("in")) == f"mixmark {in_full}", "of a published result"


def test_a_disturbed_quick_run_asks_for_idleness_and_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    for preset, more in (("quick", " --preset ranked"), ("ranked", "")):
        told = one_run(None).model_copy(update={"command": ("run", "--wait-idle", "5"), "preset": preset})
        assessment = replace(judge(told), verdict=Verdict("disturbed", ()))
        assert show.next_command(assessment, Path("out")) == f"mixmark run{more} --wait-idle 60"


@pytest.mark.parametrize(
    ("called", "on_path", "program"),
    [
        (".venv/bin/mixmark", None, ".venv/bin/mixmark"),
        ("/a/mixmark", "/b/mixmark", "mixmark"),
        ("x.py", None, "mixmark"),
    ],
)
def test_a_next_command_is_one_that_the_shell_finds(
    called: str, on_path: str | None, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(shutil, "which", lambda name: on_path)
    assert show.next_command(judge(one_run(None)), Path("out")).split(" ")[0] == program


@pytest.mark.parametrize(
    "words",
    [
        ("report", "x", "--json", "--format", "csv"),
        ("report", "x", "--verbose", "--format", "html"),
        ("compare", "x", "y", "--json", "--format", "markdown"),
        ("run", "--json", "--verbose"),
    ],
)
def test_two_forms_at_once_are_refused(words: tuple[str, ...]) -> None:
    done = mixmark(*words)
    assert (done.exit_code, "ask for different forms" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_closed_output_changes_nothing_but_what_is_seen(folder: Path) -> None:
    done = shell(f'"$@" report {folder} <&- >&- 2>&-')
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
