"""Whole commands, as a person types them: real processes, the fake vendor's adapter, the fake suite."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACME = f"{ROOT / 'tests/fakes/acme.py'}:Acme"


class Shell:
    """A folder in which `mixmark` is typed; the null suite is installed there as a plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        info = folder / "site" / "null_suite-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: null-suite\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[mixmark.suites]\nnull = tests.fakes.null:Null\n")
        paths = (str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", ""))
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "NO_COLOR": "1",
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "mixmark", *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run(self, *words: str, mode: str = "fine") -> subprocess.CompletedProcess[str]:
        (self.folder / "mixmark.toml").write_text(f'[adapter.acme]\nmode = "{mode}"\n')
        return self("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--out", "out", *words)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)


def outcomes(shell: Shell) -> list[tuple[str, str]]:
    """(suite, 'measured' or the error's kind) of each record."""
    listed = json.loads((shell.folder / "out/result.json").read_text())["records"]
    return [(each["route"]["suite"], each["error"]["kind"] if each["error"] else "measured") for each in listed]


def test_a_run_ends_with_a_table_and_a_folder(shell: Shell) -> None:
    done = shell.run()
    assert done.returncode == 0, done.stderr
    assert "null" in done.stdout
    assert done.stdout.endswith("\npage    out/report.html\n")
    assert "npu:acme0" in shell("report", "out", "--verbose").stdout
    assert "[2/3] null on npu:acme0 by acme in fp32: " in done.stderr
    assert outcomes(shell) == [("probe", "unsupported"), ("null", "measured"), ("probe", "unsupported")]
    assert not (shell.folder / "out/scratch").exists()


def test_report_reads_what_run_wrote(shell: Shell) -> None:
    shell.run()
    for form in ("console", "json", "csv", "markdown"):
        shown = shell("report", "out", "--format", form)
        assert (shown.returncode, "null" in shown.stdout) == (0, True), (form, shown.stderr)
    assert json.loads(shell("report", "out", "--json").stdout)
    wrong = shell("report", "out", "--format", "jsn")
    assert (wrong.returncode, "did you mean json?" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("mode", "kind"), [("kill", "crashed"), ("unsupported", "unsupported")])
def test_a_cell_that_fails_costs_only_itself(shell: Shell, mode: str, kind: str) -> None:
    done = shell.run(mode=mode)
    assert ("null", kind) in outcomes(shell)
    assert len(outcomes(shell)) == 3
    assert done.returncode == 1


def test_a_wrong_answer_is_an_invalid_finding(shell: Shell) -> None:
    shell.run("--seed", "7")
    right = json.loads(shell("report", "out", "--json").stdout)
    assert [each["severity"] for each in right["findings"] if each["rule"] == "audited"] == ["note"]
    (shell.folder / "mixmark.toml").write_text('[adapter.acme]\nmode = "wrong"\n')
    done = shell("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--out", "wrong")
    assert done.returncode == 1
    wrong = json.loads(shell("report", "wrong", "--json").stdout)
    (finding,) = [each for each in wrong["findings"] if each["rule"] == "audited"]
    assert finding["severity"] == "invalid"
    assert "audited feeds fail; difference 1, at most 0.5" in finding["message"]
    told = [[each["rule"] for each in result["findings"]].count("seed_random") for result in (right, wrong)]
    assert told == [1, 0]  # the second one's was drawn


def test_a_hung_worker_is_given_up(shell: Shell) -> None:
    shell.run("--timeout", "1", mode="hang")
    assert ("null", "hung") in outcomes(shell)


