"""Builds networks for OpenVINO: ONNX graphs with the suite's weights, in the precision of a route.

OpenVINO packs the weights of matrix products into a copy and keeps the originals. So the originals are in a mapped file
whose pages are released, and the weights are in memory once. Look-up tables are not packed: they are in memory. A
matrix in 16 bits enters its product directly. If it entered through a conversion to 32 bits, as in files that OpenVINO
writes, the plugin would fold the two into a copy of twice the size.
"""

from __future__ import annotations

import math
import mmap
import shutil
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.adapters import lowbit
from mixmark.harness.adapters.onnx_weights import nodes_of
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Array, Graph, Weights
from mixmark.harness.contracts.weights import read_weight, round_to_bf16

if TYPE_CHECKING:
    from onnx import ModelProto

TYPES = {"fp32": ("f32", np.float32), "bf16": ("bf16", np.uint16), "fp16": ("f16", np.float16)}
LOW = {"int8", "int4"}
INTEGERS = {"i8", "i4"}
PRODUCTS = {"MatMul", "Convolution"}
ANGULAR = {"Sin", "Cos"}
SHRINK_S = 0.1


WeightUse = tuple[str, bool]
"""The name of a weight, and whether it is used as a look-up table. A tied weight has both uses."""


@dataclass(frozen=True)
class Form:
    """How a weight is stored: OpenVINO's name of the type, and the type of the array."""

    type_name: str
    dtype: npt.DTypeLike
    shape: tuple[int, ...]

    @classmethod
    def of(cls, precision: str, shape: tuple[int, ...], looked_up: bool) -> Form:
        """The form of a weight at a precision.

        Weights with one axis, such as biases, stay in fp32. Under int4, tables have 8 bits, because OpenVINO cannot
        look up rows of 4 bits. Matrices whose rows are not whole groups have 8 bits too.
        """
        if len(shape) == 1 or (len(shape) == 4 and precision in TYPES):
            return cls("f32", np.float32, shape)
        if precision == "int4" and not looked_up and len(shape) == 2 and not shape[1] % lowbit.GROUP:
            return cls("i4", np.uint8, (shape[0], shape[1] // lowbit.GROUP, lowbit.GROUP // 2))
        if precision in LOW:
            return cls("i8", np.int8, shape)
        return cls(*TYPES[precision], shape)


class StoredWeights:
    """A suite's weights in the form of a precision: tables in memory, all other weights in a mapped file.

    The file is unlinked when it is mapped, so its disk space is free again when the mapping ends.
    """

    def __init__(self, weights: Weights, precision: str, uses: Collection[WeightUse], path: Path) -> None:
        self.precision = precision
        self._forms: dict[WeightUse, Form] = {}
        self._arrays: dict[WeightUse, Array] = {}
        self._scales: dict[WeightUse, Array] = {}
        begins, end = {}, 0
        for name, looked_up in sorted(uses):
            shape = tuple(map(int, weights.spec(name).shape))
            form = self._forms[name, looked_up] = Form.of(precision, shape, looked_up)
            if not looked_up:
                begins[name] = end
                size = math.prod(form.shape) * np.dtype(form.dtype).itemsize
                end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if (free := shutil.disk_usage(path.parent).free) < end:  # writing to a full mapping would end the process
            raise Unsupported(
                f"the disk of {path.parent.parent} has {filesize(free)} free, and loading takes {filesize(end)}",
                "free some space, or set TMPDIR to a folder on another disk",
            )
        with path.open("w+b") as file:
            file.truncate(max(end, 1))  # no byte can be mapped of an empty file
            self._map = mmap.mmap(file.fileno(), max(end, 1))
        path.unlink()
        for name in dict.fromkeys(name for name, _ in sorted(uses)):
            values = read_weight(weights, name)
            for use in ((name, True), (name, False)):
                if (stored := self._forms.get(use)) is not None:
                    begin, size = begins.get(name, 0), math.prod(stored.shape)
                    mapped = (
                        None if use[1] else np.frombuffer(self._map, stored.dtype, size, begin).reshape(stored.shape)
                    )
                    self._arrays[use] = np.empty(stored.shape, stored.dtype) if mapped is None else mapped
                    self._write(use, values)
            self._release()

    def _write(self, use: WeightUse, values: npt.NDArray[np.float32]) -> None:
        into, type_name = self._arrays[use], self._forms[use].type_name
        if type_name == "bf16":
            round_to_bf16(values, into)
        elif type_name == "i8":
            exact = lowbit.per_channel(values)
            into[...] = exact.integers
            self._scales[use] = exact.scales.reshape(-1, *(1 for _ in values.shape[1:]))
        elif type_name == "i4":
            grouped = lowbit.in_groups(values)
            nibbles = grouped.integers.view(np.uint8) & 15
            np.bitwise_or(nibbles[..., 0::2], nibbles[..., 1::2] << 4, out=into)
            self._scales[use] = grouped.scales[..., None]
        else:
            into[...] = values

    def type_of(self, use: WeightUse) -> str:
        """OpenVINO's name of a weight's type."""
        return self._forms[use].type_name

    def constant(self, use: WeightUse) -> Any:
        """A weight as a node of a network, without its scales."""
        import openvino

        type_name, array = self.type_of(use), self._arrays[use]
        shape = [*array.shape[:-1], lowbit.GROUP] if type_name == "i4" else [*array.shape]
        tensor = openvino.Tensor(array, shape, getattr(openvino.Type, type_name))
        return openvino.op.Constant(tensor, shared_memory=True)

    def scales(self, use: WeightUse, half: bool) -> Any:
        """The scales of a weight as a node, in a shape that multiplies the weight."""
        from openvino import opset13

        return opset13.constant(self._scales[use].astype(np.float16 if half else np.float32))

    @contextmanager
    def shrinking(self) -> Iterator[None]:
        """Releases the pages of the file every SHRINK_S seconds while OpenVINO reads them."""
        over = threading.Event()

        def shrink() -> None:
            while not over.wait(SHRINK_S):
                self._release()

        thread = threading.Thread(target=shrink)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._release()

    def _release(self) -> None:
        if sys.platform != "win32":  # Windows has no such call and reclaims the pages when needed
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._arrays.clear()
        with suppress(BufferError):  # a network that is still referenced uses the mapping
            self._map.close()


@dataclass(frozen=True)
class OpenVinoModel:
    """A graph as an openvino.Model with its weights. Its state, if any, is in variables of the model.

    angles: a model that computes, in fp32, the sines and cosines that are inputs of `model`. The angle of a position is
    up to hundreds of radians. In 16 bits its error would be a large part of a turn, and OpenVINO cannot exempt single
    nodes from the precision of a compiled model.
    """

    model: Any
    angles: Any | None


def uses(proto: ModelProto) -> list[WeightUse]:
    """The weights among the inputs of a lifted model, with their uses."""
    tables = {node.input[0] for node in proto.graph.node if node.op_type == "Gather"}
    others = {name for node in proto.graph.node for name in node.input[node.op_type == "Gather" :]}
    bodies = (attribute.g for node in proto.graph.node for attribute in node.attribute)
    others |= {name for body in bodies for node in nodes_of(body) for name in node.input}
    return [
        (value.name, looked_up)
        for value in proto.graph.input
        for looked_up, among in ((True, tables), (False, others))
        if value.name in among
    ]


def network(core: Any, graph: Graph, proto: ModelProto, names: Collection[str], stored: StoredWeights) -> OpenVinoModel:
    """The graph with its weights. proto: its lifted model. names: its inputs that are weights."""
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = core.read_model(proto.SerializeToString())
    parameters = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    for name in names:
        _fill(parameters[name], stored, name)
        model.remove_parameter(parameters[name])
    read = [name for name in graph.state if name in parameters and parameters[name].output(0).get_target_inputs()]
    for name in set(graph.state) - set(read) & set(parameters):
        model.remove_parameter(
            parameters[name]
        )  # a write-only state is an output of the request, always in the same memory
    model.validate_nodes_and_infer_types()
    angles = None if stored.precision == "fp32" else _split(model)
    if read:
        apply_make_stateful_transformation(model, {name: f"{name}.out" for name in read})
    return OpenVinoModel(model, angles)


def reshaped(model: Any, shapes: Mapping[str, Sequence[int]] | None) -> Any:
    """A copy of the model that shares its weights, for these shapes of its inputs. The model itself if shapes is None.

    shapes: by name; unknown names are ignored.
    """
    if shapes is None:
        return model
    copy = model.clone()
    names = {port.get_any_name() for port in copy.inputs}
    copy.reshape({name: list(shape) for name, shape in shapes.items() if name in names})
    return copy


def _split(model: Any) -> Any | None:
    """Turns the sines and cosines of a model into inputs, and returns the model that computes them. None if there are
    none.

    The outputs of the returned model have the names of the new inputs.
    """
    import openvino
    from openvino import opset13

    kept = [node for node in model.get_ops() if node.get_type_name() in ANGULAR]
    if not kept:
        return None
    twins = {node.get_friendly_name(): node for node in model.clone().get_ops()}
    results = []
    for node in kept:
        name = node.get_friendly_name()
        parameter = opset13.parameter(node.output(0).get_partial_shape(), np.float32, name)
        node.output(0).replace(parameter.output(0))
        parameter.output(0).set_names({name})
        model.add_parameters([parameter])
        twins[name].output(0).set_names({name})
        results.append(opset13.result(twins[name]))
    model.validate_nodes_and_infer_types()
    waiting, seen = [result.input_value(0).get_node() for result in results], {}
    while waiting:
        node = waiting.pop()
        if node.get_name() not in seen:
            seen[node.get_name()] = node
            waiting += [value.get_node() for value in node.input_values()]
    return openvino.Model(results, [node for node in seen.values() if node.get_type_name() == "Parameter"])


def _fill(parameter: Any, stored: StoredWeights, name: str) -> None:
    """Replaces a parameter by its weight."""
    for place in parameter.output(0).get_target_inputs():
        node, index = place.get_node(), place.get_index()
        kind = node.get_type_name()
        use = name, kind == "Gather" and index == 0
        type_name, constant = stored.type_of(use), stored.constant(use)
        if type_name == "f32":
            place.replace_source_output(constant.output(0))
        elif use[1]:
            _look_up(node, place, constant, stored.scales(use, half=False) if type_name in INTEGERS else None)
        elif type_name in INTEGERS:
            shape = [*parameter.get_output_shape(0)]
            place.replace_source_output(_decompressed(constant, stored.scales(use, half=True), shape).output(0))
        elif kind in PRODUCTS and index == 1:
            _compute_in(type_name, node, place, constant)
        else:
            place.replace_source_output(_converted(constant, "f32").output(0))


def _decompressed(constant: Any, scales: Any, shape: Sequence[int]) -> Any:
    """Integers times scales, in a form that makes OpenVINO keep the integers until a product needs them."""
    from openvino import opset13

    product = opset13.multiply(_converted(constant, "f16"), scales)
    if len(constant.get_output_shape(0)) != len(shape):
        product = opset13.reshape(product, opset13.constant(np.array(shape, np.int64)), special_zero=False)
    return _converted(product, "f32")


def _look_up(node: Any, place: Any, table: Any, scales: Any | None) -> None:
    """Makes a node look up rows in the table's type, and converts the rows."""
    from openvino import opset13

    users = node.output(0).get_target_inputs()
    indices, axis = node.input_value(1), node.input_value(2)
    place.replace_source_output(table.output(0))
    node.validate_and_infer_types()
    leaving = _converted(node, "f32")
    if scales is not None:
        leaving = opset13.multiply(leaving, opset13.gather(scales, indices, axis))
    for user in users:
        user.replace_source_output(leaving.output(0))


def _compute_in(type_name: str, node: Any, place: Any, constant: Any) -> None:
    """Makes a product compute in its weight's type, and converts its input and output."""
    users = node.output(0).get_target_inputs()
    node.input(0).replace_source_output(_converted(node.input_value(0), type_name).output(0))
    place.replace_source_output(constant.output(0))
    node.validate_and_infer_types()
    leaving = _converted(node, "f32").output(0)
    for user in users:
        user.replace_source_output(leaving)


def _converted(what: Any, type_name: str) -> Any:
    from openvino import opset13

    return opset13.convert(what, type_name)
