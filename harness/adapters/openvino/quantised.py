"""Networks that multiply in 8 bits: their weights are integers, and what these multiply is rounded to integers too.

A tensor is rounded at one scale, which has to be known when the network is compiled. It follows from the values that
the tensor takes when the network runs without rounding, on feeds that are never timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.contracts import Array, Graph, Session, State, Tensor

READERS = {"Convolution", "MatMul", "MaxPool", "ReduceMean"}  # pools too, since bytes are faster to move
LEVELS = 256


class Rounding:
    """The tensors of a network that are to be rounded, and the ranges of the values that they were seen with.

    outputs: the names of these tensors.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tensors = _tensors(model)
        self._ranges = [(0.0, 0.0)] * len(self._tensors)
        self.outputs = [f"rounded {index}" for index, _ in enumerate(self._tensors)]
        for tensor, name in zip(self._tensors, self.outputs, strict=True):
            tensor.add_names({name})

    def watched(self) -> Any:
        """A copy of the network that also returns these tensors, before they are rounded, behind its own outputs."""
        copy = self._model.clone()
        copy.add_outputs(self.outputs)
        return copy

    def note(self, seen: Sequence[Array]) -> None:
        """Widens the ranges to the values of these tensors."""
        self._ranges = [
            (min(low, float(values.min())), max(high, float(values.max())))
            for (low, high), values in zip(self._ranges, seen, strict=True)
        ]

    def rounded(self) -> Any:
        """The network itself, which rounds from now on: to integers from 0 to 255 where no value was negative,
        elsewhere from −128 to 127."""
        from openvino import opset13

        for tensor, (low, high) in zip(self._tensors, self._ranges, strict=True):
            first = -128 if low < 0 else 0
            last = first + LEVELS - 1
            step = max(high / last, low / first if first else 0.0) or 1.0
            ends = [opset13.constant(np.float32(step * end)) for end in (first, last)]
            readers = tensor.get_target_inputs()
            leaving = opset13.fake_quantize(tensor, *ends, *ends, LEVELS).output(0)
            for reader in readers:
                if reader.get_node().get_type_name() != "Result":
                    reader.replace_source_output(leaving)
        return self._model


def _tensors(model: Any) -> list[Any]:
    """What is multiplied by constants or pooled; and one of two tensors that are added, since a convolution can add
    bytes to what it writes. A maximum of rounded values needs no rounding."""
    constants: set[str] = set()
    found: dict[tuple[str, int], Any] = {}
    sums = []
    for node in model.get_ordered_ops():
        kind, inputs = node.get_type_name(), node.input_values()
        fixed = [each.get_node().get_name() in constants for each in inputs]
        if all(fixed) and kind != "Parameter":
            constants.add(node.get_name())
        elif kind in READERS and all(fixed[1:]) and inputs[0].get_node().get_type_name() != "MaxPool":
            found[_key(inputs[0])] = inputs[0]
        elif kind == "Add" and not any(fixed):
            sums.append(inputs)
    for one, other in sums:
        if _key(one) not in found and _key(other) not in found:
            found[_key(other)] = other
    return [*found.values()]


def _key(tensor: Any) -> tuple[str, int]:
    return tensor.get_node().get_name(), tensor.get_index()


@dataclass(frozen=True)
class Watching:
    """A session of watched networks whose ranges are noted. graphs: those of the suite."""

    session: Session
    graphs: Mapping[str, Graph]
    roundings: Mapping[str, Rounding]

    def put(self, array: Array) -> Tensor:
        return self.session.put(array)

    def state(self, graph: str) -> State:
        return self.session.state(graph)

    def run(self, graph: str, *inputs: Tensor, state: State | None = None) -> Sequence[Tensor]:
        leaving = self.session.run(graph, *inputs, state=state)
        own = len(self.graphs[graph].outputs)
        self.roundings[graph].note(leaving[own:])
        return leaving[:own]

    def get(self, tensor: Tensor) -> Array:
        return self.session.get(tensor)
