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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.own_model.model import Model, graphs_of, reason, session
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.protocols import Array, Feed

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

FEEDS = 16
TIMES = 2.0
"""The gate, in errors of the feed that emulated rounding moves most."""
SIGNIFICAND = {"16 bits": 8, "fp32": 16}
"""The bits that emulated rounding keeps: those of bf16; and for fp32 more than TF32 and fp16 have, but fewer than 24,
for another order of sums."""
LEAST = {"16 bits": 1e-4, "fp32": 1e-5}
"""The narrowest gates."""
CONFUSED = 0.25
"""The part of all pairs of feeds whose outputs may be nearer to each other than the gate is wide: a classifier gives
many inputs one output. Four units, the fewest that an audit compares, with outputs of other feeds pass once in 256."""
LARGE = 16  # elements; smaller constants may be sizes or factors of shapes
FP32, FP16 = 1, 10  # as ONNX numbers them
SAME = 0.01  # error of a unit of a batch
UNCOUNTED = ("If", "Loop", "Scan", "LSTM", "GRU", "RNN", "Einsum", "Attention", "QLinear", "Integer", "DFT", "STFT")
"""Parts of the names of operators whose work depends on values or is not counted here."""
# The bounds keep masks of -inf and of the least float from overflowing.
ROUND = """<opset_import: ["" : {opset}], domain: "mixmark">
Round <to> (given, factor, least, most) => (rounded) {{
    exact = Cast <to = 1> (given)
    above = Max (exact, least)
    x = Min (above, most)
    split = Mul (x, factor)
    rest = Sub (split, x)
    near = Sub (split, rest)
    rounded = Cast <to: int = @to> (near)
}}"""
"""`round_to` in a graph."""


@dataclass(frozen=True)
class Compared:
    """The outputs that are compared: the values that a unit has of each, by its place, and their scales."""

    sizes: Mapping[int, int]
    scales: Sequence[float]

    def rows(self, outputs: Sequence[Any] | Mapping[int, Any], batch: int = 1) -> Array:
        """The compared outputs of a feed, one row a unit, [batch, width] float32."""
        return np.concatenate([np.asarray(outputs[at], np.float32).reshape(batch, -1) for at in self.sizes], 1)

    def error(self, outputs: Array, references: Array) -> float:
        """The largest error of a compared output of a unit. outputs, references: rows."""
        return max(max(self.errors(a, b)) for a, b in zip(outputs, references, strict=True))

    def errors(self, output: Array, reference: Array) -> list[float]:
        """The error of each compared output of a unit. output, reference: [width] float32."""
        ends = np.cumsum([*self.sizes.values()])[:-1]
        apart = [np.split(each.astype(np.float64), ends) for each in (output, reference)]
        return [float(np.sqrt(np.mean((a - b) ** 2))) / scale for a, b, scale in zip(*apart, self.scales, strict=True)]


def outputs_of(running: Any, feed: Feed) -> list[Any]:
    """All outputs of a feed. Raises UsageError."""
    try:
        return [*running.run(None, dict(feed))]
    except Exception as error:  # onnxruntime's errors have no common class
        raise UsageError(f"ONNX Runtime does not run the model: {reason(error)}", "check --inputs and --dim") from error


