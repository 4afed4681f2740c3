"""The table of what is within reach names routes that there are, and says which of them were run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mixmark.harness.adapters.onnxruntime.devices import CPU, CUDA, OTHERS, WEBGPU
from mixmark.harness.plugins.registry import BUILT_IN

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "vendors/coverage.md").read_text("utf-8")
CAPABILITIES = [page.read_text("utf-8") for page in (DOCS / "capabilities").rglob("*.md")]
ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for page in (PAGE, *CAPABILITIES)
    for table in re.findall(r"^\| vendor \| route .*\n(?:\|.*\n)*", page, re.MULTILINE)
    for row in table.splitlines()[2:]
]
TABLE = {row[0]: row[1:] for row in ROWS}
WANTED = (
    "NVIDIA CUDA TensorRT AMD ROCm MIGraphX Intel Apple CoreML Ascend CANN Cambricon Moore Hygon Biren Trainium TPU "
    "DirectML Maia Vitis Qualcomm"
)


@pytest.mark.parametrize("vendor", WANTED.split())
def test_a_vendor_has_a_row(vendor: str) -> None:
    assert any(vendor in name for name in TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_row_names_routes_that_there_are_and_whether_they_were_run(name: str) -> None:
    route, *_, run = TABLE[name]
    routes = re.findall(r"`(\w+)`", route)
    assert set(routes) <= BUILT_IN["adapters"].keys()
    run_here = {
        "x86 processors": "run, ",
        "NVIDIA, by CUDA": "run, for 15 minutes ",
        "NVIDIA, by jax": "run, for four minutes ",
        "by WebGPU": "run on a software device",
    }
    expected = next((words for part, words in run_here.items() if part in name), "never run")
    assert run.startswith("not reached" if route == "none" else expected)
    assert bool(routes) == (route != "none")


def test_every_provider_that_is_named_is_one_that_the_adapter_lists() -> None:
    assert set(re.findall(r"\w+ExecutionProvider", PAGE)) <= {CPU, CUDA, WEBGPU, *OTHERS}
