"""Whole commands, as a person types them: real workers of the fake vendor's adapter, the fake suite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mixmark.harness.judge.rules import consistency
from mixmark.harness.worker import sealed
from tests.cli.shell import ACME, ROOT, Shell

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def records(shell: Shell) -> list[dict[str, Any]]:
    return list(json.loads((shell.folder / "out/result.json").read_text())["records"])


def outcomes(shell: Shell) -> list[str]:
    """'measured' or the error's kind, of each record."""
    return [each["error"]["kind"] if each["error"] else "measured" for each in records(shell)]


def test_a_run_ends_with_a_table_and_a_folder_that_report_reads(shell: Shell) -> None:
    """A server at a rate."""
    done = shell.run("--scenario", "server", "--rate", "40")
    assert done.returncode == 0, done.stderr
    assert "null" in done.stdout
    end = done.stdout.splitlines()[-2:]
    assert end[0] == "page    out/report.html" and end[1].startswith("next    mixmark ")
    end[1] = end[1].replace(ACME, "PATH") + "  # PATH: as you typed, a result has none"
    assert shell("report", "out").stdout.splitlines()[-2:] == end
    assert " %] null on npu:acme0 by acme in fp32" in done.stderr
    assert outcomes(shell) == ["measured"]
    (record,) = records(shell)
    assert (record["scenario"], record["rate_per_s"]) == ("server", 40.0)
    assert record["latency_limits"]["percentile"] == 0.9
    assert not (shell.folder / "out/scratch").exists()
    for form in ("console", "json", "csv", "markdown"):
        shown = shell("report", "out", "--format", form)
        assert (shown.returncode, "null" in shown.stdout) == (0, True), (form, shown.stderr)
    assert "npu:acme0" in shell("report", "out", "--verbose").stdout
    findings = json.loads(shell("report", "out", "--json").stdout)["findings"]
    assert [each["severity"] for each in findings if each["code"].startswith("audited.")] == ["note"]
    assert "seed_random" not in [each["code"] for each in findings], "the seed was drawn"
    wrong = shell("report", "out", "--format", "jsn")
    assert (wrong.returncode, "did you mean json?" in wrong.stderr) == (2, True)


def test_wrong_outputs_and_contradictions_are_invalid_findings(shell: Shell) -> None:
    """The result of a run is judged as strictly as a folder that may come from anyone."""
    with mock.patch.object(consistency, "contradictions", lambda result, claims: iter(["two phases have one name"])):
        done = shell.run("--seed", "7", mode="wrong")
    assert done.returncode == 1 and "two phases have one name" in done.stdout
    findings = {each["code"]: each for each in json.loads(shell("report", "out", "--json").stdout)["findings"]}
    assert findings["audited.wrong"]["severity"] == "invalid"
    values = findings["audited.wrong"]["values"]
    assert (values["metric"], values["worst"], values["at_most"]) == ("difference", 1, 0.5)
    assert "seed_random" in findings, "the seed was chosen"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interrupted(shell: Shell, with_signal: int) -> subprocess.CompletedProcess[str]:
    """A run of two scenarios, interrupted while the second one is measured."""
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.2\n")
    words = ("run", "--suite", "null", "--adapter", ACME, "--preset", "standard", "--tier", "smoke", "--out", "out")
    process = shell.start(*words)
    journal = shell.folder / "out/journal.jsonl"
    wait_for(lambda: journal.exists() and '{"records"' in journal.read_text())
    process.send_signal(with_signal)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_ctrl_c_keeps_every_finished_measurement_and_resume_goes_on(shell: Shell) -> None:
    done = interrupted(shell, signal.SIGINT)
    assert done.returncode == 130
    assert "next    mixmark run --resume out" in done.stdout
    lines = [json.loads(line) for line in (shell.folder / "out/journal.jsonl").read_text().splitlines()[1:]]
    kept: list[dict[str, Any]] = [each for line in lines for each in line.get("records", ())]
    assert len(kept) == 1
    elsewhere = shell("run", "--resume", "out", "--adapter", "onnxruntime")
    assert (elsewhere.returncode, "npu:acme0 by acme, which is not here now" in elsewhere.stderr) == (2, True)
    journal = shell.folder / "out/journal.jsonl"
    as_it_was, [(file, sha256), *_] = journal.read_text(), sealed.own().files.items()
    journal.write_text(as_it_was.replace(sha256, "0" * 64, 1))
    changed = shell("run", "--resume", "out", "--adapter", ACME)
    assert (changed.returncode, f"the run began with another {file}" in changed.stderr) == (2, True)
    journal.write_text(as_it_was)
    resumed = shell("run", "--resume", "out", "--adapter", ACME)
    assert resumed.returncode == 0, resumed.stderr
    assert "--suite null" in resumed.stdout.splitlines()[-1], "the next command is that of the whole run"
    whole = json.loads((shell.folder / "out/result.json").read_text())
    assert whole["finished"] and whole["code"] == sealed.own().files
    (before,), (after, _) = kept, whole["records"]
    assert before["audit"]["values"] == [], "drawn, but the run ended before the comparison"
    assert after["audit"]["values"] == [0.0]
    assert {**after, "audit": 0} == {**before, "audit": 0}
    again = shell("run", "--resume", "out", "--adapter", ACME)
    assert (again.returncode, "is finished" in again.stderr) == (2, True)


