"""What tells honest rounding from a cheat: each suite's metric for both, at the shapes of a tier.

    python -m bench.separation SUITE TIER [--feeds N]      prints the table that docs/separation/ holds

--weights FILE, of llm only: a checkpoint, whose honest rows are also of what rounding its weights costs.

Honest rows are precisions of weights and activations; the others leave work out. The threshold is the geometric mean
of the worst honest value and the mildest cheat, so that the distance to both is the same factor; 3 is asked for.
Then the mildest cheat on a random part of the feeds: drawn from its values, in simulated audits of 30 feeds.
The rows of a suite are in bench/cheats/<suite>.py, as `values(tier, feeds) -> Iterator[Row]`.
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
AUDITED = 30  # feeds of an official run's audit
TRIALS = 10_000


@dataclass(frozen=True)
class Row:
    """The metric of each audited feed of one way to run the suite."""

    name: str
    honest: bool
    values: tuple[float, ...]
    note: str = ""

    @property
    def extreme(self) -> float:
        """What decides: the worst of an honest way; of a cheat the worst too, since one feed that fails is enough,
        but over the smallest audit, one feed: the mildest."""
        return max(self.values) if self.honest else min(self.values)


def integers(weight: torch.Tensor, bits: int, group: int | None = GROUP) -> torch.Tensor:
    """Symmetric, scale absmax / 2^(bits−1) as GGUF's Q4_0 and MXFP4 have it, per `group` along the contraction axis
    (all axes behind the first, flattened); None: per row, scale absmax / (2^(bits−1) − 1), as int8 engines have it."""
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
    """An activation as `bf16`, `fp16`, `fp8` (e4m3, scaled by the tensor's absmax), `int8` (per row of the last axis,
    absmax / 127) or `int8-tensor` (one scale for the whole tensor) holds it."""
    import torch

    if precision in ("bf16", "fp16"):
        return x.to(torch.bfloat16 if precision == "bf16" else torch.float16).to(x.dtype)
    if precision == "fp8":
        scale = x.abs().amax().clamp_min(1e-30) / 448
        return (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
    absmax = x.abs().amax() if precision == "int8-tensor" else x.abs().amax(-1, keepdim=True)
    scale = absmax.clamp_min(1e-30) / 127
    return (x / scale).round().clamp(-127, 127) * scale


@contextmanager
def activations(module: nn.Module, precision: str) -> Iterator[None]:
    """Inside, what goes into every linear layer and convolution, and what comes out of it, is rounded: the output only
    in the floating-point formats, since integer kernels accumulate and hand on in a wider one."""
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
    """Markdown: worst honest and mildest cheat decide."""
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
    """The share of simulated audits in which a feed fails: each feed is cheated with the probability `part`, and then
    scores one of the cheat's values, by chance, else one of `right`'s."""
    random = np.random.default_rng(0)
    size = TRIALS, AUDITED
    scores = np.where(random.random(size) < part, random.choice(cheat.values, size), random.choice(right.values, size))
    return float((scores > at_most).any(1).mean())


def in_part(rows: list[Row], at_most: float) -> str:
    """How often the mildest cheat is caught where the other feeds are as the best of the honest ways has them."""
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
