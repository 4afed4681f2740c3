"""mixmark.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.machine.config import AdapterConfig, Config, load


def test_sections_become_options(tmp_path: Path) -> None:
    file = tmp_path / "mixmark.toml"
    file.write_text(
        '[adapter.torch]\nthreads = 8\nspin = false\n[adapter.acme]\npython = "/opt/acme/bin/python"\n'
        '[adapter.old]\nplugin = "acme"\n[suite.dlrm]\nrows = "full"\ndim.n = 2\n[meter.plug]\naccuracy = 0.01\n'
        "supply_watts = 850\n"
        f'[meter.smi]\npython = "/opt/acme/bin/python"\n[meter.here]\npython = "{sys.executable}"'
    )
    config = load(file)
    assert config.adapter("torch") == AdapterConfig(sys.executable, {"threads": "8", "spin": "false"})
    assert config.adapter("acme") == AdapterConfig("/opt/acme/bin/python", {})
    assert config.adapter("other") == AdapterConfig(sys.executable, {})
    assert config.suites == {"dlrm": {"rows": "full", "dim.n": "2"}}
    assert config.adapter("old") == AdapterConfig(sys.executable, {}, "acme")
    assert config.meters == {"plug": {"accuracy": "0.01"}, "smi": {}, "here": {}}
    assert config.meter_pythons == {"smi": "/opt/acme/bin/python"}
    assert config.supplies_watts == {"plug": 850.0}, "it is no option of the meter"


def test_without_a_file_everything_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None) == Config()
    (tmp_path / "mixmark.toml").write_text("[adapter.torch]\nthreads = 1")
    assert load(None).adapter("torch").options == {"threads": "1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[adapter.torch", "cannot read the configuration"),
        ("[adaptor.torch]\nthreads = 1", "has adaptor, which Mixmark does not know"),
        ("adapter = 1", "adapter is not a table of sections"),
        ("[adapter]\ntorch = 1", "adapter is not a table of sections"),
        ("[adapter.torch]\nthreads = [1]", r"\[adapter.torch\] threads must be a string, a number or a boolean"),
        ("[suite.dlrm]\nrows = {a = {b = 1}}", r"\[suite.dlrm\] rows.a must be"),
        ("[suite.llm]\nweights = './mine'", r"\[suite.llm\] weights"),
        ("[meter.plug]\nsupply_watts = 0", r"\[meter.plug\] supply_watts = 0 is no power"),
        ("[meter.plug.left]\nsupply_watts = '850 W'", r"\[meter.plug.left\] supply_watts = 850 W is no power"),
        ("[meter.plug]\nsupply_watts = nan", "supply_watts = nan is too large, too small or no number"),
    ],
)
def test_a_wrong_file_is_misuse(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mixmark.toml").write_text(text)
    with pytest.raises(UsageError, match=words):
        load(tmp_path / "mixmark.toml")
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "none.toml")
