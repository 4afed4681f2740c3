"""Separation of honest rounding from cheats: each suite's metric for both, at the shapes of a tier.

    python -m bench.separation SUITE TIER [--feeds N]      prints the table that docs/separation/ holds

--weights FILE, for llm only: measures a checkpoint; more honest rows then show the error of rounding its weights.

Honest rows are precisions of weights and activations; cheats leave work out. The middle is the geometric mean of the
worst honest value and the mildest cheat, so that its distance to both is the same factor; that factor should be 3 or
more. Then audits of 30 feeds are simulated in which a random part of the feeds is cheated, with values drawn from those
of the mildest cheat. The rows of a suite come from bench/cheats/<suite>.py, `values(tier, feeds) -> Iterator[Row]`.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness import plugins

if TYPE_CHECKING:
    import torch
    from torch import nn

GROUP = 32
PARTS = {"quarter": 1 / 4, "tenth": 1 / 10}
AUDITED = 30  # feeds in the audit of an official run
TRIALS = 10_000


@dataclass(frozen=True)
class Row:
    """One way to run the suite: the metric of each of its audited feeds."""

    name: str
    honest: bool
    values: tuple[float, ...]
    note: str = ""

    @property
    def extreme(self) -> float:
        """The value that decides: the largest of an honest way, the smallest of a cheat.

        A cheat is detected by one feed that fails; in the smallest audit, which is one feed, its smallest value counts.
        """
        return max(self.values) if self.honest else min(self.values)


def integers(weight: torch.Tensor, bits: int, group: int | None = GROUP) -> torch.Tensor:
    """The weight, rounded to symmetric integers of `bits` bits.

    The scale is absmax / 2^(bits−1) per `group` along the contraction axis (all axes after the first, flattened), as in
    GGUF's Q4_0 and MXFP4. With group None it is absmax / (2^(bits−1) − 1) per row, as in int8 engines.
    """
    import torch

    flat = weight.float().reshape(weight.shape[0], -1)
    rows, columns = flat.shape
    width = group or columns
    padded = torch.nn.functional.pad(flat, (0, -columns % width)).reshape(rows, -1, width)
    top = 2 ** (bits - 1)
    scale = padded.abs().amax(-1, keepdim=True) / (top if group else top - 1)
    whole = (padded / scale.clamp_min(1e-30)).round().clamp(-top, top - 1)
    narrow: torch.Tensor = (whole * scale).reshape(rows, -1)[:, :columns].reshape(weight.shape).to(weight.dtype)
    return narrow


def rounded(x: torch.Tensor, precision: str) -> torch.Tensor:
    """An activation rounded to a precision.

    precision: `bf16`, `fp16`, `fp8` (e4m3, scaled by the tensor's absmax), `int8` (absmax / 127 per row of the last
    axis) or `int8-tensor` (one scale for the whole tensor).
    """
    import torch

    if precision in ("bf16", "fp16"):
        return x.to(torch.bfloat16 if precision == "bf16" else torch.float16).to(x.dtype)
    if precision == "fp8":
        scale = x.abs().amax().clamp_min(1e-30) / 448
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    absmax = x.abs().amax() if precision == "int8-tensor" else x.abs().amax(-1, keepdim=True)
    scale = absmax.clamp_min(1e-30) / 127
    return (x / scale).round().clamp(-127, 127) * scale


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """2:4 sparsity: the two smaller ones of every four weights along the contraction axis become zero."""
    import torch

    rows = weight.flatten(1)
    fours = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 4)).reshape(len(rows), -1, 4)
    kept: torch.Tensor = torch.zeros_like(fours).scatter(-1, fours.abs().topk(2).indices, 1)
    return (fours * kept).flatten(1)[:, : rows.shape[1]].reshape(weight.shape)


@contextmanager
def activations(module: nn.Module, precision: str) -> Iterator[None]:
    """Within the context, the inputs of all linear layers and convolutions are rounded, and in 16 bits their outputs.

    Outputs are not rounded in fp8 and int8, whose kernels accumulate and return a wider format.
    """
    from torch import nn

    def before(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded(inputs[0], precision), *inputs[1:])

    def after(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return rounded(output, precision) if precision in ("bf16", "fp16") else output

    layers = [each for each in module.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
    hooks = [
        hook for each in layers for hook in (each.register_forward_pre_hook(before), each.register_forward_hook(after))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def table(rows: list[Row]) -> str:
    """The rows in Markdown, and the middle between the worst honest way and the mildest cheat."""
    worst = max((row for row in rows if row.honest), key=lambda row: row.extreme)
    mildest = min((row for row in rows if not row.honest), key=lambda row: row.extreme)
    lines = ["| way | kind | least | most | |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (not row.honest, row.extreme)):
        kind = "honest" if row.honest else "cheat"
        lines.append(f"| {row.name} | {kind} | {min(row.values):.2g} | {max(row.values):.2g} | {row.note} |")
    middle = math.sqrt(max(worst.extreme, 1e-12) * mildest.extreme)
    factor = math.sqrt(mildest.extreme / max(worst.extreme, 1e-12))
    lines += [
        "",
        f"Worst honest: {worst.name}. Mildest cheat: {mildest.name}. "
        f"Middle {middle:.2g}, a factor of {factor:.1f} from both.",
    ]
    return "\n".join(lines)


def caught(cheat: Row, right: Row, part: float, at_most: float) -> float:
    """The share of simulated audits in which at least one feed fails.

    Each feed is cheated with the probability `part`; its value is then drawn from those of `cheat`, else of `right`.
    """
    random = np.random.default_rng(0)
    size = TRIALS, AUDITED
    scores = np.where(random.random(size) < part, random.choice(cheat.values, size), random.choice(right.values, size))
    return float((scores > at_most).any(1).mean())


def in_part(rows: list[Row], at_most: float) -> str:
    """How often audits catch the mildest cheat on a part of the feeds; the others are run by the best honest way."""
    mildest = min((row for row in rows if not row.honest), key=lambda row: row.extreme)
    best = min((row for row in rows if row.honest), key=lambda row: row.extreme)
    shares = {part: caught(mildest, best, of_feeds, at_most) for part, of_feeds in PARTS.items()}
    told = ", ".join(f"on a random {part} of the feeds in {share * 100:.2f} %" for part, share in shares.items())
    return f"The mildest cheat against the gate of {at_most:g}, {TRIALS:,} audits of {AUDITED} feeds: caught {told}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("tier", choices=("smoke", "edge"))
    parser.add_argument("--feeds", type=int, default=2)
    parser.add_argument("--weights")
    asked = parser.parse_args()
    options = {"weights": asked.weights} if asked.weights else {}
    cheats = importlib.import_module(f"bench.cheats.{asked.suite}")
    rows = list(cheats.values(asked.tier, asked.feeds, **options))
    suite = plugins.suite(asked.suite, plugins.BUILT_IN["suites"][asked.suite], asked.tier, options)
    gates = dict.fromkeys(suite.gate(precision).at_most for precision in ("bf16", "int8", "int4"))
    print(table(rows), *(in_part(rows, at_most) for at_most in gates), sep="\n")


if __name__ == "__main__":
    main()
