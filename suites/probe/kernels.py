"""The probe's kernels, whose results prove their work.

A result is a bilinear form: what the kernel computes, multiplied from both sides by vectors of the nonce. So each of
its outputs counts, none can be left out or be computed more roughly, and nothing can be kept from another nonce or from
another kernel of the same matrix, which has other vectors. These two products take little time beside the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suites.probe import CHAIN, COLUMNS


class Memory(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_parameter(f"matrix_{rows}", nn.Parameter(torch.empty(rows, COLUMNS)))

    @property
    def matrix(self) -> Tensor:
        (matrix,) = self.parameters()
        return matrix


class Read(Memory):
    """nonce [4, ≥ rows] -> [1]: a sum of the rows, weighted by the nonce."""

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        total = torch.matmul(nonce[0:1, : self.matrix.shape[0]], self.matrix)
        return (F.linear(total, nonce[1:2, :COLUMNS]).reshape(1),)


class Gemv(Memory):
    """nonce [4, ≥ COLUMNS] -> [1]: a linear layer on one row, as in decoding."""

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        row = F.linear(nonce[2:3, :COLUMNS], self.matrix)
        return (F.linear(row, nonce[3:4, : self.matrix.shape[0]]).reshape(1),)


class Copy(Memory):
    """(nonce, copy [rows, COLUMNS]) -> [1]: writes the matrix times a number, STREAM's scale, in place.

    Its result shows one value of the copy: that the others were written cannot be seen.
    """

    def forward(self, nonce: Tensor, copy: Tensor) -> tuple[Tensor]:
        torch.mul(self.matrix, nonce[0:1, :1], out=copy)
        return (copy[-1, -1:] + 0,)


class Gemm(nn.Module):
    """nonce [4, ≥ n] -> [1]: CHAIN products one after the other.

    The ReLU behind each keeps the products from being taken in another order, which would make them vectors' products.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_parameter(f"square_{n}", nn.Parameter(torch.empty(n, n)))

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        (square,) = self.parameters()
        n = square.shape[0]
        x = square * nonce[0:1, :n]
        for _ in range(CHAIN):
            x = F.relu(F.linear(x, square))
        return (F.linear(F.linear(nonce[1:2, :n], x), nonce[2:3, :n]).reshape(1),)


def kernel(kind: str, size: int) -> nn.Module:
    with torch.device("meta"):
        kinds: dict[str, type[Read | Gemv | Copy | Gemm]] = {"read": Read, "gemv": Gemv, "copy": Copy, "gemm": Gemm}
        return kinds[kind](size).eval()
