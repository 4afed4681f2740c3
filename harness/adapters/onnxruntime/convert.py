"""Writes models that ONNX Runtime maps: linear layers in 8 or 4 bits, and Llamas of few, large operators.

The layers of a Llama, and all layers in 4 bits, become `MatMulNBits`, whose inputs are rounded to 8 bits with a scale
for each group. Other layers in 8 bits become `DynamicQuantizeMatMul`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.adapters.onnx_weights import nodes_of
from mixmark.harness.adapters.onnxruntime.decoder import decoder, describes_llama
from mixmark.harness.adapters.onnxruntime.files import GROUP, Files
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.weights import read_weight

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def size_bytes(suite: Suite, bits: int) -> int:
    """About the size of the files: the integers and a float32 scale for each group."""
    weights = suite.weights()
    count = sum(prod(map(int, weights.spec(name).shape)) for name in weights.names())
    return count * bits // 8 + count * 4 // GROUP + (1 << 20)


def writer(suite: Suite, bits: int, half: bool = False) -> Callable[[Path], None]:
    """A function that writes each graph of the suite as `<name>.onnx` into a folder, its initialisers beside it.

    A suite whose config describes a Llama gets a graph of larger operators than the exported graph. bits: the bits of a
    weight; 16 and 32 only for a Llama. half: whether all floats, including inputs and outputs, are fp16.
    """

    def write(folder: Path) -> None:
        import onnx

        for name, graph in suite.graphs().items():
            files = Files(folder, name, suite.weights(), bits, half)
            if describes_llama(suite.config):
                files.finish(decoder(suite.config, graph, files))
            else:
                model = onnx.load_from_string(graph.onnx())
                replace(model, files)
                files.finish(halved(model) if half else model)

    return write


def replace(model: ModelProto, files: Files) -> None:
    """Quantises the linear layers whose weights are external initialisers.

    In 8 bits they multiply integers, which matrix units of processors do many times faster than floats.
    """
    from onnx import TensorProto

    external = {tensor.name for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
    added: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not _is_linear(node) or node.input[1] not in external:
            continue
        name = node.input[1]
        weight = read_weight(files.weights, name)
        key = name if node.op_type == "Gemm" else f"{name}.transposed"
        if node.op_type == "MatMul":
            weight = np.ascontiguousarray(weight.T)
        if key not in added:
            (files.matrix if files.bits == 4 else files.integer_matrix)(key, weight)
            added.add(key)
        if files.bits == 4:
            layer = files.linear(node.input[0], key, weight.shape, node.output[0], *node.input[2:])
        else:
            layer = files.integer_linear(node.input[0], key, node.output[0], *node.input[2:])
        model.graph.node[index].CopyFrom(layer)
    used = {name for node in nodes_of(model.graph) for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name in external]:
        model.graph.initializer.remove(tensor)
        if tensor.name in used:
            files.add(tensor.name, read_weight(files.weights, tensor.name))


def halved(model: ModelProto) -> ModelProto:
    """The model with fp16 instead of floats, including inputs and outputs, except in operators without fp16.

    Only the type of external initialisers changes; the caller must write their values in that type. They are declared
    as inputs during the conversion, because the converter would read them.
    """
    from onnx import TensorProto, helper
    from onnxruntime.transformers.float16 import convert_float_to_float16

    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    own_inputs = len(model.graph.input)
    for tensor in external:
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    half: ModelProto = convert_float_to_float16(model, force_fp16_initializers=True)
    del half.graph.input[own_inputs:]
    for tensor in external:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.data_type = TensorProto.FLOAT16
            for entry in tensor.external_data:
                if entry.key == "length":
                    entry.value = str(int(entry.value) // 2)
        half.graph.initializer.append(tensor)
    # If three nodes read a tensor in fp32, such as the scales of Resize, the converter makes three casts of one name.
    once = [copy.deepcopy(node) for node in {tuple(node.output): node for node in half.graph.node}.values()]
    del half.graph.node[:]
    half.graph.node.extend(once)
    return half


def sliced(model: ModelProto, most_parts: int) -> None:
    """Replaces each Split into more than `most_parts` parts of known sizes by a Slice for each part."""
    from onnx import helper, numpy_helper

    known = {each.name: each for each in model.graph.initializer if not each.external_data}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        sizes = known.get(node.input[1]) if node.op_type == "Split" and len(node.input) > 1 else None
        if sizes is None or len(node.output) <= most_parts:
            nodes.append(node)
            continue
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        ends = np.cumsum(numpy_helper.to_array(sizes))
        for output, begin, end in zip(node.output, [0, *ends], ends, strict=False):
            edges = {"begin": begin, "end": end, "axis": axis}
            names = [f"{output}.{edge}" for edge in edges]
            model.graph.initializer.extend(
                numpy_helper.from_array(np.array([value], np.int64), name)
                for name, value in zip(names, edges.values(), strict=True)
            )
            nodes.append(helper.make_node("Slice", [node.input[0], *names], [output], f"{output}.slice"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _is_linear(node: NodeProto) -> bool:
    """Whether the node is x · W, or x · Wᵀ as torch exports a linear layer."""
    if node.op_type == "MatMul":
        return True
    attributes: dict[str, Any] = {attribute.name: attribute.i or attribute.f for attribute in node.attribute}
    wanted = {"transA": 0, "transB": 1, "alpha": 1, "beta": 1}
    return node.op_type == "Gemm" and all(
        attributes.get(name, 0 if name == "transA" else 1) == value for name, value in wanted.items()
    )
