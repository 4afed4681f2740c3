"""Graphs as files: what is exported, what is found again, and that what is shipped matches the modules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from mixmark.harness.adapters.onnxruntime import OnnxRuntime, from_file, session_options
from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Graph, Spec, Suite, Use
from mixmark.harness.plugins import model_cache, registry
from mixmark.harness.plugins.manifest import PACKAGE
from mixmark.suites import onnx_graphs
from tests.fakes.toys import HOME, Toy
from tests.marks import sweep

pytestmark = pytest.mark.slow

SUITES = [
    name
    for name, spec in registry.BUILT_IN["suites"].items()
    if PACKAGE.joinpath(*spec.partition(":")[0].split(".")[1:], "graphs").is_dir()  # ONNX has no backward pass
]
SHIPPED = [(name, tier) for name in SUITES for tier in onnx_graphs.TIERS]


def suite(name: str, tier: str) -> Suite:
    built: Suite = registry.build_suite(name, registry.BUILT_IN["suites"][name], tier, {})
    return built


def initialisers(model: onnx.ModelProto) -> Mapping[str, tuple[int, ...]]:
    """Names and shapes of those that lie outside the file."""
    external = [each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    return {each.name: tuple(each.dims) for each in external}


def ends(graph: Graph) -> tuple[list[str], list[str]]:
    return [*graph.inputs, *graph.state], [*graph.outputs, *(f"{name}.out" for name in graph.state)]


@pytest.fixture(scope="module")
def step() -> bytes:
    return onnx_graphs.export(Toy().graphs()["step"])


def test_an_export_has_names_symbols_and_state_but_no_weights(step: bytes) -> None:
    model = onnx.load_from_string(step)
    assert initialisers(model) == {"table.weight": (32, 16), "qkv.weight": (48, 16)}
    inputs, outputs = ends(Toy().graphs()["step"])
    assert ([each.name for each in model.graph.input], [each.name for each in model.graph.output]) == (inputs, outputs)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "tokens"
    assert [node.op_type for node in model.graph.node].count(
        "Gemm"
    ) == 2  # linear layers keep their weights untransposed


def test_an_export_tells_nothing_of_the_machine_that_made_it(step: bytes) -> None:
    assert b"/" not in step
    assert b".py" not in step


def test_weights_lie_on_pages_of_their_own(step: bytes) -> None:
    places = [
        {entry.key: entry.value for entry in each.external_data}
        for each in onnx.load_from_string(step).graph.initializer
        if each.external_data
    ]
    assert [(place["offset"], place["length"]) for place in places] == [("0", "2048"), ("4096", "3072")]


def test_what_is_not_shipped_is_exported_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports: list[Graph] = []

    def export(graph: Graph) -> bytes:
        exports.append(graph)
        return b"model"

    monkeypatch.setenv(model_cache.FOLDER, str(tmp_path))
    monkeypatch.setattr(onnx_graphs, "export", export)
    assert Toy("server").graphs()["look"].onnx() == b"model"
    assert Toy("server").graphs()["look"].onnx() == b"model"
    assert len(exports) == 1
    monkeypatch.setattr(onnx_graphs, "_sources", lambda home: b"edited since")
    assert Toy("server").graphs()["look"].onnx() == b"model"
    assert len(exports) == 2


def test_a_suite_of_one_file_is_exported_again_when_the_file_changes(tmp_path: Path) -> None:
    file, other = tmp_path / "mixmark_acme_suite.py", tmp_path / "mixmark_other.py"
    file.write_text("a")
    before = onnx_graphs._sources(file)
    other.write_text("a")
    assert onnx_graphs._sources(file) == before
    file.write_text("b")
    assert onnx_graphs._sources(file) != before
    assert not onnx_graphs.graph_path(file, "smoke", "step").exists()


def test_a_network_that_torch_cannot_export_says_why() -> None:
    import torch
    from torch.nn import functional as F

    class Flat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (F.scaled_dot_product_attention(x, x, x),)

    shape = Spec(("batch", 4, 8))
    with pytest.raises(MixmarkError, match=r"torch cannot export the network: AssertionError.*only 4D query"):
        onnx_graphs.export(Graph({"x": shape}, {}, {"y": shape}, Flat, bytes))


def test_a_suite_that_ships_its_shapes_builds_no_module(tmp_path: Path) -> None:
    asked = onnx_graphs.weight_specs(tmp_path, "smoke", Toy().graphs)
    assert onnx_graphs.weight_specs(HOME, "smoke", dict) == asked


@pytest.mark.parametrize(("name", "tier"), SHIPPED)
def test_what_is_shipped_matches_the_modules(name: str, tier: str) -> None:
    """After a change to a module: python -m mixmark.suites.onnx_graphs mixmark.suites.llm:Llm."""
    each = suite(name, tier)
    graphs = each.graphs()
    shapes = onnx_graphs.weight_shapes(graphs)
    weights = each.weights()
    assert {name: weights.spec(name).shape for name in weights.names()} == shapes
    home = Path(inspect.getfile(type(each))).parent
    for title, graph in graphs.items():
        assert onnx_graphs.graph_path(home, tier, title).exists()
        model = onnx.load_from_string(graph.onnx())
        inputs, outputs = ends(graph)
        assert [value.name for value in model.graph.input] == inputs
        assert [value.name for value in model.graph.output] == outputs
        found = initialisers(model)
        assert found
        assert found == {weight: shapes[weight] for weight in found}


@pytest.mark.parametrize("name", sweep("llm", "resnet50", *sorted({*SUITES} - {"llm", "resnet50"}), usual=2))
def test_both_ways_compute_the_same(name: str) -> None:
    """Every yield of one feed; decoded tokens are identical, everything else agrees to 1e-4 of its size."""
    each = suite(name, "smoke")
    batch = 2 if "offline" in each.scenarios else 1
    feed = each.feeds(batch, seed=1)(0)
    outputs = []
    for adapter in (Torch({"threads": "1"}), OnnxRuntime({"threads": "1"})):
        device = next(device for device in adapter.discover() if device.id == "cpu:0")
        with adapter.open(device, each, "fp32", Use.of("single-stream")) as runner:
            outputs.append(list(runner(feed)))
    for by_torch, by_runtime in zip(*outputs, strict=True):
        assert (by_runtime.dtype, by_runtime.shape) == (by_torch.dtype, by_torch.shape)
        if by_torch.dtype.kind == "i":
            assert (by_runtime == by_torch).all()
        else:
            assert np.abs(by_runtime - by_torch).max() <= 1e-4 * np.abs(by_torch).max()


def test_resnet50_runs_as_53_convolutions(tmp_path: Path) -> None:
    each = suite("resnet50", "smoke")
    options = session_options(threads=1)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4  # it warns that such a file fits this machine only
    model = onnx.load_from_string(each.graphs()["classify"].onnx())
    from_file(model, each.weights(), options, ["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    operators = [node.op_type for node in optimised.graph.node]
    assert sum(operator.endswith("Conv") for operator in operators) == 53
    assert "BatchNormalization" not in operators