def test_what_does_not_fit_is_not_run(shell: Shell) -> None:
    (shell.folder / "mixmark.toml").write_text("[suite.null]\ngib = 1e6\n")
    done = shell("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--out", "out")
    assert ("null", "refused") in outcomes(shell)
    assert done.returncode == 1  # nothing was measured


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--suite", "lmm"], "there is no suite 'lmm'"),
        (["--device", "gpu:9"], "there is no device 'gpu:9'"),
        (["--precision", "fp33"], "there is no precision 'fp33'"),
        (["--scenario", "offlin"], "did you mean offline?"),
        (["--adapter", "touch"], "there is no adapter 'touch'"),
        (["--adapter", "./none.py:X"], "there is no file ./none.py"),
        (["--tier", "huge"], "'huge' is not one of"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--weights", "llm"], "has no suite"),
        (["--weights", "llm=/none"], "there is no /none"),
        (["--resume", "none"], "none"),
        (["--config", "none.toml"], "cannot read the configuration none.toml"),
        (["--precision", "int4"], "nothing is left to run"),
        (["--rate", "5"], "add --scenario server"),
        (["--scenario", "server", "--rate", "0"], "'0' is not an arrival rate"),
        (["--scenario", "server", "--rate", "nan"], "'nan' is not an arrival rate"),
        (["--scenario", "server", "--rate", "-1"], "'-1' is not an arrival rate"),
        (["--runs", "0"], "0 is not in the range"),
        (["--suite", "llm", "--scenario", "offline"], "llm has no scenario offline"),
        (["--wait-idle", "nan"], "'nan' is not a time in seconds"),
        (["--wait-idle", "-1"], "-1.0 is not in the range"),
        (["--config", "typo.toml"], "adapter acme has no option thraeds"),
        (["--config", "value.toml"], "[suite.null] in the configuration: ValueError: could not convert string"),
        (["--config", "suite.toml"], "the suite dlrm has no option rosw"),
    ],
)
def test_misuse_is_told_and_exits_2(shell: Shell, words: list[str], told: str) -> None:
    (shell.folder / "typo.toml").write_text('[adapter.acme]\nthraeds = 4\nmode = "strict"\n')
    (shell.folder / "value.toml").write_text('[suite.null]\ngib = "many"\n')
    (shell.folder / "suite.toml").write_text('[suite.dlrm]\nrosw = "full"\n')
    done = shell("run", "--suite", "null", "--adapter", ACME, *words)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert not (shell.folder / "results").exists()


def test_a_used_or_unwritable_folder_is_told_before_anything_runs(shell: Shell) -> None:
    (shell.folder / "out").mkdir()
    (shell.folder / "out/mine").write_text("precious")
    done = shell.run()
    assert (done.returncode, "not an empty folder" in done.stderr) == (2, True)
    file = shell.folder / "file"
    file.write_text("")
    assert shell("run", "--suite", "null", "--adapter", ACME, "--out", "file/out").returncode == 2


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def interrupted(shell: Shell, with_signal: int) -> subprocess.CompletedProcess[str]:
    """A run of two scenarios, interrupted while its second cell is measured."""
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.2\n")
    words = ("run", "--suite", "null", "--adapter", ACME, "--preset", "standard", "--tier", "smoke", "--out", "out")
    process = shell.start(*words)
    journal = shell.folder / "out/journal.jsonl"
    wait_for(lambda: journal.exists() and journal.read_text().count('{"records"') >= 2)
    process.send_signal(with_signal)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def test_ctrl_c_keeps_every_finished_cell_and_resume_goes_on(shell: Shell) -> None:
    done = interrupted(shell, signal.SIGINT)
    assert done.returncode == 130
    assert "Continue it with: mixmark run --resume out" in done.stderr
    lines = [json.loads(line) for line in (shell.folder / "out/journal.jsonl").read_text().splitlines()[1:]]
    kept: list[dict[str, Any]] = [each for line in lines for each in line.get("records", ())]
    assert 2 <= len(kept) < 4
    resumed = shell("run", "--resume", "out", "--adapter", ACME)
    assert resumed.returncode == 0, resumed.stderr
    whole = json.loads((shell.folder / "out/result.json").read_text())
    assert whole["finished"]
    assert len(whole["records"]) == 4
    audited = whole["records"][1]
    assert kept[1]["audit"]["values"] == []  # drawn, but the run ended before anybody compared
    assert audited["audit"]["values"] == [0.0]
    assert [{**each, "audit": 0} for each in whole["records"][: len(kept)]] == [{**each, "audit": 0} for each in kept]
    again = shell("run", "--resume", "out", "--adapter", ACME)
    assert (again.returncode, "is finished" in again.stderr) == (2, True)


