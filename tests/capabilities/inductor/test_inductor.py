"""The compiled route of PyTorch, on the CPU; CUDA graphs were never run."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.capabilities.inductor import CompiledSession, Inductor
from mixmark.harness.contracts.errors import PluginError, Unsupported, UsageError
from mixmark.harness.contracts.protocols import GraphRunner
from mixmark.suites.llm import Llm
from tests.fakes.audits import ALONE, at_most, cpu, judged
from tests.fakes.toys import Toy, computes_as_torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # Inductor imports what torch itself deprecates
]
CPU_0 = cpu(Torch({}))


@pytest.fixture(scope="module")
def runner() -> Iterator[GraphRunner]:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler for Inductor: apt-get install g++")
    with Inductor({"cpu": "yes"}).open(CPU_0, Toy(), "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        yield runner


def test_it_computes_what_the_eager_route_computes(runner: GraphRunner) -> None:
    computes_as_torch(runner, CPU_0)
    assert runner.facts["compiled step"] == "one graph of fixed shapes, mode default"


def test_a_state_that_was_dropped_comes_again_at_its_addresses_with_zeros(runner: GraphRunner) -> None:
    session = runner.session
    first = session.state("step")
    first[0].fill_(1)
    addresses = [tensor.data_ptr() for tensor in first]
    second = session.state("step")
    assert [tensor.data_ptr() for tensor in second] != addresses, "the first one is in use"
    del first, second
    gc.collect()
    third = session.state("step")
    fourth = session.state("step")
    assert not np.any(session.get(third[0])) and third[0].data_ptr() != fourth[0].data_ptr()


def test_it_leaves_the_cpu_to_others_unless_asked() -> None:
    if torch.accelerator.is_available():
        assert [device for device in Inductor({}).discover() if device.kind == "cpu"] == []
    else:
        with pytest.raises(PluginError, match="it compiles for accelerators, and torch finds none"):
            Inductor({}).discover()
    assert [device.id for device in Inductor({"cpu": "yes"}).discover() if device.kind == "cpu"] == ["cpu:0"]
    with pytest.raises(UsageError, match="cpu is 'maybe'"):
        Inductor({"cpu": "maybe"})


def compiled(module: torch.nn.Module) -> CompiledSession:
    session = CompiledSession.__new__(CompiledSession)
    session._device, session._dtype, session._threads = torch.device("cpu"), torch.float32, None
    session._facts, session._seen, session._modules = {}, set(), {"step": module}
    session._prepare()
    return session


def test_a_graph_that_does_not_compile_is_unsupported_with_the_reason() -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x + 1 if x.sum() > 0 else x - 1,)

    with pytest.raises(Unsupported, match="step"):
        compiled(Branching()).run("step", torch.ones(2))


def test_a_thread_of_its_own_may_compile_as_many_shapes_as_a_batch_search_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of feeds does not have the settings of the one that loaded the graphs, and torch allows it 8 shapes."""

    class Step(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x + 1,)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # no C++ is compiled
    session = compiled(Step())
    with ThreadPoolExecutor(1) as pool:
        for size in range(2, 14):
            pool.submit(session.run, "step", torch.ones(size)).result()


@pytest.mark.exhaustive
def test_weights_of_eight_bits_keep_the_gate_of_llm() -> None:
    pytest.importorskip("torchao", reason="no torchao: pip install 'mixmark[torchao]'")
    suite = Llm("smoke", {}, 8)
    adapter = Inductor({"cpu": "yes"})
    device = cpu(adapter)
    assert "int8" in device.offers("llm") and "int8" not in device.offers("dlrm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchao and torch about each other
        with adapter.open(device, suite, "int8", ALONE) as runner:
            assert judged(runner, suite, suite.feeds(1, seed=1)(0)) < at_most(suite, "int8")
            assert runner.facts["int8"].startswith("weights by torchao")


def test_without_torchao_there_are_no_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mixmark.harness.capabilities.inductor.has_torchao", lambda: False)
    assert all("int8" not in device.offers("llm") for device in Inductor({"cpu": "yes"}).discover())
