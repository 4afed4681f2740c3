"""A run under LoadGen: the real library inside of real workers, and a fake one that issues three queries."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from mixmark.harness.capabilities.loadgen.experiment import reported
from mixmark.harness.capabilities.loadgen.figures import PLACE, Beside, Reported, timed
from mixmark.harness.capabilities.loadgen.loop import under_loadgen
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.schema import Completions
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from mixmark.harness.worker.load_generator import FeedLog
from mixmark.harness.worker.outputs import Outputs
from tests.cli.shell import Shell
from tests.measure.test_benchmark import BAND, run


@pytest.mark.slow
@pytest.mark.realtime
def test_both_clocks_time_the_same_feeds_and_the_log_holds_their_digests(duo: Shell) -> None:
    pytest.importorskip("mlperf_loadgen", reason="LoadGen is not installed: pip install -e '.[loadgen]'")
    (duo.folder / "mixmark.toml").write_text('[adapter.band]\n"s.a.low" = 0.01\n')
    words = ("--suite", "low", "--adapter", BAND, "--tier", "smoke", "--mix", "none", "--out", "out", "--loadgen")
    done = duo("run", *words)
    assert done.returncode == 0, done.stderr
    found = judge(store.open(duo.folder / "out"))
    assert found.verdict.word != "invalid"
    tests = timed(found) or ()
    assert [(each.scenario, each.name) for each in tests] == [
        *(("SingleStream", name) for name in ("p50", "p90", "p99")),
        ("Offline", "rate"),
        *(("Server", name) for name in ("p50", "p90", "p99")),
    ]
    # the 64 feeds of a test are too few for our p99
    assert all(abs(each.difference or 9) < 0.5 for each in tests if each.mixmark)
    audits = [each.audit for each in found.result.records if each.phase.startswith("loadgen")]
    for phase in (phase for phase in found.result.phases if phase.experiment):
        log = json.loads((duo.folder / "out/loadgen" / phase.name / "mlperf_log_accuracy.json").read_text())
        assert len(log) == phase.facts["queries"] and {len(entry["data"]) for entry in log} == {32}
        assert len({entry["qsl_idx"] for entry in log}) == len(log)
        assert PLACE in (duo.folder / "out/loadgen" / phase.name / "README.txt").read_text()
    assert len(audits) == 3 and all(audits)
    assert "Timed by LoadGen: not MLPerf results" in done.stdout


def test_without_the_package_a_run_is_refused(duo: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlperf_loadgen" else find(name))
    done = run(duo, "--loadgen")
    assert (done.returncode, "mlcommons-loadgen is not installed" in done.stderr) == (2, True)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The samples that LoadGen got a response for, with the bytes of the responses. It issues three."""
    got: list[tuple[int, int]] = []
    all_answered = threading.Event()

    def complete(responses: list[tuple[int, int]]) -> None:
        got.extend(responses)
        if len(got) == 3:
            all_answered.set()

    def start(issue: Any, *_: object) -> None:
        for sample in (3, 4, 5):
            issue([SimpleNamespace(id=sample)])
        all_answered.wait(10)

    fake: Any = MagicMock(ConstructSUT=lambda issue, flush: issue, StartTestWithLogSettings=start)
    fake.QuerySampleResponse = lambda sample, address, size: (sample, size)
    fake.QuerySamplesComplete = complete
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", fake)
    return got


def under(runner: Any, scenario: str, threads: int, outputs: Outputs) -> Completions:
    def feed(serial: int, previous: bytes) -> dict[str, Any]:
        return {"x": np.full((1, 4), serial), "previous": previous}

    return under_loadgen(
        runner,
        feed,
        threads=threads,
        new_log=lambda: FeedLog(1, outputs),
        pool=ThreadPoolExecutor(threads),
        scenario=scenario,
        queries=3,
        per_s=9.0,
        folder="",
    )


@pytest.mark.parametrize(("scenario", "threads"), [("SingleStream", 2), ("Offline", 1), ("Server", 2)])
def test_each_query_is_answered_with_the_digest_of_a_feed(
    answered: list[tuple[int, int]], scenario: str, threads: int
) -> None:
    outputs, previous = Outputs(), []

    def runner(feed: Any) -> Iterator[Any]:
        previous.append(feed["previous"])
        yield feed["x"]

    done = under(runner, scenario, threads, outputs)
    assert (len(done), sorted(answered)) == (3, [(3, 16), (4, 16), (5, 16)])
    assert (
        previous.count(b"") <= (1 if scenario == "SingleStream" else threads) and (done.due_ns <= done.issued_ns).all()
    )


@pytest.mark.parametrize(("scenario", "threads"), [("SingleStream", 1), ("Offline", 2)])
def test_a_failure_ends_the_test_and_a_missing_library_is_unsupported(
    answered: list[tuple[int, int]], scenario: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runner(feed: Any) -> Iterator[Any]:
        raise RuntimeError("a string broke")

    with pytest.raises(RuntimeError, match="a string broke"):
        under(runner, scenario, threads, Outputs())
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(Unsupported):
        under(runner, scenario, threads, Outputs())


TOLD = {"loadgen_version": "6", "result_validity": "VALID", "result_samples_per_second": 99.0}
TOLD |= {f"result_{each}.00_percentile_latency_ns": each * 1000 for each in (50, 90, 99)}
LOG = "".join(f":::MLLOG {json.dumps({'key': key, 'value': value})}\n" for key, value in TOLD.items())


def test_figures_are_those_of_the_detailed_log(tmp_path: Path) -> None:
    (tmp_path / "mlperf_log_detail.txt").write_text(LOG)
    found = {"p50": 50_000, "p90": 90_000, "p99": 99_000, "rate": 99}
    assert reported("one", tmp_path) == Reported(phase="one", version="6", valid=True, figures=found)
    assert Beside("low", "cpu:0", "Server", "p90", 90_000, 60_000, True, "", 9).difference == pytest.approx(0.5)