def measured(model: Model, feeds: Sequence[Feed], pair: Feed | None, described: bool) -> dict[str, str]:
    """The facts of a model, as options of its suite. feeds: of one sample each. pair: the first two feeds as a batch,
    if the model has batches. described: whether the inputs are known to be like real ones. Raises UsageError."""
    plain = session(model.proto)
    found = [[np.asarray(each) for each in outputs_of(plain, feed)] for feed in feeds]
    sizes = {
        at: first.size
        for at, (first, *others) in enumerate(zip(*found, strict=True))
        if first.size and first.dtype.kind in "fiub" and all(each.shape == first.shape for each in others)
    }
    if not sizes:
        raise UsageError("the shapes of the model's outputs depend on the values of its inputs, or it has only strings")
    texts = [b"".join(array.tobytes() for array in feed.values()) for feed in feeds]
    different = [(a, b) for a, b in itertools.combinations(range(len(feeds)), 2) if texts[a] != texts[b]]
    whole = Compared(sizes, [1.0] * len(sizes))
    rows = [whole.rows(outputs)[0] for outputs in found]
    scales = np.median([whole.errors(rows[a], rows[b]) for a, b in different] or [[0.0] * len(sizes)], axis=0)
    least = [1e-6 * size for size in whole.errors(rows[0], 0 * rows[0])]
    telling = {at: float(scale) for at, scale, low in zip(sizes, scales, least, strict=True) if scale > low}
    why = "" if telling else "its outputs do not depend on the inputs"
    why = why if described else "neither samples nor ranges describe its inputs"
    telling = telling or dict.fromkeys(sizes, 1.0)
    compared = Compared({at: sizes[at] for at in telling}, [*telling.values()])
    rows = [compared.rows(outputs)[0] for outputs in found]
    facts = {"outputs": " ".join(f"{at}={size}" for at, size in compared.sizes.items())}
    facts["scales"] = " ".join(map(repr, compared.scales))
    with suppress(UsageError, ValueError):  # some models take one sample at a time, whatever their axes say
        if pair and compared.error(compared.rows(outputs_of(plain, pair), 2), np.stack(rows[:2])) < SAME:
            facts["batches"] = "yes"
    distances = [max(compared.errors(rows[a], rows[b])) for a, b in different]
    apart = float(np.quantile(distances or [0.0], CONFUSED))
    for name, bits in SIGNIFICAND.items() if not why else ():
        try:
            running = session(rounded(model.proto, bits))
            moved = [
                compared.rows(outputs_of(running, {name: round_to(each, bits) for name, each in feed.items()}))
                for feed in feeds
            ]
        except (UsageError, ValueError) as error:
            facts[f"no gate for {name}"] = f"rounding could not be emulated: {error}"
            continue
        worst = max(compared.error(row, exact[None]) for row, exact in zip(moved, rows, strict=True))
        gate = max(TIMES * worst, LEAST[name])
        if gate < apart:  # false also for an error that is not finite
            facts[f"gate for {name}"] = repr(gate)
        else:
            both = f"by {significant(worst)}, and two feeds by {significant(apart)}"
            facts[f"no gate for {name}"] = f"rounding moves outputs {both}"
    return facts | ({"no gate": why} if why else {}) | costs(model.proto)


