"""Separation of honest rounding from cheats: each suite's metric for both, at the shapes of a tier.

    python -m bench.separation SUITE TIER [--feeds N]      prints the tables of the pages

--bits 16|8|4: the weight class; by default 16.
--engines ADAPTER:PRECISION[:OPTION=VALUE …] …: rows of real engines, which the built-in adapters run.
--only REGEX: only the ways whose names match (`none`: only the engines). --first K: feeds from the K-th on.
--values FILE: keeps the values of each way in a file, and prints the tables of all values in it, so that a long table
can be made in pieces.
--weights FILE, for some suites: measures a checkpoint; with llm, more honest rows show the error of rounding it.

Honest rows are precisions of weights and activations, each with the declared precisions whose gates it must pass;
cheats read weights of fewer bits than the class has, or leave work out. A second table compares each gate with the
worst honest way and the mildest cheat: both should be a factor of 3 or more away. `middle` is the geometric mean of the
two. Then audits of 30 feeds are simulated: a random part of the feeds is cheated, with values drawn from the values of
the mildest cheat.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast, get_args

import numpy as np

from bench.separation import Row
from mixmark.harness.contracts.protocols import Adapter, Array, Runner, Suite, Use
from mixmark.harness.contracts.schema import WeightClass, weight_class
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.worker import load_generator

ROUNDINGS = {"16 bits": "bf16", "fp8": "fp8", "int8": "int8", "int4": "int4"}
"""The groups of declared precisions with a separate gate, each with a precision of the group."""
PARTS = {"quarter": 1 / 4, "tenth": 1 / 10}
AUDITED = 30  # feeds in the audit of an official run
TRIALS = 10_000


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
    """The fraction of simulated audits with at least one failing feed.

    Each feed is cheated with the probability `part`; its value is then drawn from `cheat`, else from `right`.
    """
    random = np.random.default_rng(0)
    size = TRIALS, AUDITED
    scores = np.where(random.random(size) < part, random.choice(cheat.values, size), random.choice(right.values, size))
    return float((scores > at_most).any(1).mean())


def in_part(rows: Sequence[Row], at_most: float) -> str:
    """How often audits catch the mildest cheat on a part of the feeds. The other feeds run in the best honest way."""
    mildest = min((row for row in rows if not row.honest), key=lambda row: row.extreme)
    best = min((row for row in rows if row.honest), key=lambda row: row.extreme)
    shares = {part: caught(mildest, best, of_feeds, at_most) for part, of_feeds in PARTS.items()}
    told = ", ".join(f"on a random {part} of the feeds in {share * 100:.2f} %" for part, share in shares.items())
    return f"The mildest cheat against the gate of {at_most:g}, {TRIALS:,} audits of {AUDITED} feeds: caught {told}."


BATCH = {"dlrm": 2048, "resnet50": 8}
"""The batch of a feed of a real engine; 1 for other suites. Each unit is compared separately."""


def opened(stack: ExitStack, name: str, suite: Suite) -> Runner:
    """name: ADAPTER:PRECISION[:OPTION=VALUE …], with options as in mixmark.toml."""
    adapter, precision, *options = name.split(":")
    loaded = registry.Plugin("adapters", adapter, registry.BUILT_IN["adapters"][adapter], "built in").load()
    engine = cast(Adapter, loaded(dict(option.split("=", 1) for option in options)))
    device = next(each for each in engine.discover() if each.id == CPU.id)
    return stack.enter_context(engine.open(device, suite, precision, Use.of("single-stream")))


def answered(suite: Suite, engine: str, seeds: Iterable[int]) -> Iterator[tuple[Array, Array]]:
    """The output and the reference of one feed for each seed."""
    with ExitStack() as stack:
        runner = opened(stack, engine, suite)
        referee = opened(stack, f"{REFERENCE}:fp32", suite.reference())
        for seed in seeds:
            feed = suite.feeds(BATCH.get(suite.name, 1), seed)(0)
            output = np.concatenate([load_generator.host_array(out) for out in runner(feed)])
            reference = np.concatenate([load_generator.host_array(out) for out in referee({**feed, "output": output})])
            yield output, reference


def engine(suite: Suite, name: str, nonces: Iterable[int]) -> Row:
    """A real engine as an honest row. name: as in `opened`."""
    precision = name.split(":")[1]
    gate = suite.gate(precision)
    assert gate, f"{suite.name} has no gate"
    values: list[float] = []
    for output, reference in answered(suite, name, nonces):
        if len(reference) == len(output) + 1:  # each audit compares as many samples as the gate requires
            for start in range(0, len(output), gate.samples):
                rows = np.r_[start : min(start + gate.samples, len(output))]
                values.append(suite.quality(output[rows], np.concatenate((reference[rows], reference[-1:]))))
        else:
            values.append(suite.quality(output, reference))
    declared = next((each for each, one in ROUNDINGS.items() if one == precision), "16 bits")
    return Row(name.replace(":", " "), declared, tuple(values), "the adapter itself")


def kept(file: Path, rows: Iterable[Row]) -> list[Row]:
    """Appends the rows to a file, and returns all its rows, with the values of each way joined."""
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
    parser.add_argument("--bits", type=int, choices=get_args(WeightClass), default=16)
    parser.add_argument("--feeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--engines", nargs="*", default=())
    parser.add_argument("--values", type=Path)
    parser.add_argument("--weights")
    asked = parser.parse_args()
    options = {"weights": asked.weights} if asked.weights else {}
    module = asked.suite.replace("-", "_")
    root = Path(__file__).parents[1]
    places = (f"separation/{module}.py", f"capabilities/{module}/separation.py", f"capabilities/*/{module}.py")
    found = next(path for place in places for path in root.glob(place))
    cheats = importlib.import_module(".".join(("bench", *found.relative_to(root).with_suffix("").parts)))
    suite = registry.build_suite(asked.suite, registry.BUILT_IN["suites"][asked.suite], asked.tier, options, asked.bits)
    nonces = range(asked.first, asked.first + asked.feeds)

    def measured() -> Iterator[Row]:
        for name in asked.engines:
            yield engine(suite, name, nonces)
        if asked.only != "none":
            yield from cheats.values(asked.tier, asked.bits, nonces, re.compile(asked.only).search, **options)

    rows = kept(asked.values, measured()) if asked.values else list(measured())
    if all(any(row.honest == honest for row in rows) for honest in (True, False)):
        declared = [each for each in ROUNDINGS.values() if weight_class(each) == asked.bits]
        gates = dict.fromkeys(gate.at_most for each in declared if (gate := suite.gate(each)))
        print(table(rows, suite), "", *(in_part(rows, at_most) for at_most in gates), sep="\n")


if __name__ == "__main__":
    main()
