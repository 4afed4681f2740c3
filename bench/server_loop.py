"""Response times in the server scenario, compared with MLCommons' LoadGen: the same systems at the same rate.

Run: python -m bench.server_loop [seconds a measurement]

Both offer Poisson arrivals, from different random draws. One system replies at once; the other sleeps for each query
and serves one at a time from a queue. Blocks alternate, so that drift of the machine's speed affects both alike.
"""

from __future__ import annotations

import json
import math
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import mlperf_loadgen as loadgen
import numpy as np

from bench.drive_loop import feeds
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import Limits
from mixmark.harness.contracts.seeds import poisson
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.worker.load_generator import open_loop

SYSTEMS = ((0.0, 200.0), (0.005, 100.0))  # (seconds of a query, queries per second)
PERCENTILES = (0.5, 0.9, 0.99)
ROUNDS = 3


class SleepingRunner:
    """A runner that sleeps for each feed and then yields once."""

    concurrency = 1

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s
        self.output = np.zeros(1, np.int64)
        self.facts: dict[str, str] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        yield self.output


def ours(sleep_s: float, rate_per_s: float, queries: int, seed: int) -> list[float]:
    """Percentiles of the response time in ms, counted from the due time."""
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=10**12, min_feeds=queries)
    made = feeds()
    done = open_loop(SleepingRunner(sleep_s), lambda *_: next(made), poisson(rate_per_s, seed), limits)
    ordered = np.sort(timestamps.latencies_ns(done))
    return [float(ordered[math.ceil(q * queries) - 1]) / 1e6 for q in PERCENTILES]


def loadgens(sleep_s: float, rate_per_s: float, queries: int, seed: int) -> list[float]:
    """LoadGen's logged percentiles of the response time in ms, also counted from the scheduled time."""
    waiting: queue.SimpleQueue[loadgen.QuerySample | None] = queue.SimpleQueue()

    def serve() -> None:
        while (sample := waiting.get()) is not None:
            time.sleep(sleep_s)
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0)])

    def issue(samples: list[loadgen.QuerySample]) -> None:
        if sleep_s:
            for sample in samples:
                waiting.put(sample)
        else:  # a queue would add latency that is not LoadGen's
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate_per_s
    settings.server_target_latency_ns = 10**9
    settings.schedule_rng_seed = seed
    settings.min_query_count = settings.max_query_count = queries
    settings.min_duration_ms = 0
    output = loadgen.LogOutputSettings()
    output.outdir = tempfile.mkdtemp(prefix="loadgen-")
    log = loadgen.LogSettings()
    log.log_output = output
    log.enable_trace = False
    sut = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1024, 1024, lambda samples: None, lambda samples: None)
    server = threading.Thread(target=serve)
    server.start()
    loadgen.StartTestWithLogSettings(sut, library, settings, log)
    waiting.put(None)
    server.join()
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(sut)
    lines = (Path(output.outdir) / "mlperf_log_detail.txt").read_text().splitlines()
    logged = {entry["key"]: entry["value"] for entry in (json.loads(line.removeprefix(":::MLLOG ")) for line in lines)}
    return [logged[f"result_{q * 100:.2f}_percentile_latency_ns"] / 1e6 for q in PERCENTILES]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"{ROUNDS} alternating blocks of {seconds:g} s; milliseconds, median (least to most) of the blocks")
    for sleep_s, rate_per_s in SYSTEMS:
        queries = int(seconds * rate_per_s)
        rows = [
            (ours(sleep_s, rate_per_s, queries, seed), loadgens(sleep_s, rate_per_s, queries, seed))
            for seed in range(1, ROUNDS + 1)
        ]
        print(f"  a system of {sleep_s * 1e3:g} ms at {rate_per_s:g}/s, {queries} queries a block")
        for at, q in enumerate(PERCENTILES):
            mine, peer = ([row[side][at] for row in rows] for side in (0, 1))
            agree = max(min(mine), min(peer)) <= min(max(mine), max(peer))
            print(f"    p{q * 100:g}  mixmark {_spread(mine)}  loadgen {_spread(peer)}  {'' if agree else 'APART'}")


def _spread(blocks: list[float]) -> str:
    return f"{statistics.median(blocks):.3f} ({min(blocks):.3f} to {max(blocks):.3f})"


if __name__ == "__main__":
    main()
