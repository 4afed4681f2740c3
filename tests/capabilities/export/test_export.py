"""Folders that `mixmark export` writes: what is in them, and what is left where something goes wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mixmark import Format
from mixmark.harness.capabilities.export import folder as export
from mixmark.harness.capabilities.export.folder import ExportRequest
from mixmark.harness.capabilities.export.safetensors import prepare
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.errors import MixmarkError, Unsupported, UsageError
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from tests.marks import linux

PROBE = Plugin("suites", "probe", "mixmark.suites.probe:Probe", "built in")


def asked(write: str = "write", **changed: Any) -> ExportRequest:
    form = Plugin("formats", "toy", f"{__name__}:{write}", "test")
    drawn = {"suite": PROBE, "tier": "smoke", "options": {}, "precision": "fp32"}
    return ExportRequest(**{"format": form, "weight_class": 16, **drawn, **changed})


def write(suite: Any, precision: str) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "inner/whole.bin").write_bytes(b"whole")

    return files


def full(suite: Any, precision: str) -> Callable[[Path], None]:
    def files(folder: Path) -> None:
        (folder / "half.bin").write_bytes(b"half")
        with open("/dev/full", "wb") as disk:
            disk.write(b"x")

    return files


FORMATS: tuple[Format, ...] = (write, full, prepare)
"""mypy compares them with the protocol."""


def raises(suite: Any, precision: str) -> None:
    raise LookupError("no such tensor")


def mixmark(*words: object) -> Result:
    return CliRunner().invoke(main, [*map(str, words)])


def test_a_folder_appears_with_its_manifest(tmp_path: Path) -> None:
    stages: list[str] = []
    manifest = export.export(asked(), tmp_path / "out/of/nowhere", stages.append)
    assert json.loads((tmp_path / "out/of/nowhere/mixmark.json").read_text()) == manifest
    digest = hashlib.sha256(b"whole").hexdigest()
    assert manifest["files"] == [{"path": "inner/whole.bin", "bytes": 5, "sha256": digest}]
    assert (manifest["suite"], manifest["weights"], manifest["format"]) == ("probe", "synthetic", "toy")
    assert stages[:2] == ["preparing the files of toy", "writing 5.51 MB of weights in fp32"]
    assert [path.name for path in (tmp_path / "out/of").iterdir()] == ["nowhere"]


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        pytest.param("full", "cannot write .*whole: No space left on device", marks=linux),
        ("raises", "toy of probe: LookupError: no such tensor"),
        ("lacks", "does not load"),
    ],
)
def test_what_goes_wrong_is_told_and_leaves_nothing(tmp_path: Path, write: str, complaint: str) -> None:
    with pytest.raises(MixmarkError, match=complaint):
        export.export(asked(write), tmp_path / "whole", print)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(UsageError, match="old exists already"):
        export.export(asked(), tmp_path / "old", print)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*new: File exists"):
        export.export(asked(), tmp_path / "file/new", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "old"]


@pytest.mark.slow
def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    done = mixmark("export", "dlrm", "--tier", "smoke", "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    files = {each["path"]: each for each in json.loads(done.stdout)["files"]}
    assert list(files) == ["config.json", "model.safetensors"]
    for path, each in files.items():
        content = (tmp_path / "out" / path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["bytes"], each["sha256"])


def test_an_engine_that_quantises_what_it_reads_gets_weights_of_its_class(tmp_path: Path) -> None:
    done = mixmark(
        *("export", "llm", "--tier", "smoke", "--precision", "bf16", "--bits", 4, "--json"),
        *("--out", tmp_path / "out"),
    )
    assert done.exit_code == 0, done.stderr
    manifest = json.loads(done.stdout)
    four = registry.find("suites")["llm"].load()("smoke", {}, 4)
    assert (manifest["weight_class"], manifest["gate"]["at_most"]) == (4, four.gate("int4").at_most)
    read = registry.find("suites")["llm"].load()("smoke", {"weights": str(tmp_path / "out")}).weights()
    name = "model.layers.0.mlp.up_proj.weight"
    assert (read_weight(read, name) == read_weight(four.weights(), name)).all()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["lmm"], "there is no suite 'lmm'"),
        (["llm", "--format", "onx"], "there is no format 'onx'"),
        (["llm", "--precision", "int8", "--bits", "16"], "int8 cannot hold weights of 16 bits"),
    ],
)
def test_what_does_not_exist_is_refused(tmp_path: Path, words: list[object], complaint: str) -> None:
    done = mixmark("export", *words, "--tier", "smoke", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("suite", "form", "changed", "complaint"),
    [("llm", "safetensors", {"precision": "int4"}, "safetensors files are not written in int4")],
)
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, suite: str, form: str, changed: Mapping[str, Any], complaint: str
) -> None:
    request = asked(suite=registry.find("suites")[suite], format=registry.find("formats")[form], **changed)
    with pytest.raises(Unsupported, match=complaint):
        export.write(request, tmp_path, print)
