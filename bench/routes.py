"""Our routes beside the engines that a user would install instead, on the same weights and the same work.

Run: python -m bench.routes [ROW …]   (every row that is measured on this kind of machine)

Our route runs in a worker, through the harness's loop; the peer runs in a separate process, in the engine's loop. Both
stay loaded and work in turn, so that drift of the machine's speed affects both alike. A row is printed with the median
and range of both rates and the median of the ratios. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import importlib
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.capabilities import parts
from mixmark.harness.adapters.devices import BF16, cpu, flags
from mixmark.harness.contracts.schema import Completions, Limits, Tier, weight_class
from mixmark.harness.judge.statistics.timestamps import throughput_per_s
from mixmark.harness.plugins import registry
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, SuiteChoice
from mixmark.harness.worker.outputs import Commitments

ROUNDS = 5
WINDOW_NS = 4_000_000_000
TIMEOUT_S = 600
TIER: Tier = "edge"
SCREENING = Limits(
    warmup_ns=WINDOW_NS, search_ns=20_000_000_000, min_ns=WINDOW_NS, max_ns=WINDOW_NS, min_feeds=1, screening=True
)


EAGER = "eager"


@dataclass(frozen=True)
class RouteRow:
    """A goal. peer: a module in bench/peers or a whole module name, and its precision; EAGER: our route by torch."""

    suite: str
    scenario: Any
    adapter: str
    precision: Any
    peer: str
    peer_precision: str
    goal: float
    options: Mapping[str, str] = field(default_factory=dict)


COMPILED = {"cpu": "yes"}
ROWS = {
    "resnet50-bf16": RouteRow("resnet50", "offline", "openvino", "bf16", "openvino", "bf16", 0.98),
    "resnet50-int8": RouteRow("resnet50", "offline", "openvino", "int8", "openvino", "int8", 0.98),
    "diffusion-bf16": RouteRow("diffusion", "single-stream", "openvino", "bf16", "openvino", "bf16", 1.0),
    "dlrm-bf16": RouteRow("dlrm", "offline", "openvino", "bf16", "openvino", "bf16", 0.98),
    "dlrm-plain": RouteRow("dlrm", "offline", "torch", "bf16", "torch", "fp32", 1.5),
    "dlrm-plain-bare": RouteRow("dlrm", "offline", "torch", "fp32", "torch", "fp32", 0.98),
    "dlrm-onnxruntime": RouteRow("dlrm", "offline", "torch", "bf16", "onnxruntime", "fp32", 1.2),
    "dlrm-onnxruntime-bare": RouteRow("dlrm", "offline", "onnxruntime", "fp32", "onnxruntime", "fp32", 0.98),
    "resnet50-onnxruntime-bare": RouteRow("resnet50", "offline", "onnxruntime", "fp32", "onnxruntime", "fp32", 0.98),
    "llm-torchao-int8": RouteRow("llm", "single-stream", "inductor", "int8", EAGER, "bf16", 1.0, COMPILED),
    "llm-inductor": RouteRow("llm", "single-stream", "inductor", "bf16", EAGER, "bf16", 1.0, COMPILED),
    "diffusion-inductor": RouteRow("diffusion", "single-stream", "inductor", "bf16", EAGER, "bf16", 1.0, COMPILED),
    "dlrm-inductor": RouteRow("dlrm", "offline", "inductor", "bf16", EAGER, "bf16", 1.0, COMPILED),
    "diffusion-compiled": RouteRow("diffusion", "single-stream", "torch", "bf16", "diffusers", "bf16", 1.3),
}


@contextmanager
def ours(row: RouteRow) -> Iterator[tuple[Callable[[], float], str]]:
    """A function that measures a window of our route and returns units per second, and a description of the route."""
    suite = registry.find("suites")[row.suite]
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        out = Path(folder) / "out.npz"
        with Worker(registry.find("adapters")[row.adapter], row.options, Path(folder), Path(folder) / "log") as worker:
            devices = worker.call(AdapterCalls.discover, TIMEOUT_S)().devices
            device = next(each for each in devices if each.kind == "cpu")
            choice = SuiteChoice(name=row.suite, spec=suite.spec, tier=TIER, weight_class=weight_class(row.precision))
            opened = worker.call(AdapterCalls.open, TIMEOUT_S)(
                key="a", device=device, suite=choice, precision=row.precision, scenario=row.scenario, free_bytes=None
            )
            batch = None if row.scenario == "offline" else 1
            prepare = worker.call(AdapterCalls.prepare, TIMEOUT_S)
            prepared = prepare(key="a", scenario=row.scenario, batch=batch, seed=0, limits=SCREENING)
            worker.call(AdapterCalls.begin, TIMEOUT_S)(key="a", pool=0)

            def window() -> float:
                measure = worker.call(AdapterCalls.measure, TIMEOUT_S, window=Commitments())
                measure(key="a", seed=0, limits=SCREENING, out=str(out))
                return rate(row.suite, worker.completions(out)[0])

            peak = f"loaded in {opened.load_ns / 1e9:.1f} s, peak {worker.peak_pss_bytes / 2**30:.2f} GiB"
            yield window, f"{opened.concurrency} × batch {prepared.batch}, {peak}"


def rate(suite: str, done: Completions) -> float:
    """Units per second, as in a result; of tokens without the first one of each feed, as in the engines' loops."""
    if suite not in ("llm", "ssm", "language-model", "gguf-file"):
        return throughput_per_s(done) or 0.0
    decoded = int(done.units.sum() - done.units[done.starts].sum())
    return float(decoded / (done.yielded_ns[done.ends - 1] - done.yielded_ns[done.starts]).sum() * 1e9)


