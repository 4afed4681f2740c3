"""ResNet-50: honest precisions, and cheats that do less work. A feed is eight images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bench.separation import Row, activations, integers, narrower, rounded, two_of_four
from mixmark.harness.contracts.protocols import Array, Feed, State, Weights
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites.resnet50 import STAGES, Calibrated, ResNet50, statistics
from mixmark.suites.weights import Synthetic

if TYPE_CHECKING:
    import torch
    from torch import nn

IMAGES = 8
Change = Callable[["torch.Tensor"], "torch.Tensor"]
BLOCKS = [f"layer{stage}.{index}" for stage, (blocks, _, _) in enumerate(STAGES, 1) for index in range(blocks)]


@dataclass(frozen=True)
class Eager:
    """A minimal session: torch on the CPU."""

    network: nn.Module

    def put(self, array: Array) -> torch.Tensor:
        import torch

        return torch.from_numpy(array)

    def state(self, graph: str) -> State:
        raise AssertionError(f"{graph} has no state")

    def run(self, graph: str, *inputs: torch.Tensor, state: State | None = None) -> Sequence[torch.Tensor]:
        import torch

        with torch.inference_mode():
            outputs: Sequence[torch.Tensor] = self.network(*inputs)
        return outputs

    def get(self, tensor: torch.Tensor) -> Array:
        return tensor.numpy()


def loaded(weights: Weights) -> nn.Module:
    from mixmark.suites.resnet50.network import ResNet

    network = ResNet().eval()
    for name, tensor in network.state_dict().items():
        weights.read(name, tensor.numpy())
    return network


@contextmanager
def changed(network: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within the context, `change` is applied to the weights of all convolutions and of the last layer."""
    from torch import nn

    kept = {each: each.weight.data for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear)}
    for layer, weight in kept.items():
        layer.weight.data = change(weight)
    try:
        yield
    finally:
        for layer, weight in kept.items():
            layer.weight.data = weight


@contextmanager
def stream(network: nn.Module, precision: str) -> Iterator[None]:
    """Within the context, the output of each block is rounded too."""
    hooks = [
        network.get_submodule(block).register_forward_hook(lambda _, __, output: rounded(output, precision))
        for block in BLOCKS
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def skipped(network: nn.Module, block: str) -> Iterator[None]:
    """Within the context, a block such as `layer3.2` is its shortcut alone."""
    last = network.get_submodule(f"{block}.bn3")
    kept = {name: parameter.detach().clone() for name, parameter in last.named_parameters()}
    for parameter in last.parameters():
        parameter.data.zero_()
    try:
        yield
    finally:
        for name, parameter in last.named_parameters():
            parameter.data.copy_(kept[name])


def halved(feed: Feed) -> Feed:
    """Images of half the resolution, means of 2×2 pixels: the network then does a quarter of the work."""
    images = feed["images"]
    count, channels, side, _ = images.shape
    return {"images": images.reshape(count, channels, side // 2, 2, side // 2, 2).mean((3, 5)).round().astype(np.uint8)}


def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    suite = ResNet50(tier, {}, weight_class)
    network = loaded(suite.weights())
    given = list(map(suite.feeds(IMAGES, seed=11), (nonces[-1] + 1, *nonces)))
    referee = suite.reference()
    references = [np.concatenate(list(referee.infer(Eager(network), feed))) for feed in given]

    def outputs(network: nn.Module, feeds: Sequence[Feed] = given[1:]) -> list[Array]:
        return [logits for feed in feeds for logits in suite.infer(Eager(network), feed)]

    def row(name: str, outputs: Callable[[], Sequence[Array]], declared: str = "", note: str = "") -> Iterator[Row]:
        if wanted(name):
            pairs = zip(outputs(), references[1:], strict=True)
            yield Row(name, declared, tuple(suite.quality(output, reference) for output, reference in pairs), note)

    singly = [[{"images": image[None]} for image in feed["images"]] for feed in given[1:]]

    def alone() -> list[Array]:
        return [np.concatenate(outputs(network, feed)) for feed in singly]

    declared = "16 bits" if weight_class == 16 else f"int{weight_class}"
    yield from row("fp32, one image at a time", alone, declared)
    int8, int4, fp8 = (
        partial(integers, bits=8, group=None),
        partial(integers, bits=4),
        partial(rounded, precision="fp8"),
    )
    right = partial(outputs, network)
    exact = (
        ("int8 activations", None, "int8-tensor", declared, "one scale per tensor; the weights exact"),
        ("uint8 activations", None, "uint8-tensor", declared, "scale and zero point per tensor; the weights exact"),
    )
    honest: dict[int, Sequence[tuple[str, Change | None, str | None, str, str]]] = {
        16: (("bf16", None, "bf16", declared, ""), ("fp16", None, "fp16", declared, "")),
        8: (
            *exact,
            ("fp8", fp8, "fp8", "fp8", "one scale per tensor"),
            ("int8 weights", int8, None, declared, "a scale per channel"),
            ("int8 weights and activations", int8, "int8-tensor", declared, "activations by one scale per tensor"),
        ),
        4: (
            *exact,
            ("int4 weights", int4, None, declared, "a scale per 32, else exact"),
            ("int4 weights, int8 activations", int4, "int8-tensor", declared, ""),
        ),
    }
    cheats: list[tuple[str, Change | None, str | None, str, str]] = [
        (name, change, None, "", "") for name, change in narrower(weight_class)
    ]
    if weight_class == 16:
        cheats.append(("int8 weights by row, int8 activations", int8, "int8-tensor", "", "as stock 8-bit engines"))
    for name, change, precision, declared, note in (*honest[weight_class], *cheats):
        with ExitStack() as stack:
            if change:
                stack.enter_context(changed(network, change))
            if precision:
                stack.enter_context(activations(network, precision))
            yield from row(name, right, declared, note)
    if weight_class == 8:
        with changed(network, int8), activations(network, "int8-tensor"), stream(network, "int8-tensor"):
            yield from row("int8 throughout", right, "int8", "the shortcuts too")

    for block in BLOCKS:
        with skipped(network, block):
            yield from row(f"{block} skipped", right)
    with changed(network, two_of_four):
        yield from row("2:4 sparse weights", right)
    yield from row("half resolution", lambda: outputs(network, [halved(feed) for feed in given[1:]]))
    drawn = Synthetic(suite.name, suite.specs(), suite.fill, weight_class, seed=1)
    other = loaded(Calibrated(drawn, statistics(weight_class)))
    yield from row("other weights", partial(outputs, other))
    yield from row("the previous feed's output", lambda: [reference[:-1] for reference in references[:-1]])
    yield from row("the mean output", lambda: [np.repeat(reference[-1:], IMAGES, 0) for reference in references[1:]])
    yield from row("zeros", lambda: [np.zeros_like(reference[:-1]) for reference in references[1:]])
