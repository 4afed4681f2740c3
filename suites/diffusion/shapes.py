"""The sizes of the diffusion networks, and the weights and FLOPs that follow from them, without torch.

A `ModuleCost` mirrors one module of this folder. Its FLOPs count multiplications and additions in convolutions, linear
layers and attention (full attention, also where it is causal). Norms, activations, softmax, embedding look-ups and the
scheduler are not counted: together they are below 1 %.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mixmark.harness.contracts.protocols import Value

PROMPT_TOKENS = 77
TIME_SIZES = 6
"""SDXL's inputs for an image's size: height, width, top, left, target height, target width."""
TIME_SIZE_WIDTH = 256
TRAINING_STEPS = 1000
BETA_FIRST, BETA_LAST = 0.00085, 0.012
"""The public noise schedule of both models: variances of the first and the last training step."""
LATENT_CHANNELS = 4


@dataclass(frozen=True)
class TextShape:
    """A CLIP text encoder."""

    width: int
    layers: int
    heads: int
    activation: str
    """`quick_gelu` or `gelu`."""
    penultimate: bool = False
    """Whether the context is the input of the last layer (SDXL), instead of the normed output."""
    projection: int | None = None
    """The width of the pooled embedding. None if there is none; a penultimate encoder then needs no last layer."""
    vocabulary: int = 49408


@dataclass(frozen=True)
class UNetShape:
    """A U-Net conditioned on time and text; with `pooled`, also on a pooled embedding and the image's size."""

    channels: tuple[int, ...]
    """The channels of each level, from fine to coarse."""
    heads: tuple[int, ...]
    depths: tuple[int, ...]
    """The number of transformer blocks after each residual block of a level."""
    middle_depth: int
    context: int
    linear_projection: bool
    """Whether a transformer's first and last layer are linear (SDXL) instead of 1 × 1 convolutions."""
    pooled: int | None = None
    layers: int = 2
    groups: int = 32


@dataclass(frozen=True)
class VaeShape:
    """The decoder of a variational auto-encoder."""

    channels: tuple[int, ...]
    """The channels of each level, from fine to coarse; each level but one doubles the size."""
    scaling: float
    """The decoder divides the latent by this number."""
    layers: int = 2
    groups: int = 32


def text_config(shape: TextShape) -> dict[str, Value]:
    """The shape under the names of CLIPTextConfig."""
    projection: dict[str, Value] = {} if shape.projection is None else {"projection_dim": shape.projection}
    return {
        "hidden_size": shape.width,
        "intermediate_size": 4 * shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_act": shape.activation,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": PROMPT_TOKENS,
        **projection,
    }


def unet_config(shape: UNetShape, latent_size: int) -> dict[str, Value]:
    """The shape under the names of UNet2DConditionModel, where `attention_head_dim` is the number of heads."""
    added: dict[str, Value] = {}
    if shape.pooled is not None:
        added = {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": TIME_SIZE_WIDTH,
            "projection_class_embeddings_input_dim": shape.pooled + TIME_SIZES * TIME_SIZE_WIDTH,
        }
    crossed = [bool(depth) for depth in shape.depths]
    return {
        "sample_size": latent_size,
        "in_channels": LATENT_CHANNELS,
        "out_channels": LATENT_CHANNELS,
        "block_out_channels": shape.channels,
        "down_block_types": tuple("CrossAttnDownBlock2D" if crosses else "DownBlock2D" for crosses in crossed),
        "up_block_types": tuple("CrossAttnUpBlock2D" if crosses else "UpBlock2D" for crosses in reversed(crossed)),
        "attention_head_dim": shape.heads,
        # In this config a level without transformers has depth 1, and the middle block has the last level's depth.
        "transformer_layers_per_block": (*(depth or 1 for depth in shape.depths[:-1]), shape.middle_depth),
        "cross_attention_dim": shape.context,
        "use_linear_projection": shape.linear_projection,
        "layers_per_block": shape.layers,
        "norm_num_groups": shape.groups,
        **added,
    }


