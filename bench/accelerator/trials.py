"""Questions to a device that no run asks: python -m bench.accelerator.trials threads|ceilings|tf32 DEVICE ADAPTER TIER

threads: how long the feeds of the first thread take, in ms, of new threads, and of one thread again and again.
ceilings: what the probe's kernels reach in the sizes of each tier, or at smoke in its alone, in TB/s and TFLOP/s.
tf32: the metric of fp32 with and without TF32 beside the gate, which must tell them apart. CUDA only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from bench.accelerator import absent
from mixmark.harness.contracts.protocols import Adapter, Feeds, Runner, Use
from mixmark.harness.contracts.schema import Device
from mixmark.harness.machine import config as configuration
from mixmark.harness.plugins import registry
from mixmark.suites.probe import TIERS

SUITES = {"resnet50": 8, "dlrm": 2048, "llm": 1, "diffusion": 1}
"""The suites with the batches of their feeds."""
PASSES = 10


def suite_of(name: str, tier: str, options: dict[str, str] | None = None) -> Any:
    return registry.find("suites")[name].load()(tier, options or {}, 16)


@contextmanager
def opened(
    adapter: Adapter, device: Device, suite: Any, precision: str, use: Any = "single-stream"
) -> Iterator[Runner]:
    with adapter.open(device, suite, precision, Use.of(use)) as runner:
        yield runner


def timed(runner: Runner, feed: Feeds, count: int) -> list[float]:
    """The time of each of the first feeds, in ms."""
    found = []
    for n in range(count):
        begin_ns = time.perf_counter_ns()
        list(runner(feed(n)))
        found.append(round((time.perf_counter_ns() - begin_ns) / 1e6, 2))
    return found


def threads(adapter: Adapter, device: Device, tier: str) -> None:
    for name, batch in SUITES.items():
        suite = suite_of(name, "smoke")
        with opened(adapter, device, suite, device.precisions[0], suite.scenarios[0]) as runner:
            first = [timed(runner, suite.feeds(batch, 0), 4)]
            fresh, kept = [], []
            for _ in range(3):
                with ThreadPoolExecutor(1) as pool:
                    fresh.append(pool.submit(timed, runner, suite.feeds(batch, 0), 3).result())
            with ThreadPoolExecutor(1) as pool:
                kept = [pool.submit(timed, runner, suite.feeds(batch, 0), 1).result() for _ in range(5)]
        print(f"{name}: first thread {first}; new threads {fresh}; one thread again and again {kept}", flush=True)


def ceilings(adapter: Adapter, device: Device, most: str) -> None:
    for tier in TIERS if most != "smoke" else (most,):
        for precision in device.precisions:
            bits = "32" if precision == "fp32" else "16"
            suite = suite_of("probe", tier, {"cache_bytes": str(50 << 20), "bits": bits})
            with opened(adapter, device, suite, precision) as runner:
                feed, costs = suite.feeds(1, 0), suite.costs(precision, 1)
                rates: dict[str, list[float]] = {cost.name: [] for cost in costs}
                for made in [feed(n) for n in range(PASSES)]:
                    stamps = [time.perf_counter_ns()]
                    stamps += [time.perf_counter_ns() for _ in runner(made)]
                    for cost in costs:
                        spent_ns = stamps[cost.yields] - stamps[0]
                        rates[cost.name].append((cost.bytes + cost.flops) * cost.yields / spent_ns)
                        stamps = stamps[cost.yields :]
                words = (f"{name} {max(rate) / 1e3:.3g}" for name, rate in rates.items())
            print(f"{tier} {precision}: {', '.join(words)} (TB/s, TFLOP/s)", flush=True)


def metric(adapter: Adapter, device: Device, suite: Any, batch: int) -> float:
    """The worst metric of three feeds in fp32 against the reference on the CPU."""
    referee = registry.find("adapters")["torch"].load()({})
    cpu = next(each for each in referee.discover() if each.kind == "cpu")
    with opened(adapter, device, suite, "fp32") as runner:
        outputs = [(feed, np.concatenate(list(runner(feed)))) for feed in map(suite.feeds(batch, 0), range(3))]
    with opened(referee, cpu, suite.reference(), "fp32") as runner:
        return max(
            float(suite.quality(output, np.concatenate(list(runner({**feed, "output": output})))))
            for feed, output in outputs
        )


def tf32(adapter: Adapter, device: Device, tier: str) -> None:
    import torch

    if adapter.name != "torch" or not torch.cuda.is_available():
        absent("TF32 is switched by torch, on CUDA")

    def turn_on() -> str:
        torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]  # torch gives it no types
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        return "on"

    for name, batch in SUITES.items():
        suite = suite_of(name, "smoke")
        off = metric(adapter, device, suite, batch)
        with mock.patch("mixmark.harness.adapters.torch._turn_off_tf32", turn_on):
            on = metric(adapter, device, suite, batch)
        print(f"{name} fp32: TF32 off {off:.3g}, on {on:.3g}, gate {suite.gate('fp32')}", flush=True)


def main() -> None:
    trial, id, name, tier = sys.argv[1:]
    adapter = registry.find("adapters")[name].load()(configuration.load(None).adapter(name).options)
    device = next(each for each in adapter.discover() if each.id == id)
    {"threads": threads, "ceilings": ceilings, "tf32": tf32}[trial](adapter, device, tier)
    print(f"{trial} on {device.name}")


if __name__ == "__main__":
    main()
