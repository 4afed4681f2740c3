"""The large weights of an exported graph, which the ONNX file names and does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def lift(model: ModelProto) -> list[str]:
    """Turns the external initialisers of the model into inputs, in place, and returns their names."""
    from onnx import TensorProto, helper

    external = [each for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL]
    model.graph.input.extend(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in external)
    for each in external:
        model.graph.initializer.remove(each)
    return [each.name for each in external]
