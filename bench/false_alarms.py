"""False alarms: how often an engine that Mixmark ships, and that is honest, would fail its gate.

    python -m bench.false_alarms SUITE TIER [ADAPTER:PRECISION[:OPTION=VALUE …] …] [--feeds N] [--values FOLDER]

It runs built-in adapters on the CPU (torch:bf16 and onnxruntime:fp32 by default) on feeds that are independent of each
other, each from a seed of its own, and compares every unit of their outputs with the fp32 reference as the audit does.
A unit is what a gate judges by itself: an image of resnet50 or diffusion, a sample of dlrm, a whole output of llm, a
pass of the probe. With --values it keeps the values in a folder and goes on from there the next time.

A gate lies beyond all values that can be measured, so the tail is extrapolated in two ways, and the one with the larger
probability counts:

    log-normal   a normal distribution of the metric's logarithm, through the median and the tenth largest value (the
                 90 % quantile where there are fewer than 100 values)
    Pareto       a generalised Pareto distribution of the tenth of the logarithms that is largest, by maximum likelihood

The table says the probability p that a unit lies above the gate and 1 − (1 − p)^n that a run has a false alarm, where n
is the number of units that the run audits of the suite on one device (`UNITS`, `FEEDS`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import stats

from mixmark.harness.contracts.protocols import Adapter, Array, Runner, Suite, Use
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plugins import registry
from mixmark.harness.worker import load_generator

ENGINES = ("torch:bf16", "onnxruntime:fp32")
BATCH = {"dlrm": 2048, "resnet50": 8}
"""The batch of a feed here, where it is not 1. Each unit of it is judged by itself."""
UNITS = {"dlrm": 256, "resnet50": 64, "diffusion": 8}
"""How many units of a feed are judged in a run, where it is not 1: dlrm's worst of 256, and large batches of images."""
FEEDS = {"smoke": {"quick": 2, "official": 7}, "edge": {"quick": 2, "official": 7 * 30}}
"""How many feeds a run audits of a suite on a device: of two scenarios and of five mixes, of the native one and one mix
in quick; one of each, or 30 of each."""


def judged(suite: Suite, output: Array, reference: Array) -> list[float]:
    """The metric of each unit. Where the reference has one row more than the output, each unit is compared with its own
    row and that last one; else the output is one unit."""
    if len(reference) != len(output) + 1:
        return [suite.quality(output, reference)]
    rows = (np.concatenate((reference[at : at + 1], reference[-1:])) for at in range(len(output)))
    return [suite.quality(output[at : at + 1], row) for at, row in enumerate(rows)]


def opened(stack: ExitStack, name: str, suite: Suite) -> Runner:
    """name: ADAPTER:PRECISION[:OPTION=VALUE …], the options being those of mixmark.toml."""
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
            output = np.concatenate([load_generator.plain(out) for out in runner(feed)])
            reference = np.concatenate([load_generator.plain(out) for out in referee({**feed, "output": output})])
            yield output, reference


def above(values: npt.NDArray[np.float64], gate: float) -> float:
    """The probability that a value lies above the gate, by the tail that is heavier. values: positive."""
    logs, limit = np.log(values), math.log(gate)
    centre, share = float(np.median(logs)), min(0.1, 10 / len(logs))
    spread = (float(np.quantile(logs, 1 - share)) - centre) / float(stats.norm.isf(share))
    normal = float(stats.norm.sf((limit - centre) / spread))
    start = float(np.quantile(logs, 0.9))
    shape, _, scale = stats.genpareto.fit(logs[logs > start] - start, floc=0)
    pareto = 0.1 * float(stats.genpareto.sf(limit - start, shape, scale=scale)) if limit > start else 1.0
    return max(normal, pareto)


def line(suite: Suite, engine: str, feeds: int, values: npt.NDArray[np.float64]) -> str:
    found = suite.gate(engine.split(":")[1])
    assert found is not None
    largest, gate = float(values.max()), found.at_most
    p = above(values[values > 0], gate) * float((values > 0).mean()) if largest > 0 else 0.0
    runs = [-math.expm1(count * UNITS.get(suite.name, 1) * math.log1p(-p)) for count in FEEDS[suite.tier].values()]
    told = [f"{share:.1g}" if share > 1e-15 else "0" for share in (p, *runs)]
    middle = float(np.median(values))
    return (
        f"| {suite.name} {suite.tier} | {engine.replace(':', ' ')} | {feeds:,} | {len(values):,} | {middle:.2g} | "
        f"{largest:.2g} | {gate:g} | {gate / largest if largest else math.inf:.3g} | {' | '.join(told)} |"
    )


HEADER = (
    "| suite | engine | feeds | units | median | largest | gate | gate / largest | p of a unit | quick | official |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def processor() -> str:
    with suppress(OSError):
        for each in Path("/proc/cpuinfo").read_text().splitlines():
            if each.startswith("model name"):
                return each.partition(":")[2].strip()
    return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("tier", choices=("smoke", "edge"))
    parser.add_argument("engines", nargs="*", default=ENGINES)
    parser.add_argument("--feeds", type=int, default=100)
    parser.add_argument("--values", type=Path)
    asked = parser.parse_args()
    suite = registry.suite(asked.suite, registry.BUILT_IN["suites"][asked.suite], asked.tier, {})
    print(f"Processor: {processor()}\n\n{HEADER}")
    for engine in asked.engines:
        name = f"{asked.suite}-{asked.tier}-{engine.replace(':', '-')}.csv"
        path = asked.values / name if asked.values else None
        rows = [[*map(float, row.split(","))] for row in path.read_text().split()] if path and path.exists() else []
        for pair in answered(suite, engine, range(len(rows), asked.feeds)) if len(rows) < asked.feeds else ():
            rows.append(row := judged(suite, *pair))
            if path:
                with path.open("a") as file:
                    print(*(f"{value:.6g}" for value in row), sep=",", file=file)
        print(line(suite, engine, len(rows), np.concatenate(rows)), flush=True)


if __name__ == "__main__":
    main()
