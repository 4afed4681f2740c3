"""WebGPU's plug-in provider on a software Vulkan driver: a second kind of device with its own memory, without a GPU.

The driver comes with Debian's chromium. Each story runs in processes of its own, whose environment names the driver.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
ENVIRONMENT = {
    "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    "VK_DRIVER_FILES": str(DRIVER),
    "LD_LIBRARY_PATH": str(DRIVER.parent),
}
pytestmark = [
    pytest.mark.slow,
    # Neither is needed to work on Mixmark: a driver of Debian's, and a package without wheels for every platform.
    pytest.mark.skipif(not DRIVER.exists(), reason="no software Vulkan driver: apt-get install chromium"),
    pytest.mark.skipif(
        not importlib.util.find_spec("onnxruntime_ep_webgpu"),
        reason="no onnxruntime_ep_webgpu: pip install 'mixmark[webgpu]'",
    ),
]


def mixmark(folder: Path, *arguments: str, driver: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(ENVIRONMENT if driver else {})}
    command = [sys.executable, "-m", "mixmark", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def devices(folder: Path, driver: bool) -> dict[str, tuple[str, list[str]]]:
    """The kind of each device that onnxruntime reaches, and the precisions of llm there."""
    done = mixmark(folder, "devices", "--adapter", "onnxruntime", "--json", driver=driver)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["devices"]
    return {each["id"]: (each["kind"], each["precisions_by_suite"].get("llm", each["precisions"])) for each in found}


def test_a_software_driver_is_found_by_itself_and_called_simulated(tmp_path: Path) -> None:
    processor = {"cpu:0": ("cpu", ["fp32", "int8", "int4"])}
    assert devices(tmp_path, driver=True) == processor | {"simulated:webgpu0": ("simulated", ["fp32"])}
    assert devices(tmp_path, driver=False) == processor


@pytest.mark.exhaustive
def test_its_ceilings_are_probed(tmp_path: Path) -> None:
    """A probe runs in a cleaned environment, which still has the driver."""
    words = ("--tier", "smoke", "--suite", "dlrm", "--adapter", "onnxruntime", "--mix", "none", "--out", "out")
    done = mixmark(tmp_path, "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads((tmp_path / "out/result.json").read_text())["records"]
    of_gpu = [each for each in records if each["route"]["device"] == "simulated:webgpu0"]
    assert [each["route"]["suite"] for each in of_gpu] == ["probe", "dlrm", "probe"]
    assert [each["error"] for each in of_gpu] == [None] * 3


SINES = """
import numpy as np
from mixmark.harness.adapters.onnxruntime import OnnxRuntime
from mixmark.harness.contracts.protocols import Use
from mixmark.suites.llm import Llm

adapter, suite = OnnxRuntime({}), Llm("smoke", {})
outputs = []
for device in sorted(adapter.discover(), key=lambda device: device.kind):
    with adapter.open(device, suite, "fp32", Use.of("single-stream")) as runner:
        outputs.append(next(iter(runner(suite.feeds(1, 0)(0)))))
print(np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0]))
"""


def test_positions_are_as_exact_as_fp32() -> None:
    """The driver's sine errs by 0.0002, with which the first token is 2e-6 away and the last one fails the audit."""
    command = [sys.executable, "-c", SINES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **ENVIRONMENT})
    assert float(done.stdout) < 2e-7


MIX = """
[two]
tier = "smoke"
units = { dlrm = 16, resnet50 = 1 }
"""
SPLIT = """
from mixmark.harness.adapters.onnxruntime import OnnxRuntime
from mixmark.harness.adapters.torch import Torch


class Processor(Torch):
    name = "processor"

    def discover(self):
        only = {"precisions": (), "precisions_by_suite": {"resnet50": ("fp32",)}}
        return [device.model_copy(update=only) for device in super().discover()]


class Driver(OnnxRuntime):
    name = "driver"

    def discover(self):
        only = {"precisions": (), "precisions_by_suite": {"dlrm": ("fp32",)}}
        return [device.model_copy(update=only) for device in super().discover() if device.kind == "simulated"]
"""
"""The processor has no dlrm, so the mix needs the software driver, which is hundreds of times slower."""


@pytest.mark.exhaustive
def test_a_mixed_run_of_the_cpu_and_a_software_gpu_is_audited_and_has_no_score(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(MIX)
    (tmp_path / "split.py").write_text(SPLIT)
    adapters = ("--adapter", "./split.py:Processor", "--adapter", "./split.py:Driver")
    words = ("--tier", "smoke", "--suite", "dlrm", "--suite", "resnet50", "--out", "out", *adapters)
    done = mixmark(tmp_path, "run", *words, "--mix", "two.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No score: simulated:webgpu0 took part and is no silicon" in " ".join(done.stdout.split())
    report = json.loads(mixmark(tmp_path, "report", "out", "--json").stdout)
    assert report["verdict"]["word"] in ("partial", "disturbed") and report["score"]["mixes_per_hour"] is None
    records = json.loads((tmp_path / "out/result.json").read_text())["records"]
    of_gpu = [each for each in records if each["route"]["device"] == "simulated:webgpu0"]
    assert {each["route"]["suite"] for each in of_gpu} == {"dlrm"}
    assert {each["scenario"] for each in of_gpu} >= {"mixed"}
    audits = [each["audit"] for each in of_gpu]
    assert audits and all(max(each["values"]) <= each["gate"]["at_most"] for each in audits)
