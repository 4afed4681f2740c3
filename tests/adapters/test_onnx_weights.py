"""External weights of a graph become its inputs, and batch norms fold into convolutions: the same outputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mixmark.harness.adapters.onnx_weights import fold, lift
from mixmark.harness.contracts.protocols import Array, Spec, Weights
from tests.fakes.toys import Random

SHAPES = {"w": (4, 3, 1, 1), "b": (4,), "gain": (4,), "shift": (4,), "mean": (4,), "norm.running_var": (4,)}
NORM = ["gain", "shift", "mean", "norm.running_var"]


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A graph whose weights are initialisers by name; their values are not looked at."""
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in SHAPES.items()]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "y")]
    return helper.make_model(helper.make_graph([*nodes], "g", ends[:1], ends[1:], weights))


def random() -> Random:
    return Random({name: Spec(shape) for name, shape in SHAPES.items()})


def read(weights: Weights, name: str) -> Array:
    into = np.empty(SHAPES[name], np.float32)
    weights.read(name, into)
    return into


def test_a_norm_behind_a_convolution_moves_into_its_weight_and_its_bias() -> None:
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"])
    norm = helper.make_node("BatchNormalization", ["c", *NORM], ["y"], epsilon=0.5)
    changed, weights = model(conv, norm), random()
    folded = fold([changed], weights)
    (only,) = changed.graph.node
    assert (only.op_type, [*only.input], [*only.output]) == ("Conv", ["x", "w", "shift"], ["y"])
    assert [each.name for each in changed.graph.initializer] == ["w", "shift"]
    factor = read(weights, "gain") / np.sqrt(read(weights, "norm.running_var") + np.float32(0.5))
    np.testing.assert_allclose(read(folded, "w"), read(weights, "w") * factor[:, None, None, None], rtol=1e-6)
    shift = read(weights, "shift") + factor * (read(weights, "b") - read(weights, "mean"))
    np.testing.assert_allclose(read(folded, "shift"), shift, rtol=1e-5)


def test_what_another_node_uses_is_left_as_it_is() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    norm = helper.make_node("BatchNormalization", ["c", *NORM], ["n"])
    both = helper.make_node("Add", ["c", "n"], ["y"])
    seen = model(conv, norm, both)
    fold([seen], random())
    assert len(seen.graph.node) == 3
    shared = [model(conv, helper.make_node("BatchNormalization", ["c", *NORM], ["y"])) for _ in range(2)]
    fold(shared, random())
    assert [len(each.graph.node) for each in shared] == [2, 2]
    (inside,) = shared[:1]
    fold([inside], Random({name: Spec(SHAPES[name]) for name in ("w", *NORM[1:])}))  # the gain lies inside the graph
    assert len(inside.graph.node) == 2


def branching(tensor: onnx.TensorProto) -> onnx.ModelProto:
    """A graph that adds a tensor to x if x has a positive sum, and else takes the tensor away: only bodies read it."""
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    bodies = {
        f"{branch}_branch": helper.make_graph([helper.make_node(of, ["x", tensor.name], ["y"])], branch, [], [y])
        for branch, of in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **bodies),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])
    zero = numpy_helper.from_array(np.zeros((), np.float32), "zero")
    opset = [helper.make_opsetid("", 18)]
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, ["batch", 4])], [zero, tensor])
    return helper.make_model(graph, opset_imports=opset)


def test_what_only_a_body_of_a_node_reads_stays() -> None:
    seen = branching(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    fold([seen], random())
    assert [each.name for each in seen.graph.initializer] == ["zero", "w"]
    conv, shared = helper.make_node("Conv", ["x", "w"], ["c"]), model()
    norm = helper.make_node("BatchNormalization", ["c", *NORM], ["n"])
    shared.graph.node.extend([conv, norm, seen.graph.node[2]])  # its bodies read w, too
    fold([shared], random())
    assert [node.op_type for node in shared.graph.node] == ["Conv", "BatchNormalization", "If"]


def test_a_table_that_a_layer_reads_too_stays_a_weight() -> None:
    def weight(name: str) -> onnx.TensorProto:
        place = onnx.StringStringEntryProto(key="location", value="weights.bin")
        external = onnx.TensorProto.EXTERNAL
        kind = onnx.TensorProto.FLOAT
        return onnx.TensorProto(name=name, data_type=kind, dims=[4, 4], data_location=external, external_data=[place])

    nodes = [
        helper.make_node("Gather", ["table", "rows"], ["a"]),
        helper.make_node("Gather", ["tied", "rows"], ["b"]),
        helper.make_node("MatMul", ["a", "tied"], ["c"]),
    ]
    tied = helper.make_model(helper.make_graph(nodes, "", [], [], [weight("table"), weight("tied")]))
    assert lift(tied, tables_only=True) == ["table"]
    assert [each.name for each in tied.graph.initializer] == ["tied"]
