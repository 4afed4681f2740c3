"""The three graphs of the loop: encode a prompt, denoise a latent by one step, decode it into an image.

Between steps a latent is stored as the U-Net reads it, x / √(σ² + 1). So the first latent is the feed's noise, and
every latent has about unit scale, which suits every precision. Up to rounding, the loop equals Euler's step
x + (σ' - σ) · noise of the k-diffusion form (Karras et al. 2022, algorithm 1 without churn).

The U-Net of a checkpoint predicts the noise. The output of a U-Net with synthetic weights, which is no denoiser, is
used as the velocity v (Salimans & Ho 2022). With tan φ = σ, Euler's step then rotates the latent by φ - φ' towards -v.
If the output were used as the noise, the first prediction alone would determine the latent, and skipping half of the
steps would go undetected.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixmark.suites.diffusion import DiffusionShape
from mixmark.suites.diffusion.shapes import BETA_FIRST, BETA_LAST, TRAINING_STEPS
from mixmark.suites.diffusion.text_encoder import TextEncoder
from mixmark.suites.diffusion.unet import UNet
from mixmark.suites.diffusion.vae import Vae


def noise_levels(step: Tensor, steps: int, trailing: bool) -> tuple[Tensor, Tensor, Tensor]:
    """step [1] int64, one of `steps` -> timestep, σ and the σ of the next step (0 after the last), each [1] float32.

    The public schedule of both models: the square roots of β are evenly spaced, and σ² = 1/ᾱ - 1, where ᾱ is the
    product of 1 - β. Timesteps are evenly spaced from 1 upwards (`leading`, offset 1) or from the last timestep
    downwards (`trailing`). Leading timesteps end with a σ of almost 0, so that the last step has little effect.
    """
    root_first, root_last = BETA_FIRST**0.5, BETA_LAST**0.5
    ramp = torch.arange(TRAINING_STEPS, dtype=torch.float32, device=step.device) / (TRAINING_STEPS - 1)
    betas = (root_first + (root_last - root_first) * ramp) ** 2
    sigmas = torch.sqrt(torch.expm1(-torch.cumsum(torch.log1p(-betas), dim=0)))
    if trailing:
        timestep, following = (
            (TRAINING_STEPS * left + steps // 2) // steps - 1 for left in (steps - step, steps - 1 - step)
        )
    else:
        spacing = TRAINING_STEPS // steps
        timestep = (steps - 1 - step) * spacing + 1
        following = timestep - spacing
    after = sigmas[following.clamp(min=0)] * (step < steps - 1)
    return timestep.float(), sigmas[timestep], after


class Encode(nn.Module):
    """ids [batch, prompts, 77] int64 -> context [batch, prompts, 77, width] and, with two encoders, pooled
    [batch, prompts, width].

    The outputs of two encoders are concatenated along the width; the second encoder gives the pooled embedding.
    """

    def __init__(self, shape: DiffusionShape) -> None:
        super().__init__()
        self.text_encoder = TextEncoder(shape.text)
        self.text_encoder_2 = None if shape.text_2 is None else TextEncoder(shape.text_2)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        batch, prompts, tokens = ids.shape
        rows = ids.reshape(batch * prompts, tokens)
        (context,) = self.text_encoder(rows)
        if self.text_encoder_2 is None:
            return (context.view(batch, prompts, tokens, -1),)
        context_2, pooled = self.text_encoder_2(rows)
        context = torch.cat([context, context_2], dim=-1)
        return context.view(batch, prompts, tokens, -1), pooled.view(batch, prompts, -1)


class Denoise(nn.Module):
    """One step: latent [batch, 4, h, w], step [1] int64, outputs of Encode -> next latent, step + 1.

    Under guidance of scale g there are two prompts, unconditional and conditional, and the prediction is unconditional
    + g · (conditional - unconditional); one pass of twice the batch computes both. Otherwise there is one prompt.
    """

    velocity = True
    """Whether the prediction is the velocity."""

    def __init__(self, shape: DiffusionShape) -> None:
        super().__init__()
        self.steps, self.guidance, self.image_size = shape.steps, shape.guidance, shape.image_size
        self.unet = UNet(shape.unet)

    def forward(
        self, latent: Tensor, step: Tensor, context: Tensor, pooled: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        timestep, sigma, after = noise_levels(step, self.steps, trailing=self.velocity)
        batch, prompts, tokens, width = context.shape
        _, channels, height, columns = latent.shape
        predicted = self.unet(
            latent[:, None].expand(-1, prompts, -1, -1, -1).reshape(batch * prompts, channels, height, columns),
            timestep,
            context.reshape(batch * prompts, tokens, width),
            None if pooled is None else pooled.flatten(0, 1),
            None if pooled is None else self.sizes(step.device),
        )
        predicted = predicted.view(batch, prompts, channels, height, columns).float()
        if self.guidance is None:
            predicted = predicted[:, 0]
        else:
            unconditional, own = predicted[:, 0], predicted[:, 1]
            predicted = unconditional + self.guidance * (own - unconditional)
        if self.velocity:
            turned = (1 + sigma * after) * latent.float() - (sigma - after) * predicted
            return (turned / torch.sqrt((1 + sigma**2) * (1 + after**2))).to(latent.dtype), step + 1
        x = latent.float() * torch.sqrt(sigma**2 + 1)
        x = x + (after - sigma) * predicted
        return (x / torch.sqrt(after**2 + 1)).to(latent.dtype), step + 1

    def sizes(self, device: torch.device) -> Tensor:
        """SDXL's inputs for the image's size: height, width, no cropping (0, 0), target height, target width."""
        image = torch.full((2,), float(self.image_size), device=device)
        return torch.cat([image, torch.zeros(2, device=device), image])


class DenoiseNoise(Denoise):
    """A step whose prediction is the noise."""

    velocity = False


class Decode(nn.Module):
    """latent [batch, 4, h, w] -> image [batch, 3, 8h, 8w]."""

    def __init__(self, shape: DiffusionShape) -> None:
        super().__init__()
        self.vae = Vae(shape.vae)

    def forward(self, latent: Tensor) -> tuple[Tensor]:
        return (self.vae(latent),)
