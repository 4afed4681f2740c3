"""Writes each graph of a suite as the ONNX model `<graph>.onnx`, with its weights beside it as external data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mixmark.harness.capabilities.export.safetensors import write_tensor
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Suite, Weights
from mixmark.harness.contracts.weights import read_weight
from mixmark.suites import onnx_graphs


def prepare(suite: Suite, precision: str) -> Callable[[Path], None]:
    """Exports every graph, and returns the function that writes them with their weights; it needs memory for one tensor
    in float32 and for the graphs without weights."""
    if precision not in onnx_graphs.BYTES:
        raise Unsupported(f"ONNX graphs are not written in {precision}", f"take one of {', '.join(onnx_graphs.BYTES)}")
    weights = suite.weights()
    models = {
        name: onnx_graphs.export(graph, onnx_graphs.ONE_NODE, precision, f"{name}.onnx.data")
        for name, graph in suite.graphs().items()
    }

    def write(folder: Path) -> None:
        for name, model in models.items():
            (folder / f"{name}.onnx").write_bytes(model)
            _write_data(folder / f"{name}.onnx.data", model, weights, precision)

    return write


def _write_data(path: Path, model: bytes, weights: Weights, precision: str) -> None:
    """Writes each external initialiser at the offset that the model gives."""
    import onnx

    with path.open("wb") as file:
        for initialiser in onnx.load_from_string(model).graph.initializer:
            if initialiser.data_location == onnx.TensorProto.EXTERNAL:
                position = {entry.key: entry.value for entry in initialiser.external_data}
                file.seek(int(position["offset"]))
                write_tensor(file, read_weight(weights, initialiser.name), precision)
