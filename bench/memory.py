"""Peak memory of a worker at batch 1, loading included, compared with the size of the weights.

Run: python -m bench.memory [TIER [SUITE …]]   (edge, and every suite)

The PSS of the worker's process tree is sampled as in every run of Mixmark: twice a second, but not during the
measurement. A short peak between two samples is missed. The kernel's high-water mark of the worker's RSS is printed
beside it: it misses no peak, but counts shared memory in full. Graphs that are not shipped are exported in the worker;
unless the user's cache already has them, the export is part of the peak.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.schema import Limits
from mixmark.harness.plugins import registry
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, SuiteChoice
from mixmark.harness.worker.outputs import Commitments
from mixmark.suites import onnx_graphs

GIB = 1 << 30
ADAPTERS = ("torch", "onnxruntime", "openvino")
TIMEOUT_S = 600
LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=1, min_feeds=1)  # one feed


def weights_bytes(suite: Any) -> int:
    """The size of all weights in fp32."""
    weights = suite.weights()
    return sum(4 * math.prod(weights.spec(name).shape) for name in weights.names())


def peak(suite: str, adapter: str, tier: Any) -> tuple[int, int, dict[str, str]]:
    """The peaks of PSS and RSS in bytes, and the adapter's facts."""
    plugin = registry.find("adapters")[adapter]
    spec = registry.find("suites")[suite].spec
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        scratch = Path(folder)
        with Worker(plugin, {}, scratch, scratch / "log") as worker:
            devices = worker.call(AdapterCalls.discover, TIMEOUT_S)().devices
            device = next(each for each in devices if each.kind == "cpu")
            choice = SuiteChoice(name=suite, spec=spec, tier=tier)
            opened = worker.call(AdapterCalls.open, TIMEOUT_S)(
                key="a", device=device, suite=choice, precision="fp32", scenario="single-stream", free_bytes=None
            )
            prepare = worker.call(AdapterCalls.prepare, TIMEOUT_S)
            prepare(key="a", scenario="single-stream", batch=1, seed=0, limits=LIMITS)
            worker.call(AdapterCalls.begin, TIMEOUT_S)(key="a", pool=0)
            measure = worker.call(AdapterCalls.measure, TIMEOUT_S, window=Commitments())
            measure(key="a", seed=0, limits=LIMITS, out=str(scratch / "out.npz"))
            status = Path(f"/proc/{worker.pid}/status").read_text()
            high_water = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
            return worker.peak_pss_bytes, high_water, opened.facts


def main() -> None:
    tier, *suites = [*sys.argv[1:], *("edge",)[len(sys.argv) - 1 :]]
    print(f"{tier}, fp32, batch 1, GiB; goal: peak PSS of at most 1.3 × weights + 1 GiB")
    print(f"{'suite':10} {'adapter':12} {'weights':>8} {'PSS':>6} {'limit':>6} {'RSS':>6}  goal")
    found = registry.find("suites")
    for name, adapter in itertools.product(suites or list(found), ADAPTERS):
        suite = found[name].load()(tier, {})
        weights = weights_bytes(suite)
        limit = 1.3 * weights + GIB
        try:
            pss, rss, facts = peak(name, adapter, tier)
        except WorkerFailed as failed:
            print(f"{name:10} {adapter:12} {failed}", flush=True)
            continue
        verdict = "ok" if pss <= limit else "missed"
        home = Path(onnx_graphs.__file__).parent / name
        shipped = all(onnx_graphs.graph_path(home, tier, graph).exists() for graph in suite.graphs())
        routes = sorted({value for key, value in facts.items() if key.startswith("weights of")})
        graphs = "graphs shipped" if shipped else "graphs not shipped"
        route = f"  ({graphs}; weights as {' and as '.join(routes)})" if routes else ""
        print(
            f"{name:10} {adapter:12} {weights / GIB:8.2f} {pss / GIB:6.2f} {limit / GIB:6.2f} {rss / GIB:6.2f}"
            f"  {verdict}{route}",
            flush=True,
        )


if __name__ == "__main__":
    main()
