"""What the auditor measures of a model before the run: what its outputs are, how far honest rounding moves them, and
what it costs.

Honest rounding is emulated: a copy of the graph rounds the weights, the inputs and whatever a node makes of the inputs
to the significand of a format, in the bodies of If, Loop and Scan too. An output's error is the root mean square of its
difference from the reference, in units of its scale: the median of that difference between two feeds. So the output
for another feed has an error of about 1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.own_model.model import Model, float_of, graphs_of, reason, session
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.protocols import Array, Feed

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

FEEDS = 16
TIMES = 2.0
"""The gate, in errors of the feed that emulated rounding moves most."""
WIDEST = 1 / 3
"""A gate that is wider could not tell one feed's output from another's."""
SIGNIFICAND = {"16 bits": 8, "fp32": 16}
"""The bits that emulated rounding keeps: those of bf16; and for fp32 more than TF32 and fp16 have, but fewer than 24,
for another order of sums."""
LEAST = {"16 bits": 1e-4, "fp32": 1e-5}
"""The narrowest gates."""
LARGE = 16  # elements; smaller constants may be sizes or factors of shapes
COUNTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
UNCOUNTED = ("If", "Loop", "Scan", "LSTM", "GRU", "RNN", "Einsum", "Attention", "QLinear", "Integer", "DFT", "STFT")
"""Parts of the names of operators whose work depends on values or is not counted here."""


def outputs_of(running: Any, feed: Feed) -> list[Array]:
    """All outputs of a feed. Raises UsageError."""
    try:
        return [np.asarray(each) for each in running.run(None, dict(feed))]
    except Exception as error:  # onnxruntime's errors have no common class
        raise UsageError(
            f"ONNX Runtime does not run the model: {reason(error)}", hint="check --inputs and --dim"
        ) from error


def measured(model: Model, feeds: Sequence[Feed], pair: Feed | None, described: bool) -> dict[str, str]:
    """The facts of a model, as options of its suite. feeds: of one sample each. pair: the first two feeds as a batch,
    if the model has batches. described: whether the inputs are known to be like real ones. Raises UsageError."""
    plain = session(model.proto)
    found = [outputs_of(plain, feed) for feed in feeds]
    kept = [
        at
        for at, (first, *others) in enumerate(zip(*found, strict=True))
        if first.size and first.dtype.kind in "fiub" and all(each.shape == first.shape for each in others)
    ]
    if not kept:
        raise UsageError("the shapes of the model's outputs depend on the values of its inputs, or it has only strings")
    different = [(a, b) for a, b in itertools.combinations(range(len(feeds)), 2) if not _same(feeds[a], feeds[b])]
    scales = {at: float(np.median([rms(found[a][at], found[b][at]) for a, b in different] or [0])) for at in kept}
    telling = [at for at in kept if scales[at] > 1e-6 * rms(found[0][at], 0 * found[0][at])]
    why = "" if described else "neither samples nor ranges describe its inputs"
    why = why or ("" if telling else "its outputs do not depend on the inputs")
    compared = telling or kept
    facts = {"outputs": " ".join(f"{at}={found[0][at].size}" for at in compared)}
    facts["scales"] = " ".join(repr(scales[at] or 1.0) for at in compared)
    if pair is not None and _are_rows(outputs_of(plain, pair), found, compared, scales):
        facts["batches"] = "yes"
    for name, bits in SIGNIFICAND.items() if not why else ():
        gate = _gate(model.proto, bits, feeds, found, {at: scales[at] for at in compared})
        if isinstance(gate, str) or gate > WIDEST:
            facts[f"no gate for {name}"] = (
                gate if isinstance(gate, str) else f"rounding moves outputs by {significant(gate / TIMES)}"
            )
        else:
            facts[f"gate for {name}"] = repr(max(gate, LEAST[name]))
    return facts | ({"no gate": why} if why else {}) | costs(model.proto)


def _same(first: Feed, second: Feed) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


def rms(first: Array, second: Array) -> float:
    """The root mean square of a difference."""
    return float(np.sqrt(np.mean(np.square(first.astype(np.float64) - second.astype(np.float64)))))


def _are_rows(
    both: Sequence[Array], found: Sequence[Sequence[Array]], kept: Sequence[int], scales: Mapping[int, float]
) -> bool:
    """Whether the outputs of a batch are those of its feeds, one after the other."""
    for at in kept:
        apart = [each[at] for each in found[:2]]
        if not apart[0].ndim or both[at].shape != (2 * len(apart[0]), *apart[0].shape[1:]):
            return False
        if rms(both[at], np.concatenate(apart)) > 0.01 * (scales[at] or 1.0):
            return False
    return True


def _gate(
    proto: ModelProto, bits: int, feeds: Sequence[Feed], found: Sequence[Sequence[Array]], scales: Mapping[int, float]
) -> float | str:
    """Twice the largest error under rounding, or why it is not known."""
    try:
        running = session(rounded(proto, bits))
        errors = [
            rms(output[at], reference[at]) / scale
            for feed, reference in zip(feeds, found, strict=True)
            for output in [outputs_of(running, feed)]
            for at, scale in scales.items()
        ]
    except (UsageError, ValueError) as error:
        return f"rounding could not be emulated: {error}"
    return TIMES * max(errors) if np.isfinite(errors).all() else "rounding could not be emulated: values overflow"


def round_to(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Floats with fewer bits of significand, rounded to nearest."""
    if values.dtype == np.float16:
        return round_to(values.astype(np.float32), min(bits, 10)).astype(np.float16)
    factor = np.float32(2 ** (24 - bits) + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        split = values * factor
        near = split - (split - values)
    return np.where(np.isfinite(near), near, values).astype(values.dtype)


def rounded(proto: ModelProto, bits: int) -> ModelProto:
    """The model with emulated rounding. Shapes are computed exactly."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with suppress(Exception):  # of operators that onnx does not know: what they make is not rounded
        copy = onnx.shape_inference.infer_shapes(copy)
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for graph in graphs_of(copy.graph)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    stored = {tensor.name for tensor in copy.graph.initializer}
    live = {value.name for value in copy.graph.input if value.name not in stored}
    _round(copy.graph, bits, kinds, live, itertools.count(), set(live))
    return copy


def _round(
    graph: GraphProto, bits: int, kinds: Mapping[str, int], live: set[str], serial: Any, inputs: set[str]
) -> None:
    """Rounds a graph in place. live: the names of what depends on inputs, to which this graph's are added."""
    for tensor in graph.initializer:
        _round_tensor(tensor, bits)
    nodes, renamed = [], {}
    for name in sorted(inputs):
        if kinds.get(name) in (1, 10):
            nodes += _rounding(name, f"{name}.rounded", bits, kinds[name], next(serial))
            renamed[name] = f"{name}.rounded"
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        bodies = [body for each in node.attribute for body in (each.g, *each.graphs) if body.node or body.output]
        for attribute in node.attribute if node.op_type == "Constant" else ():
            _round_tensor(attribute.t, bits)
        for body in bodies:
            _round(body, bits, kinds, live | {value.name for value in body.input}, serial, set())
        depends = node.op_type not in ("Shape", "Size") and (
            bool(bodies) or bool(live & {*node.input, *map(_before, node.input)})
        )
        after = []
        for at, name in enumerate(node.output if depends else ()):
            live.add(name)
            if kinds.get(name) in (1, 10) and node.op_type not in MOVES:
                node.output[at] = f"{name}.exact"
                after += _rounding(f"{name}.exact", name, bits, kinds[name], next(serial))
        nodes += [node, *after]
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]  # before they are deleted
    del graph.node[:]
    graph.node.extend(kept)