@contextmanager
def peers(row: RouteRow) -> Iterator[Callable[[], float]]:
    """A function that runs the peer for a while and returns its rate."""
    if row.peer == EAGER:
        with ours(replace(row, adapter="torch", precision=row.peer_precision, options={})) as (eager, _):
            yield eager
        return
    command = [sys.executable, "-m", "bench.routes", "--peer", row.peer, row.suite, row.peer_precision]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    replies, requests = process.stdout, process.stdin

    def window() -> float:
        requests.write("\n")
        requests.flush()
        line = replies.readline()
        if not line:
            raise SystemExit(f"the peer {row.peer} ended while it ran {row.suite}")
        return float(line)

    try:
        window()  # loads, and warms up
        yield window
    finally:
        requests.close()
        process.wait()


def be_peer(module: str, suite: str, precision: str) -> None:
    """Works once for each line of standard input."""
    found = importlib.import_module(module if module.startswith("bench.") else f"bench.peers.{module}")
    with getattr(found, suite)(TIER, precision) as work:
        for _ in sys.stdin:
            print(work(), flush=True)


def compare(name: str, row: RouteRow) -> None:
    with ours(row) as (window, what), peers(row) as peer:
        pairs = [(window(), peer()) for _ in range(ROUNDS)]
    mine, other = ([pair[side] for pair in pairs] for side in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    peer_name = row.peer.split(".")[-1]
    print(
        f"{name}: {row.adapter} {row.precision} {spread(mine)}, {peer_name} {row.peer_precision} {spread(other)},"
        f" ratio {ratio:.3f} (goal {row.goal}, {'met' if ratio >= row.goal else 'missed'}); {what}",
        flush=True,
    )


def spread(rates: list[float]) -> str:
    return f"{statistics.median(rates):.4g} ({min(rates):.4g} to {max(rates):.4g})"


def main() -> None:
    match sys.argv[1:]:
        case ["--peer", module, suite, precision]:
            be_peer(module, suite, precision)
        case asked:
            sets = sorted(flags() & (BF16 | {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "sve"}))
            print(f"{cpu(()).name or platform.processor()}, {', '.join(sets)}", flush=True)
            rows = {name: row for of_one in (ROWS, *parts("ROWS").values()) for name, row in of_one.items()}
            for name in asked or rows:
                compare(name, rows[name])


if __name__ == "__main__":
    main()
