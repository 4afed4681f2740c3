"""Two halves of the processor run one model together, from discovery to a record that passes its audit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from tests.cli.shell import ROOT, Shell

pytestmark = pytest.mark.slow

PAIR = f"{ROOT / 'tests/fakes/pair.py'}:Pair"


def test_two_processes_share_a_model_and_are_one_device(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shell = Shell(tmp_path)
    words = ("--suite", "dlrm", "--adapter", PAIR, "--tier", "smoke", "--out", "out")
    done = shell("run", *words)
    assert done.returncode == 0, done.stderr
    result = store.open(tmp_path / "out")
    (device,) = result.devices
    assert (device.id, device.parts) == ("cpu:pair", ("cpu:0/1-of-2", "cpu:0/2-of-2"))
    assert device.name, "the processor's, since the group lies on the host"
    (record,) = (each for each in result.records if each.scenario == "offline")
    assert record.audit is not None and record.audit.passed
    assert record.facts["processes"] == "2"
    assert not [each for each in judge(result).findings if each.severity == "invalid"]
    assert json.loads((tmp_path / "out/result.json").read_text())["devices"][0]["parts"] == [*device.parts]
