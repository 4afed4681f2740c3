"""Separation of engines that round honestly from engines that leave work out, by each suite's gate.

`python -m bench.separation SUITE TIER` prints what docs/separation.md is made of. Each suite has a module here, or in
bench/capabilities, with `values(tier, weight_class, nonces, wanted) -> Iterator[Row]`, a row for each engine. This file
has the common rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mixmark.harness.contracts.schema import WeightClass

if TYPE_CHECKING:
    import torch
    from torch import nn

GROUP = 32


@dataclass(frozen=True)
class Row:
    """One way to run the suite: the metric of each of its audited feeds."""

    name: str
    declared: str
    """The keys of ROUNDINGS whose gates this row must pass, separated by commas; empty for a cheat."""
    values: tuple[float, ...]
    note: str = ""

    @property
    def honest(self) -> bool:
        return bool(self.declared)

    @property
    def extreme(self) -> float:
        """The value nearest to the gate: the largest value of an honest row, the smallest value of a cheat.

        One failing feed detects a cheat. The smallest audit has one feed, so the smallest value of a cheat counts.
        """
        return max(self.values) if self.honest else min(self.values)


def integers(weight: torch.Tensor, bits: int, group: int | None = GROUP) -> torch.Tensor:
    """The weight, rounded to symmetric integers of `bits` bits.

    The scale is for each `group` along the contraction axis (all axes after the first, flattened), or for each row: up
    to 4 bits absmax / 2^(bits−1), as in GGUF's Q4_0 and MXFP4, else absmax / (2^(bits−1) − 1), as in Q8_0 and int8
    engines.
    """
    import torch

    flat = weight.float().reshape(weight.shape[0], -1)
    rows, columns = flat.shape
    width = group or columns
    padded = torch.nn.functional.pad(flat, (0, -columns % width)).reshape(rows, -1, width)
    top = 2 ** (bits - 1)
    scale = padded.abs().amax(-1, keepdim=True) / (top if group and bits <= 4 else top - 1)
    whole = (padded / scale.clamp_min(1e-30)).round().clamp(-top, top - 1)
    narrow: torch.Tensor = (whole * scale).reshape(rows, -1)[:, :columns].reshape(weight.shape).to(weight.dtype)
    return narrow


def narrower(weight_class: WeightClass) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """Weights of fewer bits than the class has, by name."""
    eights = ((8, None), (8, GROUP), (8, GROUP // 2))
    formats = {16: (*eights, (4, GROUP)), 8: ((4, GROUP), (3, GROUP)), 4: ((3, GROUP), (2, GROUP))}
    for bits, group in formats[weight_class]:
        said = f"by {group}" if group else "by row"
        yield f"int{bits} weights {said}", partial(integers, bits=bits, group=group)


def rounded(x: torch.Tensor, precision: str) -> torch.Tensor:
    """An activation rounded to a precision.

    precision: `bf16`, `fp16`, `fp8` (e4m3, scaled by the tensor's absmax), `int8` (absmax / 127 per row of the last
    axis), `int8-block` (per 32 values of it, as in GGUF's Q8_0), `int8-tensor` (one scale for the whole tensor) or
    `uint8-tensor` (256 steps from the tensor's smallest value to its largest).
    """
    import torch

    if precision in ("bf16", "fp16"):
        return x.to(torch.bfloat16 if precision == "bf16" else torch.float16).to(x.dtype)
    if precision == "fp8":
        scale = x.abs().amax().clamp_min(1e-30) / 448
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    if precision == "uint8-tensor":
        low, high = x.amin().clamp_max(0), x.amax().clamp_min(0)
        scale = (high - low).clamp_min(1e-30) / 255
        zero = (low / scale).round()
        return ((x / scale).round() - zero).clamp(0, 255).add(zero) * scale
    if precision == "int8-block" and x.shape[-1] % GROUP == 0:
        return rounded(x.reshape(*x.shape[:-1], -1, GROUP), "int8").reshape(x.shape)
    absmax = x.abs().amax() if precision == "int8-tensor" else x.abs().amax(-1, keepdim=True)
    scale = absmax.clamp_min(1e-30) / 127
    return (x / scale).round().clamp(-127, 127) * scale


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """2:4 sparsity: the two smallest of every four weights along the contraction axis become zero."""
    import torch

    rows = weight.flatten(1)
    fours = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 4)).reshape(len(rows), -1, 4)
    kept: torch.Tensor = torch.zeros_like(fours).scatter(-1, fours.abs().topk(2).indices, 1)
    return (fours * kept).flatten(1)[:, : rows.shape[1]].reshape(weight.shape)


@contextmanager
def activations(module: nn.Module, precision: str) -> Iterator[None]:
    """Within the context, the inputs of all linear layers and convolutions are rounded, and in 16 bits their outputs.

    Outputs are not rounded in fp8 and int8, because kernels accumulate and return a wider format.
    """
    from torch import nn

    def before(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded(inputs[0], precision), *inputs[1:])

    def after(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return rounded(output, precision) if precision in ("bf16", "fp16") else output

    layers = [each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d)]
    hooks = [
        hook for each in layers for hook in (each.register_forward_pre_hook(before), each.register_forward_hook(after))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
