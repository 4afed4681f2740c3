"""The cost of the drive loop for a query and for a unit, compared with MLCommons' LoadGen with a Python system.

Run: python -m bench.drive_loop [blocks]

Both drive a system that does nothing in the single-stream scenario, in alternating blocks of the same number of
queries, so that drift of the machine's speed affects both alike. The time of a query is from its issue to the next one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

import mlperf_loadgen as loadgen
import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import Limits
from mixmark.harness.worker.load_generator import closed_loop

QUERIES = 20_000
UNITS = 128


class NullRunner:
    """A runner that yields `units` times, at once."""

    concurrency = 1

    def __init__(self, units: int) -> None:
        self.units = units
        self.output = np.zeros(1, np.int64)
        self.facts: dict[str, str] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        for _ in range(self.units):
            yield self.output


def feeds() -> Iterator[Feed]:
    feed = {"x": np.zeros(1, np.int64)}
    while True:
        yield feed


def ours(queries: int, units: int = 1) -> npt.NDArray[np.int64]:
    """The ns from each issue to the next."""
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=10**15, min_feeds=queries)
    made = feeds()
    done = closed_loop(NullRunner(units), lambda *_: next(made), limits)
    return np.diff(done.issued_ns)


def loadgens(queries: int) -> npt.NDArray[np.int64]:
    """The ns from each issue to the next, by timestamps of the system under test."""
    times_ns: list[int] = []

    def issue(samples: list[loadgen.QuerySample]) -> None:
        times_ns.append(time.monotonic_ns())
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.SingleStream
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.single_stream_expected_latency_ns = 1000
    settings.min_query_count = settings.max_query_count = queries
    settings.min_duration_ms = 0
    output = loadgen.LogOutputSettings()
    output.outdir = tempfile.mkdtemp(prefix="loadgen-")
    log = loadgen.LogSettings()
    log.log_output = output
    log.enable_trace = False
    sut = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1024, 1024, lambda samples: None, lambda samples: None)
    loadgen.StartTestWithLogSettings(sut, library, settings, log)
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(sut)
    return np.diff(np.asarray(times_ns, dtype=np.int64)).astype(np.int64)


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    ours(QUERIES)
    loadgens(QUERIES)
    rows = [(ours(QUERIES), loadgens(QUERIES), ours(QUERIES // UNITS, UNITS)) for _ in range(blocks)]
    print(f"{blocks} alternating blocks of {QUERIES} queries; microseconds, medians over the blocks")
    for name, figure in (("median", np.median), ("mean", np.mean)):
        mine, peer, _ = ([float(figure(block)) / 1e3 for block in column] for column in zip(*rows, strict=True))
        ratio = statistics.median(a / b for a, b in zip(mine, peer, strict=True))
        medians = f"mixmark {statistics.median(mine):.2f}  loadgen {statistics.median(peer):.2f}"
        print(f"  {name:6} a query: {medians}  ratio {ratio:.2f}")
    unit = statistics.median(float(np.median(block)) / UNITS / 1e3 for _, _, block in rows)
    print(f"  a stamped unit at {UNITS} units a query: mixmark {unit:.3f}  (goal ≤ 0.5)")


if __name__ == "__main__":
    main()