MOVES = (
    "Reshape",
    "Transpose",
    "Concat",
    "Slice",
    "Gather",
    "Identity",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Split",
    "Relu",
)
"""Operators whose outputs are values of their inputs."""


def _before(name: str) -> str:
    return name.removesuffix(".rounded")


def _round_tensor(tensor: TensorProto, bits: int) -> None:
    from onnx import numpy_helper

    if tensor.data_type in (1, 10) and prod(tensor.dims) > LARGE:
        tensor.CopyFrom(numpy_helper.from_array(round_to(numpy_helper.to_array(tensor), bits), tensor.name))


def _rounding(source: str, into: str, bits: int, kind: int, serial: int) -> list[NodeProto]:
    """Nodes that round as `round_to` does. The bounds keep masks of -inf and of the least float from overflowing."""
    from onnx import helper

    def name(part: str) -> str:
        return f"mixmark.{serial}.{part}"

    def constant(part: str, value: float) -> NodeProto:
        return helper.make_node("Constant", [], [name(part)], value=helper.make_tensor(part, 1, [], [value]))

    keep = min(bits, 10) if kind == 10 else bits
    return [
        constant("factor", 2.0 ** (24 - keep) + 1),
        constant("least", -1e30),
        constant("most", 1e30),
        helper.make_node("Cast", [source], [name("float")], to=1),
        helper.make_node("Max", [name("float"), name("least")], [name("above")]),
        helper.make_node("Min", [name("above"), name("most")], [name("x")]),
        helper.make_node("Mul", [name("x"), name("factor")], [name("split")]),
        helper.make_node("Sub", [name("split"), name("x")], [name("rest")]),
        helper.make_node("Sub", [name("split"), name("rest")], [name("near")]),
        helper.make_node("Cast", [name("near")], [into], to=kind),
    ]


