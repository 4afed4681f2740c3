"""The large weights of an exported graph, which the ONNX file names and does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto


def lift(model: ModelProto, tables_only: bool = False) -> list[str]:
    """Turns the external initialisers of the model into inputs, in place, and returns their names.

    tables_only: whether the weights that something else than a Gather reads stay initialisers.
    """
    from onnx import TensorProto, helper

    kept = {name for node in model.graph.node if tables_only and node.op_type != "Gather" for name in node.input}
    external = [each for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL]
    lifted = [each for each in external if each.name not in kept]
    model.graph.input.extend(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in lifted)
    for each in lifted:
        model.graph.initializer.remove(each)
    return [each.name for each in lifted]