@pytest.mark.exhaustive
def test_a_killed_run_resumes_too(shell: Shell) -> None:
    assert interrupted(shell, signal.SIGKILL).returncode == -signal.SIGKILL
    assert shell("report", "out").returncode == 130, "the same exit code as of the interrupted run"
    assert shell("run", "--resume", "out", "--adapter", ACME).returncode == 0
    assert outcomes(shell) == ["measured", "measured"]


def test_a_live_run_has_the_machine_and_its_folder_to_itself(shell: Shell) -> None:
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.2\n")
    words = ("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke")
    first = shell.start(*words, "--runs", "99", "--out", "out")
    wait_for((shell.folder / "out/journal.jsonl").exists)
    refused = shell(*words)
    assert (refused.returncode, f"process {first.pid}, since " in refused.stderr) == (2, True), refused.stderr
    assert f"which writes to {shell.folder / 'out'}" in refused.stderr
    assert not (shell.folder / "results").exists()
    resumed = shell("run", "--resume", "out", "--adapter", ACME)
    assert (resumed.returncode, "the run in out is still going on" in resumed.stderr) == (2, True)
    report = shell("report", "out")
    assert "\nNot finished (unfinished): the run is still going on\n" in report.stdout
    assert "--resume" not in report.stdout + report.stderr
    waiting = shell.start(*words, "--wait-idle", "60", "--out", "second")
    assert waiting.stderr is not None
    assert "waiting up to 60 s: another run measures on this machine" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (130, "mixmark: interrupted\n")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 130, "as after Ctrl-C"
    assert "Continue it with --resume" in shell("report", "out").stdout


def test_an_interrupt_while_the_command_line_is_imported_is_one_message(tmp_path: Path) -> None:
    """A module that the command line imports gets the signal, as from a person's Ctrl-C."""
    (tmp_path / "click.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)")
    script = "from mixmark.harness.cli.__main__ import main; main()"
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **paths}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mixmark: interrupted\n")


def test_what_vendors_import_brings_no_command_line() -> None:
    script = (
        "import sys, mixmark; print([name for name in sys.modules if name == 'click' or 'mixmark.harness.cli' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("goal", "options", "code"), [("run", "", 1), ("smoke", " --tier smoke", 0)])
def test_make_run_ends_with_how_to_call_mixmark(tmp_path: Path, goal: str, options: str, code: int) -> None:
    binary = tmp_path / ".venv/bin/mixmark"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho $@\nexit {code}\n")
    binary.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".venv/run").touch()
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    done = subprocess.run(["make", goal], cwd=tmp_path, env=outside, capture_output=True, text=True)
    printed = done.stdout.splitlines()
    assert printed[0] == f"run{options}"
    assert f'export PATH="{binary.parent}:$PATH"' in printed[-2]
    assert f'"{binary}"' in printed[-1]
    assert (done.returncode == 0) == (code == 0)
    assert f"Error {code}" in done.stderr if code else not done.stderr
