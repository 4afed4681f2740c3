"""Separation of honest rounding from cheats: each suite's metric for both, at the shapes of a tier.

    python -m bench.separation SUITE TIER [--feeds N]      prints the tables that docs/separation/ holds

--engines ADAPTER:PRECISION[:OPTION=VALUE …] …: rows of real engines, which the built-in adapters run.
--ways REGEX: only the ways whose names match (`none`: only the engines). --first K: feeds from the K-th on.
--values FILE: keeps the values of each way in a file, and prints the tables of all that it holds; so a table that takes
long is made in pieces.
--weights FILE, for llm only: measures a checkpoint; more honest rows then show the error of rounding its weights.

Honest rows are precisions of weights and activations, each with the declared precisions whose gate it must pass;
cheats leave work out. A second table holds each gate against the worst honest way and the mildest cheat: both should be
a factor of 3 or more away. `middle` is the geometric mean of the two, whose distance to both is the same factor. Then
audits of 30 feeds are simulated in which a random part of the feeds is cheated, with values drawn from those of the
mildest cheat. The rows of a suite come from bench/cheats/<suite>.py, `values(tier, nonces, wanted) -> Iterator[Row]`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.plugins import registry

if TYPE_CHECKING:
    import torch
    from torch import nn

GROUP = 32
ROUNDINGS = {"16 bits": "bf16", "fp8": "fp8", "int8": "int8", "int4": "int4"}
"""The declared precisions that have a gate of their own, each with one that has it."""
PARTS = {"quarter": 1 / 4, "tenth": 1 / 10}
AUDITED = 30  # feeds in the audit of an official run
TRIALS = 10_000


@dataclass(frozen=True)
class Row:
    """One way to run the suite: the metric of each of its audited feeds."""

    name: str
    declared: str
    """The keys of ROUNDINGS whose gate this way must pass, with commas between them; empty for a cheat."""
    values: tuple[float, ...]
    note: str = ""

    @property
    def honest(self) -> bool:
        return bool(self.declared)

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


def table(rows: Sequence[Row], suite: Suite) -> str:
    """The rows in Markdown, and each gate against the worst honest way and the mildest cheat."""
    mildest = min((row for row in rows if not row.honest), key=lambda row: row.extreme)
    lines = ["| way | declared | feeds | least | most | |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (not row.honest, row.extreme)):
        figures = f"{len(row.values)} | {min(row.values):.2g} | {max(row.values):.2g}"
        lines.append(f"| {row.name} | {row.declared or 'cheat'} | {figures} | {row.note} |")
    lines += [
        "",
        "| declared | worst honest way | most | gate | factor | mildest cheat | least | factor | middle | factor |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for rounding, precision in ROUNDINGS.items():
        honest = [row for row in rows if rounding in row.declared.split(", ")]
        gate = suite.gate(precision)
        if honest and gate:
            worst = max(honest, key=lambda row: row.extreme)
            most, least, at_most = max(worst.extreme, 1e-12), mildest.extreme, gate.at_most
            lines.append(
                f"| {rounding} | {worst.name} | {most:.2g} | {at_most:g} | {at_most / most:.2g} | {mildest.name} | "
                f"{least:.2g} | {least / at_most:.2g} | {math.sqrt(most * least):.2g} | {math.sqrt(least / most):.2g} |"
            )
    return "\n".join(lines)


def caught(cheat: Row, right: Row, part: float, at_most: float) -> float:
    """The share of simulated audits in which at least one feed fails.

    Each feed is cheated with the probability `part`; its value is then drawn from those of `cheat`, else of `right`.
    """
    random = np.random.default_rng(0)
    size = TRIALS, AUDITED
    scores = np.where(random.random(size) < part, random.choice(cheat.values, size), random.choice(right.values, size))
    return float((scores > at_most).any(1).mean())


def in_part(rows: Sequence[Row], at_most: float) -> str:
    """How often audits catch the mildest cheat on a part of the feeds; the others are run by the best honest way."""
    mildest = min((row for row in rows if not row.honest), key=lambda row: row.extreme)
    best = min((row for row in rows if row.honest), key=lambda row: row.extreme)
    shares = {part: caught(mildest, best, of_feeds, at_most) for part, of_feeds in PARTS.items()}
    told = ", ".join(f"on a random {part} of the feeds in {share * 100:.2f} %" for part, share in shares.items())
    return f"The mildest cheat against the gate of {at_most:g}, {TRIALS:,} audits of {AUDITED} feeds: caught {told}."


def engine(suite: Suite, name: str, nonces: Iterable[int]) -> Row:
    """A real engine as an honest way. name: ADAPTER:PRECISION[:OPTION=VALUE …], as bench.false_alarms takes it."""
    from bench.false_alarms import answered

    precision = name.split(":")[1]
    gate = suite.gate(precision)
    assert gate, f"{suite.name} has no gate"
    values: list[float] = []
    for output, reference in answered(suite, name, nonces):
        if len(reference) == len(output) + 1:  # each of its audits compares as many samples as the gate asks for
            for start in range(0, len(output), gate.samples):
                rows = np.r_[start : min(start + gate.samples, len(output))]
                values.append(suite.quality(output[rows], np.concatenate((reference[rows], reference[-1:]))))
        else:
            values.append(suite.quality(output, reference))
    declared = next((each for each, one in ROUNDINGS.items() if one == precision), "16 bits")
    return Row(name.replace(":", " "), declared, tuple(values), "the adapter itself")


def kept(file: Path, rows: Iterable[Row]) -> list[Row]:
    """Appends the rows to a file, and returns all that it holds, the values of one way together."""
    with file.open("a") as lines:
        for row in rows:
            print(json.dumps(asdict(row)), file=lines, flush=True)
    found: dict[str, Row] = {}
    for line in file.read_text().splitlines():
        row = Row(**json.loads(line))
        before = found[row.name].values if row.name in found else ()
        found[row.name] = replace(row, values=(*before, *row.values))
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("tier", choices=("smoke", "edge"))
    parser.add_argument("--feeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ways", default="")
    parser.add_argument("--engines", nargs="*", default=())
    parser.add_argument("--values", type=Path)
    parser.add_argument("--weights")
    asked = parser.parse_args()
    options = {"weights": asked.weights} if asked.weights else {}
    cheats = importlib.import_module(f"bench.cheats.{asked.suite}")
    suite = registry.suite(asked.suite, registry.BUILT_IN["suites"][asked.suite], asked.tier, options)
    nonces = range(asked.first, asked.first + asked.feeds)

    def measured() -> Iterator[Row]:
        for name in asked.engines:
            yield engine(suite, name, nonces)
        if asked.targets != "none":
            yield from cheats.values(asked.tier, nonces, re.compile(asked.targets).search, **options)

    rows = kept(asked.values, measured()) if asked.values else list(measured())
    if all(any(row.honest == honest for row in rows) for honest in (True, False)):
        gates = dict.fromkeys(gate.at_most for each in ROUNDINGS.values() if (gate := suite.gate(each)))
        print(table(rows, suite), "", *(in_part(rows, at_most) for at_most in gates), sep="\n")


if __name__ == "__main__":
    main()
