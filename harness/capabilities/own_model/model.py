"""An ONNX file as Mixmark runs it: complete, one symbolic axis at most, and inputs of types that a session takes."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Spec
from mixmark.harness.contracts.text import plain
from mixmark.harness.resources import memory
from mixmark.harness.resources.files import NotRead

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

MOST_BYTES = 2**31 - 1  # of a message of protobuf, which an engine is given
TYPES = ("float32", "int64", "int32", "int8", "uint8", "bool")
"""The types of arrays that a session takes as they are."""
CAST = {"float16": 10, "float64": 11}
"""Types of floats whose inputs are given in fp32 and cast in the graph, as ONNX numbers them."""
BATCH = "batch"
MAGIC = b"GGUF"
"""The first bytes of a GGUF file."""


@dataclass(frozen=True)
class Model:
    """A file that was read."""

    proto: ModelProto
    files: Sequence[Path]
    """It, and those of its external data."""
    inputs: Mapping[str, Spec]
    """The batch is the only symbolic axis: the first one."""
    types: Mapping[str, str]
    """numpy's name of the type of each input's array."""
    stacked: Sequence[str]
    """The inputs that have the symbolic axis of the batch."""


def regular(file: Path) -> Path:
    """The file, which may be a link. Raises NotRead if it is a folder, a pipe or a device, which may never end."""
    if file.exists() and not file.is_file():
        raise NotRead(errno.EINVAL, "it is not a regular file")
    return file


def is_gguf(file: Path) -> bool:
    """Whether a file is one by its name or its first bytes: some caches name files by a hash."""
    with suppress(OSError), regular(file).open("rb") as opened:  # reported when the model is read
        return opened.read(4) == MAGIC or file.suffix.lower() == ".gguf"
    return file.suffix.lower() == ".gguf"


def load(file: Path, sizes: Mapping[str, int], samples: Mapping[str, Sequence[int]]) -> Model:
    """Reads a file with its external data. sizes: of symbolic axes, by NAME or INPUT.AXIS. samples: the shapes of the
    arrays of samples, which give the sizes of other axes. Raises UsageError."""
    from onnx import helper

    proto, files = _parsed(file)
    stored = {tensor.name for tensor in proto.graph.initializer}
    used, inputs, types, batch = set[str](), {}, {}, ""
    for value in (each for each in proto.graph.input if each.name not in stored):
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise UsageError(f"{file.name}: the input {value.name} is no tensor of a known rank")
        types[value.name] = kind = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if kind not in (*TYPES, *CAST):
            raise UsageError(f"{file.name}: the input {value.name} is of {kind}", f"inputs may be {', '.join(TYPES)}")
        shape: list[int | str] = []
        lead = len(samples.get(value.name, ())) - len(tensor.shape.dim)  # 1 if a sample has all axes of the input
        for at, axis in enumerate(tensor.shape.dim):
            own, name = f"{value.name}.{at}", axis.dim_param or f"{value.name}.{at}"
            given = sizes.get(own) or (axis.dim_value if axis.dim_value > 0 else sizes.get(name))
            used |= {own, name}
            if given:
                shape.append(given)
            elif lead in (0, 1) and at + lead > 0 and value.name in samples:
                shape.append(samples[value.name][at + lead])
            elif at == 0 and (batch in ("", name) or not axis.dim_param):
                batch = batch or name
                shape.append(BATCH)
            else:
                which = f"{file.name}: the axis {at} of the input {value.name} has no fixed size"
                raise UsageError(which, f"give --dim {name}=N, or --inputs of that size")
            axis.Clear()
            setattr(axis, "dim_param" if shape[-1] == BATCH else "dim_value", shape[-1])
        inputs[value.name] = Spec(tuple(shape), "float" if kind in ("float32", *CAST) else kind)
        if kind in CAST:
            _cast(proto.graph, value, CAST[kind])
    if unused := sizes.keys() - used:
        raise UsageError(f"{file.name} has no symbolic axis {', '.join(unused)}", hint="leave that --dim away")
    return Model(proto, files, inputs, types, [name for name, spec in inputs.items() if BATCH in spec.shape])


def _parsed(file: Path) -> tuple[ModelProto, Sequence[Path]]:
    """The file with its external data, and its files. Raises UsageError."""
    import onnx

    try:
        bare = onnx.load(regular(file), load_external_data=False)
        tensors = [each for graph in graphs_of(bare.graph) for each in graph.initializer]
        beside = {entry.value for each in tensors for entry in each.external_data if entry.key == "location"}
        files = [file.parent / each for each in (file.name, *sorted(beside))]
        size = sum(each.stat().st_size for each in files)
        free = memory.available_bytes()
        if size > MOST_BYTES or 3 * size > free:
            most = f"{filesize(free)} of memory are free, and a model has 2 GiB at most"
            raise UsageError(f"{file.name} has {filesize(size)}", hint=f"give a smaller one: {most}")
        proto = onnx.load(file)
        if not proto.graph.node or not proto.graph.output:
            raise ValueError("it has no network")
    except UsageError:
        raise
    except Exception as error:  # protobuf's errors have no common class
        why = getattr(error, "strerror", None) or str(error).strip().splitlines()[-1]
        hint = "give an ONNX file, with its external data beside it, or a language model's folder"
        raise UsageError(f"{file.name} cannot be read as ONNX: {why}", hint) from error
    return proto, files


def graphs_of(graph: GraphProto) -> Sequence[GraphProto]:
    """A graph, and the bodies of its If, Loop and Scan."""
    bodies = [body for node in graph.node for each in node.attribute for body in (each.g, *each.graphs)]
    return [graph, *(inner for body in bodies for inner in graphs_of(body))]


def _cast(graph: GraphProto, value: ValueInfoProto, kind: int) -> None:
    """Makes an input one of fp32, which the graph casts to its own type."""
    from onnx import helper

    value.type.tensor_type.elem_type, inner = 1, f"{value.name}.cast"
    for node in (node for each in graphs_of(graph) for node in each.node):
        node.input[:] = [inner if read == value.name else read for read in node.input]
    graph.node.insert(0, helper.make_node("Cast", [value.name], [inner], to=kind))


def reason(error: Exception) -> str:
    """ONNX Runtime's error in a line."""
    return re.sub(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+/onnxruntime/\S+ .*\) (?=[A-Z])", "", plain(str(error), 300)
    )


def session(model: ModelProto) -> Any:
    """The model by ONNX Runtime in fp32 on the CPU, without any optimisation. Raises UsageError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise UsageError(f"ONNX Runtime does not load the model: {reason(error)}", hint="see its operators") from error