def round_to(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Floats with fewer bits of significand, rounded to nearest; other values as they are."""
    if values.dtype.kind != "f":
        return values
    exact, factor = values.astype(np.float32), np.float32(_factor(bits, FP16 if values.dtype == np.float16 else FP32))
    with np.errstate(over="ignore", invalid="ignore"):
        split = exact * factor
        near = split - (split - exact)
    return np.where(np.isfinite(near), near, exact).astype(values.dtype)


def _factor(bits: int, kind: int) -> float:
    """What fp32 is multiplied with to be rounded. Of fp16 fewer bits are kept than it has."""
    return 2.0 ** (24 - min(bits, 10 if kind == FP16 else bits)) + 1


def rounded(proto: ModelProto, bits: int) -> ModelProto:
    """The model with emulated rounding of all but its inputs. Shapes are computed exactly."""
    import onnx
    from onnx import helper, numpy_helper, parser

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with suppress(Exception):  # of operators that onnx does not know: what they make is not rounded
        copy = onnx.shape_inference.infer_shapes(copy)
    values = [each for graph in graphs_of(copy.graph) for each in (*graph.input, *graph.value_info, *graph.output)]
    kinds = {each.name: each.type.tensor_type.elem_type for each in values}
    _round(copy.graph, bits, {name: kind for name, kind in kinds.items() if kind in (FP32, FP16)}, set())
    constants = {"least": -1e30, "most": 1e30, **{f"factor.{kind}": _factor(bits, kind) for kind in (FP32, FP16)}}
    copy.graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.float32), f"mixmark.{name}") for name, value in constants.items()
    )
    opset = next(each.version for each in copy.opset_import if each.domain in ("", "ai.onnx"))
    copy.functions.append(parser.parse_function(ROUND.format(opset=opset)))
    copy.opset_import.append(helper.make_opsetid("mixmark", 1))
    copy.ir_version = max(copy.ir_version, 8)  # the first with functions
    return copy


def _round(graph: GraphProto, bits: int, floats: Mapping[str, int], live: set[str]) -> None:
    """Rounds a graph in place. live: the names of what depends on inputs, to which this graph's are added."""
    from onnx import helper, numpy_helper

    stored = {tensor.name for tensor in graph.initializer}
    live |= {value.name for value in graph.input} - stored
    nodes = []
    for node in graph.node:
        depends = bool(live & {*node.input}) and node.op_type not in ("Shape", "Size")
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                _round(body, bits, floats, {*live})
                depends = True
        nodes.append(node)
        for at, name in enumerate(node.output if depends else ()):
            live.add(name)
            if name in floats:
                node.output[at] = f"{name}.exact"
                given = [f"{name}.exact", *(f"mixmark.{each}" for each in (f"factor.{floats[name]}", "least", "most"))]
                nodes.append(helper.make_node("Round", given, [name], domain="mixmark", to=floats[name]))
    nodes = [type(node).FromString(node.SerializeToString()) for node in nodes]  # before they are deleted
    del graph.node[:]
    graph.node.extend(nodes)
    for tensor in constants_of(graph):
        if tensor.data_type in (FP32, FP16) and prod(tensor.dims) > LARGE:
            tensor.CopyFrom(numpy_helper.from_array(round_to(numpy_helper.to_array(tensor), bits), tensor.name))


def constants_of(graph: GraphProto, unused: Collection[str] = ()) -> list[TensorProto]:
    """What is stored in a graph, but for constants of these names."""
    nodes = [node for node in graph.node if node.op_type == "Constant" and node.output[0] not in unused]
    made = [each.t for node in nodes for each in node.attribute if each.name == "value"]
    return [*(each for each in graph.initializer if each.name not in unused), *made]


def costs(proto: ModelProto) -> dict[str, str]:
    """FLOPs and bytes of one sample, or the operators whose work is not known."""
    import onnx
    from onnx import numpy_helper

    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for value in fixed.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            axis.dim_value = axis.dim_value or 1
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    except Exception as error:  # of operators that onnx does not know
        return {"not counted": f"shapes: {reason(error)}"}
    shapes: dict[str, Sequence[int]] = {each.name: each.dims for each in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(axis.HasField("dim_value") for axis in dims):
            shapes[value.name] = [axis.dim_value for axis in dims]
    flops, lacking = 0, Counter[str]()
    for node in graph.node:
        try:
            flops += _flops(node, shapes)
        except KeyError:
            lacking[node.op_type] += 1
    if lacking:
        return {"not counted": ", ".join(f"{count} {kind}" for kind, count in lacking.most_common(5))}
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    weights = constants_of(graph, looked_up)
    floats = sum(prod(each.dims) for each in weights if each.data_type == FP32)
    moved = sum(4 * prod(shapes.get(value.name, (0,))) for value in graph.input if value.name not in looked_up)
    moved += sum(numpy_helper.to_array(each).nbytes for each in weights if each.data_type != FP32)
    return {"flops": str(flops), "weights in floats": str(floats), "other bytes": str(moved)}


def _flops(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> int:
    """A multiplication and an addition are two. Raises KeyError if they are not known."""
    if node.domain not in ("", "ai.onnx") or any(part in node.op_type for part in UNCOUNTED):
        raise KeyError(node.op_type)
    if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        return 0
    first, second, out = (shapes[name] for name in (*node.input[:2], node.output[0]))
    if node.op_type == "ConvTranspose":
        return 2 * prod(first) * prod(second[1:])
    across = any(each.name == "transA" and each.i for each in node.attribute)
    return 2 * prod(out) * (prod(second[1:]) if node.op_type == "Conv" else first[0 if across else -1])
