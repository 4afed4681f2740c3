"""The kit on Mixmark's own adapters and suites."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from mixmark.harness.capabilities.kit import adapter_trials, check_adapter, suite
from mixmark.harness.machine.config import Config
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import BUILT_IN
from tests.marks import sweep

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ADAPTERS = [each for each in ("onnxruntime", "torch", "openvino", "jax", "llamacpp") if each in BUILT_IN["adapters"]]


@pytest.mark.parametrize("name", sweep(*ADAPTERS))
def test_the_kit_finds_nothing_in_what_is_built_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the decoder, which has state, yields while it computes and comes in all precisions; in short windows."""
    if name == "llamacpp":
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: it takes ten minutes to build")
    monkeypatch.setitem(registry.BUILT_IN, "suites", {"llm": registry.BUILT_IN["suites"]["llm"]})
    monkeypatch.setattr(adapter_trials, "WINDOW_NS", adapter_trials.SECOND // 2)
    monkeypatch.setenv("MIXMARK_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    if name == "jax":
        pytest.importorskip("jax", reason="jax is not installed: pip install -e '.[jax]'")
        Path("mixmark.toml").write_text('[adapter.jax]\ncpu = "8"\n')  # eight virtual devices
    report = check_adapter(name)
    open_here = {verdict.check: verdict.state for verdict in report.verdicts if verdict.state != "passed"}
    assert open_here in ({}, {"devices_work_at_once": "not checked"}), str(report)


@pytest.mark.parametrize(("name", "classes"), [("train", [16]), ("probe", [16, 8, 4])])
def test_a_suite_is_checked_in_the_classes_that_it_has(name: str, classes: list[int]) -> None:
    if name not in BUILT_IN["suites"]:
        pytest.skip(f"there is no suite {name}: its folder was deleted")
    with ExitStack() as stack:
        assert suite.SuiteTrials(registry.find("suites")[name], Config(), stack).classes == classes
