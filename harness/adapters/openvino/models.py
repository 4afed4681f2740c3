"""Networks for OpenVINO: ONNX graphs with the suite's weights in them, in the type that a route holds them in.

OpenVINO packs the weights of matrix products into a copy of its own and keeps the originals. So these lie in a file
that is mapped and whose pages are given back, and memory holds them once. Tables that are looked up are not packed:
they lie in memory. A matrix that is held in 16 bits enters its product directly. Behind a conversion to 32 bits, as
OpenVINO's own files have it, the plugin would fold the two into a copy of twice the size.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.contracts import Array, Graph, Weights

if TYPE_CHECKING:
    from onnx import ModelProto

TYPES = {"fp32": ("f32", np.float32), "bf16": ("bf16", np.uint16), "fp16": ("f16", np.float16)}
PRODUCTS = {"MatMul", "Convolution"}
ANGULAR = {"Sin", "Cos"}
CHUNK = 1 << 18  # values rounded at a time: 1 MiB, which stays in a core's cache
SHRINK_S = 0.1


class Stored:
    """A suite's weights in a file: those with one axis, such as biases, in fp32, the others in the precision's type.

    The file has no name once it is mapped: its room on the disk is free again when the mapping ends.
    """

    def __init__(self, weights: Weights, precision: str, path: Path) -> None:
        self._weights = weights
        self.precision = precision
        self._places: dict[str, tuple[int, str, npt.DTypeLike, tuple[int, ...]]] = {}
        self._held: dict[str, Array] = {}
        end = 0
        for name in weights.names():
            shape = tuple(map(int, weights.spec(name).shape))
            type_name, dtype = TYPES[precision if len(shape) > 1 else "fp32"]
            self._places[name] = (end, type_name, dtype, shape)
            size = math.prod(shape) * np.dtype(dtype).itemsize
            end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        with path.open("w+b") as file:
            file.truncate(end)
            self._map = mmap.mmap(file.fileno(), end)
        for name in self._places:
            self._write(name)
        self._map.flush()
        self._release()
        path.unlink()

    def _write(self, name: str) -> None:
        _, type_name, _, shape = self._places[name]
        values = np.empty(shape, np.float32)
        self._weights.read(name, values)
        into = self._mapped(name)
        if type_name == "bf16":
            round_to_bf16(values, into)
        else:
            into[...] = values

    def _mapped(self, name: str) -> Array:
        begin, _, dtype, shape = self._places[name]
        return np.frombuffer(self._map, dtype, math.prod(shape), begin).reshape(shape)

    def type_of(self, name: str) -> str:
        """OpenVINO's name for the type that a tensor is stored in."""
        return self._places[name][1]

    def constant(self, name: str, hold: bool) -> Any:
        """A tensor as a node of a network. hold: it is used from where it lies, and not packed."""
        import openvino

        if hold and name not in self._held:
            self._held[name] = self._mapped(name).copy()
        _, type_name, _, shape = self._places[name]
        array = self._held[name] if hold else self._mapped(name)
        tensor = openvino.Tensor(array, list(shape), getattr(openvino.Type, type_name))
        return openvino.op.Constant(tensor, shared_memory=True)

    @contextmanager
    def shrinking(self) -> Iterator[None]:
        """Gives the pages of the file back again and again while OpenVINO reads them."""
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
        if hasattr(mmap, "MADV_DONTNEED"):  # where there is none, the system takes the pages when it needs them
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._held.clear()
        with suppress(BufferError):  # a network that is still referenced maps it
            self._map.close()


def round_to_bf16(values: npt.NDArray[np.float32], into: Array) -> None:
    """Writes the values, rounded to the nearest bf16, into an array of uint16."""
    bits, out = values.reshape(-1).view(np.uint32), into.reshape(-1)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK]
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        rounded >>= 16
        out[start : start + CHUNK] = rounded


