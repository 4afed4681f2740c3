"""An ONNX file as Mixmark runs it: complete, one symbolic axis at most, and inputs of types that a session takes."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Spec
from mixmark.harness.resources import memory
from mixmark.harness.resources.files import NotRead

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

MOST_BYTES = 2**31 - 1  # of a message of protobuf, which an engine is given
TYPES = ("float32", "int64", "int32", "int8", "uint8", "bool")
"""The types of arrays that a session takes as they are."""
CAST = {"float16": 10, "float64": 11}
"""Types of floats whose inputs are given in fp32 and cast in the graph, as ONNX numbers them."""
BATCH = "batch"


@dataclass(frozen=True)
class Model:
    """A file that was read."""

    proto: ModelProto
    inputs: Mapping[str, Spec]
    """The batch is the only symbolic axis: the first one."""
    types: Mapping[str, str]
    """numpy's name of the type of each input's array."""
    outputs: Sequence[str]
    batched: bool
    """Whether at least one input has the symbolic axis of the batch."""


def regular(file: Path) -> Path:
    """The file, which may be a link. Raises NotRead if it is a folder, a pipe or a device, which may never end."""
    if file.exists() and not file.is_file():
        raise NotRead(errno.EINVAL, "it is not a regular file")
    return file


def load(file: Path, sizes: Mapping[str, int], samples: Mapping[str, Sequence[int]]) -> Model:
    """Reads a file with its external data. sizes: of symbolic axes, by NAME or INPUT.AXIS. samples: the shapes of the
    arrays of samples, which give the sizes of other axes. Raises UsageError."""
    import onnx
    from onnx import helper, numpy_helper

    try:
        regular(file)
        size = sum(each.stat().st_size for each in (file, *_external(onnx.load(file, load_external_data=False), file)))
        if size > MOST_BYTES or 3 * size > memory.available_bytes():
            most = f"{filesize(memory.available_bytes())} of memory are free, and a model has 2 GiB at most"
            raise UsageError(f"{file.name} has {filesize(size)}", hint=f"give a smaller one: {most}")
        proto = onnx.load(file)
    except (OSError, onnx.checker.ValidationError) as error:
        why = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        raise UsageError(f"{file.name} cannot be read: {why}", hint="keep its external data beside it") from error
    except UsageError:
        raise
    except Exception as error:  # protobuf's errors have no common class
        raise UsageError(f"{file.name} is no ONNX file: {error}", hint="give a model in the ONNX format") from error
    if not proto.graph.node or not proto.graph.output:
        raise UsageError(f"{file.name} is no ONNX file: it has no network", hint="give a model in the ONNX format")
    stored = {tensor.name for tensor in proto.graph.initializer}
    unused, inputs, types, batch = dict(sizes), {}, {}, ""
    for value in [each for each in proto.graph.input if each.name not in stored]:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise UsageError(f"{file.name}: the input {value.name} is no tensor of a known rank")
        types[value.name] = kind = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if kind not in TYPES and kind not in CAST:
            raise UsageError(
                f"{file.name}: the input {value.name} is of {kind}", f"inputs may be of {', '.join(TYPES)}"
            )
        shape: list[int | str] = []
        lead = len(samples.get(value.name, ())) - len(tensor.shape.dim)  # 1 if a sample has all axes of the input
        for at, axis in enumerate(tensor.shape.dim):
            own, name = f"{value.name}.{at}", axis.dim_param or f"{value.name}.{at}"
            given = next((unused.get(each) or sizes[each] for each in (own, name) if each in sizes), None)
            if axis.dim_value > 0 and own not in sizes:
                shape.append(axis.dim_value)
            elif given:
                shape.append(given)
            elif lead in (0, 1) and at + lead > 0 and value.name in samples:
                shape.append(samples[value.name][at + lead])
            elif at == 0 and (batch in ("", name) or not axis.dim_param):
                batch = batch or name
                shape.append(BATCH)
            else:
                raise UsageError(
                    f"{file.name}: the axis {at} of the input {value.name} has no fixed size",
                    hint=f"give --dim {name}=N, or --inputs with arrays of that size",
                )
            unused = {each: n for each, n in unused.items() if each not in (own, name)}
            axis.Clear()
            if isinstance(shape[-1], int):
                axis.dim_value = shape[-1]
            else:
                axis.dim_param = BATCH
        inputs[value.name] = Spec(tuple(shape), "float" if kind in ("float32", *CAST) else kind)
    if unused:
        raise UsageError(f"{file.name} has no symbolic axis {', '.join(unused)}", hint="leave that --dim away")
    for graph in graphs_of(proto.graph):  # external data is in the memory now
        for tensor in graph.initializer:
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name)
            ) if tensor.external_data else None
    for name, kind in types.items():
        if kind in CAST:
            _cast(proto.graph, name, CAST[kind])
    return Model(proto, inputs, types, [each.name for each in proto.graph.output], bool(batch))


def graphs_of(graph: GraphProto) -> Sequence[GraphProto]:
    """A graph, and the bodies of its If, Loop and Scan."""
    bodies = [body for node in graph.node for each in node.attribute for body in (each.g, *each.graphs)]
    return [graph, *(inner for body in bodies for inner in graphs_of(body))]


def _external(proto: ModelProto, file: Path) -> set[Path]:
    """The files that the weights are in, beside the model's."""
    tensors = (tensor for graph in graphs_of(proto.graph) for tensor in graph.initializer)
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    return {file.parent / entry.value for entry in entries if entry.key == "location"}


def _cast(graph: GraphProto, name: str, kind: int) -> None:
    """Makes an input one of fp32, which the graph casts to its own type."""
    from onnx import TensorProto, helper

    value = next(each for each in graph.input if each.name == name)
    value.type.tensor_type.elem_type = TensorProto.FLOAT
    inner = f"{name}.cast"
    for each in graphs_of(graph):
        for node in each.node:
            node.input[:] = [inner if read == name else read for read in node.input]
    graph.node.insert(0, helper.make_node("Cast", [name], [inner], to=kind))


def reason(error: Exception) -> str:
    """ONNX Runtime's error in a line."""
    text = re.sub(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+/onnxruntime/\S+ .*\) (?=[A-Z])", "", " ".join(str(error).split())
    )
    return text[:300]


def session(model: ModelProto | bytes, threads: int = 0) -> Any:
    """The model by ONNX Runtime in fp32 on the CPU, without any optimisation. Raises UsageError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    content = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise UsageError(f"ONNX Runtime does not load the model: {reason(error)}", hint="see its operators") from error


def float_of(array: Any) -> Any:
    """An output as a row of fp32 takes it."""
    return np.asarray(array).astype(np.float32)
