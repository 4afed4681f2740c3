"""train: steps that round, and steps that leave work out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bench.separation import Row, integers, narrower, rounded
from mixmark.harness.capabilities.train import ADAMW, Train, spread
from mixmark.harness.capabilities.train.network import Step
from mixmark.harness.contracts.protocols import Array, Feed, Weights
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.weights import Synthetic

SEED = 1


@dataclass(frozen=True)
class Cut:
    """What is left out of the output head. `others` replaces the gradient of the rows without targets by that many
    times its best linear approximation; `sampled` is the part of the vocabulary that the normaliser is made from."""

    others: float | None = None
    analytic: bool = False
    """Whether a hidden state's gradient takes the expected row of the table from the table's variance."""
    sampled: float = 1
    least: float = 0
    """The softmax below which the backward pass leaves a token out. Cut Cross-Entropy does so below 2^-12."""


CUTS = {
    "head's gradient of the rows without targets left out": Cut(others=0),
    "head's gradient of the rows without targets made linear": Cut(others=1),
    "hidden state's gradient by the table's variance": Cut(analytic=True),
    "both products of the head's backward pass left out": Cut(others=0, analytic=True),
    "normaliser of a sixteenth of the vocabulary": Cut(sampled=1 / 16),
    "all but a sixteenth of the head left out": Cut(others=0, analytic=True, sampled=1 / 16),
}


class Head(torch.autograd.Function):
    """The losses of hidden states [tokens, width], by a table [vocabulary, width] and targets [tokens], with a Cut."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, table: Tensor, targets: Tensor, cut: Cut) -> Tensor:
        logits = F.linear(hidden, table).float()
        sample = logits[:, : round(cut.sampled * len(table))]
        normaliser = sample.logsumexp(1, keepdim=True) - math.log(cut.sampled)
        context.save_for_backward(hidden, table, targets, (logits - normaliser).exp())
        context.cut = cut
        return (normaliser - logits.gather(1, targets[:, None]))[:, 0]

    @staticmethod
    def backward(context: Any, *_: Tensor) -> Any:
        hidden, table, targets, softmax = context.saved_tensors
        cut: Cut = context.cut
        errors = (softmax * (softmax >= cut.least) - F.one_hot(targets, len(table))).to(hidden.dtype)
        rows, states = errors.T @ hidden, errors @ table
        if cut.others is not None:
            linear = cut.others / len(table) * (hidden.sum(0) + table @ (hidden.T @ hidden))
            rows = torch.where(F.one_hot(targets, len(table)).any(0)[:, None], rows, linear)
        if cut.analytic:
            states = table.square().mean() * hidden - table[targets]
        return states, rows, None, None