def vae_config(shape: VaeShape) -> dict[str, Value]:
    """The shape under the names of AutoencoderKL; only the decoder is used."""
    levels = len(shape.channels)
    return {
        "latent_channels": LATENT_CHANNELS,
        "out_channels": 3,
        "block_out_channels": shape.channels,
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "layers_per_block": shape.layers,
        "norm_num_groups": shape.groups,
        "scaling_factor": shape.scaling,
    }


CLIP_L = TextShape(width=768, layers=12, heads=12, activation="quick_gelu")
CLIP_L_PENULTIMATE = TextShape(width=768, layers=12, heads=12, activation="quick_gelu", penultimate=True)
OPENCLIP_BIGG = TextShape(width=1280, layers=32, heads=20, activation="gelu", penultimate=True, projection=1280)
SD15_UNET = UNetShape(
    channels=(320, 640, 1280, 1280),
    heads=(8, 8, 8, 8),
    depths=(1, 1, 1, 0),
    middle_depth=1,
    context=768,
    linear_projection=False,
)
SDXL_UNET = UNetShape(
    channels=(320, 640, 1280),
    heads=(5, 10, 20),
    depths=(0, 2, 10),
    middle_depth=10,
    context=2048,
    linear_projection=True,
    pooled=1280,
)
SD15_VAE = VaeShape(channels=(128, 256, 512, 512), scaling=0.18215)
SDXL_VAE = VaeShape(channels=(128, 256, 512, 512), scaling=0.13025)


@dataclass(frozen=True)
class ModuleCost:
    """The cost of a module: weights to read once, and FLOPs for one sample."""

    weights: int = 0
    flops: int = 0
    min_flops: int = 0
    """The FLOPs with Winograd's F(4×4, 3×3) in all 3 × 3 convolutions of stride 1."""

    def __add__(self, other: ModuleCost) -> ModuleCost:
        return ModuleCost(self.weights + other.weights, self.flops + other.flops, self.min_flops + other.min_flops)


def total(works: Iterable[ModuleCost]) -> ModuleCost:
    return sum(works, ModuleCost())


def linear(width: int, out: int, rows: int = 1, bias: bool = True) -> ModuleCost:
    flops = 2 * width * out * rows
    return ModuleCost(width * out + bias * out, flops, flops)


