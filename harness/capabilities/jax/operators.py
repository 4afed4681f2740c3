"""ONNX graphs as functions of jax: each node is an operator of jax.numpy, traced once for each shape by jax.jit.

Shapes are known while a graph is traced. So whatever depends on shapes and constants alone (Shape, Range, the argument
of Reshape) is computed by numpy at once, and XLA sees the rest. In 16 bits only matrix products and convolutions
compute in 16 bits, with sums in fp32; all else is fp32, and weights widen where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp
from onnx import TensorProto, helper, numpy_helper

from mixmark.harness.contracts.errors import Unsupported

if TYPE_CHECKING:
    from onnx import ModelProto

At = Mapping[str, Any]
"""The attributes of a node."""
Values = Any
"""An array of numpy, if it is known while the graph is traced, or of jax. None: an input that is absent."""
Operator = Callable[..., Values]
"""operator(np or jax.numpy, attributes, *inputs) returns an output, or a tuple of them."""


def _refuse(what: str) -> Unsupported:
    return Unsupported(f"jax has no operator for {what}", "use another adapter")


def _sizes(values: Values) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _axes(values: Values) -> tuple[int, ...] | None:
    return None if values is None or len(values) == 0 else _sizes(values)


def _by_name(name: str, pairwise: bool = False) -> Operator:
    return lambda xp, at, *inputs: reduce(getattr(xp, name), inputs) if pairwise else getattr(xp, name)(*inputs)


def _reducing(name: str) -> Operator:
    def run(xp: Any, at: At, data: Values, axes: Values = None) -> Values:
        if _axes(axes) is None and at.get("noop_with_empty_axes"):
            return data
        return getattr(xp, name)(data, axis=_axes(axes), keepdims=bool(at.get("keepdims", 1)))

    return run


def _div(xp: Any, at: At, a: Values, b: Values) -> Values:
    integers = a.dtype.kind in "iu"  # rounded towards zero
    return xp.sign(a) * xp.sign(b) * (xp.abs(a) // xp.abs(b)) if integers else a / b


def _cast(xp: Any, at: At, data: Values) -> Values:
    dtype = helper.tensor_dtype_to_np_dtype(at["to"])
    return data.astype(dtype if xp is np else xp.result_type(dtype))  # of 32 bits where jax has no more


def _reshape(xp: Any, at: At, data: Values, shape: Values) -> Values:
    kept = not at.get("allowzero")
    return data.reshape([data.shape[n] if size == 0 and kept else size for n, size in enumerate(_sizes(shape))])


def _slice(
    xp: Any, at: At, data: Values, starts: Values, ends: Values, axes: Values = None, steps: Values = None
) -> Any:
    chosen = [slice(None)] * data.ndim
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts)) if steps is None else steps
    for axis, start, end, step in zip(*map(_sizes, (axes, starts, ends, steps)), strict=True):
        first = -data.shape[axis] - 1  # an end before this is before the first value
        chosen[axis] = slice(start, None if step < 0 and end <= first else end, step)
    return data[tuple(chosen)]


def _split(xp: Any, at: At, data: Values, split: Values = None) -> Values:
    axis = at.get("axis", 0)
    size = -(-data.shape[axis] // at["num_outputs"]) if split is None else 0
    edges = range(size, data.shape[axis], size) if split is None else np.cumsum(_sizes(split))[:-1]
    return tuple(xp.split(data, [int(edge) for edge in edges], axis=axis))


def _cumsum(xp: Any, at: At, data: Values, axis: Values) -> Values:
    along = int(axis)
    turned = xp.flip(data, along) if at.get("reverse") else data
    sums = xp.cumsum(turned, along) - (turned if at.get("exclusive") else 0)
    return xp.flip(sums, along) if at.get("reverse") else sums


def _scatter(xp: Any, at: At, data: Values, indices: Values, updates: Values) -> Values:
    places: list[Values] = list(np.indices(indices.shape, sparse=True))
    places[at.get("axis", 0)] = indices
    return jnp.asarray(data).at[tuple(places)].set(updates.astype(data.dtype))


def _resize(xp: Any, at: At, data: Values, roi: Values, scales: Values, sizes: Values = None) -> Values:
    how = [at.get(name, b"").decode() for name in ("mode", "coordinate_transformation_mode", "nearest_mode")]
    if how != ["nearest", "asymmetric", "floor"]:
        raise _refuse(f"Resize: {', '.join(how)}")
    factors = np.divide(sizes, data.shape) if scales is None or not len(scales) else scales
    for axis, factor in enumerate(factors):
        if factor != 1:
            size = int(data.shape[axis] * factor)
            data = xp.take(data, np.minimum(np.arange(size) / factor, data.shape[axis] - 1).astype(int), axis=axis)
    return data


def _normalised(xp: Any, data: Values, axes: Sequence[int], epsilon: float) -> Values:
    centred = data - xp.mean(data, tuple(axes), keepdims=True)
    return centred / xp.sqrt(xp.mean(xp.square(centred), tuple(axes), keepdims=True) + epsilon)


def _by_channel(data: Values, values: Values) -> Values:
    return values.reshape(-1, *(1,) * (data.ndim - 2))


def _instance_norm(xp: Any, at: At, data: Values, gain: Values, bias: Values) -> Values:
    found = _normalised(xp, data, range(2, data.ndim), at.get("epsilon", 1e-5))
    return found * _by_channel(data, gain) + _by_channel(data, bias)


def _layer_norm(xp: Any, at: At, data: Values, gain: Values, bias: Values = None) -> Values:
    axes = range(at.get("axis", -1) % data.ndim, data.ndim)
    return _normalised(xp, data, axes, at.get("epsilon", 1e-5)) * gain + (0 if bias is None else bias)


def _batch_norm(xp: Any, at: At, data: Values, gain: Values, bias: Values, mean: Values, variance: Values) -> Values:
    factor = gain / xp.sqrt(variance + at.get("epsilon", 1e-5))
    return data * _by_channel(data, factor) + _by_channel(data, bias - mean * factor)


def _window(at: At, spatial: int) -> tuple[Any, Any, Any]:
    """The strides, padding and dilation of a convolution or a pooling with so many axes."""
    pads = at.get("pads", [0] * 2 * spatial)
    by_name = {"NOTSET": list(zip(pads[:spatial], pads[spatial:], strict=True)), "SAME_UPPER": "SAME"}
    by_name |= {name: name for name in ("VALID", "SAME_LOWER")}
    ones = [1] * spatial
    return at.get("strides", ones), by_name[at.get("auto_pad", b"NOTSET").decode()], at.get("dilations", ones)


def _max_pool(xp: Any, at: At, data: Values) -> Values:
    strides, padding, dilation = _window(at, data.ndim - 2)
    padding = padding if isinstance(padding, str) else [(0, 0), (0, 0), *padding]
    sizes, strides, dilation = ((1, 1, *each) for each in (at["kernel_shape"], strides, dilation))
    return jax.lax.reduce_window(data, -np.inf, jax.lax.max, sizes, strides, padding, window_dilation=dilation)


def _conv(at: At, data: Values, kernel: Values, **how: Any) -> Values:
    spatial = "DHW"[5 - data.ndim :]
    axes = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    strides, padding, dilation = _window(at, data.ndim - 2)
    how |= {"rhs_dilation": dilation, "dimension_numbers": axes, "feature_group_count": at.get("group", 1)}
    return jax.lax.conv_general_dilated(data, kernel, strides, padding, **how)


NAMES = {"Sub": "subtract", "Mul": "multiply", "Pow": "power", "Neg": "negative", "And": "logical_and"}
NAMES |= {"Or": "logical_or", "Not": "logical_not", "LessOrEqual": "less_equal", "GreaterOrEqual": "greater_equal"}
SAME = "abs add ceil cos equal exp floor greater isnan less log mod reciprocal round sign sin sqrt tanh where"
NAMES |= {"IsNaN" if name == "isnan" else name.capitalize(): name for name in SAME.split()}
"""Operators that numpy and jax.numpy have, with their names there."""
KEEP_BITS: dict[str, Operator] = {
    "Concat": lambda xp, at, *inputs: xp.concatenate(inputs, axis=at["axis"]),
    "Expand": lambda xp, at, data, shape: xp.broadcast_to(data, np.broadcast_shapes(data.shape, _sizes(shape))),
    "Flatten": lambda xp, at, data: data.reshape(math.prod(data.shape[: at.get("axis", 1)]), -1),
    "Gather": lambda xp, at, data, indices: xp.take(data, indices, axis=at.get("axis", 0)),
    "GatherND": lambda xp, at, data, indices: xp.asarray(data)[tuple(xp.moveaxis(indices, -1, 0))],
    "Identity": lambda xp, at, data: data,
    "Reshape": _reshape,
    "ScatterElements": _scatter,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": lambda xp, at, data, axes=None: xp.squeeze(data, _axes(axes)),
    "Tile": lambda xp, at, data, repeats: xp.tile(data, _sizes(repeats)),
    "Transpose": lambda xp, at, data: xp.transpose(data, at.get("perm")),
    "Unsqueeze": lambda xp, at, data, axes: xp.expand_dims(data, _sizes(axes)),
}
"""Operators that move values and compute none: weights of 16 bits stay so."""
IN_FP32: dict[str, Operator] = {
    **{name: _by_name(function) for name, function in NAMES.items()},
    "Erf": lambda xp, at, data: jax.lax.erf(data),
    "Relu": lambda xp, at, data: jax.nn.relu(data),
    "Sigmoid": lambda xp, at, data: jax.nn.sigmoid(data),
    "Softplus": lambda xp, at, data: jax.nn.softplus(data),
    **{name: _by_name(ufunc, True) for name, ufunc in {"Max": "maximum", "Min": "minimum", "Sum": "add"}.items()},
    **{f"Reduce{name}": _reducing(name.lower()) for name in ("Max", "Mean", "Min", "Prod", "Sum")},
    "ArgMax": lambda xp, at, data: xp.argmax(data, axis=at.get("axis", 0), keepdims=bool(at.get("keepdims", 1))),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": lambda xp, at, data, least=None, most=None: xp.clip(data, least, most),
    "Constant": lambda xp, at: at["value"],
    "ConstantOfShape": lambda xp, at, shape: np.full(_sizes(shape), *at.get("value", np.zeros(1, np.float32))),
    "CumSum": _cumsum,
    "Div": _div,
    "GlobalAveragePool": lambda xp, at, data: xp.mean(data, tuple(range(2, data.ndim)), keepdims=True),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "Range": lambda xp, at, start, limit, delta: np.arange(int(start), int(limit), int(delta), dtype=start.dtype),
    "Resize": _resize,
    "Shape": lambda xp, at, data: np.array(data.shape[at.get("start", 0) : at.get("end")], np.int64),
    "Softmax": lambda xp, at, data: jax.nn.softmax(data, at.get("axis", -1)),
    "Trilu": lambda xp, at, data, k=0: (xp.triu if at.get("upper", 1) else xp.tril)(data, int(k)),
}
PRODUCTS = ("Conv", "Gemm", "MatMul")
UNTRIED = {"ArgMax": "select_last_index", "GatherND": "batch_dims", "MaxPool": "ceil_mode", "Mod": "fmod"}
UNTRIED |= {"ScatterElements": "reduction"}
"""Attributes that are refused unless they are 0 or none."""


class Program:
    """A graph as a function: program(weights by name, state, *inputs) returns its outputs and the new state.

    dtype: of the factors of products. Raises Unsupported if jax has no operator for a node.
    """

    def __init__(self, model: ModelProto, states: int, dtype: Any) -> None:
        graph = model.graph
        kinds = dict.fromkeys(f"{node.domain}.{node.op_type}".removeprefix(".") for node in graph.node)
        if unknown := [kind for kind in kinds if kind not in (*KEEP_BITS, *IN_FP32, *PRODUCTS)]:
            raise _refuse(", ".join(unknown))
        self.weights = tuple(each.name for each in graph.initializer if each.data_location == TensorProto.EXTERNAL)
        inner = [each for each in graph.initializer if each.name not in self.weights]
        self._constants = {each.name: numpy_helper.to_array(each) for each in inner}
        self._inputs = [each.name for each in graph.input]
        self._outputs = [each.name for each in graph.output]
        self._states, self._dtype = states, dtype
        self._nodes = []
        for node in graph.node:
            at = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            if at.get(attribute := UNTRIED.get(node.op_type, "")) not in (None, 0, b"none"):
                raise _refuse(f"{node.op_type} with {attribute}")
            if "value" in at:
                at["value"] = numpy_helper.to_array(at["value"])
            self._nodes.append((node.op_type, at, tuple(node.input), tuple(node.output)))

    def __call__(self, weights: Mapping[str, Any], state: Sequence[Any], *inputs: Any) -> tuple[list[Any], list[Any]]:
        values = {"": None, **self._constants, **weights, **dict(zip(self._inputs, (*inputs, *state), strict=True))}
        for kind, at, names, outputs in self._nodes:
            given = [values[name] for name in names]
            if kind in PRODUCTS:
                found = self._product(kind, at, *given)
            else:
                xp = jnp if any(isinstance(each, jax.Array) for each in given) else np
                keeps = KEEP_BITS.get(kind)
                found = keeps(xp, at, *given) if keeps else IN_FP32[kind](xp, at, *map(_wide, given))
            values.update(zip(outputs, found if isinstance(found, tuple) else (found,), strict=False))
        results = [jnp.asarray(values[name]) for name in self._outputs]
        outputs_only = len(results) - self._states
        after = [new.astype(old.dtype) for new, old in zip(results[outputs_only:], state, strict=True)]
        return [_wide(each) for each in results[:outputs_only]], after

    def _product(self, kind: str, at: At, a: Values, b: Values, bias: Values = None) -> Values:
        factors = [jnp.asarray(each).astype(self._dtype) for each in (a, b)]
        exact = self._dtype == jnp.float32  # the default computes fp32 by TF32 or bf16 on some chips
        how = {"preferred_element_type": jnp.float32, "precision": jax.lax.Precision.HIGHEST if exact else None}
        if kind == "MatMul":
            return jnp.matmul(*factors, **how)
        if kind == "Conv":
            found = _conv(at, *factors, **how)
            return found if bias is None else found + _by_channel(found, _wide(bias))
        turned = [each.T if at.get(name) else each for each, name in zip(factors, ("transA", "transB"), strict=True)]
        found = at.get("alpha", 1.0) * jnp.matmul(*turned, **how)
        return found if bias is None else found + at.get("beta", 1.0) * _wide(bias)


def _wide(values: Values) -> Values:
    """Floats of 16 bits as fp32, and all else as it is."""
    narrow = values is not None and values.dtype.name in ("bfloat16", "float16")
    return values.astype(np.float32) if narrow else values
