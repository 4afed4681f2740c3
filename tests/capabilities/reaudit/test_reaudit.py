"""`mixmark audit`: the audits of a run are repeated from its folder, and what is found when the folder was altered."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.plugins import registry
from tests.cli.shell import Shell
from tests.fakes.folders import forge

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shell = Shell(tmp_path_factory.mktemp("audit"))
    assert shell.run().returncode == 0
    return shell.folder / "out"


@pytest.fixture
def shell(original: Path, tmp_path: Path) -> Shell:
    shutil.copytree(original, tmp_path / "out")
    return Shell(tmp_path)


def audited(shell: Shell, exit_code: int) -> dict[str, Any]:
    """What `mixmark audit` finds in the only record."""
    done = shell("audit", "out", "--json")
    assert done.returncode == exit_code, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    assert shown["passed"] == (exit_code == 0)
    (found,) = shown["audits"]
    return dict(found)


def change(shell: Shell, **fields: Any) -> None:
    """Changes fields of the record, and the hashes with it, as a careful forger would."""
    forge(shell.folder / "out", lambda content: content["records"][0].update(fields))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_audits_of_a_folder_are_repeated_and_nothing_is_written(shell: Shell) -> None:
    (key,) = (record["key"] for record in json.loads((shell.folder / "out/result.json").read_text())["records"])
    (shell.folder / f"out/raw/{key}.handed.npz").touch()  # left by a run that was killed
    before = contents(shell.folder / "out")
    found = audited(shell, 0)
    assert (found["passed"], found["problem"]) == (True, "")
    assert len(found["now"]) == len(found["stored"]) == len(found["feeds"]) > 0
    assert contents(shell.folder / "out") == before
    assert "passes and agrees" in shell("audit", "out").stdout


def test_values_that_were_written_by_hand_are_found(shell: Shell, inline: None) -> None:
    audit = json.loads((shell.folder / "out/result.json").read_text())["records"][0]["audit"]
    change(shell, audit={**audit, "values": [value + 0.25 for value in audit["values"]]})
    assert "other values than in the folder" in audited(shell, 1)["problem"]


def test_outputs_to_other_feeds_are_found(shell: Shell, inline: None) -> None:
    change(shell, seed=7)
    assert "wrong outputs" in audited(shell, 1)["problem"]


def test_outputs_that_were_replaced_are_found(shell: Shell, inline: None) -> None:
    (path,) = (shell.folder / "out/raw").glob("*.outputs.npz")
    with np.load(path) as stored:
        outputs = dict(stored)
    np.savez_compressed(path, **outputs | {"outputs": outputs["outputs"] + 1})
    change(shell)
    assert "was changed after it was written" in audited(shell, 1)["problem"]
    audit = json.loads((shell.folder / "out/result.json").read_text())["records"][0]["audit"]
    change(shell, audit={**audit, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    assert "wrong outputs" in audited(shell, 1)["problem"]


def test_a_record_that_was_not_audited_does_not_pass(shell: Shell, inline: None) -> None:
    change(shell, audit=None, unaudited="torch is not installed")
    assert audited(shell, 1)["problem"] == "it was not audited: torch is not installed"


def test_a_suite_that_is_not_installed_is_a_record_that_cannot_be_audited(
    shell: Shell, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find", lambda *_: {})
    assert audited(shell, 1)["problem"].startswith("the suite null is not installed here; install its package")


def test_a_checkpoint_has_to_be_given(shell: Shell, inline: None) -> None:
    route = json.loads((shell.folder / "out/result.json").read_text())["records"][0]["route"]
    change(shell, route={**route, "weights": "acme sampled-sha256:00"})
    done = shell("audit", "out", "--json")
    assert "--weights null=PATH" in done.stdout or done.returncode == 2
