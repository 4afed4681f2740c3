"""Adapters and meters in an interpreter of their own: virtual environments with no more than a worker needs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import distribution, version
from importlib.metadata import files as files_of
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from mixmark.harness import VERSION
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.schema import Device
from mixmark.harness.machine import config as configuration
from mixmark.harness.measure import metering
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins import install
from mixmark.harness.plugins.registry import BUILT_IN, Plugin
from mixmark.harness.record.store import open as open_result
from mixmark.harness.worker import handle
from mixmark.harness.worker.messages import PROTOCOL
from mixmark.harness.worker.process.child_process import ChildProcess
from tests.cli.shell import shortened
from tests.fakes.meters import WATTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NEEDED = ("numpy", "pydantic", "pydantic_core", "annotated-types", "typing_extensions", "typing-inspection", "psutil")
ORIGIN = "acme-kit 2.3 of another interpreter"
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
        leave = shutil.ignore_patterns("__pycache__", "reporters", "submissions")
        shutil.copytree(ROOT / "mixmark", self.site / "mixmark", ignore=leave)
        init = self.site / "mixmark/harness/__init__.py"
        init.write_text(init.read_text().replace(f'VERSION = "{VERSION}"', f'VERSION = "{version}"'))
        if version != VERSION:  # its Setup has other fields
            wire = self.site / "mixmark/harness/worker/messages.py"
            wire.write_text(wire.read_text().replace("    cores: tuple", "    cpus: tuple"))

    def install_kit(self) -> None:
        shutil.copy(ROOT / "tests/fakes/kit.py", self.site / "acme_kit.py")
        info = self.site / "acme_kit-2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kit\nVersion: 2.3\n")
        shutil.copy(ROOT / "tests/fakes/meters.py", self.site / "acme_meters.py")
        (info / "entry_points.txt").write_text(
            "[mixmark.adapters]\nacme = acme_kit:Acme\n[mixmark.meters]\njoules = acme_meters:Joules\n"
        )

    def install_runtime(self, version: int) -> None:
        """The vendor's runtime. What one version calls relu, the other one has not."""
        call = {1: "def relu(x): return np.maximum(x, 0)", 2: "def activate(name, x): return np.maximum(x, 0)"}[version]
        (self.site / "acme_runtime.py").write_text(f"import numpy as np\nVERSION = ({version}, 7)\n{call}\n")


