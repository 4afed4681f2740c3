"""Bandwidth of decoding: the llm at batch 1, compared with the probe by torch in fp32.

Run: python -m bench.llm_bandwidth [TIER [ADAPTER:PRECISION …]]   (edge, 8 GB of memory, and routes of each class)

Both suites are open in one process. They alternate, a pass of the probe and then a few tokens of an output, so that
drift of the machine's speed affects both alike. The bytes of a token come from the suite's cost model, which counts no
scales: an engine with a 16-bit scale for each 32 weights reads 6 % more at int8 and 12 % more at int4. The probe's
gemv, whose matrices together exceed the caches, gives the bandwidth.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from mixmark.harness.contracts.protocols import Use
from mixmark.harness.contracts.schema import weight_class
from mixmark.harness.judge.rules.integrity import LARGEST_CACHE_BYTES, last_level_bytes
from mixmark.harness.plugins import registry
from mixmark.harness.resources import processor

GOAL = 0.85
ROUTES = ("torch:fp32", "onnxruntime:fp32", "llamacpp:fp16", "llamacpp:int8", "llamacpp:int4")
ROUNDS = 7
TOKENS = 16  # in each round


class Bandwidth(NamedTuple):
    decode_bytes_per_s: float
    """The median over the rounds."""
    read_bytes_per_s: float
    """The median over the rounds."""
    kernel: str
    """The name of the probe's kernel."""
    ratios: list[float]
    """For each round, the bandwidth of decoding over the bandwidth of the kernel."""


def measure(route: str, tier: str) -> Bandwidth:
    name, _, precision = route.partition(":")
    adapter, torch = (registry.find("adapters")[each].load()({}) for each in (name, "torch"))
    device, by_torch = (next(each for each in one.discover() if each.kind == "cpu") for one in (adapter, torch))
    caches = last_level_bytes(dict(processor.caches())) or LARGEST_CACHE_BYTES
    llm = registry.find("suites")["llm"].load()(tier, {}, weight_class(precision))
    probe = registry.find("suites")["probe"].load()(tier, {"cache_bytes": str(caches), "bits": "32"}, 16)
    decode = next(cost for cost in llm.costs(precision, 1) if cost.name == "decode")
    kernels = probe.costs("fp32", 1)
    use = Use.of("single-stream")
    with adapter.open(device, llm, precision, use) as writer, torch.open(by_torch, probe, "fp32", use) as prober:
        prompts, nonces = (map(suite.feeds(1, 0), itertools.count()) for suite in (llm, probe))
        for _ in prober(next(nonces)):  # warms up
            pass

        def tokens() -> Any:
            """An endless stream of decoded tokens, without each output's first token, which the prefill computes."""
            for prompt in prompts:
                yield from itertools.islice(writer(prompt), 1, None)

        def probed() -> dict[str, float]:
            """The bytes per second of the kernel whose matrices together exceed the caches."""
            rates = {}
            outputs = prober(next(nonces))
            begin = time.monotonic_ns()
            for cost in kernels:
                for _ in range(cost.yields):
                    next(outputs)
                end = time.monotonic_ns()
                if cost.bytes:
                    rates[cost.name] = cost.bytes * cost.yields * 1e9 / (end - begin)
                begin = end
            return rates

        output = tokens()
        next(output)
        decoded = []
        reads = defaultdict(list)
        for _ in range(ROUNDS):
            for name, rate in probed().items():
                reads[name].append(rate)
            spent: list[int] = []
            while len(spent) < TOKENS:
                begin = time.monotonic_ns()
                next(output)
                spent.append(time.monotonic_ns() - begin)
            decoded.append(decode.bytes * 1e9 / statistics.median(spent))
    kernel = max(reads, key=lambda name: statistics.median(reads[name]))
    ratios = [one / other for one, other in zip(decoded, reads[kernel], strict=True)]
    return Bandwidth(statistics.median(decoded), statistics.median(reads[kernel]), kernel, ratios)


def main() -> None:
    tier, *routes = [*sys.argv[1:], *("edge",)[len(sys.argv) - 1 :]]
    print(f"llm {tier}, {ROUNDS} rounds of a probe and {TOKENS} tokens, medians; goal: a ratio of at least {GOAL}")
    for route in routes or ROUTES:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            measured = process.submit(measure, route, tier).result()
        ratio = measured.decode_bytes_per_s / measured.read_bytes_per_s
        verdict = "ok" if ratio >= GOAL else "missed"
        print(
            f"{route:16} decode {measured.decode_bytes_per_s / 1e9:6.2f} GB/s, {measured.kernel}"
            f" {measured.read_bytes_per_s / 1e9:6.2f} GB/s, ratio {ratio:.3f} {verdict}"
            f"  (rounds {min(measured.ratios):.3f}–{max(measured.ratios):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
