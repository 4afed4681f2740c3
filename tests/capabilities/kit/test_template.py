"""Starter packages: each is complete, short, shown in the docs as it is written, and computes rightly."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mixmark.harness.capabilities.kit import template
from mixmark.harness.capabilities.kit.commands import STARTERS as KINDS
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts import schema
from mixmark.harness.contracts.protocols import Adapter, Array, Use
from mixmark.harness.machine import config
from mixmark.harness.measure import metering
from mixmark.harness.plugins import registry
from mixmark.suites import dlrm
from tests.capabilities.kit import template_pages
from tests.marks import sweep

SUITES = registry.BUILT_IN["suites"]
CONTRACT = (template_pages.DOCS / "vendors/contract.md").read_text("utf-8")
SESSION = (template_pages.PAGES / "session.md").read_text("utf-8")


def typed(*words: object) -> Result:
    return CliRunner().invoke(main, ["new", *map(str, words)])


def block(page: str, mark: str) -> str:
    """The block of Python behind the comment <!-- mark -->."""
    (found,) = re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", page, re.DOTALL)
    return str(found)


def module(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def acme(folder: Path, kind: template.Kind, options: dict[str, str] | None = None) -> Any:
    """The plugin of a starter package that was written for the name acme."""
    template.write(kind, "acme", folder / kind)
    return module(folder / kind, "mixmark_acme").Acme(options or {})


def outputs(adapter: Adapter, suite: Any, feeds: int = 1) -> list[list[Array]]:
    batch = 1 if suite.name in ("llm", "speech", "probe") else 3
    (device,) = adapter.discover()
    with adapter.open(device, suite, "fp32", Use.of("single-stream")) as runner:
        return [list(runner(feed)) for feed in map(suite.feeds(batch, 7), range(feeds))]


# What is written


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_complete_and_its_plugin_short(kind: template.Kind, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "my-chip"
    done = typed("my_chip", "--kind", kind, "--out", folder)
    assert done.exit_code == 0, done.output
    written = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert {str(folder / path) for path in written} == set(done.output.split())
    assert {"pyproject.toml", "README.md", "test_conformance.py", ".github/workflows/test.yml"} < set(written)
    name = template.package(kind, "my_chip").replace("-", "_")
    source = written[f"{name}.py"]
    assert len(source.splitlines()) < (110 if kind == "suite" else 60)
    assert not re.search(r"[{]%|(?<![$])[{][{]|acme", "".join(written.values()), re.IGNORECASE)
    content = tomllib.loads(written["pyproject.toml"])
    project = content["project"]
    own = f"-{kind}" if kind in ("meter", "policy", "suite") else ""  # the plugins of a vendor are several packages
    assert project["name"] == f"mixmark-my_chip{own}"
    assert content["tool"]["setuptools"]["py-modules"] == [name]
    (group,) = project["entry-points"].values()
    assert group == {"my_chip": f"{name}:MyChip"}
    for path in written:
        if path.endswith(".py"):
            ast.parse(written[path])
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name
    }
    needed = {re.split("[>=]", each)[0] for each in project["dependencies"]}
    assert imported - sys.stdlib_module_names <= needed
    members = registry.members(template.GROUPS.get(kind, "adapters"))
    assert all(hasattr(module(folder, name).MyChip, member) for member in members)


def test_the_pages_show_a_package_of_each_kind() -> None:
    shown = "".join(path.read_text("utf-8") for path in template_pages.PAGES.glob("*.md"))
    assert {found[2] for found in template_pages.FILE.finditer(shown)} == set(get_args(template.Kind))


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        *(("session", name, "Python module") for name in ("1st", "Acme", "../x", "")),
        ("session", "a" * 41, "at most 40"),
        ("session", "import", "Python or the plugin"),
        ("session", "runner", "Python or the plugin"),
        ("session", "torch", "built-in adapter"),
        ("meter", "rapl", "built-in meter"),
        ("suite", "llm", "built-in suite"),
    ],
)
def test_a_name_that_no_plugin_can_have_is_refused(kind: str, name: str, why: str, tmp_path: Path) -> None:
    done = typed(name, "--kind", kind, "--out", tmp_path / "new")
    assert done.exit_code == 2 and why in done.output, done.output
    assert not (tmp_path / "new").exists()


def test_a_folder_that_holds_something_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for folder, why in (("full", "is not empty"), ("file", "File exists"), ("file/x", "Not a directory")):
        done = typed("acme", "--out", tmp_path / folder)
        assert done.exit_code == 2 and why in done.output and "--out" in done.output, done.output
    done = typed("acme", "--out", "/proc/mixmark")
    assert done.exit_code == 2 and "cannot write" in done.output
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert typed("acme", "--out", tmp_path / "empty").exit_code == 0


# What it computes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "suite"),
    [
        ("runner", "dlrm"),
        *sweep(
            *(
                ("session", each)
                for each in ("dlrm", "llm", "resnet50", "speech", "diffusion", "probe")
                if each in SUITES
            )
        ),
    ],
)
def test_the_session_runs_every_suite_and_the_runner_its_own(tmp_path: Path, kind: template.Kind, suite: str) -> None:
    from mixmark.harness.adapters.torch import Torch

    small = registry.load_suite(suite, "smoke")
    output, expected = outputs(acme(tmp_path, kind), small, feeds=2), outputs(Torch({}), small, feeds=2)
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("in_process")
def test_the_meter_counts_and_says_what_is_missing(tmp_path: Path) -> None:
    template.write("meter", "acme", tmp_path)
    found = {"acme": registry.Plugin("meters", "acme", f"{tmp_path}/mixmark_acme_meter.py:Acme", "test")}
    options = config.Config(meters={"acme": {"folder": str(tmp_path)}})
    devices = [schema.Device(id=f"cpu:{number}", kind="cpu", memory_pool="host") for number in range(2)]
    with metering.Meters(options, devices, found) as meters:
        [absent] = meters.absent
    assert absent.name == "acme/cpu:0" and f"sudo chmod a+r {tmp_path}/cpu:0/energy_mj" in absent.reason
    (tmp_path / "cpu:0").mkdir()
    (tmp_path / "cpu:0/energy_mj").write_text("5000\n")
    with metering.Meters(options, devices, found) as meters:
        meters.begin()
        drained = meters.drain("a")
    assert [each.covers for each in meters.domains] == [("cpu:0",)]
    assert drained and set(drained.samples["acme/cpu:0"].values.tolist()) == {5.0} and not drained.lost


@pytest.mark.skipif("policy" not in KINDS, reason="the capability of policies is deleted")
def test_the_policy_chooses_as_its_test_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template.write("policy", "acme", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tests = [each for name, each in vars(module(tmp_path, "test_conformance")).items() if name.startswith("test_")]
    for test in tests:
        test()
    sys.modules.pop("mixmark_acme_policy")
    assert len(tests) == 2


@pytest.mark.slow
def test_the_suite_runs_as_a_graph_and_as_a_module(tmp_path: Path) -> None:
    from mixmark.harness.adapters.onnxruntime import OnnxRuntime
    from mixmark.harness.adapters.torch import Torch

    template.write("suite", "acme", tmp_path)
    suite = module(tmp_path, "mixmark_acme_suite").Acme("smoke", {})
    ((output,),), ((expected,),) = (outputs(adapter({}), suite) for adapter in (OnnxRuntime, Torch))
    assert suite.quality(output, expected) < 1e-9


# What the pages have a reader type


@pytest.mark.slow
def test_an_adapter_is_tried_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template.write("runner", "acme", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(block(CONTRACT, "by hand"), {})
    sys.modules.pop("mixmark_acme")
    feed, answers, *_ = capsys.readouterr().out.splitlines()
    assert feed == "{'dense': (2, 13), 'indices': (214, 2)}" and answers == "[(2,)] 2"


@pytest.mark.slow
def test_a_module_is_filled_as_the_page_says() -> None:
    import torch

    suite = dlrm.Dlrm("smoke", {})
    ((name, graph),) = suite.graphs().items()
    known: dict[str, Any] = {"graph": graph, "weights": suite.weights(), "torch": torch}
    exec(block(SESSION, "module"), known)
    assert {each.device.type for each in known["program"].state_dict().values()} == {"cpu"}
    feed = suite.feeds(2, 7)(0)
    with torch.inference_mode():
        (logits,) = known["program"](*(torch.tensor(feed[each]) for each in graph.inputs))
    assert logits.shape == (2,) and name
