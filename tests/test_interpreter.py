"""Adapters in an interpreter of their own: a second virtual environment that has what a worker needs, and no more."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distribution, version
from importlib.metadata import files as files_of
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness import VERSION
from harness.cli import main
from harness.hosts.local import Local, LocalProcess
from harness.plugins import BUILT_IN
from harness.store import open as open_result
from harness.wire import PROTOCOL

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NEEDED = ("numpy", "pydantic", "pydantic_core", "annotated-types", "typing_extensions", "typing-inspection", "psutil")
NOT_THERE = "click rich scipy platformdirs safetensors jinja2 pynvml torch onnxruntime"


class Environment:
    """A virtual environment without pip, into which packages of this one are linked."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        (self.site,) = (folder / "lib").glob("python*/site-packages")

    def link(self, *distributions: str) -> None:
        for name in distributions:
            files = files_of(name) or []
            for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
                source = Path(str(distribution(name).locate_file(top)))
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(source)

    def install_mixmark(self, version: str = VERSION) -> None:
        """A copy, as a wheel would leave it."""
        for package in ("harness", "suites"):
            shutil.copytree(ROOT / package, self.site / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "mixmark.py", self.site)
        init = self.site / "harness/__init__.py"
        init.write_text(init.read_text().replace(f'VERSION = "{VERSION}"', f'VERSION = "{version}"'))

    def install_kit(self) -> None:
        shutil.copy(ROOT / "tests/fakes/kit.py", self.site / "acme_kit.py")
        info = self.site / "acme_kit-2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kit\nVersion: 2.3\n")
        (info / "entry_points.txt").write_text("[mixmark.adapters]\nacme = acme_kit:Acme\n")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("acme"))
    made.link(*NEEDED)
    made.install_mixmark()
    made.install_kit()
    return made


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only workers of this interpreter find this checkout; no mixmark.toml of it is read."""
    start = Local.start

    def here(
        local: Local,
        python: str,
        code: str,
        words: Any,
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
    ) -> LocalProcess:
        own = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {}
        return start(local, python, code, words, {**variables, **own}, log, isolated)

    monkeypatch.setattr(Local, "start", here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)


def configured(python: object, more: str = "") -> None:
    Path("mixmark.toml").write_text(f"[adapter.acme]\npython = {json.dumps(str(python))}\n{more}")


def told(*words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def why_absent(*words: str) -> str:
    found = told("devices", "--adapter", "acme", *words)
    assert found["devices"] == []
    ((kind, name, reason),) = ((each["kind"], each["name"], each["reason"]) for each in found["absent"])
    assert (kind, name) == ("adapter", "acme")
    return str(reason)


def test_the_environment_has_no_more_than_a_worker_needs(complete: Environment) -> None:
    script = f"import importlib.util as u; print([n for n in {NOT_THERE.split()!r} if u.find_spec(n)])"
    done = subprocess.run([complete.python, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_adapter_that_is_only_there_is_shown_with_its_packages(complete: Environment) -> None:
    configured(complete.python)
    (acme,) = (each for each in told("adapters")["adapters"] if each["name"] == "acme")
    assert (acme["origin"], acme["spec"], acme["devices"]) == ("acme-kit 2.3", "acme_kit:Acme", ["npu:acme0"])
    assert acme["python"] == str(complete.python)
    assert acme["environment"] == {
        "origin": "acme-kit 2.3",
        "spec": "acme_kit:Acme",
        "source": "acme_kit.py",
        "sha256": hashlib.sha256((complete.site / "acme_kit.py").read_bytes()).hexdigest(),
        "python": acme["environment"]["python"],
        "mixmark": VERSION,
        "packages": {name: version(name) for name in ("numpy", "pydantic", "psutil")},
        "vendor": {"Acme driver": "4.2", "Acme firmware": "7"},
    }
    found = told("devices", "--adapter", "acme")
    assert [each["id"] for each in found["devices"]] == ["npu:acme0"]
    table = CliRunner().invoke(main, ["adapters", "--adapter", "acme"]).stdout
    assert "acme-kit 2.3" in table


def test_a_run_goes_through_it_and_discloses_it(complete: Environment) -> None:
    configured(complete.python)
    words = ["run", "--tier", "smoke", "--suite", "dlrm", "--adapter", "acme", "--mix", "none", "--out", "out"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = open_result(Path("out"))
    assert {record.route.adapter for record in result.records if record.completions is not None} == {"acme"}
    assert all(each.audit.passed for each in result.records if each.audit)
    assert any(each.audit for each in result.records)
    assert set(result.environments) == {"acme"}
    there = result.environments["acme"]
    assert there.vendor["Acme driver"] == "4.2"
    assert "torch" in result.system.packages
    assert "torch" not in there.packages
    page = CliRunner().invoke(main, ["report", "out", "--format", "html"]).stdout
    assert "acme_kit:Acme (acme-kit 2.3)" in page
    assert "Acme driver 4.2" in page
    assert told("report", "out", "--format", "json")["result"]["environments"]["acme"] == there.model_dump(mode="json")


def test_another_version_of_mixmark_there_is_refused_with_both(tmp_path: Path) -> None:
    other = Environment(tmp_path / "venv")
    other.link(*NEEDED)
    other.install_mixmark("0.0.9")
    other.install_kit()
    configured(other.python)
    reason = why_absent()
    here = f"this is Mixmark {VERSION} with protocol {PROTOCOL}"
    assert f"{other.python} has Mixmark 0.0.9 with protocol {PROTOCOL}, but {here}" in reason
    assert f"{other.python} -m pip install mixmark=={VERSION}" in reason


def test_an_environment_without_mixmark_is_told_what_to_install(tmp_path: Path) -> None:
    empty = Environment(tmp_path / "venv")
    configured(empty.python)
    reason = f"the interpreter {empty.python} has no Mixmark; install the same version there: "
    assert why_absent() == reason + f"{empty.python} -m pip install mixmark=={VERSION}"
    empty.install_mixmark()
    assert "lacks numpy" in why_absent()


def test_an_interpreter_that_does_not_exist_is_told() -> None:
    configured("/opt/acme/bin/python")
    reason = why_absent()
    assert "cannot start /opt/acme/bin/python: No such file" in reason
    assert "[adapter.acme] python = … in mixmark.toml names the interpreter" in reason


def test_an_adapter_that_is_not_there_either_is_told(complete: Environment) -> None:
    Path("mixmark.toml").write_text(f"[adapter.other]\npython = {json.dumps(str(complete.python))}\n")
    (reason,) = (each["reason"] for each in told("devices")["absent"] if each["name"] == "other")
    assert "has no adapter other, it has torch, onnxruntime, openvino, llamacpp, acme" in reason
    assert "entry point of the group mixmark.adapters" in reason


@pytest.mark.parametrize("command", ["devices", "run"])
def test_a_misspelt_option_is_misuse_there_too(complete: Environment, command: str) -> None:
    configured(complete.python, "borken = true\n")
    done = CliRunner().invoke(main, [command], catch_exceptions=False)
    assert done.exit_code == 2
    assert "[adapter.acme] in the configuration: adapter acme has no option borken" in done.stderr
    assert "it knows: broken" in done.stderr
    assert not Path("results").exists()


def test_a_crash_while_devices_are_discovered_tells_the_end_of_the_log(complete: Environment) -> None:
    configured(complete.python, "broken = true\n")
    assert "exit code 3 while discovering devices" in why_absent()
    assert "its log ends with: libacme: cannot open /dev/acme0; see " in why_absent()


SERVED = """
import numpy as np
from harness import plugins, serve
from harness.judge import intervals
for name, plugin in plugins.find("suites").items():
    suite = plugin.load()("smoke", {})
    weights = suite.weights()
    for each in weights.names():
        weights.read(each, np.empty([int(size) for size in weights.spec(each).shape], np.float32))
    assert all(graph.onnx() for graph in suite.graphs().values())
    suite.feeds(1, seed=1)(0)
    suite.gate("fp32"), suite.units(1), suite.costs("fp32", 1)
    print(name, serve.needed_bytes(suite, "fp32"))
print(intervals.mean_half_width(np.arange(20.0)), intervals.early_stopping(np.arange(64), 0.9))
"""


def test_every_built_in_suite_is_served_with_what_a_worker_needs(complete: Environment) -> None:
    done = subprocess.run([complete.python, "-P", "-c", SERVED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == list(BUILT_IN["suites"])
