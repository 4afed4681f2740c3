"""The torch adapter on the CPU; what needs an accelerator runs only where there is one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.protocols import GraphRunner, Use
from tests.fakes.audits import ALONE, cpu
from tests.fakes.toys import Toy

CPU_0 = cpu(Torch({}))
pytestmark = pytest.mark.slow


def test_weights_are_the_suites_and_graphs_share_them() -> None:
    suite = Toy()
    table = np.empty((32, 16), np.float32)
    suite.weights().read("table.weight", table)
    with Torch({}).open(CPU_0, suite, "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        session = runner.session
        index = np.arange(5)[None]
        np.testing.assert_allclose(session.get(session.run("look", session.put(index))[0])[0], table[:5].sum(0), 1e-5)
        modules: Mapping[str, Any] = vars(session)["_modules"]
        assert modules["look"].table.weight.data_ptr() == modules["step"].table.weight.data_ptr()


@pytest.mark.parametrize(
    ("native", "use", "concurrency"), [("offline", None, 2), ("offline", 1, 1), ("single-stream", None, 1)]
)
def test_offline_suites_share_the_threads_out_among_slots(native: str, use: int | None, concurrency: int) -> None:
    suite = Toy()
    suite.scenarios = (native, "server")
    torch.set_num_threads(2)
    adapter = Torch({})
    for _ in range(2):  # the second suite of a worker finds all threads again
        with adapter.open(CPU_0, suite, "fp32", Use("server", use)) as runner:
            assert runner.concurrency == concurrency
            list(runner(suite.feeds(1, seed=1)(0)))
            assert torch.get_num_threads() == 2 // concurrency


def test_bf16_runs_as_a_graph_for_onednn() -> None:
    if "bf16" not in CPU_0.precisions:
        pytest.skip("no bf16 in this processor: run it on one with AVX-512 BF16 or AMX")
    feed = Toy().feeds(2, seed=1)(0)
    outputs = []
    for precision in ("fp32", "bf16"):
        with Torch({}).open(CPU_0, Toy(), precision, ALONE) as runner:
            outputs.append(list(runner(feed)))
            assert runner.facts.get("fused by oneDNN") == {"fp32": None, "bf16": "all graphs"}[precision]
    for exact, rounded in zip(*outputs, strict=True):
        np.testing.assert_allclose(rounded, exact, rtol=0.05, atol=0.05 * np.abs(exact).max())


ON_ACME = """
import numpy as np
from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.protocols import Use
from tests.fakes.toys import Toy

adapter, suite = Torch({"backend": "tests.fakes.torch_acme"}), Toy()
host, acme = adapter.discover()
assert (acme.id, acme.name, acme.kind) == ("npu:acme0", "Acme Topaz", "npu"), acme
assert (acme.memory_pool, acme.memory_bytes) == ("npu:acme0", 8 << 30), acme
assert acme.precisions == ("bf16", "fp16", "fp32"), acme
feed = suite.feeds(2, seed=1)(0)

def outputs(device, precision):
    with adapter.open(device, suite, precision, Use.of("single-stream")) as runner:
        yielded = list(runner(feed))
        assert "elsewhere" not in runner.facts, runner.facts
    return yielded

exact = outputs(host, "fp32")
for precision, off in (("fp32", 1e-5), ("fp16", 0.01), ("bf16", 0.05)):
    for output, expected in zip(outputs(acme, precision), exact, strict=True):
        np.testing.assert_allclose(output, expected, rtol=off, atol=off * np.abs(expected).max())
"""


def test_a_backend_out_of_tree_needs_no_change() -> None:
    """In a process of its own, since torch has one such backend at most and keeps it."""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-W", "error", "-c", ON_ACME], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr


# The one test of torch that only real silicon can pass; test_copies and ON_ACME hold the rest on stand-ins.
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no GPU: run it on a machine with one")
def test_an_accelerator_agrees_with_the_cpu() -> None:
    suite = Toy()
    feed = suite.feeds(2, seed=1)(0)
    outputs = []
    for device in Torch({}).discover():
        with Torch({}).open(device, suite, "fp32", ALONE) as runner:
            outputs.append(list(runner(feed)))
    for other in outputs[1:]:
        for expected, output in zip(outputs[0], other, strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_outputs_that_lie_elsewhere_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with Torch({}).open(CPU_0, Toy(), "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        session: Any = runner.session
        image = session.put(Toy().feeds(2, seed=1)(0)["image"])
        with monkeypatch.context() as patch:
            patch.setattr(session, "_device", torch.device("meta"))  # as if the outputs should lie there
            session.run("see", image)
        assert runner.facts["elsewhere"] == "the outputs of see are on cpu"
