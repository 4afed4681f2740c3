"""Diffusion: turns a prompt and noise into an image with a text encoder, a U-Net with Euler steps and a VAE decoder.

The tiers edge and server have the shapes of Stable Diffusion 1.5 and SDXL. The weights have the public names, prefixed
with the name of their part: `text_encoder.`, `text_encoder_2.`, `unet.`, `vae.`. Trap: older VAE files of SD 1.5 name
the attention's weights `query`, `key`, `value` and `proj_attn`; load and save them with diffusers first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames, WeightClass
from mixmark.suites.diffusion import shapes
from mixmark.suites.diffusion.shapes import PROMPT_TOKENS, TextShape, UNetShape, VaeShape
from mixmark.suites.limits import SECOND, check_output, mlperf_limits, own_limits, tier_limits, unexplained_variance
from mixmark.suites.tiered import Tiered
from mixmark.suites.weights import Draw, Fill

LATENT_SCALE = 8
"""Pixels of an image for each position of the latent, along a side."""

AT_MOST = {
    "smoke": {"16 bits": 0.02, "fp8": 0.2, "int8": 0.06, "int4": 0.06},
    "edge": {"16 bits": 0.002, "fp8": 0.1, "int8": 0.012, "int4": 0.012},
    "server": {"16 bits": 0.1, "fp8": 0.1, "int8": 0.1, "int4": 0.1},
}
"""Gates by the tier and the declared precision, from docs/separation.md. The smoke tier's gates are wide
because guidance amplifies rounding. The server tier's gates are unmeasured, and wide because the drift of 16-bit
rounding over 20 guided steps is unknown, and an honest engine must not fail."""

BIAS = 0.125
"""The gain of biases."""
GAINS = {
    "*.q_proj": 2.0,
    "*.attn1.to_q": 2.0,
    "*.attn2.to_q": 4.0,
    "*.attn1.to_out.0": 2.8,
    "*.attn2.to_out.0": 1.4,
    "vae.*.to_q": 1.5,
    "vae.*.to_out.0": 0.5,
    "*.out_proj": 1.0,
    "*.fc2": 1.0,
    "*.net.2": 2.8,
    "*.time_emb_proj": 2.0,
    "unet.down_blocks.1.*.conv2": 2.0,
    "unet.down_blocks.[23].*.conv2": 6.0,
    "unet.down_blocks.0.*.proj_out": 0.5,
    "unet.down_blocks.1.*.proj_out": 0.75,
    "unet.down_blocks.*.conv_shortcut": 1.25,
    "unet.mid_block.resnets.0.conv2": 12.0,
    "unet.mid_block.*.proj_out": 4.0,
    "unet.mid_block.resnets.1.conv2": 24.0,
    "unet.up_blocks.0.*.conv2": 24.0,
    "unet.up_blocks.0.*.proj_out": 2.0,
    "unet.up_blocks.0.*.conv_shortcut": 1.5,
    "unet.up_blocks.1.*.conv2": 12.0,
    "unet.up_blocks.1.*.proj_out": 4.0,
    "unet.up_blocks.1.resnets.2.conv_shortcut": 0.75,
    "unet.up_blocks.1.upsamplers.0.conv": 0.375,
    "unet.up_blocks.2.*.conv2": 4.0,
    "unet.up_blocks.2.*.proj_out": 3.0,
    "unet.up_blocks.2.upsamplers.0.conv": 1.0,
    "unet.up_blocks.3.*.conv2": 3.0,
    "unet.*samplers.0.conv": 0.75,
    "vae.decoder.conv_in": 1 / 8,
    "vae.*.up_blocks.3.*.conv2": 2.0,
}
"""Gains by the name of a weight without `.weight`: the first matching pattern counts; other weights have 1."""
VELOCITY = 2.0
"""The gain of the U-Net's last layer without guidance, which multiplies a difference of two outputs of that layer."""


@dataclass(frozen=True)
class DiffusionShape:
    """The networks of a tier and the loop over them."""

    text: TextShape
    text_2: TextShape | None
    unet: UNetShape
    vae: VaeShape
    image_size: int
    steps: int
    guidance: float | None
    """The scale of classifier-free guidance. None if there is no unconditional prompt, which halves the work."""

    @property
    def latent_size(self) -> int:
        return self.image_size // LATENT_SCALE

    @property
    def prompts(self) -> int:
        """The number of prompts of an image: 2 under guidance, where the first prompt is the unconditional one."""
        return 1 if self.guidance is None else 2


