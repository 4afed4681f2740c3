"""Batch norms folded into the convolutions before them, in an ONNX graph whose weights lie outside of it.

The synthetic weights are such that folding keeps them exact (suites/resnet50/calibrate.py). Those of a checkpoint are
rounded once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Spec, Weights

if TYPE_CHECKING:
    from onnx import ModelProto

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Norm:
    """A batch norm: the names of its four vectors, and of the bias of the convolution before it, if it has one."""

    gain: str
    bias: str
    mean: str
    variance: str
    epsilon: float
    before: str | None


@dataclass(frozen=True)
class Folded:
    """The weights of the graphs that `fold` changed: a batch norm's gain is in the convolution's weight, its shift in
    what was its bias."""

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
            shift = self._vector(norm.mean)
            if norm.before is not None:
                shift -= self._vector(norm.before)
            into -= self._factor(norm) * shift

    def _factor(self, norm: Norm) -> Floats:
        deviation = np.sqrt(self._vector(norm.variance) + np.float32(norm.epsilon))
        factor: Floats = self._vector(norm.gain) / deviation
        return factor

    def _vector(self, name: str) -> Floats:
        values = np.empty(tuple(map(int, self.weights.spec(name).shape)), np.float32)
        self.weights.read(name, values)
        return values


def fold(models: Sequence[ModelProto], weights: Weights) -> Folded:
    """Removes each batch norm that follows a convolution, in place, and returns the weights that the models now ask
    for. models: all graphs that use these weights; a weight that several nodes use is left as it is."""
    used = Counter(name for model in models for node in model.graph.node for name in node.input)
    by_weight: dict[str, Norm] = {}
    by_bias: dict[str, Norm] = {}
    for model in models:
        nodes, ends = model.graph.node, {value.name for value in model.graph.output}
        convolutions = {node.output[0]: node for node in nodes if node.op_type == "Conv" and node.output[0] not in ends}
        for norm in [node for node in nodes if node.op_type == "BatchNormalization"]:
            entering, gain, bias, mean, variance = norm.input
            conv = convolutions.get(entering)
            if conv is None or any(used[name] > 1 for name in (entering, *conv.input[1:], *norm.input[1:])):
                continue
            epsilon = next((each.f for each in norm.attribute if each.name == "epsilon"), 1e-5)
            before = conv.input[2] if len(conv.input) > 2 else None
            by_weight[conv.input[1]] = by_bias[bias] = Norm(gain, bias, mean, variance, epsilon, before)
            conv.input[:] = [*conv.input[:2], bias]
            conv.output[0] = norm.output[0]
            nodes.remove(norm)
        asked = {name for node in nodes for name in node.input}
        for each in [each for each in model.graph.initializer if each.name not in asked]:
            model.graph.initializer.remove(each)
    return Folded(weights, by_weight, by_bias)
