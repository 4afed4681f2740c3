"""Separation of honest rounding from cheats: each suite's metric for both, at the shapes of a tier.

    python -m bench.separation SUITE TIER [--feeds N]      prints the tables of the pages

--bits 16|8|4: the weight class; by default 16.
--engines ADAPTER:PRECISION[:OPTION=VALUE …] …: rows of real engines, which the built-in adapters run.
--on DEVICE: the id of the device of the engines; by default the CPU.
--only REGEX: only the ways whose names match (`none`: only the engines). --first K: feeds from the K-th on.
--values FILE: keeps the values of each way in a file, and prints the tables of all values in it, so that a long table
can be made in pieces.
--weights FILE, for some suites: measures a checkpoint; with llm, more honest rows show the error of rounding it.

Honest rows are precisions of weights and activations, each with the declared precisions whose gates it must pass;
cheats read weights of fewer bits than the class has, or leave work out. The table compares each gate with the worst
honest way and the mildest cheat: both should be a factor of 3 or more away.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import cast, get_args

import numpy as np

from bench.separation import Row
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Adapter, Array, Runner, Suite, Use
from mixmark.harness.contracts.schema import WeightClass
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.resources import processor
from mixmark.harness.worker import load_generator

ROUNDINGS = {"16 bits": "bf16", "fp8": "fp8", "int8": "int8", "int4": "int4"}
"""The groups of declared precisions with a separate gate, each with a precision of the group."""
NEAREST = 3
"""The ways that are named, of the honest ones and of the cheats each: those nearest to the gate."""


def heading(device: str | None = None) -> str:
    """The command, the device it ran on, by default the processor, and the commit."""
    package = Path(sys.argv[0]).stem.replace("__main__", "")
    command = f"python -m bench.separation{package and f'.{package}'} {shlex.join(sys.argv[1:])}"
    commit = subprocess.check_output(("git", "rev-parse", "--short", "HEAD"), text=True).strip()
    return f"`{command}` ({device or processor.name()}, torch {version('torch')}, commit {commit})"


def table(rows: Sequence[Row], suite: Suite) -> str:
    """Each gate against the worst honest way and the mildest cheat, and the ways nearest to the gate, in Markdown."""
    honest = sorted((row for row in rows if row.honest), key=lambda row: -row.extreme)
    cheats = sorted((row for row in rows if not row.honest), key=lambda row: row.extreme)
    lines = [
        "| declared | gate | worst honest way | most | factor | mildest cheat | least | factor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rounding, precision in ROUNDINGS.items():
        worst = next((row for row in honest if rounding in row.declared.split(", ")), None)
        if worst and (gate := suite.gate(precision)):
            mildest, at_most, most, least = cheats[0], gate.at_most, max(worst.extreme, 1e-12), cheats[0].extreme
            lines.append(
                f"| {rounding} | {at_most:g} | {worst.name} | {most:.2g} | {at_most / most:.2g} | {mildest.name} | "
                f"{least:.2g} | {least / at_most:.2g} |"
            )
    return "\n".join((*lines, "", f"- Honest ways: {named(honest)}", f"- Cheats: {named(cheats)}"))


def named(rows: Sequence[Row]) -> str:
    """rows: the nearest to the gate first."""
    words = []
    for row in rows[:NEAREST]:
        span = "–".join(dict.fromkeys(f"{each:.2g}" for each in (min(row.values), max(row.values))))
        words.append(f"{row.name}{f' ({row.note})' if row.note else ''} {span}")
    others = [row.extreme for row in rows[NEAREST:]]
    words += [f"{len(others)} more {'up to' if rows[0].honest else 'from'} {others[0]:.2g}"] if others else []
    return "; ".join(words)


BATCH = {"dlrm": 2048, "resnet50": 8}
"""The batch of a feed of a real engine; 1 for other suites. Each unit is compared separately."""


def opened(stack: ExitStack, name: str, suite: Suite, id: str = CPU.id) -> Runner:
    """name: ADAPTER:PRECISION[:OPTION=VALUE …], with options as in mixmark.toml."""
    adapter, precision, *options = name.split(":")
    loaded = registry.Plugin("adapters", adapter, registry.BUILT_IN["adapters"][adapter], "built in").load()
    engine = cast(Adapter, loaded(dict(option.split("=", 1) for option in options)))
    device = next(each for each in engine.discover() if each.id == id)
    return stack.enter_context(engine.open(device, suite, precision, Use.of("single-stream")))


def answered(suite: Suite, engine: str, seeds: Iterable[int], id: str = CPU.id) -> Iterator[tuple[Array, Array]]:
    """The output and the reference of one feed for each seed."""
    with ExitStack() as stack:
        runner = opened(stack, engine, suite, id)
        referee = opened(stack, f"{REFERENCE}:fp32", suite.reference())
        for seed in seeds:
            feed = suite.feeds(BATCH.get(suite.name, 1), seed)(0)
            output = np.concatenate([load_generator.host_array(out) for out in runner(feed)])
            reference = np.concatenate([load_generator.host_array(out) for out in referee({**feed, "output": output})])
            yield output, reference


def engine(suite: Suite, name: str, nonces: Iterable[int], id: str = CPU.id) -> Row:
    """A real engine as an honest row. name: as in `opened`."""
    precision = name.split(":")[1]
    gate = suite.gate(precision)
    assert gate, f"{suite.name} has no gate"
    values: list[float] = []
    for output, reference in answered(suite, name, nonces, id):
        if len(reference) == len(output) + 1:  # each audit compares as many samples as the gate requires
            for start in range(0, len(output), gate.samples):
                rows = np.r_[start : min(start + gate.samples, len(output))]
                values.append(suite.quality(output[rows], np.concatenate((reference[rows], reference[-1:]))))
        else:
            values.append(suite.quality(output, reference))
    declared = next((each for each, one in ROUNDINGS.items() if one == precision), "16 bits")
    return Row(name.replace(":", " "), declared, tuple(values), f"the adapter itself, on {id}")


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
    parser.add_argument("--on", default=CPU.id)
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
            try:
                row = engine(suite, name, nonces, asked.on)
            except Unsupported as error:
                print(f"{name}: {error}")
            else:
                yield row
        if asked.only != "none":
            yield from cheats.values(asked.tier, asked.bits, nonces, re.compile(asked.only).search, **options)

    rows = kept(asked.values, measured()) if asked.values else list(measured())
    if all(any(row.honest == honest for row in rows) for honest in (True, False)):
        print(heading(), table(rows, suite), sep="\n\n")
    else:
        print(*(f"{row.name} ({row.note}): {row.extreme:.3g}" for row in rows), sep="\n")


if __name__ == "__main__":
    main()
