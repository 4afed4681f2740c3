"""The large weights of an exported graph, which are external to its ONNX file: makes them inputs of the graph, and
folds batch norms into them.

Folding keeps synthetic weights exact (suites/resnet50/calibrate.py). A checkpoint's weights are rounded once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Spec, Weights
from mixmark.harness.contracts.weights import read_weight

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

Floats = npt.NDArray[np.float32]


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph, and behind each the nodes of its bodies: those of If, Loop and Scan read the graph's
    tensors by name."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from nodes_of(body)


def lift(model: ModelProto, tables_only: bool = False) -> list[str]:
    """Turns the external initialisers of the model into inputs, in place, and returns their names.

    tables_only: only weights that are read by Gather alone; all others stay initialisers.
    """
    from onnx import TensorProto, helper

    kept = {name for node in nodes_of(model.graph) if tables_only and node.op_type != "Gather" for name in node.input}
    external = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    lifted = [tensor for tensor in external if tensor.name not in kept]
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in lifted
    )
    for tensor in lifted:
        model.graph.initializer.remove(tensor)
    return [tensor.name for tensor in lifted]


@dataclass(frozen=True)
class Norm:
    """A batch norm: the names of its vectors but the bias, and of the bias of the convolution before it, if any."""

    gain: str
    mean: str
    variance: str
    epsilon: float
    before: str | None


@dataclass(frozen=True)
class Folded:
    """The weights of the graphs that `fold` changed.

    The weight of a convolution is multiplied by the batch norm's factor. The bias of the batch norm becomes the bias of
    the convolution.
    """

    weights: Weights
    by_weight: Mapping[str, Norm]
    by_bias: Mapping[str, Norm]

    def names(self) -> Sequence[str]:
        return self.weights.names()

    def spec(self, name: str) -> Spec:
        return self.weights.spec(name)

    def read(self, name: str, into: Floats) -> None:
        self.weights.read(name, into)
        if norm := self.by_weight.get(name):
            into *= self._factor(norm).reshape(-1, *(1 for _ in into.shape[1:]))
        elif norm := self.by_bias.get(name):
            shift = read_weight(self.weights, norm.mean)
            if norm.before is not None:
                shift -= read_weight(self.weights, norm.before)
            into -= self._factor(norm) * shift

    def _factor(self, norm: Norm) -> Floats:
        deviation = np.sqrt(read_weight(self.weights, norm.variance) + np.float32(norm.epsilon))
        factor: Floats = read_weight(self.weights, norm.gain) / deviation
        return factor


def fold(models: Sequence[ModelProto], weights: Weights) -> Folded:
    """Removes each batch norm that follows a convolution, in place, and returns the new weights of the models.

    models: all graphs that use these weights. A weight that several nodes use, or that lies inside a graph, is left as
    it is.
    """
    given = set(weights.names())
    used = Counter(name for model in models for node in nodes_of(model.graph) for name in node.input)
    by_weight: dict[str, Norm] = {}
    by_bias: dict[str, Norm] = {}
    for model in models:
        nodes, outputs = model.graph.node, {value.name for value in model.graph.output}
        convolutions = {
            node.output[0]: node for node in nodes if node.op_type == "Conv" and node.output[0] not in outputs
        }
        for norm in [node for node in nodes if node.op_type == "BatchNormalization"]:
            entering, gain, bias, mean, variance = norm.input
            conv = convolutions.get(entering)
            if conv is None:
                continue
            changed = {*conv.input[1:], *norm.input[1:]}
            if not changed <= given or any(used[name] > 1 for name in (entering, *changed)):
                continue
            epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), 1e-5)
            before = conv.input[2] if len(conv.input) > 2 else None
            by_weight[conv.input[1]] = by_bias[bias] = Norm(gain, mean, variance, epsilon, before)
            conv.input[:] = [*conv.input[:2], bias]
            conv.output[0] = norm.output[0]
            nodes.remove(norm)
        read = {name for node in nodes_of(model.graph) for name in node.input}
        for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
            model.graph.initializer.remove(tensor)
    return Folded(weights, by_weight, by_bias)
