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


def test_a_model_is_measured_and_audited_by_each_engine(linear: dict[str, str], tmp_path: Path) -> None:
    """What judges the result builds the suite from the facts of the result, without its file."""
    pytest.importorskip("openvino")
    model = ["--model", linear["file"], "--inputs", linear["inputs"]]
    engines = ["--adapter", "onnxruntime", "--adapter", "openvino"]
    command = [
        sys.executable,
        "-m",
        "mixmark",
        "run",
        *model,
        *engines,
        "--tier",
        "smoke",
        "--all-routes",
        "--out",
        "out",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    result = store.open(tmp_path / "out")
    records = [each for each in result.records if each.route.suite == "linear"]
    audits = {each.route.adapter: each.audit for each in records}
    assert audits.keys() == {"onnxruntime", "openvino"}
    assert all(audit and audit.passed and "onnxruntime" in audit.software for audit in audits.values())
    assert str(tmp_path) not in result.model_dump_json()
    Path(linear["file"]).unlink()
    found = claims(result)
    assert found.claims.keys() >= {each.key for each in records} and not found.unknown
