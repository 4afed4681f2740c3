"""The U-Net, which predicts the noise or velocity of a latent, with the names of UNet2DConditionModel."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.diffusion.blocks import Downsample, ResBlock, Upsample, attend
from mixmark.suites.diffusion.shapes import TIME_SIZE_WIDTH, TIME_SIZES, UNetShape


class UNet(nn.Module):
    """latent [n, 4, h, w], timestep [1] float32, context [n, 77, width] -> prediction [n, 4, h, w].

    A U-Net with a pooled embedding also takes pooled [n, width] and sizes [6] float32.
    """

    def __init__(self, shape: UNetShape) -> None:
        super().__init__()
        first = shape.channels[0]
        time = 4 * first
        self.time_width = first
        self.time_embedding = TimeEmbedding(first, time)
        if shape.pooled is not None:
            self.add_embedding = TimeEmbedding(shape.pooled + TIME_SIZES * TIME_SIZE_WIDTH, time)
        self.conv_in = nn.Conv2d(4, first, 3, padding=1)
        self.down_blocks = nn.ModuleList()
        channels, skips = first, [first]
        for level, width in enumerate(shape.channels):
            downsample = level < len(shape.channels) - 1
            self.down_blocks.append(DownBlock(shape, level, channels, downsample))
            skips += [width] * (shape.layers + downsample)
            channels = width
        self.mid_block = MidBlock(shape)
        self.up_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(shape.channels))):
            before = [channels] + [width] * shape.layers
            self.up_blocks.append(UpBlock(shape, level, [c + skips.pop() for c in before]))
            channels = width
        self.conv_norm_out = nn.GroupNorm(shape.groups, first)
        self.conv_out = nn.Conv2d(first, 4, 3, padding=1)

    def forward(
        self,
        latent: Tensor,
        timestep: Tensor,
        context: Tensor,
        pooled: Tensor | None = None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        time = self.time_embedding(sinusoid(timestep, self.time_width).to(latent.dtype))
        if pooled is not None and sizes is not None:
            size = sinusoid(sizes, TIME_SIZE_WIDTH).flatten().expand(pooled.shape[0], -1)
            time = time + self.add_embedding(torch.cat([pooled, size.to(pooled.dtype)], dim=1))
        time = F.silu(time)
        x: Tensor = self.conv_in(latent)
        skips = [x]
        for block in self.down_blocks:
            x = block(x, time, context, skips)
        x = self.mid_block(x, time, context)
        for block in self.up_blocks:
            x = block(x, time, context, skips)
        x = self.conv_out(F.silu(self.conv_norm_out(x)))
        return x


class TimeEmbedding(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, out)
        self.linear_2 = nn.Linear(out, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear_2(F.silu(self.linear_1(x)))
        return x


class DownBlock(nn.Module):
    """A down block appends its outputs to the skip connections. The level's up block takes them from the end."""

    def __init__(self, shape: UNetShape, level: int, channels: int, downsample: bool) -> None:
        super().__init__()
        width = shape.channels[level]
        self.resnets = res_blocks(shape, [channels] + [width] * (shape.layers - 1), width)
        self.attentions = transformers(shape, level, shape.depths[level], shape.layers)
        self.downsamplers = nn.ModuleList([Downsample(width)] if downsample else [])

    def forward(self, x: Tensor, time: Tensor, context: Tensor, skips: list[Tensor]) -> Tensor:
        for layer, resnet in enumerate(self.resnets):
            x = resnet(x, time)
            if self.attentions:
                x = self.attentions[layer](x, context)
            skips.append(x)
        for downsample in self.downsamplers:
            x = downsample(x)
            skips.append(x)
        return x


class MidBlock(nn.Module):
    def __init__(self, shape: UNetShape) -> None:
        super().__init__()
        width = shape.channels[-1]
        self.resnets = res_blocks(shape, [width, width], width)
        self.attentions = transformers(shape, -1, shape.middle_depth, 1)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        x = self.attentions[0](self.resnets[0](x, time), context)
        x = self.resnets[1](x, time)
        return x


