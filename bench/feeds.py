"""The time between two feeds, in which nothing is timed.

Run: python -m bench.feeds [TIER]   (edge)

First, the time of making a feed of each suite, and of the pool that it comes from. Second, a real worker runs a runner
that sleeps for as long as it is told, over feeds that cost nothing to make: what is left between the last stamp of one
feed and the issue of the next is the harness, the digest of an answer and the nonce included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness import plugins, wire
from harness.contracts import Array, Feed, Feeds, Graph, Runner, Suite, Use, Weights
from harness.plugins import Plugin
from harness.schema import Device, Limits, ScenarioName
from harness.worker import Worker
from suites.probe import Probe
from suites.weights import drawn

BATCHES = {"llm": (1,), "diffusion": (1,), "dlrm": (1, 4096), "resnet50": (1, 32), "probe": (1,)}
SLEEPS_S = (0.0, 0.001, 0.01)
SCENARIO: ScenarioName = "single-stream"
WINDOW_NS = 2_000_000_000
TIMEOUT_S = 60
DEVICE = Device(id="npu:none", kind="npu", memory_pool="npu:none", precisions=("fp32",))


class Nothing(Probe):
    """A suite without work, whose feeds cost nothing to make."""

    name = "nothing"

    def graphs(self) -> Mapping[str, Graph]:
        return {}

    def weights(self) -> Weights:
        return drawn(self.name, {}, lambda name, shape: 0.0)

    def feeds(self, batch: int, seed: int) -> Feeds:
        return lambda nonce: {"x": np.full(batch, nonce)}

    def units(self, batch: int) -> int:
        return batch


class Sleeper:
    """An adapter whose runner sleeps. options: `seconds` of each feed."""

    name = "sleeper"
    slots = 1
    facts: Mapping[str, str] = {}

    def __init__(self, options: Mapping[str, str]) -> None:
        self.seconds = float(options["seconds"])

    def discover(self) -> Iterable[Device]:
        return (DEVICE,)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        yield self

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if self.seconds:
            time.sleep(self.seconds)
        yield feed["x"]


def between_us(seconds: float) -> tuple[float, float]:
    """The median of the microseconds between two feeds, and their share of the window."""
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=WINDOW_NS, max_ns=WINDOW_NS, min_feeds=1)
    plugin = Plugin("adapters", "sleeper", "bench.feeds:Sleeper", "")
    choice = wire.SuiteChoice(name="nothing", spec="bench.feeds:Nothing", tier="smoke")
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        scratch = Path(folder)
        with Worker(plugin, {"seconds": str(seconds)}, scratch, scratch / "log") as worker:
            opening = wire.Open(
                key="a", device=DEVICE, suite=choice, precision="fp32", scenario=SCENARIO, free_bytes=None
            )
            worker.call(opening, TIMEOUT_S)
            worker.call(wire.Prepare(key="a", scenario=SCENARIO, batch=1, seed=0, limits=limits), TIMEOUT_S)
            worker.call(wire.Begin(key="a", pool=0, seed=0), TIMEOUT_S)
            measure = wire.Measure(key="a", limits=limits, out=str(scratch / "out.npz"))
            worker.call(measure, TIMEOUT_S)
            done = worker.completions(scratch / "out.npz")
    gaps = done.issued_ns[1:] - done.marks_ns[done.ends - 1][:-1]
    return float(np.median(gaps)) / 1e3, float(gaps.sum() / (done.marks_ns[-1] - done.issued_ns[0]))


def making_us(feeds: Feeds) -> float:
    took = []
    for nonce in range(50):
        begin_ns = time.perf_counter_ns()
        feeds(nonce)
        took.append(time.perf_counter_ns() - begin_ns)
    return float(np.median(took)) / 1e3


def main() -> None:
    tier = sys.argv[1] if len(sys.argv) > 1 else "edge"
    print(f"{tier}: making a feed, medians of 50")
    for name, batches in BATCHES.items():
        suite: Any = plugins.find("suites")[name].load()(tier, {})
        for batch in batches:
            begin = time.perf_counter()
            feeds = suite.feeds(batch, 0)
            pool_ms = 1e3 * (time.perf_counter() - begin)
            print(f"  {name:10} batch {batch:5}  {making_us(feeds):9.1f} µs a feed, {pool_ms:7.1f} ms for the pool")
    print("between two feeds: medians, and their share of the window")
    for seconds in SLEEPS_S:
        took_us, share = between_us(seconds)
        print(f"  a feed of {1e3 * seconds:4.1f} ms: {took_us:6.1f} µs ({share:6.2%})")


if __name__ == "__main__":
    main()
