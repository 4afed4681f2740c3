"""The probe's kernels. Their results prove their work.

A result is a bilinear form: the kernel's outputs, multiplied from both sides by vectors of the nonce. So each output
counts: none can be left out, computed with less precision, or reused from another nonce or from another kernel of the
same matrix, which has other vectors. These two products are cheap compared with the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.probe import CHAIN, COLUMNS


class Gemv(nn.Module):
    """nonce [4, ≥ COLUMNS and rows] -> [1]: a linear layer on one row, as in decoding."""

    def __init__(self, rows: int, number: int) -> None:
        super().__init__()
        self.register_parameter(f"matrix_{rows}_{number:02d}", nn.Parameter(torch.empty(rows, COLUMNS)))

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        (matrix,) = self.parameters()
        row = F.linear(nonce[2:3, :COLUMNS], matrix)
        return (F.linear(row, nonce[3:4, : matrix.shape[0]]).reshape(1),)


class Gemm(nn.Module):
    """nonce [4, ≥ n] -> [1]: CHAIN products one after the other.

    The ReLU after each product prevents a reordering into products of vectors.
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
