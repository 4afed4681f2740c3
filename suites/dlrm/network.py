"""DLRM-DCNv2, nested like torchrec's DLRM_DCN inside DLRMTrain, so that the names of the weights agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.dlrm import BOTTOM, CROSS_LAYERS, HOTNESS, TOP, DlrmShape
from mixmark.suites.weights import embedding


class Perceptron(nn.Module):
    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self._linear = nn.Linear(entering, leaving)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self._linear(x))


class Mlp(nn.Module):
    """Linear layers with a ReLU after each layer, including the last."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self._mlp = nn.Sequential(*(Perceptron(*pair) for pair in pairwise(widths)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._mlp(x)
        return out


class DenseArch(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.model = Mlp(widths)


class EmbeddingBagCollection(nn.Module):
    """Sum pooling: indices [sum of HOTNESS, batch] int32 -> one pooled embedding per table, [batch, dim] each."""

    def __init__(self, rows: Sequence[int], dim: int) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict({f"t_cat_{i}": embedding(count, dim) for i, count in enumerate(rows)})

    def forward(self, indices: Tensor) -> list[Tensor]:
        weights = map(attrgetter("weight"), self.embedding_bags.values())  # a read that torch.fx can trace
        return [_bag(weight, bag) for weight, bag in zip(weights, torch.split(indices, list(HOTNESS)), strict=True)]


def _bag(weight: Tensor, bag: Tensor) -> Tensor:
    """The sum of the rows in each bag [hotness, batch]; an exported graph gathers and sums, which is faster there."""
    if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export():
        return F.embedding(bag, weight).sum(0)
    return F.embedding_bag(bag.t(), weight, mode="sum")


class SparseArch(nn.Module):
    def __init__(self, rows: Sequence[int], dim: int) -> None:
        super().__init__()
        self.embedding_bag_collection = EmbeddingBagCollection(rows, dim)


class LowRankCrossNet(nn.Module):
    """Deep & Cross Network v2 (arXiv:2008.13535): x ← x₀ ⊙ (W V x + b) + x, with W V of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        layers = range(CROSS_LAYERS)
        self.W_kernels = nn.ParameterList(nn.Parameter(torch.empty(width, rank)) for _ in layers)
        self.V_kernels = nn.ParameterList(nn.Parameter(torch.empty(rank, width)) for _ in layers)
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(width, 1)) for _ in layers)

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for w, v, bias in zip(self.W_kernels, self.V_kernels, self.bias, strict=True):
            x = x0 * F.linear(F.linear(x, v), w, bias.flatten()) + x
        return x


class InteractionArch(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.crossnet = LowRankCrossNet(width, rank)


class OverArch(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.model = nn.Sequential(Mlp(widths[:-1]), nn.Linear(widths[-2], widths[-1]))


class DlrmDcn(nn.Module):
    def __init__(self, shape: DlrmShape) -> None:
        super().__init__()
        self.dense_arch = DenseArch((*BOTTOM, shape.dim))
        self.sparse_arch = SparseArch(shape.rows, shape.dim)
        self.inter_arch = InteractionArch(shape.width, shape.rank)
        self.over_arch = OverArch((shape.width, *TOP))


class Rank(nn.Module):
    """The whole network: dense [batch, 13] float32, indices [214, batch] int32 -> logits [batch]."""

    def __init__(self, shape: DlrmShape) -> None:
        super().__init__()
        self.model = DlrmDcn(shape)

    def forward(self, dense: Tensor, indices: Tensor) -> tuple[Tensor]:
        bottom = self.model.dense_arch.model(dense)
        pooled = self.model.sparse_arch.embedding_bag_collection(indices)
        crossed = self.model.inter_arch.crossnet(torch.cat((bottom, *pooled), dim=1))
        return (self.model.over_arch.model(crossed).squeeze(1),)