class UpBlock(nn.Module):
    def __init__(self, shape: UNetShape, level: int, channels: list[int]) -> None:
        super().__init__()
        width = shape.channels[level]
        self.resnets = res_blocks(shape, channels, width)
        self.attentions = transformers(shape, level, shape.depths[level], len(channels))
        self.upsamplers = nn.ModuleList([Upsample(width)] if level > 0 else [])

    def forward(self, x: Tensor, time: Tensor, context: Tensor, skips: list[Tensor]) -> Tensor:
        for layer, resnet in enumerate(self.resnets):
            x = resnet(torch.cat([x, skips.pop()], dim=1), time)
            if self.attentions:
                x = self.attentions[layer](x, context)
        for upsample in self.upsamplers:
            x = upsample(x)
        return x


def res_blocks(shape: UNetShape, channels: list[int], out: int) -> nn.ModuleList:
    time = 4 * shape.channels[0]
    return nn.ModuleList(ResBlock(width, out, shape.groups, eps=1e-5, time=time) for width in channels)


def transformers(shape: UNetShape, level: int, depth: int, layers: int) -> nn.ModuleList:
    return nn.ModuleList(Transformer(shape, level, depth) for _ in range(layers if depth else 0))


class Transformer(nn.Module):
    """x + transformer blocks over the positions of x, which attend to each other and to the context."""

    def __init__(self, shape: UNetShape, level: int, depth: int) -> None:
        super().__init__()
        width, heads = shape.channels[level], shape.heads[level]
        self.linear = shape.linear_projection
        self.norm = nn.GroupNorm(shape.groups, width, eps=1e-6)
        self.proj_in = nn.Linear(width, width) if self.linear else nn.Conv2d(width, width, 1)
        self.transformer_blocks = nn.ModuleList(TransformerBlock(width, heads, shape.context) for _ in range(depth))
        self.proj_out = nn.Linear(width, width) if self.linear else nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        n, width, rows, columns = x.shape
        hidden: Tensor = self.norm(x)
        if not self.linear:
            hidden = self.proj_in(hidden)
        hidden = hidden.permute(0, 2, 3, 1).reshape(-1, width)  # in two dimensions a linear layer is one Gemm
        if self.linear:
            hidden = self.proj_in(hidden)
        for block in self.transformer_blocks:
            hidden = block(hidden, context)
        if self.linear:
            hidden = self.proj_out(hidden)
        hidden = hidden.view(n, rows, columns, width).permute(0, 3, 1, 2)
        if not self.linear:
            hidden = self.proj_out(hidden)
        return x + hidden


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention, feed-forward; x [n × positions, width], context [n, 77, context width]."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attention(width, heads, width)
        self.attn2 = Attention(width, heads, context)
        self.ff = FeedForward(width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        n = context.shape[0]
        own = self.norm1(x)
        x = x + self.attn1(own, own, n)
        x = x + self.attn2(self.norm2(x), context.flatten(0, 1), n)
        x = x + self.ff(self.norm3(x))
        return x


class Attention(nn.Module):
    """x [n × queries, width], context [n × keys, context width]: each sample attends to the keys of the same sample."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor, context: Tensor, n: int) -> Tensor:
        q, k, v = (
            rows.view(n, rows.shape[0] // n, rows.shape[1])
            for rows in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        out: Tensor = self.to_out[0](attend(q, k, v, self.heads))
        return out


class FeedForward(nn.Module):
    """A linear layer, one half of whose output gates the other half (GEGLU), and a linear layer back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # `net.1` is a dropout in diffusers and has no weights
        self.net = nn.ModuleList([GeGlu(width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.net[2](self.net[0](x))
        return x


class GeGlu(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 8 * width)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * F.gelu(gate)


def sinusoid(values: Tensor, width: int) -> Tensor:
    """values [n] float32 -> [n, width] float32: cosines, then sines, at frequencies from 1 to almost 1 / 10,000."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32, device=values.device) * (-math.log(1e4) / half))
    angles = values[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)
