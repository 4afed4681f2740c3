"""A run under LoadGen: the real library drives real workers; a test that is cut off ends without one."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixmark.harness.capabilities.loadgen.facts import LoadGenTest, Reported
from mixmark.harness.capabilities.loadgen.figures import Beside, timed
from mixmark.harness.capabilities.loadgen.queries import Queries, reported
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.dispatch import Handed
from mixmark.harness.record import store
from mixmark.harness.resources import clock
from tests.cli.shell import Shell
from tests.measure.test_benchmark import BAND, run

ONE = LoadGenTest(suite="low", scenario="Offline", queries=2, per_s=100)


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
    assert [each.scenario for each in tests] == ["SingleStream", "Offline", "Server"]
    audits = [each.audit for each in found.result.records if each.phase.startswith("loadgen")]
    for each, phase in zip(tests, (p for p in found.result.phases if p.experiment), strict=True):
        assert each.reported and each.difference is not None and abs(each.difference) < 0.5
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
    answered: list[tuple[int, int]], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two queries is answered with its digest; then the device is lost, or answers the second too."""
    loaded: Any = SimpleNamespace(mix_units={"low": 1.0}, placement=None, quanta={})
    queries = Queries(loaded, ONE, Path())
    ended = threading.Event()
    monkeypatch.setattr(queries, "_thread", threading.Thread(target=ended.wait, args=(10,)))
    monkeypatch.setattr(clock, "now_ns", lambda: 7)
    queries.begin(0)
    queries._issue([SimpleNamespace(id=3), SimpleNamespace(id=4)])
    first = queries.next("cpu:0", 8)
    assert first == Handed("low", 7, 3) and queries.surplus(9) == 1
    queries.committed(first, "ab" * 32)
    queries.finished("cpu:0", first, 8, 9, 5)
    if whole:
        queries.committed(Handed("low", 7, 4), "cd" * 32)
    else:
        queries.lost("cpu:0", 9)
        queries._issue([SimpleNamespace(id=5)])
        assert answered[-1] == (5, 0), "LoadGen need not wait for what it still issues"
    ended.set()
    queries._thread.join()
    assert queries.cut() is whole and queries.surplus(9) == 0 and queries.units == {"low": 5}
    assert answered == ([(3, 32), (4, 32)] if whole else [(3, 32), (4, 0), (5, 0)])


def test_figures_are_those_of_the_detailed_log(tmp_path: Path) -> None:
    told = {"loadgen_version": "6", "result_validity": "VALID", "result_samples_per_second": 99.0}
    told |= {f"result_{each}.00_percentile_latency_ns": each * 1000 for each in (50, 90, 99)}
    lines = [f":::MLLOG {json.dumps({'key': key, 'value': value})}\n" for key, value in told.items()]
    (tmp_path / "mlperf_log_detail.txt").write_text("".join(lines))
    found = reported("one", tmp_path)
    latencies = {"50": 50_000, "90": 90_000, "99": 99_000}
    assert found == Reported(phase="one", version="6", valid=True, percentiles_ns=latencies, samples_per_s=99)
    for scenario, difference in (("Offline", -0.01), ("Server", 0.5)):
        beside = Beside("low", "cpu:0", scenario, found, {"90": 60_000}, 100.0, 100.0)
        assert beside.difference == pytest.approx(difference)
