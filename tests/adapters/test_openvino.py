"""The OpenVINO adapter on the CPU, beside torch on the same toy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data

from mixmark.harness.adapters import openvino as adapter
from mixmark.harness.adapters.openvino import OpenVino
from mixmark.harness.adapters.openvino.quantised import unit_of
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.protocols import Array, Feed, Graph, GraphRunner, Session, Spec, Use
from mixmark.harness.contracts.schema import weight_class
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.llm import Llm
from mixmark.suites.resnet50 import ResNet50
from tests.adapters.test_onnx_weights import branching
from tests.fakes.audits import ALONE, at_most, cpu, judged
from tests.fakes.toys import Random, Toy, computes_as_torch

pytestmark = pytest.mark.slow

CPU_0 = cpu(OpenVino({}))


@pytest.fixture(scope="module")
def runner() -> Iterator[GraphRunner]:
    with OpenVino({"threads": "2"}).open(CPU_0, Toy(), "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        yield runner


def test_it_computes_what_torch_computes(runner: GraphRunner) -> None:
    computes_as_torch(runner, CPU_0)


def test_it_says_what_computes(runner: GraphRunner) -> None:
    list(runner(Toy().feeds(1, seed=1)(0)))
    assert runner.facts["dtype"] == runner.facts["computes in"].replace("f32", "fp32") == "fp32"
    assert (runner.facts["hint"], runner.facts["threads"], runner.facts["streams"]) == ("latency", "2", "1")
    assert "Convolution " in runner.facts["nodes of see"]


def qualities(precision: str, feeds: int = 1) -> list[float]:
    """The values of an audit of the rows that OpenVINO decodes."""
    suite = Llm("smoke", {}, weight_class(precision))
    with OpenVino({}).open(CPU_0, suite, precision, ALONE) as runner:
        assert runner.facts["dtype"] == precision
        return [judged(runner, suite, feed) for feed in map(suite.feeds(1, seed=3), range(feeds))]


def test_angles_are_computed_in_fp32() -> None:
    """In bf16, the angle of position 150 would be off by up to half a radian."""
    if "bf16" not in CPU_0.precisions:
        pytest.skip("no bf16 in this processor: run it on one with AVX-512 BF16 or AMX")
    assert max(qualities("bf16", feeds=3)) < 0.013  # 0.0121


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_weights_in_few_bits_lose_nothing(precision: str) -> None:
    """The synthetic weights of a class are exact in it, so only the activations are rounded."""
    assert max(qualities(precision)) < at_most(Llm("smoke", {}), precision)  # a third of it or less


def test_resnet50_multiplies_in_8_bits_in_several_streams() -> None:
    suite = ResNet50("smoke", {}, 8)
    with OpenVino({}).open(CPU_0, suite, "int8", Use.of("offline")) as runner:
        found = judged(runner, suite, suite.feeds(8, seed=3)(0))
        assert all("_i8" in each.lower() for each in runner.facts["nodes of classify"].split(", "))
    assert 0.001 < found < 0.03  # in bf16 it is below, with a wrong scale above


@pytest.mark.exhaustive
def test_diffusion_multiplies_in_8_bits_in_its_unet() -> None:
    suite: Any = Diffusion("smoke", {}, 8)
    with OpenVino({}).open(CPU_0, suite, "int8", ALONE) as runner:
        found = judged(runner, suite, suite.feeds(1, seed=3)(0))
        nodes = {name: runner.facts[f"nodes of {name}"].lower().split(", ") for name in suite.graphs()}
    assert sum("_i8" not in each for each in nodes["denoise"]) <= 2  # the layers of 4 channels at its ends
    assert not any("_i8" in each for each in (*nodes["encode"], *nodes["decode"]))
    assert 0.002 < found < 0.2  # in bf16 it is below, of another feed above 1


@pytest.mark.parametrize(
    ("values", "unit"), [([-8.0, 0.0625, 7.9375], 0.0625), ([0.0, 3.0], 1.0), ([0.0, 1 / 3], 0.0), ([2.0**-9], 0.0)]
)
def test_the_power_of_two_that_values_are_multiples_of_is_found(values: list[float], unit: float) -> None:
    assert unit_of(np.array(values, np.float32)) == unit
    assert unit_of(np.array([1.0] * 1000 + values, np.float32)) == unit, "also behind many others"


def test_throughput_has_the_slots_that_openvino_asks_for() -> None:
    suite = ResNet50("smoke", {})
    with OpenVino({"threads": "2"}).open(CPU_0, suite, "fp32", Use.of("offline")) as runner:
        assert runner.concurrency == 2 and runner.facts["hint"] == "throughput"
        nodes = runner.facts["nodes of classify"].split(", ")
        assert sum(int(each.split()[-1]) for each in nodes if each.startswith("Convolution")) == 53
    with OpenVino({}).open(CPU_0, suite, "fp32", ALONE) as runner:
        assert runner.concurrency == 1


def test_the_four_shapes_that_came_last_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []
    real = adapter._OpenVinoSession._compile

    def compile(self: Any, name: str, key: Any) -> Any:
        compiled.append(key[0][0])
        return real(self, name, key)

    monkeypatch.setattr(adapter._OpenVinoSession, "_compile", compile)
    with OpenVino({}).open(CPU_0, Toy(), "fp32", ALONE) as runner:
        assert isinstance(runner, GraphRunner)
        for batch in (1, 2, 3, 4, 1, 2, 3, 4, 1, 5, 1, 2):
            runner.session.run("look", runner.session.put(np.zeros((batch, 5), np.int64)))
    assert compiled == [1, 2, 3, 4, 5, 2]


def test_a_disk_without_room_for_the_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 10))
    with (
        pytest.raises(Unsupported, match=r"has [\d.]+ k?B free") as refused,
        OpenVino({}).open(CPU_0, Toy(), "fp32", ALONE),
    ):
        pass
    assert "set TMPDIR" in refused.value.hint


def test_a_graph_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import openvino

    def fail(*given: Any) -> None:
        raise RuntimeError("Exception from core.cpp:1:\nno kernel\n\n")

    monkeypatch.setattr(openvino.Core, "compile_model", fail)
    with (
        OpenVino({}).open(CPU_0, Toy(), "fp32", ALONE) as runner,
        pytest.raises(MixmarkError, match="compile step for CPU: no kernel"),
    ):
        list(runner(Toy().feeds(1, seed=1)(0)))


class Branching(Toy):
    """A suite with control flow, whose weights lie inside its graph. Of kind `external` its one weight lies beside it,
    and only bodies of its If read it."""

    external = False

    def graphs(self) -> Mapping[str, Graph]:
        tensor = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
        if self.external:
            set_external_data(tensor, "weights.bin")
        spec = {name: Spec(("batch", 4)) for name in "xy"}
        made = branching(tensor).SerializeToString
        return {"branch": Graph({"x": spec["x"]}, {}, {"y": spec["y"]}, lambda: Toy().graphs()["see"].module(), made)}

    def weights(self) -> Random:
        return Random({"w": Spec((4,))} if self.external else {})

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        yield session.get(session.run("branch", session.put(feed["x"]))[0])


@pytest.mark.parametrize("external", [False, True])
def test_a_suite_with_branches_and_no_weights_beside_its_graph_runs(
    monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    monkeypatch.setattr(Branching, "external", external)
    w = np.arange(4, dtype=np.float32)
    if external:
        Branching().weights().read("w", w)
    for precision in ("fp32", "bf16") if not external else ("fp32",):
        with OpenVino({}).open(CPU_0, Branching(), precision, ALONE) as runner:
            for x in (np.ones((2, 4), np.float32), -np.ones((2, 4), np.float32)):
                (y,) = runner({"x": x})
                np.testing.assert_allclose(y, x + w if x[0, 0] > 0 else x - w, rtol=1e-2)


def test_a_graph_that_openvino_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import openvino

    def fail(*given: Any) -> None:
        raise RuntimeError("Exception from src/inference/src/cpp/core.cpp:105:\nno such node\n")

    monkeypatch.setattr(openvino.Core, "read_model", fail)
    with (
        pytest.raises(MixmarkError, match="does not read step: no such node"),
        OpenVino({}).open(CPU_0, Toy(), "fp32", ALONE),
    ):
        pass


def test_accelerators_have_the_ids_of_their_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties are those that OpenVINO documents; no such device was at hand."""
    known: dict[str, dict[str, Any]] = {
        "CPU": {"OPTIMIZATION_CAPABILITIES": ["FP32"]},
        "GPU.0": {"DEVICE_UUID": "8680a0560800000000000300000000ff", "DEVICE_TYPE": "Type.DISCRETE"},
        "NPU": {"FULL_DEVICE_NAME": "Intel(R) AI Boost"},
    }

    def get_property(name: str, what: str) -> Any:
        return [*known[name]] if what == "SUPPORTED_PROPERTIES" else known[name][what]

    core = SimpleNamespace(available_devices=list(known), get_property=get_property)
    monkeypatch.setattr(adapter, "_import", lambda: SimpleNamespace(Core=lambda: core))
    processor, gpu, npu = OpenVino({}).discover()
    assert processor.precisions == ("fp32",)
    assert (gpu.id, gpu.memory_pool) == ("gpu:GPU-8680a056-0800-0000-0000-0300000000ff",) * 2
    assert (npu.id, npu.memory_pool, npu.name) == ("npu:npu", "host", "Intel(R) AI Boost")
