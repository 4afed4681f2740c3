"""Diffusers on the weights of the diffusion suite: compiled U-Net and decoder, with the loop of Diffusers' scheduler.

For a tier without guidance, such as edge.
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from mixmark.harness.contracts.protocols import Feed, Value
from mixmark.suites.diffusion import Diffusion

SECONDS = 4
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@contextmanager
def diffusion(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """The images per second. Compiling takes minutes, before the first rate."""
    suite = Diffusion(tier, {})
    draw, feed = drawer(suite, DTYPES[precision], compiled=True), suite.feeds(1, seed=1)
    nonces = itertools.count()
    draw(feed(next(nonces)))

    def rate() -> float:
        begin, done = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin) < SECONDS:
            draw(feed(next(nonces)))
            done += 1
        return done / took_s

    yield rate


def drawer(suite: Diffusion, dtype: torch.dtype, compiled: bool) -> Callable[[Feed], torch.Tensor]:
    """A function that draws the images of a feed like the public pipeline."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    diffusers, transformers = (importlib.import_module(name) for name in ("diffusers", "transformers"))
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(**_part(suite, "text_encoder")))
    encoder = _filled(text, suite, "text_encoder", dtype)
    unet = _filled(diffusers.UNet2DConditionModel(**_part(suite, "unet")), suite, "unet", dtype)
    vae = _filled(diffusers.AutoencoderKL(**_part(suite, "vae")), suite, "vae", dtype)
    scheduler = diffusers.EulerDiscreteScheduler(**_part(suite, "scheduler"))
    if compiled:
        unet, vae.decode = torch.compile(unet), torch.compile(vae.decode)

    @torch.inference_mode()
    def draw(feed: Feed) -> torch.Tensor:
        context = encoder(torch.from_numpy(feed["ids"])[:, 0]).last_hidden_state
        scheduler.set_timesteps(suite.shape.steps)
        latent = torch.from_numpy(feed["noise"]) * (scheduler.sigmas[0] ** 2 + 1) ** 0.5
        for timestep in scheduler.timesteps:
            scaled = scheduler.scale_model_input(latent, timestep).to(dtype, memory_format=torch.channels_last)
            predicted = unet(scaled, timestep, context, return_dict=False)[0]
            latent = scheduler.step(predicted.float(), timestep, latent).prev_sample
        image: torch.Tensor = vae.decode((latent / vae.config.scaling_factor).to(dtype), return_dict=False)[0]
        return image.float()

    return draw


def _part(suite: Diffusion, part: str) -> Mapping[str, Value]:
    return {name.partition(".")[2]: value for name, value in suite.config.items() if name.startswith(f"{part}.")}


def _filled(model: Any, suite: Diffusion, part: str, dtype: torch.dtype) -> Any:
    """The model with the weights of its part; the VAE's encoder, which the suite lacks, is not used."""
    weights = suite.weights()
    own = {name.removeprefix("text_model."): tensor for name, tensor in model.state_dict().items()}
    for name in weights.names():
        if name.startswith(f"{part}."):
            weights.read(name, own[name.removeprefix(f"{part}.").removeprefix("text_model.")].numpy())
    return model.to(dtype, memory_format=torch.channels_last).eval().requires_grad_(False)
