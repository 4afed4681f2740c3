"""A whole run of one model by two engines, in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mixmark.harness.machine.suite_claims import claims
from mixmark.harness.record import store
from tests.capabilities.own_model.test_own_model import linear as linear

pytestmark = pytest.mark.slow


MIX = """
[mine]
tier = "smoke"
units = { linear = 20, drawn = 20 }
[models.linear]
file = "linear.onnx"
inputs = "s.npz"
[models.drawn]
plugin = "onnx-file"
file = "linear.onnx"
dim.n = 2
range.x = "-1:1"
"""


@pytest.mark.parametrize("hosts", [(), ("--hosts", "../hosts.toml")], ids=["here", "on two hosts"])
def test_models_of_a_mix_are_measured_and_audited_by_each_engine(
    linear: dict[str, str], tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    """One file configured twice. What judges the result builds the suites from its facts, without their file."""
    pytest.importorskip("openvino")
    if hosts:
        pytest.importorskip("mixmark.harness.capabilities.hosts")
        (tmp_path / "hosts.toml").write_text('[host.a]\ncores = "0"\n[host.b]\ncores = "1"\n')
    (tmp_path / "my.toml").write_text(MIX)
    (tmp_path / "cwd").mkdir()
    command = [sys.executable, "-m", "mixmark", "run", "--mix", "../my.toml", "--tier", "smoke", "--all-routes"]
    command += ["--adapter", "onnxruntime", "--adapter", "openvino", "--out", "out", *hosts]
    done = subprocess.run(command, cwd=tmp_path / "cwd", capture_output=True, text=True)
    assert done.returncode in (0, 1) and done.stderr.count("mixmark: reading ") == 2, done.stderr
    result = store.open(tmp_path / "cwd" / "out")
    records = [each for each in result.records if each.route.suite != "probe"]
    audits = {(each.route.suite, each.route.adapter, each.scenario == "mixed"): each.audit for each in records}
    assert {key[:2] for key in audits} == {
        (suite, adapter) for suite in ("linear", "drawn") for adapter in ("onnxruntime", "openvino")
    }
    assert {suite for suite, _, mixed in audits if mixed} == {"linear", "drawn"}
    assert all(audit and audit.passed and "onnxruntime" in audit.software for audit in audits.values())
    assert str(tmp_path) not in result.model_dump_json()
    Path(linear["file"]).unlink()
    found = claims(result)
    assert found.claims.keys() >= {each.key for each in records} and not found.unknown
