"""The decoder of the VAE, from latent to image, with the names of diffusers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.diffusion.blocks import ResBlock, Upsample, attend
from mixmark.suites.diffusion.shapes import VaeShape

EPS = 1e-6


class Vae(nn.Module):
    """latent [batch, 4, h, w] from the last step -> image [batch, 3, 8h, 8w], about -1 to 1 and not clamped."""

    def __init__(self, shape: VaeShape) -> None:
        super().__init__()
        self.scaling = shape.scaling
        self.post_quant_conv = nn.Conv2d(4, 4, 1)
        self.decoder = VaeDecoder(shape)

    def forward(self, latent: Tensor) -> Tensor:
        image: Tensor = self.decoder(self.post_quant_conv(latent / self.scaling))
        return image


class VaeDecoder(nn.Module):
    def __init__(self, shape: VaeShape) -> None:
        super().__init__()
        widths = shape.channels[::-1]
        self.conv_in = nn.Conv2d(4, widths[0], 3, padding=1)
        self.mid_block = VaeMidBlock(widths[0], shape.groups)
        self.up_blocks = nn.ModuleList(
            VaeUpBlock(before, width, shape, upsample=level < len(widths) - 1)
            for level, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False))
        )
        self.conv_norm_out = nn.GroupNorm(shape.groups, widths[-1], EPS)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        x = self.conv_out(F.silu(self.conv_norm_out(x)))
        return x


class VaeMidBlock(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResBlock(channels, channels, groups, EPS) for _ in range(2))
        self.attentions = nn.ModuleList([PixelAttention(channels, groups)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.resnets[1](self.attentions[0](self.resnets[0](x)))
        return x


class PixelAttention(nn.Module):
    """x + attention of every position to all positions, with one head."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        pixels = self.group_norm(x).permute(0, 2, 3, 1).reshape(-1, channels)
        q, k, v = (project(pixels).view(n, height * width, channels) for project in (self.to_q, self.to_k, self.to_v))
        out: Tensor = self.to_out[0](attend(q, k, v, heads=1))
        return x + out.view(n, height, width, channels).permute(0, 3, 1, 2)


class VaeUpBlock(nn.Module):
    def __init__(self, channels: int, out: int, shape: VaeShape, upsample: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            ResBlock(channels if layer == 0 else out, out, shape.groups, EPS) for layer in range(shape.layers + 1)
        )
        self.upsamplers = nn.ModuleList([Upsample(out)] if upsample else [])

    def forward(self, x: Tensor) -> Tensor:
        for module in (*self.resnets, *self.upsamplers):
            x = module(x)
        return x
