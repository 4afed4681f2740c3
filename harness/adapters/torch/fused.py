"""Rewrites a torch module for oneDNN on the CPU: folds batch norms, fuses sums and activations, packs weights.

Eager torch packs the weights of a layer again at each call, and passes the layer's output through memory for the batch
norm, the sum and the activation. The rewriting needs no compiler and less than a second.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

Program = fx.GraphModule
Read = Callable[[str], "Tensor"]
"""Returns a weight in float32 by its name in the module's state dict."""

ACTIVATIONS: dict[Any, str] = {torch.relu: "relu", F.relu: "relu", F.silu: "swish"}
"""oneDNN's names of the activations that it computes before rounding a layer's output."""
SUMS = (operator.add, torch.add)


def fused(module: nn.Module, inputs: Iterable[str]) -> fx.GraphModule | None:
    """The module as a graph whose convolutions and linear layers are `FusedLayer`s, still without their weights. None
    if the module's Python code cannot be traced.

    inputs: names for the module's arguments.
    """
    try:
        program = fx.GraphModule(module, _Tracer(inputs).trace(module))
    except Exception:  # a module may do anything to the placeholders that the tracer passes instead of tensors
        return None
    for number, (node, replacement) in enumerate(list(_replaceable(program))):
        program.add_submodule(f"fused_{number}", replacement)
        with program.graph.inserting_before(node):
            _absorb(program.graph.call_module(f"fused_{number}", node.args[:1]), node)
    layers = {node: layer for node in program.graph.nodes if isinstance(layer := _called(program, node), FusedLayer)}
    for fusions in ((_fuse_batch_norm,), (_fuse_sum, _fuse_activation)):
        for node, layer in layers.items():
            for fuse in fusions:
                if len(node.users) == 1:
                    fuse(node, layer, next(iter(node.users)), layers)
    for node in program.graph.nodes:
        if node.op == "get_attr" and not node.users:
            program.graph.erase_node(node)
    program.delete_all_unused_submodules()
    program.recompile()
    return program


class FusedLayer(nn.Module):
    """A convolution or a linear layer, with the operations fused into it, in one call of oneDNN.

    weight, bias: names in the state dict. convolution: strides and paddings; None for a linear layer.
    """

    def __init__(self, weight: str, bias: str | None, convolution: nn.Conv2d | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.batch_norm: tuple[Sequence[str], float] | None = None
        """The names of the mean, variance, weight and bias, and epsilon."""
        self.activation = "none"
        self.packed: tuple[Tensor, torch.Size]
        """The weight in oneDNN's layout, and the shape of the inputs that it was packed for."""
        self.geometry: tuple[Any, ...] | None = None
        if convolution is not None:
            self.geometry = convolution.padding, convolution.stride, convolution.dilation, convolution.groups

    def load(self, read: Read, dtype: torch.dtype) -> None:
        """Reads the weights and folds the batch norm in float32."""
        weight = read(self.weight)
        bias = None if self.bias is None else read(self.bias)
        if self.batch_norm:
            mean, variance, gain, shift = map(read, self.batch_norm[0])
            gain /= torch.sqrt(variance + self.batch_norm[1])
            weight *= gain.view(-1, 1, 1, 1)
            bias = shift + gain * (-mean if bias is None else bias - mean)
        self.offset = None if bias is None else bias.to(dtype)
        if self.geometry:
            self.packed = weight.to(dtype, memory_format=torch.channels_last), torch.Size()
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype)), torch.Size()

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """other: a summand for the output of a convolution, before the activation."""
        y: Tensor
        if self.geometry is None:
            y = torch.ops.mkldnn._linear_pointwise(x, self.packed[0], self.offset, self.activation, [], "")
            return y
        x = x.contiguous(memory_format=torch.channels_last)
        packed = self._packed_for(x.shape)
        if other is None:
            y = torch.ops.mkldnn._convolution_pointwise(x, packed, self.offset, *self.geometry, self.activation, [], "")
            return y
        other = other.contiguous(memory_format=torch.channels_last)
        activation = None if self.activation == "none" else self.activation
        y = torch.ops.mkldnn._convolution_pointwise(
            x, other, packed, self.offset, *self.geometry, "add", 1.0, activation, [], ""
        )
        return y

    def _packed_for(self, shape: torch.Size) -> Tensor:
        """The weight of a convolution, packed for inputs of this shape.

        Without AMX, oneDNN's layout of the weight depends on the shape. From another layout oneDNN packs the weight
        again at each call, which took 70 % of the time of resnet50 at batch 1.
        """
        weight, packed_for = self.packed
        if packed_for != shape:
            dense = weight.to_dense() if weight.is_mkldnn else weight
            assert self.geometry is not None
            weight = torch.ops.mkldnn._reorder_convolution_weight(dense, *self.geometry, shape)
            self.packed = weight, shape  # one assignment, since another thread may do the same
        return weight