def costs(proto: ModelProto) -> dict[str, str]:
    """FLOPs and bytes of one sample, or the operators whose work is not known."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for value in fixed.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_value = 1
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        fixed = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    except Exception as error:  # of operators that onnx does not know
        return {"not counted": f"shapes: {reason(error)}"}
    graph = fixed.graph
    shapes: dict[str, tuple[int, ...]] = {each.name: tuple(each.dims) for each in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(axis.HasField("dim_value") for axis in dims):
            shapes[value.name] = tuple(axis.dim_value for axis in dims)
    flops, lacking = 0, Counter[str]()
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or any(part in node.op_type for part in UNCOUNTED):
            lacking[node.op_type] += 1
        elif node.op_type in COUNTED:
            work = _flops(node, [shapes.get(name) for name in (*node.input[:2], node.output[0])])
            if work is None:
                lacking[node.op_type] += 1
            flops += work or 0
    if lacking:
        return {"not counted": ", ".join(f"{count} {kind}" for kind, count in lacking.most_common(5))}
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    weights = [each for each in graph.initializer if each.name not in looked_up]
    constants = [node for node in graph.node if node.op_type == "Constant" and node.output[0] not in looked_up]
    weights += [each.t for node in constants for each in node.attribute if each.name == "value"]
    sizes = Counter({True: 0, False: 0})
    for tensor in weights:
        sizes[tensor.data_type == 1] += prod(tensor.dims) * (1 if tensor.data_type == 1 else _size(tensor.data_type))
    moved = sum(4 * prod(shapes.get(value.name, (0,))) for value in graph.input if value.name not in looked_up)
    return {"flops": str(flops), "weights in floats": str(sizes[True]), "other bytes": str(sizes[False] + moved)}


def _size(kind: int) -> int:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(kind).itemsize


def _flops(node: NodeProto, shapes: Sequence[tuple[int, ...] | None]) -> int | None:
    """A multiplication and an addition are two. None if a shape is not known."""
    first, second, out = shapes
    if first is None or second is None or out is None:
        return None
    flags = {each.name: each.i for each in node.attribute}
    match node.op_type:
        case "Conv":
            return 2 * prod(out) * prod(second[1:])
        case "ConvTranspose":
            return 2 * prod(first) * prod(second[1:])
        case "Gemm":
            return 2 * prod(out) * first[0 if flags.get("transA") else 1]
    return 2 * prod(out) * first[-1]


def errors(output: Array, reference: Array, widths: Sequence[int], scales: Sequence[float]) -> list[float]:
    """The error of each compared output of a unit. output, reference: [width] float32, the compared outputs joined."""
    ends = list(itertools.accumulate(widths))
    pairs = zip(np.split(output, ends[:-1]), np.split(reference, ends[:-1]), scales, strict=True)
    return [rms(a, b) / scale for a, b, scale in pairs]


def row_of(outputs: Sequence[Array], batch: int) -> Array:
    """The compared outputs of a feed, one row a unit, [batch, width] float32."""
    return np.concatenate([float_of(each).reshape(batch, -1) for each in outputs], axis=1)