def test_a_live_run_has_the_machine_and_its_folder_to_itself(shell: Shell) -> None:
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.2\n")
    words = ("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke")
    first = shell.start(*words, "--runs", "9", "--out", "out")
    wait_for(lambda: (shell.folder / "out/journal.jsonl").exists())
    for refused in (words, ("selftest", "--suite", "null", "--adapter", ACME, "--tier", "smoke")):
        done = shell(*refused)
        assert (done.returncode, f"process {first.pid}, since " in done.stderr) == (2, True), done.stderr
        assert f"which writes to {shell.folder / 'out'}" in done.stderr
    assert not (shell.folder / "results").exists()
    resumed = shell("run", "--resume", "out", "--adapter", ACME)
    assert (resumed.returncode, "the run in out is still going on" in resumed.stderr) == (2, True)
    report = shell("report", "out")
    assert report.stdout.startswith("unfinished: the run is still going on\n")
    assert "--resume" not in report.stdout + report.stderr
    waiting = shell.start(*words, "--wait-idle", "60", "--out", "second")
    assert waiting.stderr is not None
    assert "waiting up to 60 s: another run measures on this machine" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (130, "mixmark: interrupted\n")
    assert first.poll() is None, "it ended too early for this story"
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    report = shell("report", "out")
    assert "continue it with --resume" in report.stdout


def test_a_killed_run_leaves_its_cells_and_resumes(shell: Shell) -> None:
    assert interrupted(shell, signal.SIGKILL).returncode == -signal.SIGKILL
    assert shell("report", "out").returncode == 130, "the exit code is that of the interrupted run"
    assert shell("run", "--resume", "out", "--adapter", ACME).returncode == 0
    assert len(outcomes(shell)) == 4


def test_resume_refuses_another_machine(shell: Shell) -> None:
    assert interrupted(shell, signal.SIGTERM).returncode == 130
    done = shell("run", "--resume", "out", "--adapter", "onnxruntime")
    assert (done.returncode, "npu:acme0 by acme, which is not here now" in done.stderr) == (2, True)


def test_devices_tells_what_is_here_and_what_is_not(shell: Shell) -> None:
    (shell.folder / "mixmark.toml").write_text('[adapter.acme]\nmode = "broken driver"\n')
    listed = json.loads(shell("devices", "--adapter", ACME, "--adapter", "onnxruntime", "--json").stdout)
    assert listed["devices"][0]["id"] == "cpu:0"
    assert "libacme.so: cannot open" in listed["absent"][0]["reason"]
    shown = shell("devices", "--adapter", ACME)
    assert "No adapter reaches a device" in shown.stdout
    assert "adapter acme: " in shown.stdout


def test_adapters_tells_where_each_comes_from(shell: Shell) -> None:
    listed = json.loads(shell("adapters", "--adapter", ACME, "--json").stdout)["adapters"]
    assert [(each["name"], each["origin"], each["devices"]) for each in listed] == [
        ("acme", "command line", ["npu:acme0"])
    ]
    (shell.folder / "mixmark.toml").write_text('[adapter.acme]\nmode = "broken driver"\n')
    done = shell("adapters", "--adapter", ACME)
    assert (done.returncode, "acme" in done.stdout) == (1, True)
    log = shell.folder / "state/mixmark/log/acme.log"
    assert re.search(rf"cannot open shared object file \(acme\.py, line \d+\); see {re.escape(str(log))}", done.stdout)
    assert "in discover" in log.read_text()


def test_suites_tells_units_scenarios_and_tiers(shell: Shell) -> None:
    listed = {each["name"]: each for each in json.loads(shell("suites", "--json").stdout)["suites"]}
    assert {"llm", "diffusion", "dlrm", "resnet50", "null"} <= set(listed)
    assert listed["llm"]["tiers"] == ["smoke", "edge", "server"]
    assert listed["null"]["origin"] == "null-suite 1"
    assert "token" in shell("suites").stdout


def test_a_server_is_run_at_a_rate(shell: Shell) -> None:
    done = shell.run("--scenario", "server", "--rate", "40")
    assert done.returncode == 0, done.stderr
    (record,) = (
        each
        for each in json.loads((shell.folder / "out/result.json").read_text())["records"]
        if each["unit"] == "sample"
    )
    assert (record["scenario"], record["rate_per_s"]) == ("server", 40.0)
    assert record["latency_limits"]["percentile"] == 0.9