def lift(model: ModelProto) -> list[str]:
    """Turns the external initialisers of the model into inputs, in place, and returns their names."""
    from onnx import TensorProto, helper

    external = [each for each in model.graph.initializer if each.data_location == TensorProto.EXTERNAL]
    model.graph.input.extend(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in external)
    for each in external:
        model.graph.initializer.remove(each)
    return [each.name for each in external]


@dataclass(frozen=True)
class Network:
    """A graph as an openvino.Model with its weights; its state, if it has one, is in variables of the model.

    angles: computes sines and cosines, which are inputs of `model`, in fp32. The angle of a position is up to hundreds
    of radians, so in 16 bits it would be off by a large part of a turn; and OpenVINO has no way to exempt single nodes
    from the precision that a model is compiled for.
    """

    model: Any
    angles: Any | None


def network(core: Any, graph: Graph, stored: Stored) -> Network:
    """The graph with its weights."""
    import onnx
    from openvino._offline_transformations import apply_make_stateful_transformation

    proto = onnx.load_from_string(graph.onnx())
    names = lift(proto)
    model = core.read_model(proto.SerializeToString())
    parameters = {each.get_friendly_name(): each for each in model.get_parameters()}
    for name in names:
        _fill(parameters[name], stored, name)
        model.remove_parameter(parameters[name])
    read = [name for name in graph.state if name in parameters and parameters[name].output(0).get_target_inputs()]
    for name in set(graph.state) - set(read) & set(parameters):
        model.remove_parameter(parameters[name])  # it is only written: an output of the request, always the same memory
    model.validate_nodes_and_infer_types()
    angles = None if stored.precision == "fp32" else _split(model)
    if read:
        apply_make_stateful_transformation(model, {name: f"{name}.out" for name in read})
    return Network(model, angles)


def reshaped(model: Any, shapes: Mapping[str, Sequence[int]] | None) -> Any:
    """A copy of the model for these shapes of its inputs, as far as it has them; the model itself for None. The copy
    shares the weights."""
    if shapes is None:
        return model
    copy = model.clone()
    names = {each.get_any_name() for each in copy.inputs}
    copy.reshape({name: list(shape) for name, shape in shapes.items() if name in names})
    return copy


def _split(model: Any) -> Any | None:
    """Makes the sines and cosines of a model its inputs, and returns the model that computes them; None if there are
    none. That model's outputs carry the names of those inputs."""
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


def _fill(parameter: Any, stored: Stored, name: str) -> None:
    """Puts a tensor where the parameter was used."""
    type_name = stored.type_of(name)
    for use in parameter.output(0).get_target_inputs():
        node, index = use.get_node(), use.get_index()
        kind = node.get_type_name()
        looked_up = kind == "Gather" and index == 0
        constant = stored.constant(name, hold=looked_up)
        if type_name == "f32":
            use.replace_source_output(constant.output(0))
        elif looked_up or (kind in PRODUCTS and index == 1 and not _normalised(node)):
            _compute_in(type_name, node, use, constant)
        else:
            use.replace_source_output(_converted(constant, "f32").output(0))


def _normalised(node: Any) -> bool:
    """Whether a batch norm follows, which is folded into the weights."""
    return any(each.get_node().get_type_name() == "BatchNormInference" for each in node.output(0).get_target_inputs())


def _compute_in(type_name: str, node: Any, use: Any, constant: Any) -> None:
    """Lets a node compute in the type of its weight, and converts what enters and what leaves it."""
    users = node.output(0).get_target_inputs()
    if node.get_type_name() in PRODUCTS:
        node.input(0).replace_source_output(_converted(node.input_value(0), type_name).output(0))
    use.replace_source_output(constant.output(0))
    node.validate_and_infer_types()
    leaving = _converted(node, "f32").output(0)
    for user in users:
        user.replace_source_output(leaving)


def _converted(what: Any, type_name: str) -> Any:
    from openvino import opset13

    return opset13.convert(what, type_name)
