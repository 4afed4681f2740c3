"""What commands refuse and list: nothing is measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mixmark.harness.cli import machine_lock
from mixmark.harness.cli.commands import main
from mixmark.harness.machine import other_load
from mixmark.harness.measure import metering
from mixmark.harness.measure.metering import Meters
from tests.cli.shell import ACME, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "lmm"], "there is no suite 'lmm'"),
        (["--device", "gpu:9"], "mixmark devices shows"),
        (["--precision", "fp33"], "there is no precision 'fp33'"),
        (["--scenario", "offlin"], "did you mean offline?"),
        (["--adapter", "touch"], "there is no adapter 'touch'"),
        (["--weights", "llm"], "has no suite"),
        (["--weights", "llm=/none"], "--weights llm: /none cannot be read: No such file"),
        (["--config", "none.toml"], "cannot read the configuration none.toml"),
        (["--precision", "int4"], "nothing is left to run"),
        (["--rate", "5"], "add --scenario server"),
        (["--scenario", "server", "--rate", "nan"], "'nan' is not an arrival rate"),
        (["--suite", "llm", "--scenario", "offline"], "llm has no scenario offline"),
        (["--wait-idle", "nan"], "'nan' is too large, too small or no number"),
        (["--config", "typo.toml"], "adapter acme has no option thraeds"),
        (["--config", "value.toml"], "[suite.null] in the configuration: ValueError: could not convert string"),
        (["--config", "suite.toml"], "the suite dlrm has no option rosw"),
        (["--out", "file/out"], "file/out"),
    ],
)
@pytest.mark.usefixtures("in_process")
def test_misuse_is_refused_with_its_reason(shell: Shell, words: list[str], message: str) -> None:
    (shell.folder / "typo.toml").write_text('[adapter.acme]\nthraeds = 4\nmode = "strict"\n')
    (shell.folder / "value.toml").write_text('[suite.null]\ngib = "many"\n')
    (shell.folder / "suite.toml").write_text('[suite.dlrm]\nrosw = "full"\n')
    (shell.folder / "file").touch()
    done = shell("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", *words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (shell.folder / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--adapter", "torhc"), "there is no adapter 'torhc'"),
        (("run", "--out", "used"), "used exists and is not an empty folder"),
    ],
)
def test_misuse_is_refused_before_anything_is_waited_for(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: object) -> None:
        raise AssertionError("it waited for an idle machine")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used/notes.txt").touch()
    monkeypatch.setattr(other_load, "wait", waits)
    monkeypatch.setattr(machine_lock, "_lock", waits)
    done = CliRunner().invoke(main, [*words, "--wait-idle", "60"], catch_exceptions=False)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output


@pytest.mark.usefixtures("in_process")
def test_efficiency_without_a_meter_is_refused_before_anything_is_measured(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "metered", lambda devices, adapters, config: Meters(config, (), {}))
    done = shell("run", "--tier", "smoke", "--adapter", ACME, "--objective", "efficiency", "--out", "out")
    assert done.returncode == 2
    assert "--objective efficiency plans with watts, and no meter can be read" in done.stderr
    assert not (shell.folder / "out").exists()


@pytest.mark.slow
def test_devices_lists_what_is_here_and_what_is_not(shell: Shell) -> None:
    here = shell("devices", "--adapter", ACME, "--json")
    listed = json.loads(here.stdout)
    assert (here.returncode, [each["id"] for each in listed["devices"]]) == (0, ["npu:acme0"])
    assert listed["adapters"]["acme"]["origin"] == "command line"
    assert listed["routes"][0].keys() == {"device", "adapter", "precisions", "precisions_by_suite"}
    (shell.folder / "mixmark.toml").write_text('[adapter.acme]\nmode = "broken driver"\n')
    done = shell("devices", "--adapter", ACME)
    assert (done.returncode, "No adapter reaches a device" in done.stdout) == (1, True)
    log = shell.folder / "state/mixmark/log/acme.log"
    assert re.search(rf"cannot open shared object file \(acme\.py, line \d+\); see {re.escape(str(log))}", done.stdout)
    assert "in discover" in log.read_text()


@pytest.mark.slow
def test_suites_lists_units_scenarios_and_tiers(shell: Shell) -> None:
    listed = {each["name"]: each for each in json.loads(shell("suites", "--json").stdout)["suites"]}
    assert {"llm", "diffusion", "dlrm", "resnet50", "null"} <= set(listed)
    assert listed["llm"]["tiers"] == ["smoke", "edge", "server"]
    assert listed["null"]["origin"] == "null-suite 1"
    assert "token" in shell("suites").stdout


def test_a_thing_of_no_kind_needs_the_word_for_what_it_is() -> None:
    done = CliRunner().invoke(main, ["check", "nothing-of-that-name"])
    assert (done.exit_code, "what is 'nothing-of-that-name'? Say " in done.output) == (2, True), done.output