TIERS = {
    "smoke": DiffusionShape(  # a small SDXL, so that it takes every code path of the server tier
        text=TextShape(64, layers=3, heads=4, activation="quick_gelu", penultimate=True, vocabulary=1024),
        text_2=TextShape(96, layers=3, heads=6, activation="gelu", penultimate=True, projection=96, vocabulary=1024),
        unet=UNetShape(
            channels=(32, 64),
            heads=(2, 4),
            depths=(0, 2),
            middle_depth=2,
            context=160,
            linear_projection=True,
            pooled=96,
            layers=1,
            groups=8,
        ),
        vae=VaeShape(channels=(16, 32, 32, 64), scaling=0.13025, layers=1, groups=8),
        image_size=64,
        steps=3,
        guidance=8.0,
    ),
    "edge": DiffusionShape(
        text=shapes.CLIP_L,
        text_2=None,
        unet=shapes.SD15_UNET,
        vae=shapes.SD15_VAE,
        image_size=256,
        steps=4,
        guidance=None,
    ),
    "server": DiffusionShape(
        text=shapes.CLIP_L_PENULTIMATE,
        text_2=shapes.OPENCLIP_BIGG,
        unet=shapes.SDXL_UNET,
        vae=shapes.SDXL_VAE,
        image_size=1024,
        steps=20,
        guidance=8.0,
    ),
}

LATENCY = tier_limits(own_limits(total_ns=120 * SECOND), mlperf_limits(total_ns=20 * SECOND))
"""Limits of the server scenario; the server tier has MLPerf's limit for stable-diffusion-xl."""


