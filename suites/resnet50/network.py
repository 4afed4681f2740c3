"""ResNet-50 v1.5, where the first 3×3 convolution of a stage has the stride. The names are torchvision's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.resnet50 import CLASSES, EXPANSION, GREY, SCALE, STAGES


class BatchNorm(nn.Module):
    """Batch norm without torch's int64 counter of batches, which only training uses."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.empty(channels))
        self.register_buffer("running_var", torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Bottleneck(nn.Module):
    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = EXPANSION * width
        self.conv1 = nn.Conv2d(entering, width, 1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = BatchNorm(width)
        self.conv3 = nn.Conv2d(width, leaving, 1, bias=False)
        self.bn3 = BatchNorm(leaving)
        self.downsample = (
            nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), BatchNorm(leaving))
            if stride > 1 or entering != leaving
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        branch = torch.relu(self.bn1(self.conv1(x)))
        branch = torch.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        return torch.relu(branch + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """images [batch, 3, H, W] uint8 -> logits [batch, 1000]; H and W are multiples of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for number, (blocks, width, stride) in enumerate(STAGES, 1):
            stage = nn.Sequential()
            for index in range(blocks):
                stage.append(Bottleneck(channels, width, 1 if index else stride))
                channels = EXPANSION * width
            self.add_module(f"layer{number}", stage)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        x = (images.to(self.conv1.weight.dtype) - GREY) / SCALE
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return (self.fc(x.mean((2, 3))),)
