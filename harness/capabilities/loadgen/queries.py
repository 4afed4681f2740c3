"""LoadGen's queries as the feeds of a phase: its own thread issues them, and a device gets them in that order."""

from __future__ import annotations

import array
import json
import queue
import threading
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.loadgen.facts import LoadGenTest, Reported
from mixmark.harness.measure.dispatch import Handed, Loaded, WorkSource
from mixmark.harness.resources import clock

LOAD = 0.7
"""The arrivals of the server over the rate of the route alone."""
FEEDS_IN_LIMIT = 10
"""The limit of a query's latency in the server scenario, in feeds."""
PATIENCE_S = 0.1
"""How long an idle device waits for a query at a time."""
PERCENTILES = ("50", "90", "99")
RATES = ("result_samples_per_second", "result_completed_samples_per_sec", "result_qps_with_loadgen_overhead")


class Queries(WorkSource):
    """The queries of one test on one device."""

    def __init__(self, loaded: Loaded, test: LoadGenTest, folder: Path) -> None:
        """folder: for LoadGen's logs."""
        super().__init__(loaded)
        self._test, self._folder = test, folder
        self._issued: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._unanswered: set[int] = set()
        self._lock = threading.Lock()
        self._held, self._cut = 0, False
        self._thread = threading.Thread(target=self._run, name="loadgen", daemon=True)

    def begin(self, begin_ns: int) -> None:
        self._thread.start()

    def next(self, device: str, now_ns: int) -> Handed | None:
        try:
            idle = not self._held and self._thread.is_alive()
            sample, due_ns = clock.get(self._issued, PATIENCE_S if idle else 0.0)
        except queue.Empty:
            return None
        self._held += 1
        return Handed(self._test.suite, due_ns, sample)

    def committed(self, handed: Handed, digest: str) -> None:
        self._answer(handed.request, digest)

    def finished(self, device: str, handed: Handed, begin_ns: int, end_ns: int, units: int) -> None:
        self._held -= 1
        self._finished[handed.suite] += units

    def lost(self, device: str, now_ns: int) -> None:
        self.cut(wait=False)

    def _unfinished_s(self, now_ns: int) -> dict[str, float]:
        return {}

    def surplus(self, now_ns: int) -> float:
        """1 until the test is over, then 0."""
        return 1.0 if self._thread.is_alive() else 0.0

    def cut(self, wait: bool = True) -> bool:
        """Ends the test, answering what is left so that LoadGen returns. Returns whether it was over before.

        wait: for LoadGen, which runs one test at a time, and issues a server's queries when they are due."""
        with self._lock:
            over = not self._cut and not self._thread.is_alive()
            self._cut = not over
            left = [*self._unanswered]
        for sample in left:
            self._answer(sample, "")
        if wait and self._thread.ident:
            self._thread.join()
        return over

    def _answer(self, sample: int, digest: str) -> None:
        import mlperf_loadgen as loadgen

        with self._lock:
            if sample not in self._unanswered:
                return
            self._unanswered.remove(sample)
        response = array.array("B", bytes.fromhex(digest))
        address, size = response.buffer_info()
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample, address, size)])

    def _issue(self, samples: list[Any]) -> None:
        """Is called by LoadGen with each query."""
        now_ns = clock.now_ns()
        with self._lock:
            self._unanswered |= {sample.id for sample in samples}
            cut = self._cut
        for sample in samples:
            self._answer(sample.id, "") if cut else self._issued.put((sample.id, now_ns))

    def _run(self) -> None:
        import mlperf_loadgen as loadgen

        test, settings = self._test, loadgen.TestSettings()
        settings.scenario = getattr(loadgen.TestScenario, test.scenario)
        settings.mode = loadgen.TestMode.PerformanceOnly
        settings.min_query_count, settings.min_duration_ms = test.queries, 0
        settings.performance_issue_unique = True
        settings.accuracy_log_probability, settings.accuracy_log_sampling_target = 1.0, test.queries
        settings.single_stream_expected_latency_ns = max(1, round(1e9 / test.per_s))
        settings.offline_expected_qps, settings.server_target_qps = test.per_s, LOAD * test.per_s
        settings.server_target_latency_ns = round(FEEDS_IN_LIMIT * 1e9 / test.per_s)
        if test.scenario != "Server":  # which calls a test invalid that a largest number ended
            settings.max_query_count = test.queries
        output = loadgen.LogOutputSettings()
        output.outdir = str(self._folder)
        log = loadgen.LogSettings()
        log.log_output, log.enable_trace = output, False
        system = loadgen.ConstructSUT(self._issue, lambda: None)
        library = loadgen.ConstructQSL(test.queries, test.queries, lambda samples: None, lambda samples: None)
        loadgen.StartTestWithLogSettings(system, library, settings, log)
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)


def reported(phase: str, folder: Path) -> Reported:
    """The figures of LoadGen's detailed log. Raises OSError, ValueError or KeyError if it has none."""
    marked = [line for line in (folder / "mlperf_log_detail.txt").read_text("utf-8").splitlines() if ":::MLLOG" in line]
    entries = [json.loads(line.partition(":::MLLOG")[2]) for line in marked]
    found = {entry["key"]: entry["value"] for entry in entries}
    return Reported(
        phase=phase,
        version=found["loadgen_version"],
        valid=found["result_validity"] == "VALID",
        percentiles_ns={each: found[f"result_{each}.00_percentile_latency_ns"] for each in PERCENTILES},
        samples_per_s=next((found[each] for each in RATES if each in found), None),
    )
