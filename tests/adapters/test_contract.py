"""What all engines promise, over every built-in one, beside what the contract asks of any adapter."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.adapters.onnxruntime import OnnxRuntime
from mixmark.harness.adapters.openvino import OpenVino
from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.errors import PluginError, Unsupported, UsageError
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import Device
from mixmark.suites import onnx_graphs
from tests.fakes.audits import ALONE, cpu
from tests.fakes.toys import HOME, Random, Toy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = {OnnxRuntime: "onnxruntime", OpenVino: "openvino", Torch: "torch"}
GPU = Device(id="gpu:GPU-0", kind="gpu", memory_pool="gpu:GPU-0", precisions=("fp32",))


@pytest.mark.parametrize("adapter", [OnnxRuntime, OpenVino])
def test_the_cpu_is_named_as_torch_names_it(adapter: Any) -> None:
    by_torch = cpu(Torch({}))
    own = {"precisions": by_torch.precisions, "precisions_by_suite": by_torch.precisions_by_suite}
    assert cpu(adapter({})).model_copy(update=own) == by_torch


@pytest.mark.parametrize("adapter", PACKAGES)
def test_a_device_of_others_is_refused(adapter: Any) -> None:
    with pytest.raises(Unsupported, match=GPU.id), adapter({}).open(GPU, Toy(), "fp32", ALONE):
        pass


@pytest.mark.parametrize("adapter", PACKAGES)
def test_a_state_lives_on_from_run_to_run_and_what_get_returned_stays(adapter: Any) -> None:
    """Two states, in turns: one of a text of eight tokens, and one of the last four of them alone."""
    before, now = np.arange(8, 12), np.arange(1, 5)
    with adapter({}).open(cpu(adapter({})), Toy(), "fp32", ALONE) as runner:
        session = runner.session

        def decoded(state: Any, tokens: Array, position: int) -> Array:
            token, _ = session.run("step", session.put(tokens), session.put(np.array([position])), state=state)
            read: Array = session.get(token)
            return read

        whole, alone = session.state("step"), session.state("step")
        decoded(whole, before, 0)
        first = decoded(alone, now, 0)
        assert (first.tolist(), decoded(whole, now, 4).tolist()) == ([7], [22])
        assert decoded(alone, before, 4).tolist() != [7] == first.tolist()


@pytest.mark.parametrize("adapter", PACKAGES)
@pytest.mark.parametrize("threads", ["many", "0"])
def test_threads_are_a_number_above_zero(adapter: Any, threads: str) -> None:
    with pytest.raises(UsageError, match="threads"):
        adapter({"threads": threads})


@pytest.mark.parametrize(("adapter", "package"), PACKAGES.items())
def test_a_package_that_is_absent_is_named(adapter: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PluginError, match=f"^{package} "):
        list(adapter({}).discover())


@pytest.mark.parametrize("adapter", [OnnxRuntime, OpenVino])
def test_no_file_is_left_behind_even_on_failure(adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Broken(Random):
        def read(self, name: str, into: Array) -> None:
            super().read(name, into)
            if name == "head.bias":
                raise OSError("the disk is full")

    class BrokenToy(Toy):
        def weights(self) -> Random:
            return Broken(onnx_graphs.weight_specs(HOME, self.tier, self.graphs))

    with adapter({}).open(cpu(adapter({})), Toy(), "fp32", ALONE):
        assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="disk is full"), adapter({}).open(cpu(adapter({})), BrokenToy(), "fp32", ALONE):
        pass
    assert not list(tmp_path.iterdir())


ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
from mixmark.harness.adapters.{module} import {name}
from mixmark.harness.contracts.protocols import Use
from mixmark.suites.dlrm import Dlrm
adapter, suite = {name}({{}}), Dlrm("smoke", {{}})
with adapter.open(next(iter(adapter.discover())), suite, "fp32", Use.of("single-stream")) as runner:
    for _ in runner(suite.feeds(1, 1)(0)):
        pass
    threads = [int(thread) for thread in os.listdir("/proc/self/task")]
    print(runner.facts["threads"], len(set().union(*map(os.sched_getaffinity, threads))))
    print(*sorted(name for name in sys.modules if "telemetry" in name and sys.modules[name]))
"""
STUBS = [f"openvino.tools.ovc.telemetry_{part}" for part in ("params", "stub", "utils")]
"""OpenVINO reports every import to its makers where the package openvino_telemetry is found."""


@pytest.mark.parametrize(("adapter", "telemetry"), [(OnnxRuntime, []), (OpenVino, STUBS)])
def test_threads_stay_on_the_cores_that_the_process_was_given_and_nothing_is_sent(
    adapter: Any, telemetry: list[str]
) -> None:
    """Left to choose its threads itself, onnxruntime pins them to all cores, whatever taskset says."""
    script = ON_ONE_CORE.format(module=adapter.name, name=adapter.__name__)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["1 1", " ".join(telemetry)], done.stderr