def environment(folder: Path, runtime: int) -> Environment:
    made = Environment(folder)
    made.link(*NEEDED)
    made.install_mixmark()
    made.install_kit()
    made.install_runtime(runtime)
    return made


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("acme"), runtime=1)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only workers of this interpreter find this checkout; no mixmark.toml of it is read."""

    def here(
        python: str,
        code: str,
        words: Any,
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
        tracked: bool = True,
        inherited: Sequence[int] = (),
    ) -> ChildProcess:
        own = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {}
        return ChildProcess(python, code, words, {**variables, **own}, log, isolated, tracked, inherited)

    monkeypatch.setattr(handle, "ChildProcess", here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)


def configured(python: object, more: str = "") -> None:
    Path("mixmark.toml").write_text(f"[adapter.acme]\npython = {json.dumps(str(python))}\n{more}")


def shown(*words: str) -> Any:
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def why_absent(*words: str) -> str:
    found = shown("devices", "--adapter", "acme", *words)
    assert found["devices"] == []
    ((kind, name, reason),) = ((each["kind"], each["name"], each["reason"]) for each in found["absent"])
    assert (kind, name) == ("adapter", "acme")
    return str(reason)


def test_an_adapter_that_is_only_there_is_shown_with_its_packages(complete: Environment) -> None:
    configured(complete.python)
    found = shown("devices", "--adapter", "acme")
    assert [each["id"] for each in found["devices"]] == ["npu:acme0"]
    acme = found["adapters"]["acme"]
    assert acme == {
        "origin": ORIGIN,
        "spec": "acme_kit:Acme",
        "source": "acme_kit.py",
        "sha256": hashlib.sha256((complete.site / "acme_kit.py").read_bytes()).hexdigest(),
        "python": acme["python"],
        "mixmark": VERSION,
        "packages": {name: version(name) for name in ("numpy", "pydantic", "psutil")},
        "vendor": {"Acme driver": "4.2", "Acme firmware": "7", "Acme runtime": "1.7"},
    }


def test_two_versions_of_a_runtime_work_in_one_mixed_run(complete: Environment, tmp_path: Path) -> None:
    """They are two sections about one adapter, each with an interpreter of its own, as the meter has."""
    other = environment(tmp_path / "venv", runtime=2)
    section = f'[adapter.acme-2]\nplugin = "acme"\npython = "{other.python}"\ndevice = "npu:acme1"\n'
    meter = f'[meter.joules]\npython = "{complete.python}"\nmode = "wall"\nname = "plug"\n'
    configured(complete.python, section + meter)
    Path("mix.toml").write_text('[mine]\ntier = "smoke"\nunits = { dlrm = 1000 }\n')
    words = ["run", "--tier", "smoke", "--suite", "dlrm", "--adapter", "acme", "--adapter", "acme-2"]
    with shortened(200):
        done = CliRunner().invoke(main, [*words, "--mix", "mix.toml", "--out", "out"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = open_result(Path("out"))
    mixed = {each.route.device: each for each in result.records if each.scenario == "mixed"}
    engines = {device: (each.route.adapter, each.facts["engine"]) for device, each in mixed.items()}
    assert engines == {"npu:acme0": ("acme", "acme 1.7"), "npu:acme1": ("acme-2", "acme 2.7")}
    audits = [each.audit for each in mixed.values()]  # few feeds are audited of so short a mix
    assert all(each and each.values and max(each.values) <= each.gate.at_most for each in audits)
    runtimes = {name: each.vendor["Acme runtime"] for name, each in result.environments.items()}
    assert runtimes == {"acme": "1.7", "acme-2": "2.7"}
    there = result.environments["acme-2"]
    assert (there.origin, there.spec) == (ORIGIN, "acme_kit:Acme")
    assert "torch" in result.system.packages and "torch" not in there.packages
    assert [each.id for each in result.domains] == ["joules/plug"]
    assert all(len(each.samples["joules/plug"].values) >= 2 and not each.lost for each in result.meterings)
    assert {each.surviving_processes for each in result.records} == {()}, "the meter's process is none of a worker"
    page = CliRunner().invoke(main, ["report", "out", "--format", "html"]).stdout
    assert f"acme_kit:Acme ({ORIGIN})" in page
    assert "Acme runtime 2.7" in page


@pytest.mark.parametrize(
    ("mode", "lost"),
    [
        ("fine", None),
        ("dies", "the probe was pulled out; plug it in again"),
        ("is killed", "the worker was killed by SIGSEGV while calling read"),
        ("hangs", "no reply within 1 s while calling read"),
    ],
)
def test_a_meter_is_read_there(
    complete: Environment, monkeypatch: pytest.MonkeyPatch, mode: str, lost: str | None
) -> None:
    """Its interpreter has it and this one does not. Whatever it does there costs its own domains only."""
    monkeypatch.setattr(metering, "PATIENCE_S", 1.0)
    monkeypatch.setattr(metering, "INTERVAL_S", 0.01)
    monkeypatch.setattr(metering, "READING", 1.0)
    Path("mixmark.toml").write_text(f'[meter.joules]\npython = "{complete.python}"\nmode = "{mode}"\n')
    config = configuration.load(None)
    plug = Plugin("meters", "plug", "tests.fakes.meters:Plug", "test")
    config = replace(config, meters={**config.meters, "plug": {}})
    device = Device(id="npu:acme0", kind="npu", memory_pool="npu:acme0")
    before = {*psutil.Process().children()}
    with Meters(config, (device,), {"plug": plug}) as meters:
        started = {*psutil.Process().children()} - before
        meters.begin()
        meters.rest(0.5)
        drained = meters.drain("a")
    assert drained is not None and meters.absent == ()
    assert [each.id for each in meters.domains] == ["plug/npu:acme0", "joules/npu:acme0"]
    reason = drained.lost.get("joules/npu:acme0")
    assert (reason is None) == (lost is None) and (lost or "") in (reason or ""), reason
    assert "plug/npu:acme0" not in drained.lost and len(drained.samples["plug/npu:acme0"].values) > 10
    joules = drained.samples["joules/npu:acme0"]
    if lost is None:
        assert len(joules.values) > 10
        watts = np.diff(joules.values)[1:] / (np.diff(joules.before_ns)[1:] / 1e9)
        assert np.median(watts) == pytest.approx(WATTS, rel=0.2), "a timestamp is taken at each read"
        assert (joules.after_ns >= joules.before_ns).all() and joules.before_ns[0] >= drained.begin_ns
    assert len(started) == 2 and not any(psutil.pid_exists(each.pid) for each in started)


def test_another_version_of_mixmark_there_is_refused_with_both(tmp_path: Path) -> None:
    other = Environment(tmp_path / "venv")
    other.link(*NEEDED)
    other.install_mixmark("0.0.9")
    other.install_kit()
    configured(other.python, f'[meter.joules]\npython = "{other.python}"\n')
    (of_meter,) = Meters(configuration.load(None), (), {}).absent
    assert of_meter.label == "meter joules"
    here = f"this is Mixmark {VERSION} with protocol {PROTOCOL}"
    there = f"the interpreter {other.python} has Mixmark 0.0.9 with protocol {PROTOCOL}, but {here}"
    fix = install.command(python=str(other.python))
    for reason in (why_absent(), of_meter.reason):
        assert there in reason and fix in reason


def test_an_environment_without_mixmark_is_refused_with_what_to_install(tmp_path: Path) -> None:
    empty = Environment(tmp_path / "venv")
    configured(empty.python)
    reason = f"the interpreter {empty.python} has no Mixmark; install the same version there: "
    assert why_absent() == reason + install.command(python=str(empty.python))
    empty.install_mixmark()
    assert "lacks numpy" in why_absent()


def test_an_adapter_that_is_not_there_either_is_named(complete: Environment) -> None:
    Path("mixmark.toml").write_text(f"[adapter.other]\npython = {json.dumps(str(complete.python))}\n")
    (reason,) = (each["reason"] for each in shown("devices", "--adapter", "other")["absent"])
    known = ", ".join((*BUILT_IN["adapters"], "acme"))
    assert f"has no adapter other, it has {known}" in reason
    assert "entry point of the group mixmark.adapters" in reason


@pytest.mark.parametrize("command", ["devices", "run"])
def test_a_misspelt_option_is_misuse_there_too(complete: Environment, command: str) -> None:
    configured(complete.python, "borken = true\n")
    done = CliRunner().invoke(main, [command, "--adapter", "acme"], catch_exceptions=False)
    assert done.exit_code == 2
    assert "[adapter.acme] in the configuration: adapter acme has no option borken" in done.stderr
    assert "it knows: broken" in done.stderr
    assert not Path("results").exists()


def test_a_crash_while_devices_are_discovered_shows_the_end_of_the_log(complete: Environment) -> None:
    configured(complete.python, "broken = true\n")
    assert "exit code 3 while calling discover" in why_absent()
    assert "whose last line is: libacme: cannot open /dev/acme0" in why_absent()


SERVED = """
import sys
from contextlib import suppress
from importlib.util import find_spec
import numpy as np
from mixmark import Unsupported
from mixmark.harness.plugins import registry
from mixmark.harness.worker import child
from mixmark.harness.judge.statistics import intervals
for name, plugin in registry.find("suites").items():
    suite = plugin.load()("smoke", {})
    weights = suite.weights()
    for each in weights.names():
        weights.read(each, np.empty([int(size) for size in weights.spec(each).shape], np.float32))
    with suppress(Unsupported):  # ONNX has no backward pass
        assert all(graph.onnx() for graph in suite.graphs().values())
    suite.feeds(1, seed=1)(0)
    suite.gate("fp32"), suite.units(1), suite.costs("fp32", 1)
    print(name, child.needed_bytes(suite, "fp32"))
print(intervals.mean_half_width(np.arange(20.0)), intervals.early_stopping(np.arange(64), 0.9))
assert [name for name in sys.argv[1:] if find_spec(name)] == [], "the environment has no more than a worker needs"
"""


def test_every_built_in_suite_is_served_with_what_a_worker_needs(complete: Environment) -> None:
    words = [str(complete.python), "-P", "-c", SERVED, *NOT_THERE.split()]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == list(BUILT_IN["suites"])
