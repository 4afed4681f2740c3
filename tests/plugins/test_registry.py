"""What a plugin may be called, what identifies its code, and what a broken one says."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import PluginError, UsageError
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.plugins import registry


@pytest.mark.parametrize("name", ["Torch", "TORCH", "OnnxRuntime", "Törch"])
def test_no_file_borrows_the_name_of_a_built_in_adapter(tmp_path: Path, name: str) -> None:
    file = tmp_path / "acme.py"
    file.write_text(f"class {name}:\n  name = 'torch'\n  def discover(self): ...\n  def open(self): ...\n")
    with pytest.raises(UsageError) as told:
        registry.find("adapters", [f"{file}:{name}"])
    assert ("is the name of a built-in adapter" in str(told.value)) == name.isascii()
    assert told.value.hint == "give the class another name, and its `name` the same"


def distribution(folder: Path, entries: str) -> str:
    """Installs a distribution as pip would leave it. Returns its RECORD."""
    (folder / "acme_borrowed.py").write_text("class Acme:\n  name = 'torch'\n")
    info = folder / "acme_borrowed-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-borrowed\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(entries)
    (info / "RECORD").write_text("acme_borrowed.py,sha256=x,1\n")
    return (info / "RECORD").read_text()


def test_an_installed_package_borrows_no_name_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "[mixmark.adapters]\nTorch = acme_borrowed:Acme\ntorch = acme_borrowed:Acme\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.find("adapters")["torch"].origin == "built in"
    assert "Torch" not in registry.find("adapters")
    told = {each.name: each.reason for each in registry.refused_entry_points("adapters")}
    assert told["torch of acme-borrowed 1.2"] == "torch is the name of a built-in adapter, and reserved for it"
    assert told["Torch of acme-borrowed 1.2"] == "Torch is the name of a built-in adapter, and reserved for it"


def test_the_source_of_a_plugin_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = distribution(tmp_path, "[mixmark.adapters]\nacme = acme_borrowed:Acme\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry.find("adapters", [f"{tmp_path / 'acme_borrowed.py'}:Other"])
    digest = hashlib.sha256(record.encode()).hexdigest()
    assert registry.source_hash(found["acme"]) == ("RECORD of acme-borrowed 1.2", digest)
    module = (tmp_path / "acme_borrowed.py").read_bytes()
    assert registry.source_hash(found["other"]) == ("acme_borrowed.py", hashlib.sha256(module).hexdigest())
    assert registry.source_hash(found["torch"]) == ("", ""), "the run lists all files of Mixmark"
    assert registry.source_hash(registry.Plugin("adapters", "x", "no_such_module:X", "")) == ("", "")
    assert "acme_borrowed" not in sys.modules


def test_no_distribution_calls_itself_built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "[mixmark.adapters]\nacme = acme_borrowed:Acme\n")
    (tmp_path / "acme_borrowed-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: built\nVersion: in\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    acme = registry.find("adapters")["acme"]
    assert (acme.origin, acme.built_in) == ("an entry point", False)


def test_the_code_of_another_interpreter_is_looked_up_and_never_built_in(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    record = distribution(site, "[mixmark.adapters]\nacme = acme_borrowed:Acme\n")
    python = str(tmp_path / "bin/python")
    acme = registry.Plugin("adapters", "mine", "", registry.ELSEWHERE, "acme")
    assert registry.identity(acme, python) == registry.Identity(
        "acme-borrowed 1.2 of another interpreter",
        "acme_borrowed:Acme",
        "RECORD of acme-borrowed 1.2",
        hashlib.sha256(record.encode()).hexdigest(),
    )
    torch = registry.find("adapters")["torch"]
    assert registry.identity(torch, python) == registry.Identity("Mixmark of another interpreter", torch.spec, "", "")
    assert registry.identity(torch) == registry.Identity("built in", torch.spec, "", "")
    unknown = registry.Plugin("adapters", "other", "", registry.ELSEWHERE)
    assert registry.identity(unknown, python) == registry.Identity("another interpreter", "", "", "")
    file = registry.Plugin("adapters", "mine", f"{site / 'acme_borrowed.py'}:Acme", registry.ELSEWHERE)
    assert registry.identity(file, "/opt/none/bin/python").sha256 == registry.source_hash(file)[1] != ""


@pytest.mark.parametrize(
    ("words", "specs"),
    [
        ("is not a plugin", ["acme.py", ":Acme", "acme.py:", "acme.py:not a name"]),
        ("there is no file", ["./acme.py:A"]),
    ],
)
def test_a_malformed_spec_and_a_missing_file_are_misuse(words: str, specs: list[str]) -> None:
    for spec in specs:
        with pytest.raises(UsageError, match=words):
            registry.name_of_spec(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mixmark.harness.nothing:X", "ModuleNotFoundError: No module named 'mixmark.harness.nothing'"),
        ("mixmark.harness.contracts.errors:Nothing", "AttributeError"),
        ("mixmark.harness.contracts.errors:MixmarkError", "lacks name, discover, open"),
    ],
)
def test_a_broken_plugin_names_what_is_wrong(spec: str, words: str) -> None:
    with pytest.raises(PluginError, match=words):
        registry.Plugin("adapters", "x", spec, "test").load()


def test_the_configuration_gives_an_adapter_other_names() -> None:
    sections = {
        "old": AdapterConfig("/opt/old/bin/python", {}, "onnxruntime"),
        "mine": AdapterConfig(plugin="tests.fakes.acme:Acme"),
        "elsewhere": AdapterConfig("/opt/old/bin/python"),
        "same": AdapterConfig(plugin="onnxruntime"),
        "none": AdapterConfig(plugin="no-such-adapter"),
    }
    found = setup.known_adapters(Config(adapters=sections))
    assert found["onnxruntime"].origin == "built in"
    specs = {name: (found[name].spec, found[name].origin, found[name].own_name) for name in sections}
    assert specs == {
        "old": ("", "another interpreter", "onnxruntime"),
        "mine": ("tests.fakes.acme:Acme", "configuration", "acme"),
        "elsewhere": ("", "another interpreter", ""),
        "same": (registry.BUILT_IN["adapters"]["onnxruntime"], "built in", "onnxruntime"),
        "none": ("", "configuration", "no-such-adapter"),
    }


def test_a_section_lends_no_built_in_name_to_another_adapter() -> None:
    with pytest.raises(UsageError, match=r"\[adapter.torch\] in the configuration: torch is the name of a built-in"):
        setup.known_adapters(Config(adapters={"torch": AdapterConfig(plugin="onnxruntime")}))
