"""The rewriting of modules for oneDNN: what is fused, and that the answers stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.harness.adapters.devices import flags
from mixmark.harness.adapters.torch import fused

ROOT = Path(__file__).parents[2]
PACKS = """
import torch
from torch import nn
from mixmark.harness.adapters.torch import fused
module = nn.Sequential(nn.Conv2d(256, 1024, 1))
read = module.state_dict()
program = fused.fused(module, ["x"])
next(each for each in program.modules() if isinstance(each, fused.FusedLayer)).load(read.__getitem__, torch.bfloat16)
for batch in (1, 1, 4, 4):
    x = torch.randn(batch, 256, 14, 14).bfloat16().contiguous(memory_format=torch.channels_last)
    print("call", flush=True)
    with torch.inference_mode():
        program(x)
"""
pytestmark = pytest.mark.slow


class Block(nn.Module):
    """A batch norm, a residual sum, a sum that broadcasts, and a linear layer on an embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.around = (
            nn.Conv2d(8, 8, 3, padding=1, bias=bias) for bias in (False, True, True)
        )
        self.norm = nn.BatchNorm2d(8)
        self.table = nn.Embedding(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        y, norm = F.relu(self.first(x)), self.norm
        y = F.batch_norm(self.second(y), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-2)
        y = torch.relu(y + self.around(x))
        y = self.first(y + x.mean((2, 3), keepdim=True))
        return F.silu(F.linear(y.mean((2, 3)), self.table.weight))


class Halved(nn.Module):
    """A module whose way depends on values, which no tracer sees."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2 if x.sum() > 0 else x


def filled(module: nn.Module) -> Callable[[str], Tensor]:
    generator = torch.Generator().manual_seed(1)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + (0.5 if tensor.dim() == 1 else -0.5))
    return lambda name: module.state_dict()[name].clone()


def test_a_rewritten_module_computes_the_same() -> None:
    module = Block().eval().requires_grad_(False)
    read = filled(module)
    program = fused.fused(module, ["x"])
    assert program is not None
    layers = [each for each in program.modules() if isinstance(each, fused.FusedLayer)]
    assert [(layer.weight, bool(layer.batch_norm), layer.activation) for layer in layers] == [
        ("first.weight", False, "relu"),
        ("second.weight", True, "relu"),
        ("around.weight", False, "none"),
        ("first.weight", False, "none"),
        ("table.weight", False, "swish"),
    ]
    assert "aten::batch_norm" not in program.code and program.state_dict() == {}
    for layer in layers:
        layer.load(read, torch.float32)
    x = torch.randn(2, 8, 6, 6)
    for given in (x, x[:, :, :5, :5], x[:1]):
        torch.testing.assert_close(program(given), module(given), rtol=1e-5, atol=1e-5)


def test_a_module_that_cannot_be_traced_is_left_alone() -> None:
    assert fused.fused(Halved(), ["x"]) is None


# oneDNN can leave instructions aside that a processor has, and not emulate others.
@pytest.mark.skipif(
    "avx512_bf16" not in flags(), reason="no bf16 in this processor: run it on one with AVX-512 BF16 or AMX"
)
def test_a_convolution_packs_its_weight_once_for_a_shape() -> None:
    """As on a processor without AMX, where oneDNN's layout of a weight depends on the shape of the input."""
    settings = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", PACKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, **settings})
    _, *calls = done.stdout.split("call\n")
    assert all("exec,cpu,convolution" in call for call in calls)
    first, second, third, fourth = ("exec,cpu,reorder" in call for call in calls)
    assert first and third and not second and not fourth
