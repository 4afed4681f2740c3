"""A run under LoadGen: the real library drives real workers; a test that is cut off ends without one."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixmark.harness.capabilities.loadgen.experiment import Queries, reported
from mixmark.harness.capabilities.loadgen.figures import Beside, Reported, timed
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.dispatch import Handed
from mixmark.harness.record import store
from mixmark.harness.resources import clock
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
    assert len(audits) == 3 and all(audits)
    assert "Timed by LoadGen: not MLPerf results" in done.stdout


def test_without_the_package_a_run_is_refused(duo: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlperf_loadgen" else find(name))
    done = run(duo, "--loadgen")
    assert (done.returncode, "mlcommons-loadgen is not installed" in done.stderr) == (2, True)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The samples that LoadGen got a response for, with the bytes of the responses."""
    got: list[tuple[int, int]] = []
    fake: Any = SimpleNamespace(QuerySampleResponse=lambda sample, address, size: (sample, size))
    fake.QuerySamplesComplete = got.extend
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", fake)
    return got


@pytest.mark.parametrize("whole", [True, False])
def test_a_test_that_is_cut_off_is_answered_so_that_loadgen_returns(
    answered: list[tuple[int, int]], whole: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first of two queries is answered with its digest; then the device answers the second too, or a signal ends
    the window."""
    route = SimpleNamespace(suite="low", tier="smoke")
    phase: Any = SimpleNamespace(name="one", shares=[SimpleNamespace(route=route)])
    loaded: Any = SimpleNamespace(mix_units={"low": 1.0}, placement=None, quanta={})
    queries: Any = Queries(phase, tmp_path)
    assert queries.source(None)(loaded) is queries
    ended = threading.Event()
    monkeypatch.setattr(queries, "_thread", threading.Thread(target=ended.wait, args=(10,)))
    monkeypatch.setattr(clock, "now_ns", lambda: 7)
    (tmp_path / "mlperf_log_detail.txt").write_text(LOG)
    with suppress(KeyboardInterrupt), queries.window():
        queries.begin(0)
        queries._issue([SimpleNamespace(id=3), SimpleNamespace(id=4)])
        first = queries.next("cpu:0", 8)
        assert first == Handed("low", 7, 3) and queries.surplus(9) == 1
        queries.committed(first, "ab" * 32)
        queries.finished("cpu:0", first, 8, 9, 5)
        if whole:
            queries.committed(Handed("low", 7, 4), "cd" * 32)
            ended.set()
            queries._thread.join()
        else:
            monkeypatch.setattr(queries._thread, "join", ended.set)
            raise KeyboardInterrupt
    assert (len([*queries.found()]), queries.units) == (whole, {"low": 5})
    if not whole:
        queries._issue([SimpleNamespace(id=5)])  # LoadGen need not wait for what it still issues
    assert answered == ([(3, 32), (4, 32)] if whole else [(3, 32), (4, 0), (5, 0)])


TOLD = {"loadgen_version": "6", "result_validity": "VALID", "result_samples_per_second": 99.0}
TOLD |= {f"result_{each}.00_percentile_latency_ns": each * 1000 for each in (50, 90, 99)}
LOG = "".join(f":::MLLOG {json.dumps({'key': key, 'value': value})}\n" for key, value in TOLD.items())


def test_figures_are_those_of_the_detailed_log(tmp_path: Path) -> None:
    (tmp_path / "mlperf_log_detail.txt").write_text(LOG)
    found = {"p50": 50_000, "p90": 90_000, "p99": 99_000, "rate": 99}
    assert reported("one", tmp_path) == Reported(phase="one", version="6", valid=True, figures=found)
    assert Beside("low", "cpu:0", "Server", "p90", 90_000, 60_000, True, 9).difference == pytest.approx(0.5)
