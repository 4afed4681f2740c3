"""The limits of the harness: the time to make feeds, the time between two feeds, and the rate of a runner that does
nothing.

Run: python -m bench.feeds [TIER]   (edge)

First, the time to make a feed of each suite and its pool. Second, a real worker runs a runner that sleeps for a given
time, over feeds that cost nothing to make: the time from the last timestamp of a feed to the issue of the next feed is
spent in the harness, including the digest of an output and the nonce. Third, in the server tier, a runner yields zeros
at once, on a device that is not a processor. Printed are its rates alone and in a mixed run, over all time of the
window, relative to the mix's nominal device (which spends a quarter of its time on each suite), and the cores that the
worker needs for each second of the nominal device's mixed run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Runner, Suite, Use, Weights
from mixmark.harness.contracts.schema import Device, Limits, ScenarioName
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import load_generator
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, SuiteChoice
from mixmark.harness.worker.outputs import Commitments
from mixmark.suites.probe import Probe
from mixmark.suites.weights import Synthetic

BATCHES = {"llm": (1,), "diffusion": (1,), "dlrm": (1, 2048, 8192), "resnet50": (1, 32, 128, 512), "probe": (1,)}
SLEEPS_S = (0.0, 0.001, 0.01)
NULL = (("llm", 1), ("diffusion", 1), ("dlrm", 4096), ("resnet50", 128))
"""The suites of the runner that does nothing, and their batches."""
QUARTER = 4  # a nominal device runs each suite in a quarter of a second, so alone it is four times as fast
WINDOW_NS = 2_000_000_000
LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=WINDOW_NS, max_ns=WINDOW_NS, min_feeds=1)
TIMEOUT_S = 60
DEVICE = Device(id="npu:none", kind="npu", memory_pool="npu:none", precisions=("fp32",))


class EmptySuite(Probe):
    """A suite without work, whose feeds cost nothing to make."""

    name = "nothing"

    def graphs(self) -> Mapping[str, Graph]:
        return {}

    def weights(self) -> Weights:
        return Synthetic(self.name, {}, lambda name, shape: 0.0, self.weight_class)

    def feeds(self, batch: int, seed: int) -> Feeds:
        return lambda nonce: {"x": np.full(batch, nonce)}

    def units(self, batch: int) -> int:
        return batch


@dataclass(frozen=True)
class Sleeps:
    """A runner that sleeps and computes nothing. Its outputs have the suite's shape."""

    suite: Suite
    seconds: float
    concurrency: int
    facts: Mapping[str, str]

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if self.seconds:
            time.sleep(self.seconds)
        match self.suite.name:
            case "llm":
                token = np.zeros(1, np.int64)
                for _ in range(self.suite.units(1)):
                    yield token
            case "diffusion":
                count, _, *latent = feed["noise"].shape
                yield np.zeros((count, 3, *(8 * side for side in latent)), np.float32)
            case "dlrm":
                yield np.zeros(len(feed["dense"]), np.float32)
            case "resnet50":
                yield np.zeros((len(feed["images"]), 1000), np.float32)
            case _:
                yield feed["x"]


class SleepingAdapter:
    """An adapter whose runner sleeps. options: `seconds` of each feed, `concurrency`."""

    name = "sleeper"

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def discover(self) -> Iterable[Device]:
        return (DEVICE,)

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        yield Sleeps(suite, float(self.options.get("seconds", 0)), int(self.options.get("concurrency", 1)), {})


@contextmanager
def begun(suite: SuiteChoice, scenario: ScenarioName, batch: int, **options: str) -> Iterator[tuple[Worker, Path]]:
    """A worker that is ready for its window, and its folder."""
    plugin = Plugin("adapters", "sleeper", "bench.feeds:SleepingAdapter", "")
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        scratch = Path(folder)
        with Worker(plugin, options, scratch, scratch / "log") as worker:
            worker.call(AdapterCalls.open, TIMEOUT_S)(
                key="a", device=DEVICE, suite=suite, precision="bf16", scenario=scenario, free_bytes=None
            )
            prepare = worker.call(AdapterCalls.prepare, TIMEOUT_S)
            prepare(key="a", scenario=scenario, batch=batch, seed=0, limits=LIMITS)
            ahead = load_generator.made_ahead(DEVICE, batch)
            worker.call(AdapterCalls.begin, TIMEOUT_S)(key="a", pool=0, ahead=ahead)
            yield worker, scratch