class _Tracer(fx.Tracer):
    """Traces a module that is called with tensors by position. inputs: the names of these tensors."""

    def __init__(self, inputs: Iterable[str]) -> None:
        super().__init__()
        self._inputs = inputs

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in self._inputs)]

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Iterates over the parts of torch.split, one for each size. Other lengths are unknown."""
        if obj.node.target is torch.split and isinstance(sizes := obj.node.args[1], list | tuple):
            return (operator.getitem(obj, index) for index in range(len(sizes)))
        return super().iter(obj)


def _called(program: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return program.get_submodule(str(node.target)) if node.op == "call_module" else None


def _replaceable(program: fx.GraphModule) -> Iterator[tuple[fx.Node, FusedLayer]]:
    """The calls of layers that can be replaced; the first argument of each is its input."""
    for node in program.graph.nodes:
        module, target = _called(program, node), str(node.target)
        if isinstance(module, nn.Linear | nn.Conv2d):
            bias = None if module.bias is None else f"{target}.bias"
            convolution = module if isinstance(module, nn.Conv2d) else None
            if convolution is None or (convolution.padding_mode == "zeros" and type(convolution.padding) is tuple):
                yield node, FusedLayer(f"{target}.weight", bias, convolution)
        elif node.target is F.linear:
            _, *weights = node.args
            if not node.kwargs and all(map(_is_weight, weights)):
                names = [str(weight.target) for weight in weights]
                yield node, FusedLayer(names[0], names[1] if len(names) > 1 else None, None)


def _is_weight(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"


def _absorb(node: fx.Node, user: fx.Node) -> None:
    """Replaces a user of the node by the node, which now computes both."""
    user.replace_all_uses_with(node)
    user.graph.erase_node(user)


Layers = dict[fx.Node, FusedLayer]


def _fuse_batch_norm(node: fx.Node, layer: FusedLayer, user: fx.Node, layers: Layers) -> None:
    if user.target is F.batch_norm:
        bound = inspect.signature(F.batch_norm).bind(*user.args, **user.kwargs)
        bound.apply_defaults()
        names = ("running_mean", "running_var", "weight", "bias", "training", "eps")
        *tensors, training, epsilon = (bound.arguments[name] for name in names)
        if not training and all(map(_is_weight, tensors)):
            layer.batch_norm = [str(tensor.target) for tensor in tensors], epsilon
            _absorb(node, user)


def _fuse_sum(node: fx.Node, layer: FusedLayer, user: fx.Node, layers: Layers) -> None:
    """Fuses the sum with another convolution's output."""
    if layer.geometry is None or user.target not in SUMS or len(node.args) > 1 or len(user.args) != 2:
        return
    (other,) = (argument for argument in user.args if argument is not node)
    if isinstance(other, fx.Node) and other in layers and layers[other].geometry and not user.kwargs:
        user.prepend(node)  # the other summand is computed before this point
        node.args = (*node.args, other)
        _absorb(node, user)


def _fuse_activation(node: fx.Node, layer: FusedLayer, user: fx.Node, layers: Layers) -> None:
    if user.target in ACTIVATIONS:
        layer.activation = ACTIVATIONS[user.target]
        _absorb(node, user)