def conv(channels: int, out: int, size: int, kernel: int = 3, stride: int = 1) -> ModuleCost:
    """size: height and width of the result."""
    work = linear(channels * kernel**2, out, rows=size**2)
    return replace(work, min_flops=work.flops // 4) if kernel == 3 and stride == 1 else work


def norm(channels: int) -> ModuleCost:
    return ModuleCost(weights=2 * channels)


def attention(queries: int, keys: int, width: int) -> ModuleCost:
    flops = 4 * queries * keys * width
    return ModuleCost(flops=flops, min_flops=flops)


def embeddings(shape: TextShape) -> ModuleCost:
    """The embeddings: all rows count as weights, though few are read; look-ups have no FLOPs."""
    return ModuleCost(weights=(shape.vocabulary + PROMPT_TOKENS) * shape.width)


def text_encoder(shape: TextShape) -> ModuleCost:
    """The encoding of one prompt, embeddings included."""
    n, width = PROMPT_TOKENS, shape.width
    layer = total(
        (
            norm(width),
            *(linear(width, width, n) for _ in ("q", "k", "v", "out")),
            attention(n, n, width),
            norm(width),
            linear(width, 4 * width, n),
            linear(4 * width, width, n),
        )
    )
    if shape.projection is None:
        layers = shape.layers - shape.penultimate
        return total((embeddings(shape), *[layer] * layers, norm(0 if shape.penultimate else width)))
    pooled = linear(width, shape.projection, bias=False)
    return total((embeddings(shape), *[layer] * shape.layers, norm(width), pooled))


def res_block(channels: int, out: int, size: int, time: int | None = None) -> ModuleCost:
    return total(
        (
            norm(channels),
            conv(channels, out, size),
            linear(time, out) if time else ModuleCost(),
            norm(out),
            conv(out, out, size),
            conv(channels, out, size, kernel=1) if channels != out else ModuleCost(),
        )
    )


def transformer(width: int, context: int, depth: int, size: int) -> ModuleCost:
    n = size**2
    block = total(
        (
            *(norm(width) for _ in ("attn1", "attn2", "ff")),
            *(linear(width, width, n, bias=False) for _ in ("q", "k", "v", "q")),
            *(linear(context, width, PROMPT_TOKENS, bias=False) for _ in ("k", "v")),
            *(linear(width, width, n) for _ in ("out", "out")),
            attention(n, n, width),
            attention(n, PROMPT_TOKENS, width),
            linear(width, 8 * width, n),
            linear(4 * width, width, n),
        )
    )
    return total((norm(width), linear(width, width, n), *[block] * depth, linear(width, width, n)))


def unet(shape: UNetShape, size: int) -> ModuleCost:
    """One pass over one latent of size × size, which is one step of an image; under guidance a step needs two."""
    first, last = shape.channels[0], len(shape.channels) - 1
    time = 4 * first

    def attend(width: int, depth: int, size: int) -> ModuleCost:
        return transformer(width, shape.context, depth, size) if depth else ModuleCost()

    works = [linear(first, time), linear(time, time), conv(4, first, size)]
    if shape.pooled:
        works += [linear(shape.pooled + TIME_SIZES * TIME_SIZE_WIDTH, time), linear(time, time)]
    channels, skips = first, [first]
    for level, width in enumerate(shape.channels):
        for _ in range(shape.layers):
            works += [res_block(channels, width, size, time), attend(width, shape.depths[level], size)]
            channels = width
            skips.append(width)
        if level < last:
            size //= 2
            works.append(conv(width, width, size, stride=2))
            skips.append(width)
    works += [res_block(channels, channels, size, time), attend(channels, shape.middle_depth, size)]
    works.append(res_block(channels, channels, size, time))
    for level, width in reversed(list(enumerate(shape.channels))):
        for _ in range(shape.layers + 1):
            works += [res_block(channels + skips.pop(), width, size, time), attend(width, shape.depths[level], size)]
            channels = width
        if level > 0:
            size *= 2
            works.append(conv(width, width, size))
    return total((*works, norm(first), conv(first, 4, size)))


def prompt_projections(shape: UNetShape) -> ModuleCost:
    """The part of `unet` that is the same in all steps: the projections of the prompt to keys and values."""
    times = 2 * shape.layers + 1  # transformers of a level in the U-Net, down and up
    blocks = [*zip(shape.channels, (times * depth for depth in shape.depths), strict=True)]
    blocks.append((shape.channels[-1], shape.middle_depth))
    return total(linear(shape.context, width, PROMPT_TOKENS, bias=False) for width, n in blocks for _ in range(2 * n))


def vae_decoder(shape: VaeShape, size: int) -> ModuleCost:
    """The decoding of one latent of size × size."""
    widths = shape.channels[::-1]
    channels, n = widths[0], size**2
    works = [conv(4, 4, size, kernel=1), conv(4, channels, size)]
    works += [res_block(channels, channels, size), norm(channels), attention(n, n, channels)]
    works += [linear(channels, channels, n) for _ in ("q", "k", "v", "out")]
    works.append(res_block(channels, channels, size))
    for level, width in enumerate(widths):
        for _ in range(shape.layers + 1):
            works.append(res_block(channels, width, size))
            channels = width
        if level < len(widths) - 1:
            size *= 2
            works.append(conv(width, width, size))
    return total((*works, norm(channels), conv(channels, 3, size)))
