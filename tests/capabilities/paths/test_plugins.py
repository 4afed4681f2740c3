"""The paths of the adapters' engines, on a fake accelerator and on a software GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixmark.harness.capabilities.paths import host_paths, onnxruntime_paths
from mixmark.harness.capabilities.paths.contract import DataPath, Paths
from mixmark.harness.capabilities.paths.host_paths import HostPaths
from mixmark.harness.capabilities.paths.onnxruntime_paths import OnnxRuntimePaths
from mixmark.harness.capabilities.paths.torch_paths import TorchPaths
from mixmark.harness.contracts.schema import Absent
from tests.adapters.test_webgpu import DRIVER, ENVIRONMENT

ROOT = Path(__file__).parents[3]
SIZE = 1 << 16


def copies(paths: Paths) -> dict[str, DataPath]:
    """Each path of a plugin, after copies of two of its three blocks have arrived, and of all."""
    found = {path.id: path for path in paths.paths() if isinstance(path, DataPath)}
    whole = 3 * SIZE
    sent = np.random.default_rng(0).integers(0, 256, whole, dtype=np.uint8)
    for id in found:
        with paths.open(id, SIZE, 3) as copy:
            copy.put("destination", 0, np.zeros(whole, np.uint8))
            copy.put("source", 0, sent[: SIZE // 2])
            copy.put("source", SIZE // 2, sent[SIZE // 2 :])
            copy.copy(0)
            assert not np.any(copy.take(0, whole)), id
            copy.copy(2)
            assert np.array_equal(copy.take(0, 2 * SIZE), sent[: 2 * SIZE]), id
            assert not np.any(copy.take(2 * SIZE, SIZE)), id
            copy.copy(4)
            assert np.array_equal(copy.take(SIZE + 8, 100), sent[SIZE + 8 : SIZE + 108]), id
            assert np.array_equal(copy.take(0, whole), sent), id
    return found


@pytest.mark.slow
def test_torch_reaches_an_accelerator_by_pageable_and_pinned_memory() -> None:
    """In a process of its own: a backend that is registered stays."""
    script = f"import tests.fakes.torch_acme, {__name__} as t; print(*t.copies(t.TorchPaths()).values())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("host_pages='pinned'") == done.stdout.count("host_pages='pageable'") == 2


@pytest.mark.slow
def test_without_an_accelerator_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    (absent,) = TorchPaths().paths()
    assert isinstance(absent, Absent) and absent.reason == "no path: torch reaches no accelerator"


@pytest.mark.slow
@pytest.mark.skipif(not DRIVER.exists(), reason="no software Vulkan driver: apt-get install chromium")
@pytest.mark.skipif(not importlib.util.find_spec("onnxruntime_ep_webgpu"), reason="pip install 'mixmark[webgpu]'")
def test_onnxruntime_reaches_a_software_gpu_both_ways() -> None:
    script = f"import {__name__} as t; print(*t.copies(t.OnnxRuntimePaths()))"
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["onnxruntime/to-simulated:webgpu0", "onnxruntime/from-simulated:webgpu0"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no process to CPUs")
def test_numa_nodes_are_memories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = min(os.sched_getaffinity(0))
    monkeypatch.setattr(host_paths, "NODES", tmp_path)
    for node, threads in (("node0", f"{usable}"), ("node1", f"{usable}-{usable}"), ("node2", "4000-4001")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(f"{threads}\n")
    before = os.sched_getaffinity(0)
    every = list(HostPaths().paths())
    [absent] = [path for path in every if isinstance(path, Absent)]
    assert (absent.name, absent.reason.partition(":")[0]) == ("host/node2", "no path")
    assert absent.reason.endswith("this process may use none")
    found = [path for path in every if isinstance(path, DataPath) and "node" in path.id]
    assert [path.id for path in found] == [
        "host/node0-node0",
        "host/node0-node1",
        "host/node1-node0",
        "host/node1-node1",
    ]
    assert (found[1].source, found[1].destination) == ("host/node0", "host/node1")
    with HostPaths().open("host/node0-node1", SIZE, 1):
        assert os.sched_getaffinity(0) == {usable}
    assert os.sched_getaffinity(0) == before


def test_one_numa_node_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_paths, "NODES", tmp_path)
    absent = [path for path in HostPaths().paths() if isinstance(path, Absent)]
    assert "host/node" in [path.name for path in absent]


def provider(id: str, memory: str) -> Any:
    return SimpleNamespace(device=SimpleNamespace(id=id), memory=memory)


@pytest.mark.parametrize(
    ("memories", "measured", "refused"),
    [
        (("cuda",), ["onnxruntime/to-gpu:0", "onnxruntime/from-gpu:0"], []),
        (("cuda", "cuda"), [], ["onnxruntime/gpu:0", "onnxruntime/gpu:1"]),
        (("cuda", "cpu"), ["onnxruntime/to-gpu:0", "onnxruntime/from-gpu:0"], []),
        (("cpu",), [], ["onnxruntime"]),
    ],
)
def test_onnxruntime_names_no_device_that_could_be_another(
    monkeypatch: pytest.MonkeyPatch, memories: Sequence[str], measured: list[str], refused: list[str]
) -> None:
    places = [provider(f"gpu:{number}", memory) for number, memory in enumerate(memories)]
    monkeypatch.setattr(onnxruntime_paths, "provider_devices", lambda: places)
    monkeypatch.setattr(onnxruntime_paths, "import_runtime", lambda: SimpleNamespace(copy_tensors=None))
    found = list(OnnxRuntimePaths().paths())
    assert [each.id for each in found if isinstance(each, DataPath)] == measured
    assert [each.name for each in found if isinstance(each, Absent)] == refused


def test_the_path_of_the_host_copies_what_it_is_given() -> None:
    assert "host/copy" in copies(HostPaths())
