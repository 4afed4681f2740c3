"""The probe's kernels. All work of each depends on the nonce, so that no result can be folded or cached."""

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
    """nonce [1, ≥ rows] -> [1]: a sum of the rows, weighted by the nonce."""

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        rows = nonce[:, : self.matrix.shape[0]]
        return (torch.matmul(rows, self.matrix).amax(1),)


class Gemv(Memory):
    """nonce [1, ≥ COLUMNS] -> [1]: a linear layer on one row, as in decoding."""

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        return (F.linear(nonce[:, :COLUMNS], self.matrix).amax(1),)


class Copy(Memory):
    """(nonce, copy [rows, COLUMNS]) -> [1]: writes the matrix times a number, STREAM's scale, in place."""

    def forward(self, nonce: Tensor, copy: Tensor) -> tuple[Tensor]:
        torch.mul(self.matrix, nonce[:, :1], out=copy)
        return (copy[-1, -1:] + 0,)


class Gemm(nn.Module):
    """nonce [1, ≥ n] -> [1]: CHAIN products one after the other, beside which adding the nonce and the maximum take
    little time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_parameter(f"square_{n}", nn.Parameter(torch.empty(n, n)))

    def forward(self, nonce: Tensor) -> tuple[Tensor]:
        (square,) = self.parameters()
        x = square + nonce[:, : square.shape[0]]
        for _ in range(CHAIN):
            x = F.linear(x, square)
        return (x.amax((0, 1)).reshape(1),)


def kernel(kind: str, size: int) -> nn.Module:
    with torch.device("meta"):
        kinds: dict[str, type[Read | Gemv | Copy | Gemm]] = {"read": Read, "gemv": Gemv, "copy": Copy, "gemm": Gemm}
        return kinds[kind](size).eval()
