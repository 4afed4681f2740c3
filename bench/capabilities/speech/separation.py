"""speech: honest ways to transcribe and cheats. Each way transcribes by the suite's loop, and an fp32 teacher judges.

At edge a way takes some 5 s a feed on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.separation import Row, activations, integers, narrower, rounded
from bench.separation.diffusion import replaced, together
from bench.separation.networks import Network
from mixmark.harness.capabilities.speech import Speech
from mixmark.harness.capabilities.speech.network import EncoderLayer
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.weights import Synthetic

Way = AbstractContextManager[None]


def part(network: Network, name: str) -> Any:
    """A part of the network in the graph that runs it, e.g. `decoder.layers.0`."""
    return network.modules["encode" if name.startswith("encoder.") else "step"].get_submodule(f"model.{name}")


@contextmanager
def rounding(network: Network, precision: str) -> Iterator[None]:
    """Within the context, the inputs of all layers are rounded, and in 16 bits their outputs and the sums."""
    kinds = (nn.LayerNorm, EncoderLayer) if precision in ("bf16", "fp16") else (nn.LayerNorm,)
    parts = [part for module in network.modules.values() for part in module.modules() if isinstance(part, kinds)]
    hooks = [part.register_forward_hook(lambda _, __, output: rounded(output, precision)) for part in parts]
    try:
        with together([activations(module, precision) for module in network.modules.values()]):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def changed(network: Network, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within the context, `change` is applied to all weights but the vectors."""
    kept = {name: tensor.clone() for name, tensor in network.weights.items() if tensor.dim() > 1}
    for name, tensor in kept.items():
        network.weights[name].copy_(change(tensor))
    try:
        yield
    finally:
        for name, tensor in kept.items():
            network.weights[name].copy_(tensor)


def skipped(network: Network, *parts: str) -> Way:
    """Within the context, these layers return their input, and these attentions zeros."""

    def forward(name: str, x: Tensor, *_: object) -> Tensor:
        return torch.zeros_like(x) if name.endswith("attn") else x

    return together([replaced(part(network, name), "forward", partial(forward, name)) for name in parts])


def heard(network: Network, kept: slice) -> Way:
    """Within the context, the decoder attends to some positions of the encoder only."""
    encode = network.modules["encode"]
    forward = encode.forward
    return replaced(encode, "forward", lambda features: tuple(each[:, kept] for each in forward(features)))


def half_vocabulary(network: Network) -> Way:
    """Within the context, a token is chosen from the first half of the vocabulary."""
    step: Any = network.modules["step"]
    logits, half = step.logits, step.shape.vocabulary // 2
    return replaced(step, "logits", lambda *tensors: logits(*tensors)[:, :half])


def ways(network: Network, weight_class: WeightClass) -> Iterator[tuple[str, str, str, Sequence[Way]]]:
    """Name, declared precisions (empty for a cheat), note, and what changes the network."""
    shape: Any = network.modules["step"].shape
    notes = {"int8-block": "a scale per 32", "int8": "a scale a row", "int8-tensor": "a scale a tensor"}
    for precision in ("bf16", "fp16") if weight_class == 16 else notes:
        declared = "16 bits" if weight_class == 16 else f"int{weight_class}"
        yield f"{precision} activations", declared, notes.get(precision, ""), [rounding(network, precision)]
    if weight_class == 8:
        by_row = partial(integers, bits=8, group=None)
        yield "int8 weights by row", "int8", "absmax / 127, not exact", [changed(network, by_row)]
        fp8 = [changed(network, partial(rounded, precision="fp8")), rounding(network, "fp8")]
        yield "fp8 weights and activations", "fp8", "a scale a tensor", fp8
    for name, change in narrower(weight_class):
        yield name, "", "", [changed(network, change)]
    for side in ("encoder", "decoder"):
        for layer in range(shape.layers):
            yield f"{side} layer {layer} skipped", "", "", [skipped(network, f"{side}.layers.{layer}")]
    for part in ("encoder.self_attn", "decoder.self_attn", "decoder.encoder_attn"):
        side, attention = part.split(".")
        last = skipped(network, f"{side}.layers.{shape.layers - 1}.{attention}")
        yield f"{part} skipped in the last layer", "", "", [last]
    yield "every other position heard", "", "", [heard(network, slice(None, None, 2))]
    yield "first half of the audio heard", "", "", [heard(network, slice(shape.positions // 2))]
    yield "half of the vocabulary looked at", "", "", [half_vocabulary(network)]


def uncomputed(right: Sequence[Array]) -> Iterator[tuple[str, Sequence[Array]]]:
    """Outputs without the network, made of right outputs [30, 3, 1 + width]."""
    made_up = [output.copy() for output in right]
    for output in made_up:
        output[15, 0, 0] = output[0, 0, 0]
    yield "one token made up", made_up
    yield "constant output", [np.full_like(output, output[0, 0]) for output in right]
    yield "last quarter is the quarter before", [np.concatenate((output[:22], output[14:22])) for output in right]
    if len(right) > 1:
        yield "the previous feed's output", [right[-1], *right[:-1]]


@torch.inference_mode()
def values(
    tier: str,
    weight_class: WeightClass,
    nonces: Sequence[int],
    wanted: Callable[[str], object],
    weights: str | None = None,
) -> Iterator[Row]:
    """The rows of the suite. weights: the path of a checkpoint that replaces the synthetic weights."""
    suite = Speech(tier, {"weights": weights} if weights else {}, weight_class)
    network, teacher = Network(suite), Network(suite.reference())
    feeds = list(map(suite.feeds(1, 0), nonces))
    right = [network(feed) for feed in feeds]

    def row(name: str, outputs: Sequence[Array], declared: str = "", note: str = "") -> Row:
        pairs = zip(feeds, outputs, strict=True)
        judged = [suite.quality(output, teacher({**feed, "output": output})) for feed, output in pairs]
        return Row(name, declared, tuple(judged), note)

    yield row("fp32", right, "16 bits" if weight_class == 16 else f"int{weight_class}")
    for name, declared, note, changes in ways(network, weight_class):
        if wanted(name):
            with together(changes):
                outputs = [network(feed) for feed in feeds]
            yield row(name, outputs, declared, note)
    for name, made in uncomputed(right):
        if wanted(name):
            yield row(name, made)
    if wanted("wrong weights"):
        drawn = Speech(tier, {}, weight_class).weights()
        assert isinstance(drawn, Synthetic)
        for name, tensor in network.weights.items():
            replace(drawn, seed=1).read(name, tensor.numpy())
        yield row("wrong weights", [network(feed) for feed in feeds])