class SumsInBf16(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its mode no types
    """Within the context, sums of 256 products are added in bf16."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function not in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default) or args[0].dtype != torch.bfloat16:
            return function(*args, **(kwargs or {}))
        parts = map(function, args[0].split(256, -1), args[1].split(256, -2))
        return sum(parts, next(parts))


class Cheat(Step):
    """A step that may leave work out. All settings are off at first."""

    kept: Callable[[str], bool] | None = None
    """Says by its name whether a tensor has a gradient."""
    stale: Callable[[str], bool] | None = None
    """Says by its name whether the optimizer leaves a tensor as it is."""
    decay = True
    second_moment = True
    sequences: slice = slice(None)
    """The sequences of the backward pass."""
    singly = False
    """Whether each sequence has a backward pass of its own."""
    cut = Cut()
    rows_left_out = 0.0
    """The part of the rows of each layer's output whose gradient is left out, the smallest ones."""

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.cut == Cut():
            return super().losses(x, targets)
        hidden, table = self.hidden(x).flatten(0, 1), self.model.embed_tokens.weight
        apply: Callable[..., Tensor] = Head.apply  # torch gives it no types
        losses = apply(hidden, table, targets.flatten(), self.cut)
        return losses

    def backward(self, ids: Tensor, use: Callable[[str, Tensor], None]) -> Tensor:
        gradients: dict[str, Tensor] = {}

        def add(name: str, gradient: Tensor) -> None:
            gradients[name] = gradients[name] + gradient if name in gradients else gradient

        backward = super().backward
        losses = torch.cat([backward(part, add) for part in (ids[:, None] if self.singly else [ids])])
        if self.sequences != slice(None):
            gradients.clear()
            backward(ids[self.sequences], add)
        scale = len(ids) / len(ids[self.sequences])
        for name, gradient in gradients.items():
            if self.rows_left_out and ("o_proj" in name or "down_proj" in name):
                size = gradient.square().sum(1)
                gradient[size < size.quantile(self.rows_left_out)] = 0
            use(name, gradient * (scale if self.kept is None or self.kept(name) else 0))
        return losses

    def updated(self, name: str, gradient: Tensor) -> Tensor:
        changes = super().updated(name, gradient)
        if not self.decay:
            changes[0] += ADAMW["lr"] * ADAMW["weight_decay"] * self.get_parameter(name).detach()
        if not self.second_moment:
            changes[2] = (1 - ADAMW["beta2"]) * spread(name) ** 2
        if self.stale and self.stale(name):
            changes.zero_()
        return changes


class Eager:
    """A minimal session: torch on the CPU."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def put(self, array: Array) -> Tensor:
        return torch.from_numpy(array)

    def state(self, graph: str) -> None:
        raise AssertionError(f"{graph} has no state")

    def run(self, graph: str, *inputs: Tensor, state: object = None) -> Sequence[Tensor]:
        with torch.inference_mode():
            outputs: Sequence[Tensor] = self.step(*inputs)
        return outputs

    def get(self, tensor: Tensor) -> Array:
        return tensor.float().numpy()


def loaded(suite: Train, weights: Weights, change: Callable[[Tensor], Tensor] | None = None) -> Cheat:
    """The network with these weights; `change` is applied to the matrices."""
    step = Cheat(suite.shape)
    for name, tensor in step.requires_grad_(False).state_dict().items():
        weights.read(name, tensor.numpy())
        if change and tensor.dim() == 2:
            tensor.copy_(change(tensor))
    return step


def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = Train(tier, {}, weight_class)
    weights = suite.weights()
    assert isinstance(weights, Synthetic)
    given = list(map(suite.feeds(1, SEED), (nonces[-1] + 1, *nonces)))
    step = loaded(suite, weights)
    layers = suite.shape.layers
    last = f"model.layers.{layers - 1}."
    middle = f"model.layers.{layers // 2}."

    def outputs(step: Step, feeds: Sequence[Feed] = given[1:]) -> list[Array]:
        return [np.concatenate(list(suite.infer(Eager(step), feed))) for feed in feeds]

    right = outputs(step)

    def row(name: str, found: Callable[[], Sequence[Array]], declared: str = "", note: str = "") -> Iterator[Row]:
        if wanted(name):
            yield Row(name, declared, tuple(map(suite.quality, found(), right)), note)

    def of(change: Callable[[Tensor], Tensor] | None = None, dtype: torch.dtype = torch.float32) -> list[Array]:
        return outputs(loaded(suite, weights, change).to(dtype))

    def by(step: Cheat = step, **settings: object) -> list[Array]:
        for name, value in settings.items():
            setattr(step, name, value)
        found = outputs(step)
        for name in settings:
            delattr(step, name)
        return found

    def skipped(at: int) -> list[Array]:
        layer = step.model.layers[at]
        kept = {
            name: tensor.clone() for name, tensor in layer.state_dict().items() if "o_proj" in name or "down" in name
        }
        for name in kept:
            layer.state_dict()[name].zero_()
        found = outputs(step)
        layer.load_state_dict(kept, strict=False)
        return found

    yield from row("fp32, a backward pass for each sequence", partial(by, singly=True), "16 bits")
    for name in ("bf16", "fp16"):
        dtype = torch.bfloat16 if name == "bf16" else torch.float16
        yield from row(f"torch, {name}", partial(of, dtype=dtype), "16 bits")

    def in_bf16_sums() -> list[Array]:
        with SumsInBf16():  # type: ignore[no-untyped-call]  # torch gives its mode no types
            return of(dtype=torch.bfloat16)

    yield from row("bf16, sums of 256 products added in bf16", in_bf16_sums, "16 bits")
    yield from row(
        "bf16, softmax below 2^-12 left out of the backward pass",
        lambda: by(loaded(suite, weights).to(torch.bfloat16), cut=Cut(least=2**-12)),
        "16 bits",
    )
    for name, change in narrower(weight_class):
        yield from row(name, partial(of, change=change))

    def kept_in_int8() -> list[Array]:
        def pack(kept: Tensor) -> Tensor:
            return rounded(kept, "int8") if kept.dtype == torch.bfloat16 and kept.dim() > 1 else kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            return of(dtype=torch.bfloat16)

    yield from row("bf16, all that is kept for the backward pass in int8", kept_in_int8)
    for group in (32, 16):
        change = partial(integers, bits=8, group=group)
        yield from row(f"bf16, int8 weights by {group}", partial(of, change, torch.bfloat16))
    cheats: dict[str, dict[str, Any]] = {
        "no backward pass": {"kept": lambda _: False},
        "backward pass of half of the sequences": {"sequences": slice(None, None, 2)},
        "no gradient of the first layer": {"kept": lambda name: not name.startswith("model.layers.0.")},
        "no gradient of the middle layer": {"kept": lambda name: not name.startswith(middle)},
        "no gradient of the last layer's down projection": {"kept": lambda name: name != f"{last}mlp.down_proj.weight"},
        "no optimizer step of the last norm": {"stale": lambda name: name == "model.norm.weight"},
        "no optimizer step of the embedding": {"stale": lambda name: name == "model.embed_tokens.weight"},
        "no weight decay": {"decay": False},
        "no moment of the squared gradient": {"second_moment": False},
        **{name: {"cut": cut} for name, cut in CUTS.items()},
        "a fifth of the gradient's rows of each layer's outputs left out": {"rows_left_out": 0.2},
    }
    for name, settings in cheats.items():
        yield from row(name, partial(by, **settings))
    yield from row("first layer skipped", partial(skipped, 0))
    yield from row("middle layer skipped", partial(skipped, layers // 2))
    yield from row("last layer skipped", partial(skipped, layers - 1))
    other = replace(weights, seed=1)
    yield from row("other weights", lambda: outputs(loaded(suite, other)))
    yield from row("the previous feed's output", lambda: outputs(step, given[:-1]))
    yield from row("zeros", lambda: [np.zeros_like(output) for output in right])
