"""What a worker does when it is asked, in a real process of the fake adapter."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mixmark.harness.resources import clock
from mixmark.harness.worker import child, load_generator
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, Window
from tests.fakes.acme import DEVICE
from tests.fakes.workers import ACME, LIMITS, NULL, measured, opened, worker

pytestmark = pytest.mark.slow


def test_a_worker_discovers_opens_and_measures(tmp_path: Path) -> None:
    stages: list[str] = []
    with worker(tmp_path) as acme:
        assert acme.call(AdapterCalls.discover, 30)().devices == (DEVICE,)
        assert opened(acme).facts == {"engine": "acme 1"}
        answer = measured(acme, tmp_path, scenario="offline", batch=None, on_stage=stages.append)
        acme.call(AdapterCalls.close, 30)()
    done = acme.completions(tmp_path / "stamps.npz")[0]
    assert len(done) >= 3
    assert set(done.units) == {answer.batch}
    with np.load(tmp_path / "outputs.npz") as handed:
        assert handed["serials"].tolist() == list(range(len(done)))
        assert handed["outputs"].shape == (len(done), answer.batch)
    tried = [trial.batch for trial in answer.trials]
    # how far the search comes depends on the machine: test_load_generator
    assert tried[0] == 1 and answer.batch in tried
    assert stages[:4] == ["preparing a batch size", "searching the best batch"] * 2
    assert stages[-1] == "warming up"  # and in the window the worker says nothing
    assert acme.peak_pss_bytes > 1 << 20


@pytest.mark.parametrize(("scenario", "batch"), [("offline", None), ("offline", 1), ("mixed", 1)])
def test_each_thread_that_issues_feeds_of_a_window_is_warm(
    inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Any, batch: int | None
) -> None:
    """torch took 57 ms for the first feed of each new thread on an H200: in a search, else before the window."""
    threads: dict[str, set[threading.Thread]] = {"warm_up": set(), "run": set()}

    def note(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def noted(*arguments: Any, **more: Any) -> Any:
            threads[name].add(threading.current_thread())
            return call(*arguments, **more)

        monkeypatch.setattr(owner, name, noted)

    note(load_generator, "warm_up")
    note(load_generator.FeedLog, "run")
    with worker(tmp_path, "two slots", work_s="0.02") as acme:
        opened(acme)
        if scenario == "mixed":
            acme.call(AdapterCalls.prepare, 30)(key="a", scenario="mixed", batch=batch, seed=1, limits=LIMITS)
            acme.call(AdapterCalls.begin, 30)(key="a", pool=1)
            for serial in range(2):
                acme.send(AdapterCalls.feed, key="a", serial=serial, nonce=serial)
            assert {acme.fed(30, Window()).serial for _ in range(2)} == {0, 1}
        else:
            assert bool(measured(acme, tmp_path, scenario=scenario, batch=batch).trials) == (batch is None)
    assert len(threads["run"]) == 2 and (batch is None or threads["run"] <= threads["warm_up"])


@pytest.mark.parametrize(("mode", "told"), [("no slots", "concurrency 0"), ("endless slots", "concurrency 1000000000")])
def test_slots_are_a_number_of_threads(inline: None, tmp_path: Path, mode: str, told: str) -> None:
    with worker(tmp_path, mode) as acme, pytest.raises(WorkerFailed, match=told):
        opened(acme)


@pytest.mark.parametrize("ahead", [False, True])
def test_single_feeds_come_one_by_one_and_their_answers_are_handed_over(
    inline: None, tmp_path: Path, ahead: bool
) -> None:
    with worker(tmp_path) as acme:
        opened(acme)
        acme.call(AdapterCalls.prepare, 30)(key="a", scenario="mixed", batch=2, seed=1, limits=LIMITS)
        acme.call(AdapterCalls.begin, 30)(key="a", pool=1, ahead=ahead)
        acme.send(AdapterCalls.feed, key="a", serial=0, nonce=2)
        acme.send(AdapterCalls.feed, key="a", serial=1, nonce=3)  # queued while the first one runs
        first, second = acme.fed(30, Window()), acme.fed(30, Window())
        acme.call(AdapterCalls.hand_over, 30)(key="a", outputs=str(tmp_path / "outputs.npz"))
    assert [(each.key, each.serial) for each in (first, second)] == [("a", 0), ("a", 1)]
    assert first.yields[0] <= second.yields[0]
    assert first.yields[1] == 2
    with np.load(tmp_path / "outputs.npz") as handed:
        assert handed["outputs"].tolist() == [[2, 2], [3, 3]]  # the null suite's feeds hold their nonces


@pytest.mark.usefixtures("inline_workers")
def test_a_feed_of_another_suite_takes_the_first_slot_that_is_free(tmp_path: Path) -> None:
    """If it waited for all feeds of the suite before, a slot would be idle at each change: on two cores a network once
    kept 0.85 of its speed."""
    with worker(tmp_path, "two slots", work_s="0.2") as acme:
        for key in ("a", "b"):
            assert opened(acme, key=key).concurrency == 2
            acme.call(AdapterCalls.prepare, 30)(key=key, scenario="mixed", batch=1, seed=1, limits=LIMITS)
            acme.call(AdapterCalls.begin, 30)(key=key, pool=1)
        acme.send(AdapterCalls.feed, key="a", serial=0, nonce=0)
        clock.sleep(0.1)
        acme.send(AdapterCalls.feed, key="a", serial=1, nonce=1)
        acme.send(AdapterCalls.feed, key="b", serial=0, nonce=2)
        done = [acme.fed(30, Window()) for _ in range(3)]
    (first, second, other) = [each.yields[-2] for each in done]
    assert [each.key for each in done] == ["a", "a", "b"]
    assert (second - first, other - second) == (10**8, 10**8), "it began before the second had ended"


@pytest.mark.parametrize(("running", "concurrency", "waits"), [(2, 2, False), (2, 1, True), (1, 2, True)])
def test_a_runner_that_needs_the_device_for_itself_has_it(running: int, concurrency: int, waits: bool) -> None:
    service: Any = child.AdapterService.__new__(child.AdapterService)
    feed: Future[None] = Future()
    service.in_flight = {feed: running}
    timer = threading.Timer(0.2, feed.set_result, (None,))
    timer.start()
    service._wait_for_room(concurrency)
    assert feed.done() == waits
    timer.join()


def test_what_does_not_fit_is_refused_before_loading(inline: None, tmp_path: Path) -> None:
    big = NULL.model_copy(update={"options": {"gib": "100"}})
    with worker(tmp_path, "unsupported") as acme:  # would say so if it were asked
        with pytest.raises(WorkerFailed) as told:
            opened(acme, big, free_bytes=8 << 30)
        assert told.value.failure.kind == "refused"
        assert "needs 100.5 GiB of npu:acme0 memory, 8.0 GiB are free" in told.value.failure.message
        with pytest.raises(WorkerFailed) as told:
            opened(acme, big, free_bytes=101 << 30)
        assert told.value.failure.kind == "unsupported"


def test_the_highest_rate_lies_below_what_a_closed_loop_does(inline: None, tmp_path: Path) -> None:
    sum_suite = NULL.model_copy(update={"name": "sum", "spec": "tests.fakes.null:Sum"})
    with worker(tmp_path, work_s="0.01") as acme:
        opened(acme, sum_suite)
        answer = measured(acme, tmp_path, 60, "server", None, search_ns=4 * 10**9, max_ns=10**10, warmup_ns=10**8)
    assert 0 < (answer.rate_per_s or 0) < 101  # arrivals of a slow machine come late together
    assert {trial.kept for trial in answer.rate_trials} == {True, False}


def test_a_slice_is_pinned_before_its_adapter_is_loaded(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:1]
    with Worker(ACME, {"mode": "fine"}, tmp_path, tmp_path / "log", cores=cores) as acme:
        assert opened(acme).facts == {"engine": "acme 1"}
        threads = psutil.Process(acme.pid).threads()
        assert {tuple(os.sched_getaffinity(each.id)) for each in threads} == {tuple(cores)}, "the threads of numpy too"
