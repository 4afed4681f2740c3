"""How close decoding comes to the memory's bandwidth: the llm at batch 1 in fp32, beside the probe's kernels.

Run: python -m bench.llm_bandwidth [TIER [ADAPTER …]]   (edge, 8 GB of memory, and both adapters)

Both suites are open in one process by the same adapter, and take turns: a pass of the probe, then a few tokens of an
answer, so that a machine whose speed drifts treats both alike. A token's bytes are the suite's own model of costs,
the bandwidth is that of the fastest of the probe's kernels that only read.
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

from harness import plugins
from harness.contracts import Use

GOAL = 0.85
ADAPTERS = ("torch", "onnxruntime")
ROUNDS = 7
TOKENS = 16  # a round


class Measured(NamedTuple):
    decode_bytes_per_s: float
    """Medians over the rounds, as is `read_bytes_per_s`."""
    read_bytes_per_s: float
    kernel: str
    ratios: list[float]
    """Of each round's own decoding to its own pass of that kernel."""


def measure(adapter_name: str, tier: str) -> Measured:
    adapter: Any = plugins.find("adapters")[adapter_name].load()({})
    device = next(each for each in adapter.discover() if each.kind == "cpu")
    llm, probe = (plugins.find("suites")[name].load()(tier, {}) for name in ("llm", "probe"))
    decode = next(cost for cost in llm.costs("fp32", 1) if cost.name == "decode")
    kernels = probe.costs("fp32", 1)
    largest = max(cost.bytes for cost in kernels if cost.name.startswith("read"))
    use = Use.of("single-stream")
    with adapter.open(device, llm, "fp32", use) as writer, adapter.open(device, probe, "fp32", use) as prober:
        prompts, nonces = llm.feeds(1, 0), probe.feeds(1, 0)
        for _ in prober(next(nonces)):  # warms up
            pass

        def tokens() -> Any:
            """Without the prefill, whose token is thrown away, and without ever ending."""
            for prompt in prompts:
                yield from itertools.islice(writer(prompt), 1, None)

        def probed() -> dict[str, float]:
            """Bytes a second of the kernels that only read, where the matrix is larger than the caches."""
            rates = {}
            begin = time.monotonic_ns()
            for cost, _ in zip(kernels, prober(next(nonces)), strict=True):
                end = time.monotonic_ns()
                if cost.name.startswith(("read", "gemv")) and cost.bytes == largest:
                    rates[cost.name] = cost.bytes * 1e9 / (end - begin)
                begin = time.monotonic_ns()
            return rates

        answer = tokens()
        next(answer)
        decoded = []
        reads = defaultdict(list)
        for _ in range(ROUNDS):
            for name, rate in probed().items():
                reads[name].append(rate)
            spent: list[int] = []
            while len(spent) < TOKENS:
                begin = time.monotonic_ns()
                next(answer)
                spent.append(time.monotonic_ns() - begin)
            decoded.append(decode.bytes * 1e9 / statistics.median(spent))
    kernel = max(reads, key=lambda name: statistics.median(reads[name]))
    ratios = [one / other for one, other in zip(decoded, reads[kernel], strict=True)]
    return Measured(statistics.median(decoded), statistics.median(reads[kernel]), kernel, ratios)


def main() -> None:
    tier, *adapters = [*sys.argv[1:], *("edge",)[len(sys.argv) - 1 :]]
    print(f"llm {tier} fp32, {ROUNDS} rounds of a probe and {TOKENS} tokens, medians; goal: a ratio of at least {GOAL}")
    for adapter in adapters or ADAPTERS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            measured = process.submit(measure, adapter, tier).result()
        ratio = measured.decode_bytes_per_s / measured.read_bytes_per_s
        verdict = "ok" if ratio >= GOAL else "missed"
        print(
            f"{adapter:12} decode {measured.decode_bytes_per_s / 1e9:6.2f} GB/s, {measured.kernel}"
            f" {measured.read_bytes_per_s / 1e9:6.2f} GB/s, ratio {ratio:.3f} {verdict}"
            f"  (rounds {min(measured.ratios):.3f}–{max(measured.ratios):.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
