"""Blocks that the U-Net and the VAE share, over [n, channels, h, w]: residual blocks and changes of size."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class ResBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm x)) + time))); a 1 × 1 convolution adapts x where the channels change."""

    def __init__(self, channels: int, out: int, groups: int, eps: float, time: int | None = None) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels, eps)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        if time is not None:
            self.time_emb_proj = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(groups, out, eps)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(channels, out, 1) if channels != out else None

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """time: the time embedding after its activation, [n or 1, width]."""
        hidden: Tensor = self.conv1(F.silu(self.norm1(x)))
        if time is not None:
            hidden = hidden + self.time_emb_proj(time)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        hidden = hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))
        return hidden


class Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Attention: q [n, queries, width], k and v [n, keys, width] -> [n × queries, width]."""
    q, k, v = (x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)
