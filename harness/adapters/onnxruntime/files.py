"""Writes the large initialisers of a model to a file while the model is built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.adapters.lowbit import in_groups, packed, per_channel
from mixmark.harness.contracts.protocols import Weights

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

OURS = "com.microsoft"  # the domain of ONNX Runtime's additional operators
GROUP = 128
"""Weights with a common scale. For groups of 32, the float32 scales would be a quarter of the size of the 4-bit
weights."""
ACCURACY_LEVEL = 4
"""MatMulNBits then rounds its inputs to 8 bits with a scale for each group, which is the fastest by far. It is known to
flip tokens of trained checkpoints with a few very large activations."""
PAGE = 4096  # the alignment of an initialiser that can be mapped into memory in place

Floats = npt.NDArray[np.float32]


class Files:
    """The initialisers of a model, in the file `<name>.bin` of a folder.

    bits: the bits of a weight of a linear layer; a float from 16 bits on. half: whether floats are fp16. exact: whether
    all weights so far are exact.
    """

    def __init__(self, folder: Path, name: str, weights: Weights, bits: int, half: bool = False) -> None:
        self.weights, self.bits, self.exact = weights, bits, True
        self.dtype: type[np.floating[Any]] = np.float16 if half else np.float32
        self._folder, self._name = folder, name
        self._data = (folder / f"{name}.bin").open("wb")
        self._added: list[Any] = []

    def add(self, name: str, array: npt.NDArray[Any]) -> str:
        """Writes an initialiser and returns its name."""
        from onnx import TensorProto, helper

        if array.dtype == np.float32:
            array = array.astype(self.dtype, copy=False)
        self._data.seek(-(-self._data.tell() // PAGE) * PAGE)
        tensor = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            dims=array.shape,
            data_location=TensorProto.EXTERNAL,
        )
        place = {"location": f"{self._name}.bin", "offset": self._data.tell(), "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._data.write(np.ascontiguousarray(array).data)
        self._added.append(tensor)
        return name

    def matrix(self, name: str, *rows: Floats) -> None:
        """Adds the weights of a linear layer, [outputs, inputs], from blocks of rows."""
        if self.bits >= 16:
            whole = np.concatenate(rows) if len(rows) > 1 else rows[0]
            self.exact &= self.dtype == np.float32 or bool((whole.astype(self.dtype) == whole).all())
            self.add(f"{name}.transposed", whole.T)
            return
        parts = [in_groups(part, self.bits, GROUP) for part in rows]
        self.exact &= all(part.exact for part in parts)
        integers = np.concatenate([part.integers for part in parts]) if len(parts) > 1 else parts[0].integers
        self.add(f"{name}.integers", packed(integers) if self.bits == 4 else integers.view(np.uint8) ^ np.uint8(128))
        self.add(f"{name}.scales", np.concatenate([part.scales for part in parts]))

    def linear(self, x: str, name: str, shape: Sequence[int], output: str, bias: str = "") -> NodeProto:
        """A linear layer on the weights that were added under `name`, of shape [outputs, inputs]."""
        from onnx import helper

        if self.bits >= 16:
            assert not bias, "a Llama has no biases"
            return helper.make_node("MatMul", [x, f"{name}.transposed"], [output], output)
        inputs = [x, f"{name}.integers", f"{name}.scales", *(["", "", bias] if bias else [])]
        return helper.make_node(
            "MatMulNBits",
            inputs,
            [output],
            output,
            domain=OURS,
            N=int(shape[0]),
            K=int(shape[1]),
            bits=self.bits,
            block_size=GROUP,
            accuracy_level=ACCURACY_LEVEL,
        )

    def integer_matrix(self, name: str, weight: Floats) -> None:
        """Adds the weight of a layer in integers, [outputs, inputs], with a scale for each output."""
        part = per_channel(weight)
        self.exact &= part.exact
        self.add(f"{name}.integers", part.integers.T)
        self.add(f"{name}.scales", part.scales)
        self.add(f"{name}.zeros", np.zeros(len(weight), np.int8))

    def integer_linear(self, x: str, name: str, output: str, bias: str = "") -> NodeProto:
        """A layer that multiplies in integers: its input is rounded to 8 bits with one scale, found at each call.

        The weights are signed: with unsigned weights, ONNX Runtime left AMX unused and was eight times slower.
        """
        from onnx import helper

        inputs = [x, *(f"{name}.{part}" for part in ("integers", "scales", "zeros")), *([bias] if bias else [])]
        return helper.make_node("DynamicQuantizeMatMul", inputs, [output], output, domain=OURS)

    def finish(self, model: ModelProto) -> None:
        """Writes the model with the added initialisers as `<name>.onnx`, with the exactness in its metadata."""
        from onnx import helper

        self._data.close()
        model.graph.initializer.extend(self._added)
        helper.set_model_props(model, {"weights": "exact" if self.exact else "rounded"})
        if OURS not in {opset.domain for opset in model.opset_import}:
            model.opset_import.append(helper.make_opsetid(OURS, 1))
        (self._folder / f"{self._name}.onnx").write_bytes(model.SerializeToString())