def between_us(seconds: float) -> tuple[float, float]:
    """The median of the microseconds between two feeds, and their fraction of the window."""
    choice = SuiteChoice(name="nothing", spec="bench.feeds:EmptySuite", tier="smoke")
    with begun(choice, "single-stream", 1, seconds=str(seconds)) as (worker, scratch):
        alone(worker, scratch)
        done = worker.completions(scratch / "out.npz")[0]
    gaps = done.issued_ns[1:] - done.yielded_ns[done.ends - 1][:-1]
    return float(np.median(gaps)) / 1e3, float(gaps.sum() / (done.yielded_ns[-1] - done.issued_ns[0]))


def alone(worker: Worker, scratch: Path) -> int:
    """The units that the worker finishes in a window while it issues the feeds."""
    measure = worker.call(AdapterCalls.measure, TIMEOUT_S, window=Commitments())
    measure(key="a", seed=0, limits=LIMITS, out=str(scratch / "out.npz"))
    return int(worker.completions(scratch / "out.npz")[0].units.sum())


def mixed(worker: Worker, scratch: Path) -> int:
    """The units that the worker finishes in a window with single nonces from the parent, one feed ahead."""
    units = serial = 0
    end_ns = time.monotonic_ns() + WINDOW_NS
    while time.monotonic_ns() < end_ns:
        worker.send(AdapterCalls.feed, key="a", serial=serial, nonce=seeds.nonce(0, serial))
        serial += 1
        if serial > 1:
            units += sum(worker.fed(TIMEOUT_S, Commitments()).yields[1::2])
    return units


def null_rate(name: str, batch: int, concurrency: int, run: Callable[[Worker, Path], int]) -> tuple[float, float]:
    """Units a second of a runner that does nothing, and the worker's CPU seconds for each unit."""
    choice = SuiteChoice(name=name, spec=registry.BUILT_IN["suites"][name], tier="server")
    scenario: ScenarioName = "offline" if batch > 1 else "single-stream"
    with begun(choice, scenario, batch, concurrency=str(concurrency)) as (worker, scratch):
        process = psutil.Process(worker.pid)
        begin_s, before = time.perf_counter(), process.cpu_times()
        units = run(worker, scratch)
        took_s, after = time.perf_counter() - begin_s, process.cpu_times()
    return units / took_s, (after.user + after.system - before.user - before.system) / units


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
        suite: Any = registry.find("suites")[name].load()(tier, {})
        for batch in batches:
            begin = time.perf_counter()
            feeds = suite.feeds(batch, 0)
            pool_ms = 1e3 * (time.perf_counter() - begin)
            took_us = making_us(feeds)
            each = f"{took_us:9.1f} µs a feed, {batch / took_us * 1e6:10,.0f} samples/s"
            print(f"  {name:10} batch {batch:5}  {each}, {pool_ms:6.1f} ms for the pool")
    print("between two feeds: medians, and their share of the window")
    for seconds in SLEEPS_S:
        took_us, share = between_us(seconds)
        print(f"  a feed of {1e3 * seconds:4.1f} ms: {took_us:6.1f} µs ({share:6.2%})")
    nominal = mixes.frozen()["server-1"].units
    print("a runner that does nothing, server tier: units/s, × the nominal rate alone; cores for a second of server-1")
    for name, batch in NULL:
        for what, run in (("alone", alone), ("mixed", mixed)):
            for concurrency in (1, 2) if batch > 1 else (1,):
                rate, cpu_s = null_rate(name, batch, concurrency, run)
                times, cores = rate / (QUARTER * nominal[name]), cpu_s * nominal[name]
                figures = f"{rate:12,.0f} {times:8.2f} × {cores:8.3f} cores"
                print(f"  {name:10} batch {batch:5}, concurrency {concurrency}, {what:6} {figures}", flush=True)


if __name__ == "__main__":
    main()