class Diffusion(Tiered):
    """Text to image: text encoders, U-Net with Euler steps, VAE decoder.

    A feed has ids [batch, prompts, 77] int64 and noise [batch, 4, size / 8, size / 8] float32. Under guidance the first
    prompt is the unconditional one. A feed has one yield: images [batch, 3, size, size] float32 as the decoder computes
    them, about -1 to 1 and not clamped.
    """

    name = "diffusion"
    version = "2"
    unit = "image"
    unit_names = UnitNames(short="img", work="images generated")
    scenarios: Sequence[str] = ("single-stream", "offline", "server")

    shapes, latencies = TIERS, LATENCY
    metric = "unexplained variance of the worst image (1 − R²)"
    gates = AT_MOST
    trained = 0.2
    """The gate of a checkpoint: unmeasured."""
    shape: DiffusionShape

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        super().__init__(tier, options, weight_class)
        work = f"{self.unit_names.work} of {self.shape.image_size} pixels in {self.shape.steps} steps"
        self.unit_names = self.unit_names.model_copy(update={"work": work})

    @property
    def config(self) -> Mapping[str, Value]:
        """As in model_index.json, and for each part as in its config.json, prefixed with the name of the part.

        `_class_name` names the loop; SDXL's loop takes the second last hidden state of each text encoder. A guidance
        scale of 1 means that there is no unconditional prompt.
        """
        tier, velocity = self.shape, self._velocity
        parts: dict[str, dict[str, Value]] = {
            "text_encoder": shapes.text_config(tier.text),
            **({"text_encoder_2": shapes.text_config(tier.text_2)} if tier.text_2 else {}),
            "unet": shapes.unet_config(tier.unet, tier.latent_size),
            "vae": shapes.vae_config(tier.vae),
            "scheduler": {
                "num_train_timesteps": shapes.TRAINING_STEPS,
                "beta_start": shapes.BETA_FIRST,
                "beta_end": shapes.BETA_LAST,
                "beta_schedule": "scaled_linear",
                "timestep_spacing": "trailing" if velocity else "leading",
                "steps_offset": 1,
                "prediction_type": "v_prediction" if velocity else "epsilon",
            },
        }
        return {
            "_class_name": "StableDiffusionXLPipeline" if tier.text_2 else "StableDiffusionPipeline",
            "height": tier.image_size,
            "width": tier.image_size,
            "num_inference_steps": tier.steps,
            "guidance_scale": 1.0 if tier.guidance is None else tier.guidance,
            **{f"{part}.{name}": value for part, numbers in parts.items() for name, value in numbers.items()},
        }

    @property
    def _velocity(self) -> bool:
        """Whether the U-Net predicts the velocity, as with synthetic weights, or the noise, as in a checkpoint."""
        return "weights" not in self.options

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain of each tensor.

        Attention is sharpened, because at unit scale it averages evenly over all tokens and forgets the prompt. Leaving
        out any branch should have a similar effect, so the gain of a branch grows with the residual stream that it is
        added to. In the up blocks of the U-Net the stream is kept several times larger than the skip connections;
        otherwise each skip connection would halve the contribution of the middle block.
        """
        *_, part, kind = name.split(".")
        if len(size) == 1:
            return 1.0 if kind == "weight" else Draw(BIAS)
        if part.endswith("_embedding"):
            return Draw(math.sqrt(size[1]))  # a look-up has a fan-in of 1
        if name == "unet.conv_out.weight":
            return Draw(VELOCITY / (4 * self.shape.guidance if self.shape.guidance else 1))
        return next((Draw(gain) for names, gain in GAINS.items() if fnmatchcase(name, f"{names}.weight")), Draw())

    def graphs(self) -> Mapping[str, Graph]:
        tier = self.shape
        width = tier.text.width + (tier.text_2.width if tier.text_2 else 0)
        encoded = {"context": Spec(("batch", tier.prompts, PROMPT_TOKENS, width))}
        if tier.unet.pooled:
            encoded["pooled"] = Spec(("batch", tier.prompts, tier.unet.pooled))
        latent = Spec(("batch", 4, tier.latent_size, tier.latent_size))
        step = Spec((1,), "int64")
        image = Spec(("batch", 3, tier.image_size, tier.image_size))
        denoise = self.graph(
            "denoise" if self._velocity else "denoise-noise",
            {"latent": latent, "step": step, **encoded},
            {},
            {"next_latent": latent, "next_step": step},
        )
        ids = Spec(("batch", tier.prompts, PROMPT_TOKENS), "int64")
        return {
            "encode": self.graph("encode", {"ids": ids}, {}, encoded),
            "denoise": denoise,
            "decode": self.graph("decode", {"latent": latent}, {}, {"image": image}),
        }

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """Random prompts and normal noise."""
        tier = self.shape
        ids = np.stack([_prompts(random, tier.prompts, tier.text.vocabulary) for _ in range(batch)])
        noise = random.standard_normal((batch, 4, tier.latent_size, tier.latent_size), dtype=np.float32)
        return {"ids": ids, "noise": noise}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        encoded = session.run("encode", session.put(feed["ids"]))
        latent, step = session.put(feed["noise"]), session.put(np.zeros(1, np.int64))
        for _ in range(self.shape.steps):
            latent, step = session.run("denoise", latent, step, *encoded)
        (image,) = session.run("decode", latent)
        yield session.get(image)

    def units(self, batch: int) -> int:
        return batch

    def quality(self, output: Array, reference: Array) -> float:
        """The unexplained variance 1 − R² of the worst image, around the mean of each channel.

        A constant image has 1. The mean of many images, which is not constant near the edges, has at least 0.7 at the
        smoke tier.
        """
        check_output(output, reference.shape)
        return float(unexplained_variance(output, reference, reference.mean((2, 3), keepdims=True)).max())

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The cost of one batch.

        Bytes: the weights of the U-Net once a step, all other weights once, and one row of the embeddings a token.
        Least FLOPs: the keys and values of the prompt are computed once an image. Streamed bytes include at most three
        passes over the U-Net, because a cache for a quarter of four passes would hold the whole U-Net.
        """
        tier = self.shape
        texts = [text for text in (tier.text, tier.text_2) if text]
        text = shapes.total(shapes.text_encoder(shape) for shape in texts)
        unet, vae = shapes.unet(tier.unet, tier.latent_size), shapes.vae_decoder(tier.vae, tier.latent_size)
        prompts = tier.prompts * batch
        flops = prompts * text.flops + tier.steps * prompts * unet.flops + batch * vae.flops
        repeated = (tier.steps - 1) * shapes.prompt_projections(tier.unet).flops
        least = prompts * (text.min_flops + tier.steps * unet.min_flops - repeated) + batch * vae.min_flops
        unread = sum(max(0, shape.vocabulary - prompts * PROMPT_TOKENS) * shape.width for shape in texts)
        read = text.weights - unread + tier.steps * unet.weights + vae.weights
        streamed = text.weights - sum(shapes.embeddings(shape).weights for shape in texts)
        streamed += min(tier.steps, 3) * unet.weights + vae.weights
        context = prompts * PROMPT_TOKENS * sum(shape.width for shape in texts)
        latent = batch * 4 * tier.latent_size**2
        moved = (tier.steps + 1) * context + 2 * (tier.steps + 1) * latent + batch * 3 * tier.image_size**2
        weight_bytes = BITS_PER_WEIGHT[precision] / 8
        return (
            Cost(
                name="image",
                flops=flops,
                bytes=read * weight_bytes + moved * min(weight_bytes, 2),
                min_flops=least,
                streamed_bytes=streamed * weight_bytes,
            ),
        )


def _prompts(generator: np.random.Generator, prompts: int, vocabulary: int) -> Array:
    """Random prompts, [prompts, 77] int64: a begin token, random words, then end tokens as CLIP's tokenizer pads."""
    begin, end = vocabulary - 2, vocabulary - 1
    ids = np.full((prompts, PROMPT_TOKENS), end, np.int64)
    for row in ids:
        length = generator.integers(8, PROMPT_TOKENS - 1)
        row[: 1 + length] = [begin, *generator.integers(begin, size=length)]
    return ids
