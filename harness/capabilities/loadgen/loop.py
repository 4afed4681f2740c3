"""The loop of a worker whose feeds LoadGen issues. It needs no package that a worker's interpreter may lack but one."""

from __future__ import annotations

import array
import importlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import count
from typing import Any

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.protocols import Runner
from mixmark.harness.contracts.schema import Completions
from mixmark.harness.resources import clock
from mixmark.harness.worker.load_generator import FeedLog, NextFeed, in_threads, merged

LOAD = 0.7
"""The arrivals of the server over the rate of the route alone."""
FEEDS_IN_LIMIT = 10
"""The limit of a query's latency in the server scenario, in feeds."""


def under_loadgen(
    runner: Runner,
    feeds: NextFeed,
    *,
    threads: int,
    new_log: Callable[[], FeedLog],
    pool: Executor,
    scenario: str,
    queries: int,
    per_s: float,
    folder: str,
) -> Completions:
    """Runs a test of LoadGen, whose facts are those of `LoadGenTest`. A feed is due when LoadGen issues its query, and
    answered with the digest of its output. In SingleStream LoadGen's thread runs the feeds and makes each of them
    before the query; elsewhere each issue thread makes its feed before it waits for a query.

    folder: for LoadGen's logs. Raises Unsupported if this interpreter lacks LoadGen.
    """
    try:
        loadgen: Any = importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise Unsupported(f"its interpreter lacks LoadGen: {error}", "install mlcommons-loadgen there") from error
    issued: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
    serials, single = count(), scenario == "SingleStream"
    logs = [[new_log()] for _ in range(1 if single else threads)]

    def answers(log: FeedLog) -> Iterator[None]:
        while True:
            serial = next(serials)
            feed = feeds(serial, log.digest)
            yield
            if (query := issued.get()) is None:
                return
            sample, due_ns = query
            response = array.array("B", log.run(runner, feed, clock.now_ns, due_ns, serial)[1])
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample, *response.buffer_info())])

    def answer(own: Sequence[FeedLog]) -> None:
        try:
            for _ in answers(own[0]):
                pass
        finally:
            issued.put(None)  # the other threads end, too

    of_single = answers(logs[0][0])

    def issue(samples: Sequence[Any]) -> None:
        """Is called by LoadGen with each query."""
        now_ns = clock.now_ns()
        for sample in samples:
            issued.put((sample.id, now_ns))
        if single:
            next(of_single)

    def start() -> None:
        settings, log = loadgen.TestSettings(), loadgen.LogSettings()
        settings.scenario = getattr(loadgen.TestScenario, scenario)
        settings.min_query_count, settings.min_duration_ms = queries, 0
        settings.performance_issue_unique = True
        settings.accuracy_log_probability, settings.accuracy_log_sampling_target = 1.0, queries
        settings.offline_expected_qps, settings.server_target_qps = per_s, LOAD * per_s
        settings.server_target_latency_ns = round(FEEDS_IN_LIMIT * 1e9 / per_s)
        log.log_output.outdir, log.enable_trace = folder, False
        system = loadgen.ConstructSUT(issue, lambda: None)
        library = loadgen.ConstructQSL(queries, queries, lambda samples: None, lambda samples: None)
        loadgen.StartTestWithLogSettings(system, library, settings, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
        issued.put(None)

    if single:
        next(of_single)
        start()
        return merged(logs[0])
    threading.Thread(target=start, name="loadgen", daemon=True).start()
    return in_threads(answer, logs, pool)
