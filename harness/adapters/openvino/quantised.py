"""Makes networks multiply in 8 bits: integer weights by activations that are rounded to integers.

A tensor is rounded at one scale, which must be known when the network is compiled. The scale is computed from the
tensor's values in runs without rounding, on feeds that are never timed. If all values are multiples of a power of two,
such as the bytes of images, that power is the scale, and rounding is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mixmark.harness.contracts.protocols import Array

PRODUCTS = {"Convolution", "MatMul"}
POOLS = {"MaxPool", "ReduceMean"}
LEVELS = 256
NARROW = 8  # a layer with fewer channels on one side is cheap, and its rounding would affect all later layers
FINEST = 8  # the exponent of the smallest power of two that is tried
SAMPLE = 64  # so many values must be multiples of a power of two before all values are tried


class Rounding:
    """The tensors of a network that are to be rounded, and the observed ranges of their values.

    throughout: whether tensors are also moved as bytes. Then the inputs of poolings and one summand of each sum are
    rounded as well, because a convolution can add bytes to its output. Otherwise only the inputs of layers are rounded,
    separately for each layer, and narrow layers compute without rounding. outputs: the names of the rounded tensors.
    """

    def __init__(self, model: Any, throughout: bool) -> None:
        self._model, self._throughout = model, throughout
        self._tensors = _tensors(model, throughout)
        self._ranges = [(0.0, 0.0)] * len(self._tensors)
        self._units = [1.0] * len(self._tensors)
        """The power of two that all values were multiples of; 0 if there is none."""
        self.outputs = [f"rounded {index}" for index, _ in enumerate(self._tensors)]
        for tensor, name in zip(self._tensors, self.outputs, strict=True):
            tensor.add_names({name})

    def watched(self) -> Any:
        """A copy of the network that returns these tensors, unrounded, after its outputs."""
        copy = self._model.clone()
        copy.add_outputs(self.outputs)
        return copy

    def note(self, tensors: Sequence[Array]) -> None:
        """Widens the ranges to the values of these tensors."""
        self._ranges = [
            (min(low, float(values.min())), max(high, float(values.max())))
            for (low, high), values in zip(self._ranges, tensors, strict=True)
        ]
        self._units = [unit and min(unit, unit_of(values)) for unit, values in zip(self._units, tensors, strict=True)]

    def rounded(self) -> Any:
        """The network itself, made to round: to 0 … 255 if no value was negative, else to −128 … 127."""
        from openvino import opset13

        for tensor, (low, high), unit in zip(self._tensors, self._ranges, self._units, strict=True):
            first = -128 if low < 0 else 0
            last = first + LEVELS - 1
            step = max(high / last, low / first if first else 0.0) or 1.0
            if step <= unit:
                step = unit
            ends = [opset13.constant(np.float32(step * end)) for end in (first, last)]
            readers = tensor.get_target_inputs()
            leaving = opset13.fake_quantize(tensor, *ends, *ends, LEVELS).output(0)
            for reader in readers:
                kind = reader.get_node().get_type_name()
                if kind in PRODUCTS or (self._throughout and kind != "Result"):
                    reader.replace_source_output(leaving)
        return self._model


def unit_of(values: Array) -> float:
    """The largest power of two, at most 1, that divides all values; 0 if it is too small to matter."""
    flat = values.reshape(-1)
    for part in (flat[:SAMPLE], flat):
        unit = next((unit for unit in 0.5 ** np.arange(FINEST + 1) if not np.any(part % unit)), 0.0)
        if not unit:
            break
    return float(unit)


def _tensors(model: Any, throughout: bool) -> list[Any]:
    """The tensors that `Rounding` rounds. A maximum of rounded values is rounded already."""
    constants: set[str] = set()
    found: dict[tuple[str, int], Any] = {}
    sums = []
    for node in model.get_ordered_ops():
        kind, inputs = node.get_type_name(), node.input_values()
        fixed = [value.get_node().get_name() in constants for value in inputs]
        if all(fixed) and kind != "Parameter":
            constants.add(node.get_name())
        elif kind in (PRODUCTS | POOLS if throughout else PRODUCTS) and all(fixed[1:]):
            wide = throughout or min(inputs[1].get_shape()[:2]) >= NARROW
            if wide and inputs[0].get_node().get_type_name() != "MaxPool":
                found[_key(inputs[0])] = inputs[0]
        elif throughout and kind == "Add" and not any(fixed):
            sums.append(inputs)
    for left, right in sums:
        if _key(left) not in found and _key(right) not in found:
            found[_key(right)] = right
    return [*found.values()]


def _key(tensor: Any) -> tuple[str, int]:
    return tensor.get_node().get_name(), tensor.get_index()
