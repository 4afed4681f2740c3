"""Diffusers on the weights of the diffusion suite: its U-Net and decoder compiled, its own scheduler's loop.

Only for a tier without guidance, such as edge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.contracts import Feed, Suite, Value


def peer(suite: Suite, dtype: torch.dtype = torch.bfloat16, compiled: bool = True) -> Callable[[Feed], torch.Tensor]:
    """Gives a function that answers a feed; its first call compiles, which takes minutes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel

    assert suite.config["guidance_scale"] == 1.0
    encoder = _filled(CLIPTextModel(CLIPTextConfig(**_part(suite, "text_encoder"))), suite, "text_encoder", dtype)
    unet = _filled(diffusers.UNet2DConditionModel(**_part(suite, "unet")), suite, "unet", dtype)
    vae = _filled(diffusers.AutoencoderKL(**_part(suite, "vae")), suite, "vae", dtype)
    scheduler = diffusers.EulerDiscreteScheduler(**_part(suite, "scheduler"))
    if compiled:
        unet = torch.compile(unet)
        vae.decode = torch.compile(vae.decode)

    @torch.inference_mode()
    def answer(feed: Feed) -> torch.Tensor:
        context = encoder(torch.from_numpy(feed["ids"])[:, 0]).last_hidden_state
        scheduler.set_timesteps(int(str(suite.config["num_inference_steps"])))
        latent = torch.from_numpy(feed["noise"]) * (scheduler.sigmas[0] ** 2 + 1) ** 0.5
        for timestep in scheduler.timesteps:
            scaled = scheduler.scale_model_input(latent, timestep).to(dtype, memory_format=torch.channels_last)
            predicted = unet(scaled, timestep, context, return_dict=False)[0]
            latent = scheduler.step(predicted.float(), timestep, latent).prev_sample
        image: torch.Tensor = vae.decode((latent / vae.config.scaling_factor).to(dtype), return_dict=False)[0]
        return image.float()

    return answer


def _part(suite: Suite, part: str) -> Mapping[str, Value]:
    return {name.partition(".")[2]: value for name, value in suite.config.items() if name.startswith(f"{part}.")}


def _filled(model: Any, suite: Suite, part: str, dtype: torch.dtype) -> Any:
    """The model with the weights of its part. What the suite lacks, such as the VAE's encoder, is not used."""
    weights = suite.weights()
    own = {name.removeprefix("text_model."): tensor for name, tensor in model.state_dict().items()}
    for name in weights.names():
        if name.startswith(f"{part}."):
            tensor = own[name.removeprefix(f"{part}.").removeprefix("text_model.")]
            weights.read(name, tensor.numpy())  # the tensor is the model's own
    return model.to(dtype, memory_format=torch.channels_last).eval().requires_grad_(False)
