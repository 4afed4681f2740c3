"""The large weights of an exported graph, which are external to its ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Weights

if TYPE_CHECKING:
    from onnx import ModelProto


def read_weight(weights: Weights, name: str) -> npt.NDArray[np.float32]:
    """A tensor of the weights, as a new array."""
    tensor = np.empty(tuple(map(int, weights.spec(name).shape)), np.float32)
    weights.read(name, tensor)
    return tensor


def lift(model: ModelProto, tables_only: bool = False) -> list[str]:
    """Turns the external initialisers of the model into inputs, in place, and returns their names.

    tables_only: only weights that are read by Gather alone; all others stay initialisers.
    """
    from onnx import TensorProto, helper

    kept = {name for node in model.graph.node if tables_only and node.op_type != "Gather" for name in node.input}
    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    lifted = [tensor for tensor in external if tensor.name not in kept]
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in lifted
    )
    for tensor in lifted:
        model.graph.initializer.remove(tensor)
    return [tensor.name for tensor in lifted]
