"""`mixmark audit`: the audits of a real smoke run, repeated from its folder, and what is found when it was altered."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mixmark.harness.cli.commands import main
from tests.fakes.folders import forge

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "run"
    words = [
        "run",
        "--tier",
        "smoke",
        "--suite",
        "resnet50",
        "--adapter",
        "torch",
        "--mix",
        "none",
        "--out",
        str(folder),
    ]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def audited(folder: Path, exit_code: int) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["audit", str(folder), "--json"], catch_exceptions=False)
    assert done.exit_code == exit_code, done.output
    told = json.loads(done.stdout)
    assert told["passed"] == (exit_code == 0)
    return [each for each in told["audits"] if "resnet50" in each["key"]]


def changed(folder: Path, change: Any) -> None:
    """Changes the record of resnet50, and the hashes with it, as a careful forger would."""

    def all_of(content: dict[str, Any]) -> None:
        for record in content["records"]:
            if record["route"]["suite"] == "resnet50":
                change(record)

    forge(folder, all_of)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_audits_of_a_folder_are_repeated_and_nothing_is_written(folder: Path) -> None:
    before = contents(folder)
    (found,) = audited(folder, 0)
    assert (found["passed"], found["problem"]) == (True, "")
    assert len(found["now"]) == len(found["stored"]) == len(found["feeds"]) > 0
    assert contents(folder) == before
    done = CliRunner().invoke(main, ["audit", str(folder)], catch_exceptions=False)
    assert "passes and agrees" in done.stdout


def test_values_that_were_written_by_hand_are_found(folder: Path) -> None:
    def better(record: Any) -> None:
        record["audit"]["values"] = [value + 0.01 for value in record["audit"]["values"]]

    changed(folder, better)
    (found,) = audited(folder, 1)
    assert "values are not those in the folder" in found["problem"]


def test_outputs_to_other_feeds_are_found(folder: Path) -> None:
    changed(folder, lambda record: record.update(seed=7))
    (found,) = audited(folder, 1)
    assert "outputs are wrong" in found["problem"]


def test_outputs_that_were_replaced_are_found(folder: Path) -> None:
    (path,) = (folder / "raw").glob("*resnet50*.outputs.npz")
    with np.load(path) as stored:
        outputs = dict(stored)
    np.savez_compressed(path, **outputs | {"outputs": np.ascontiguousarray(outputs["outputs"][..., ::-1])})
    changed(folder, lambda record: None)
    (found,) = audited(folder, 1)
    assert "outputs are wrong" in found["problem"]


def test_a_record_that_was_not_audited_does_not_pass(folder: Path) -> None:
    changed(folder, lambda record: record.update(audit=None, unaudited="torch is not installed"))
    (found,) = audited(folder, 1)
    assert found["problem"] == "it was not audited: torch is not installed"


def test_a_checkpoint_has_to_be_given(folder: Path) -> None:
    changed(folder, lambda record: record["route"].update(weights="acme sampled-sha256:00"))
    done = CliRunner().invoke(main, ["audit", str(folder), "--json"])
    assert "--weights resnet50=PATH" in done.stdout or done.exit_code == 2


def test_a_folder_that_cannot_be_read_is_misuse(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["audit", str(tmp_path)]).exit_code == 2
