"""Diffusion: honest precisions, and cheats that compute less of an image or none of it.

Every residual branch is left out once. Whole images for all branches would take too long, so the branches are ranked
first by their effect on one step of one feed, and the VAE's branches by their effect on one latent. The table has the
branches with the smallest effect. If only some branches are requested by name, only these are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bench.separation import GROUP, Row, activations, integers, narrower, rounded
from mixmark.harness.contracts.schema import WeightClass
from mixmark.suites import limits, weights
from mixmark.suites.diffusion import Diffusion

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mixmark.harness.contracts.protocols import Array, Weights

SEED = 1
UNQUANTISED = ("time_emb", "add_embedding", "conv_in", "conv_out", "conv_shortcut")
"""Layers of the U-Net that published 8-bit recipes for Stable Diffusion keep in 16 bits, like text encoder and VAE."""
CRUDE = "fp8"
"""Ways in int8 that are as crude as fp8; the gate of int8 excludes them."""
BY_ACTIVATIONS: dict[int, dict[str, str]] = {
    16: {"bf16": "16 bits", "fp16": "16 bits"},
    8: {"int8": "int8", "uint8-tensor": "int8", "int8-tensor": CRUDE},
    4: {"int8": "int4", "uint8-tensor": "int4"},
}
"""The rounding of activations and the declared precision, by the weight class; the weights stay as they are."""
MILDEST = 3
"""The number of branches of each kind in the table."""

Target = AbstractContextManager[None]


class Networks:
    """The networks of a suite, with feeds of one image each in one batch."""

    def __init__(self, suite: Diffusion, nonces: Sequence[int]) -> None:
        self.suite = suite
        modules = {name: graph.module().to_empty(device="cpu") for name, graph in suite.graphs().items()}
        self.encode, self.denoise, self.decode = modules["encode"], modules["denoise"], modules["decode"]
        self.all = (self.encode, self.denoise, self.decode)
        issued = list(map(suite.feeds(1, SEED), (*nonces, nonces[-1] + 1)))
        self.ids, self.noise = (np.concatenate([feed[name] for feed in issued[:-1]]) for name in ("ids", "noise"))
        self.other_ids, self.other_noise = (
            np.concatenate([feed[name] for feed in issued[1:]]) for name in ("ids", "noise")
        )

    def load(self, drawn: Weights) -> None:
        import torch

        for module in self.all:
            for name, tensor in module.state_dict().items():
                values = np.empty(tuple(tensor.shape), np.float32)
                drawn.read(name, values)
                tensor.copy_(torch.from_numpy(values))

    def context(self, ids: Array) -> tuple[torch.Tensor, ...]:
        import torch

        encoded: tuple[torch.Tensor, ...] = self.encode(torch.from_numpy(ids))
        return encoded

    def latent(self, context: tuple[torch.Tensor, ...], noise: Array, steps: int | None = None) -> torch.Tensor:
        """The latent after `steps` steps. None for all steps."""
        import torch

        latent, step = torch.from_numpy(noise), torch.zeros(1, dtype=torch.int64)
        for _ in range(steps or self.suite.shape.steps):
            latent, step = self.denoise(latent, step, *context)
        return latent

    def image(self, latent: torch.Tensor) -> Array:
        (image,) = self.decode(latent)
        return np.asarray(image)


def values(
    tier: str, weight_class: WeightClass, nonces: Sequence[int], wanted: Callable[[str], object]
) -> Iterator[Row]:
    import torch

    networks = Networks(Diffusion(tier, {}, weight_class), nonces)
    networks.load(networks.suite.weights())
    with torch.no_grad():
        yield from rows(networks, wanted)


def rows(networks: Networks, wanted: Callable[[str], object]) -> Iterator[Row]:
    import torch
    from torch.nn.functional import avg_pool2d

    suite, ids, noise = networks.suite, networks.ids, networks.noise
    denoise, steps = networks.denoise, suite.shape.steps
    unet: nn.Module = denoise.get_submodule("unet")
    context = networks.context(ids)
    latent = networks.latent(context, noise)
    image = networks.image(latent)

    def row(name: str, output: Callable[[], Array], declared: str = "", note: str = "") -> Iterator[Row]:
        if wanted(name):
            pairs = zip(output(), image, strict=True)
            yield Row(name, declared, tuple(suite.quality(one[None], other[None]) for one, other in pairs), note)

    def whole(*targets: Target) -> Callable[[], Array]:
        def output() -> Array:
            with together(targets):
                return networks.image(networks.latent(networks.context(ids), noise))

        return output

    def denoised(
        *targets: Target, context: tuple[torch.Tensor, ...] = context, steps: int = steps
    ) -> Callable[[], Array]:
        """The image if the ways change only the U-Net; text encoder and VAE are honest."""

        def output() -> Array:
            with together(targets):
                changed = networks.latent(context, noise, steps)
            return networks.image(changed)

        return output

    notes = {
        "int8": "a scale a row",
        "int8-tensor": "a scale a tensor",
        "uint8-tensor": "scale and zero point a tensor",
    }
    for precision, declared in BY_ACTIVATIONS[suite.weight_class].items():
        targets = [activations(module, precision) for module in networks.all]
        yield from row(f"{precision} activations everywhere", whole(*targets), declared, notes.get(precision, ""))
    for precision in ("uint8-tensor", "int8-tensor") if suite.weight_class < 16 else ():
        quantised = [layer for name, layer in layers(unet) if not any(part in name for part in UNQUANTISED)]
        targets = [activations(layer, precision) for layer in quantised]
        declared = f"int{suite.weight_class}"
        yield from row(f"{precision} activations in the U-Net", denoised(*targets), declared, "as published recipes do")
    if suite.weight_class == 8:
        int8 = [reweighted(module, partial(integers, bits=8, group=None)) for module in networks.all]
        yield from row("int8 weights", whole(*int8), "int8", "absmax / 127, not exact")
        fp8 = [reweighted(module, partial(rounded, precision="fp8")) for module in networks.all]
        targets = [activations(module, "fp8") for module in networks.all]
        yield from row("fp8 weights and activations everywhere", whole(*fp8, *targets), "fp8")

    for name, change in narrower(suite.weight_class):
        yield from row(name, whole(*(reweighted(module, change) for module in networks.all)))
    other = networks.context(networks.other_ids)
    yield from row("another prompt", denoised(context=other))
    half = tuple(part[..., : part.shape[-2] // 2, :] if part.dim() == 4 else part for part in context)
    yield from row("half the context", denoised(context=half))
    yield from row("half the steps", denoised(replaced(denoise, "steps", steps // 2), steps=steps // 2))
    yield from row("the last step's U-Net is the one's before", denoised(repeated(unet, {steps - 1})))
    yield from row("every other step's U-Net is the one's before", denoised(repeated(unet, range(1, steps, 2))))
    middle = unet.get_submodule("mid_block")
    yield from row("every other middle is that of the step before", denoised(repeated(middle, range(1, steps, 2))))
    halved = [to_every_other(module) for name, module in unet.named_modules() if name.endswith(".attn1")]
    yield from row("self-attention to every other position", denoised(*halved))

    def doubled(small: Array) -> Array:
        return small.repeat(2, axis=2).repeat(2, axis=3)

    smaller = avg_pool2d(torch.from_numpy(noise), 2).numpy() * 2  # of unit variance again
    yield from row("half the resolution", lambda: doubled(networks.image(networks.latent(context, smaller))))
    yield from row("decoded at half the resolution", lambda: doubled(networks.image(avg_pool2d(latent, 2))))
    yield from row("a constant image", lambda: np.broadcast_to(image.mean((2, 3), keepdims=True), image.shape))
    yield from row("another feed's image", lambda: networks.image(networks.latent(other, networks.other_noise)))

    first = networks.latent(tuple(part[:1] for part in context), noise[:1], steps=1)

    def missed_in_a_step(target: Target) -> float:
        with target:
            changed = networks.latent(networks.context(ids[:1]), noise[:1], steps=1)
        return distance(changed.numpy(), first.numpy())

    def missed_in_decoding(target: Target) -> float:
        with target:
            return distance(networks.image(latent[:1]), image[:1])

    kinds: tuple[tuple[nn.Module, str, Callable[[Target], float]], ...] = (
        (unet, "ResBlock Transformer", missed_in_a_step),
        (unet, "Attention FeedForward", missed_in_a_step),
        (networks.encode, "EncoderLayer", missed_in_a_step),
        (networks.decode, "ResBlock PixelAttention", missed_in_decoding),
    )
    for network, classes, missed in kinds:
        branches = {
            name: module for name, module in network.named_modules() if type(module).__name__ in classes.split()
        }
        asked = [name for name in branches if wanted(f"without {name}")]
        if len(asked) > MILDEST:
            asked = sorted(asked, key=lambda name: missed(skipped(branches[name])))[:MILDEST]
        for name in asked:
            note = f"mildest of {len(branches)}: {', '.join(classes.split())}"
            yield from row(f"without {name}", whole(skipped(branches[name])), note=note)

    if not wanted("weights of another seed"):
        return
    drawn = weights.Synthetic(suite.name, suite.specs(), suite.fill, suite.weight_class, 1)
    networks.load(drawn)
    yield from row("weights of another seed", whole())


def distance(output: Array, reference: Array) -> float:
    return float(limits.unexplained_variance(output, reference, reference.mean((2, 3), keepdims=True)).max())


def layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    from torch import nn

    return ((name, each) for name, each in module.named_modules() if isinstance(each, nn.Linear | nn.Conv2d))


@contextmanager
def together(targets: Iterable[Target]) -> Iterator[None]:
    with ExitStack() as stack:
        for target in targets:
            stack.enter_context(target)
        yield


@contextmanager
def replaced(module: nn.Module, attribute: str, value: Any) -> Iterator[None]:
    before = getattr(module, attribute)
    setattr(module, attribute, value)
    try:
        yield
    finally:
        setattr(module, attribute, before)


def skipped(module: nn.Module) -> Target:
    """Within the context, the branch is left out: the module returns its input, or zero where its caller adds."""

    def of_a_res_block(x: torch.Tensor, *_: object) -> torch.Tensor:
        shortcut: Any = module.conv_shortcut
        kept: torch.Tensor = x if shortcut is None else shortcut(x)
        return kept

    forwards: Mapping[str, Callable[..., Any]] = {
        "ResBlock": of_a_res_block,
        "Attention": lambda x, *_: x.new_zeros(x.shape),
        "FeedForward": lambda x: x.new_zeros(x.shape),
    }
    return replaced(module, "forward", forwards.get(type(module).__name__, lambda x, *_: x))


def repeated(module: nn.Module, calls: Collection[int]) -> Target:
    """Within the context, these calls, counted from 0, return the result of the previous call."""
    forward = module.forward
    returned: list[Any] = []

    def again(*inputs: torch.Tensor) -> Any:
        returned.append(returned[-1] if len(returned) in calls else forward(*inputs))
        return returned[-1]

    return replaced(module, "forward", again)


def to_every_other(attention: nn.Module) -> Target:
    """Within the context, every other key is left out."""
    forward = attention.forward

    def to_half(x: torch.Tensor, context: torch.Tensor, n: int) -> Any:
        return forward(x, context.view(n, -1, context.shape[-1])[:, ::2].flatten(0, 1), n)

    return replaced(attention, "forward", to_half)


@contextmanager
def reweighted(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within the context, the weights of each layer are changed while it runs; changed copies of all weights would not
    fit into memory.

    As in engines with groups, layers whose inputs are not a multiple of a group keep their weights: the first
    convolutions and the 4 × 4 layer of the VAE.
    """
    kept: dict[nn.Module, torch.Tensor] = {}

    def before(layer: nn.Module, _: object) -> None:
        weight: Any = layer.weight
        kept[layer], weight.data = weight.data, change(weight.data)

    def after(layer: nn.Module, _: object, __: object) -> None:
        weight: Any = layer.weight
        weight.data = kept.pop(layer)

    hooks = [
        hook
        for _, layer in layers(module)
        if cast("torch.Tensor", layer.weight)[0].numel() % GROUP == 0
        for hook in (layer.register_forward_pre_hook(before), layer.register_forward_hook(after))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