def test_selftest_keeps_the_floor_that_compare_uses(shell: Shell) -> None:
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.02\n")
    done = shell("selftest", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    floor = told["noise_floor"]
    assert 0 < floor < 10
    assert told["tier"] == "smoke"
    kept = json.loads((shell.folder / "data/mixmark/noise-floor.json").read_text())
    assert {tier: each["fraction"] for tier, each in kept["floors"].items()} == {"smoke": floor}, (
        "no other tier's is set"
    )
    assert {"noise floor", "noise floor smoke"} <= {
        each["name"] for each in json.loads(shell("doctor", "--json").stdout)["checks"]
    }
    shell.run("--runs", "2")
    assert json.loads((shell.folder / "out/result.json").read_text())["noise_floor"]["fraction"] == floor


def test_compare_judges_two_results_and_gates(shell: Shell) -> None:
    for name, work_s in (("a", 0.02), ("b", 0.1)):
        (shell.folder / "mixmark.toml").write_text(f"[adapter.acme]\nwork_s = {work_s}\n")
        words = ("--scenario", "single-stream", "--runs", "3", "--tier", "smoke")
        assert shell("run", "--suite", "null", "--adapter", ACME, *words, "--out", name).returncode == 0
    told = json.loads(shell("compare", "a", "b", "--json").stdout)
    slower = told["verdicts"]["B"]
    assert [each["verdict"] for each in slower] == ["slower"]
    assert 0.15 < slower[0]["ratio"]["estimate"] < 0.35  # five times the work
    gated = shell("compare", "a", "b", "--gate", "20")
    assert (gated.returncode, "is slower by more than 20 %" in gated.stderr) == (1, True)
    assert shell("compare", "b", "a", "--gate", "20").returncode == 0
    assert "| faster |" in shell("compare", "b", "a", "--format", "markdown").stdout
    assert shell("compare", "a", "none").returncode == 2


def test_doctor_changes_nothing_and_tells(shell: Shell) -> None:
    checks = json.loads(shell("doctor", "--json").stdout)["checks"]
    assert {"governor", "load", "steal", "swap"} <= {check["name"] for check in checks}
    assert "governor" in shell("doctor").stdout


def test_an_interrupt_while_the_command_line_is_imported_is_told(tmp_path: Path) -> None:
    """A module that the command line imports gets the signal, as from a person's Ctrl-C."""
    (tmp_path / "click.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)")
    script = "from mixmark.harness.cli.__main__ import main; main()"
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **paths}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mixmark: interrupted\n")


@pytest.mark.parametrize("command", ["devices", "suites", "adapters", "run", "report", "doctor", "selftest", "compare"])
def test_every_command_has_help_with_an_example(shell: Shell, command: str) -> None:
    shown = shell(command, "--help")
    assert shown.returncode == 0
    assert f"mixmark {command}" in shown.stdout.split("Example", 1)[1]
    assert "--json" in shown.stdout


def test_what_vendors_import_brings_no_command_line() -> None:
    script = (
        "import sys, mixmark; print([name for name in sys.modules if name == 'click' or 'mixmark.harness.cli' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bash_completes_commands_and_values(shell: Shell) -> None:
    script = """
    mixmark() { "$PYTHON" -P -m mixmark "$@"; }
    env() { while [[ $1 == *=* ]]; do local -x "$1"; shift; done; "$@"; }
    eval "$(mixmark completion bash)"
    COMP_WORDS=(mixmark sel) COMP_CWORD=1; _mixmark_completion mixmark
    COMP_WORDS=(mixmark run --tier e) COMP_CWORD=3; _mixmark_completion mixmark
    echo "${COMPREPLY[@]}"
    """
    environment = {**shell.environment, "PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "selftest edge", done.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_make_run_ends_with_how_to_call_mixmark(tmp_path: Path, code: int) -> None:
    binary = tmp_path / ".venv/bin/mixmark"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho benchmarked\nexit {code}\n")
    binary.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / ".venv/run").touch()
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    done = subprocess.run(["make", "run"], cwd=tmp_path, env=outside, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert said[0] == "benchmarked"
    assert f'export PATH="{binary.parent}:$PATH"' in said[-2]
    assert f'"{binary}"' in said[-1]
    assert (done.returncode == 0) == (code == 0)
    assert f"Error {code}" in done.stderr if code else not done.stderr
