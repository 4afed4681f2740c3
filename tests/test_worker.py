"""Real processes: whatever a vendor's code does to itself, the parent gets an answer and goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.plugins import Plugin
from harness.worker import Worker, WorkerFailed, failure_of, load_completions
from mixmark import Unsupported
from tests.fakes.acme import DEVICE
from tests.fakes.null import Null

CGROUPS = Path("/sys/fs/cgroup")
FAKES = Path(__file__).parent / "fakes"
ACME = Plugin("adapters", "acme", f"{FAKES / 'acme.py'}:Acme", "test")
NULL = {"name": "null", "spec": f"{FAKES / 'null.py'}:Null", "tier": "smoke", "options": {}}
LIMITS = {"warmup_ns": 0, "search_ns": 10**8, "min_ns": 0, "max_ns": 10**9, "min_feeds": 3}


def worker(tmp_path: Path, mode: str = "fine", plugin: Plugin = ACME, **options: str) -> Worker:
    return Worker(plugin, {"mode": mode, **options}, tmp_path, tmp_path / "log")


def opened(worker: Worker, suite: dict[str, Any] = NULL, free_bytes: int | None = None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "key": "a",
        "device": DEVICE.model_dump(),
        "suite": suite,
        "precision": "fp32",
        "free_bytes": free_bytes,
    }
    return worker.call("open", 30, **told)


def measured(
    worker: Worker,
    tmp_path: Path,
    timeout_s: float = 30,
    scenario: str = "single-stream",
    rate_per_s: float | None = None,
    **limits: int,
) -> dict[str, Any]:
    return worker.call(
        "measure",
        timeout_s,
        key="a",
        scenario=scenario,
        batch=1,
        rate_per_s=rate_per_s,
        seed=1,
        limits={**LIMITS, **limits},
        out=str(tmp_path / "stamps.npz"),
        answers=str(tmp_path / "answers.npz"),
    )


def test_a_worker_discovers_opens_and_measures(tmp_path: Path) -> None:
    stages: list[str] = []
    with worker(tmp_path) as acme:
        assert acme.call("discover", 30)["devices"] == [DEVICE.model_dump(mode="json")]
        assert opened(acme)["facts"] == {"engine": "acme 1"}
        request: dict[str, Any] = {name: str(tmp_path / f"{name}.npz") for name in ("out", "answers")}
        request |= {"key": "a", "scenario": "offline", "batch": None, "rate_per_s": None, "seed": 1, "limits": LIMITS}
        answer = acme.call("measure", 30, stages.append, **request)
        assert acme.call("close", 30) == {}
    done = load_completions(tmp_path / "out.npz")
    assert len(done) >= 3
    assert set(done.units) == {answer["batch"]}
    with np.load(tmp_path / "answers.npz") as handed:
        assert handed["serials"].tolist() == list(range(len(done)))
        assert handed["answers"].shape == (len(done), answer["batch"])
    assert [trial["batch"] for trial in answer["trials"]][:3] == [1, 2, 4]
    assert stages == ["searching the best batch", "warming up", "measuring", "measured"]
    assert acme.peak_pss_bytes > 1 << 20


def test_two_slots_are_two_feeds_in_flight(tmp_path: Path) -> None:
    with worker(tmp_path, "two slots", work_s="0.02") as acme:
        opened(acme)
        measured(acme, tmp_path, scenario="offline")
    done = load_completions(tmp_path / "stamps.npz")
    assert (done.issued_ns[1:] < done.marks_ns[done.ends - 1][:-1]).any()


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("kill", "crashed", "SIGKILL while warming up"),
        ("segfault", "crashed", "SIGSEGV"),
        ("exit", "crashed", "exit code 7"),
        ("sys.exit", "raised", "licence expired"),
        ("hang", "hung", "no answer within 2 s while warming up"),
        ("hold the lock", "hung", "no answer within 2 s"),
        ("memory", "out of memory", "no room for the activations"),
        ("nothing", "wrong answer", "yielded nothing"),
        ("text", "wrong answer", "float32, int32 or int64"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(tmp_path: Path, mode: str, kind: str, words: str) -> None:
    with worker(tmp_path, mode) as acme:
        opened(acme)
        with pytest.raises(WorkerFailed) as told:
            measured(acme, tmp_path, timeout_s=2 if kind == "hung" else 30)
    assert (told.value.failure.kind, words in told.value.failure.message) == (kind, True), told.value.failure


@pytest.mark.parametrize(("mode", "told"), [("no slots", "0 slots"), ("endless slots", "1000000000 slots")])
def test_slots_are_a_number_of_threads(tmp_path: Path, mode: str, told: str) -> None:
    with worker(tmp_path, mode) as acme, pytest.raises(WorkerFailed, match=told):
        opened(acme)


def test_an_audit_has_its_time_for_each_feed(tmp_path: Path) -> None:
    feeds, file = Null("smoke", {}).feeds(1, 7), tmp_path / "answers.npz"
    np.savez(file, serials=np.arange(6), answers=np.array([next(feeds)["x"] for _ in range(6)]))
    with worker(tmp_path, work_s="0.5") as acme:
        opened(acme)
        found = acme.call("audit", 2, each_stage=True, key="a", batch=1, seed=7, answers=str(file))
        assert found["values"] == [0.0] * 6
        with pytest.raises(WorkerFailed, match="no answer within 2 s while auditing"):
            acme.call("audit", 2, key="a", batch=1, seed=7, answers=str(file))


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup of 400 MiB; what is moved into it and outgrows it is killed by the kernel."""
    group = next(
        (root / "mixmark-test" for root in (CGROUPS / "memory", CGROUPS) if (root / "cgroup.procs").exists()), None
    )
    limit = {"memory": "memory.limit_in_bytes"}.get(group.parent.name, "memory.max") if group else ""
    try:
        assert group is not None
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
    except (OSError, AssertionError) as error:
        pytest.skip(f"needs a memory cgroup that it may create: {error}")
    yield group
    deadline = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()


def test_a_kernel_out_of_memory_kill_is_told_apart_from_a_crash(tmp_path: Path, small_memory: Path) -> None:
    with worker(tmp_path, "hoard") as acme:
        opened(acme)
        (small_memory / "cgroup.procs").write_text(str(acme.pid))
        with pytest.raises(WorkerFailed) as told:
            measured(acme, tmp_path)
    assert told.value.failure.kind == "out of memory"
    assert "the kernel killed the worker" in told.value.failure.message


def test_single_feeds_come_one_by_one_and_their_answers_are_handed_over(tmp_path: Path) -> None:
    with worker(tmp_path) as acme:
        opened(acme)
        acme.call("prepare", 30, key="a", batch=2, seed=1, limits=LIMITS)
        acme.post("feed", key="a")
        acme.post("feed", key="a")  # queued while the first one runs
        first, second = acme.answer(30), acme.answer(30)
        acme.call("hand_over", 30, key="a", answers=str(tmp_path / "answers.npz"))
    assert [each["key"] for each in (first, second)] == ["a", "a"]
    assert first["issued_ns"] <= first["marks"][0] <= second["issued_ns"]
    assert first["marks"][1] == 2
    with np.load(tmp_path / "answers.npz") as handed:
        assert handed["answers"].tolist() == [[2, 2], [3, 3]]  # the feeds of seed 1, in order


def test_several_slots_overlap_feeds_of_one_suite_but_never_two_suites(tmp_path: Path) -> None:
    with worker(tmp_path, "two slots", work_s="0.05") as acme:
        for key in ("a", "b"):
            told: dict[str, Any] = {
                "device": DEVICE.model_dump(),
                "suite": NULL,
                "precision": "fp32",
                "free_bytes": None,
            }
            assert acme.call("open", 30, key=key, **told)["slots"] == 2
            acme.call("prepare", 30, key=key, batch=1, seed=1, limits=LIMITS)
        for key in ("a", "a", "b"):
            acme.post("feed", key=key)
        spans: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
        for _ in range(3):
            done = acme.answer(30)
            spans[done["key"]].append((done["issued_ns"], done["marks"][-2]))
    (first, second), (other,) = spans["a"], spans["b"]
    assert second[0] < first[1]
    assert other[0] >= max(first[1], second[1])


def test_a_slice_is_pinned_before_its_adapter_is_loaded(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:1]
    with Worker(ACME, {"mode": "fine"}, tmp_path, tmp_path / "log", cores=cores) as acme:
        assert opened(acme)["facts"] == {"engine": "acme 1"}
        assert psutil.Process(acme.pid).cpu_affinity() == cores


def test_noise_on_stdout_is_harmless(tmp_path: Path) -> None:
    with worker(tmp_path, "noisy") as acme:
        opened(acme)
        measured(acme, tmp_path)
    assert len(load_completions(tmp_path / "stamps.npz")) >= 3
    log = (tmp_path / "log").read_text()
    assert "noise of a child" in log
    assert '{"failure": 1}' in log


def test_a_killed_worker_is_noticed_from_outside(tmp_path: Path) -> None:
    with worker(tmp_path, work_s="60") as acme:
        opened(acme)
        threading.Timer(0.5, os.kill, (acme.pid, signal.SIGKILL)).start()
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            measured(acme, tmp_path)
        with pytest.raises(WorkerFailed, match="SIGKILL"):  # and it stays gone
            measured(acme, tmp_path)


def test_what_does_not_fit_is_refused_before_loading(tmp_path: Path) -> None:
    big = {**NULL, "options": {"gib": "100"}}
    with worker(tmp_path, "unsupported") as acme:  # would say so if it were asked
        with pytest.raises(WorkerFailed) as told:
            opened(acme, big, free_bytes=8 << 30)
        assert told.value.failure.kind == "refused"
        assert "needs 100.5 GiB of npu:acme0 memory, 8.0 GiB are free" in told.value.failure.message
        with pytest.raises(WorkerFailed) as told:
            opened(acme, big, free_bytes=101 << 30)
        assert told.value.failure.kind == "unsupported"


def test_a_server_is_fed_on_schedule_and_counts_from_the_due_time(tmp_path: Path) -> None:
    with worker(tmp_path, work_s="0.002") as acme:
        opened(acme)
        measured(acme, tmp_path, scenario="server", rate_per_s=200.0)
    done = load_completions(tmp_path / "stamps.npz")
    assert len(done) == 64  # what a p90 takes
    gaps = (done.due_ns[1:] - done.due_ns[:-1]) / 1e6
    assert 2.5 < gaps.mean() < 10  # 5 ms on average, by a fixed seed
    assert (done.issued_ns >= done.due_ns).all()


def test_the_highest_rate_lies_below_what_a_closed_loop_does(tmp_path: Path) -> None:
    with worker(tmp_path, work_s="0.01") as acme:
        opened(acme)
        answer = measured(acme, tmp_path, 60, "server", search_ns=4 * 10**9, max_ns=10**10, warmup_ns=10**8)
    assert 0 < answer["rate_per_s"] < 100
    assert answer["rate_trials"][0]["kept"] in (True, False)


def test_a_rate_that_is_too_high_is_told(tmp_path: Path) -> None:
    with worker(tmp_path, work_s="0.05") as acme:
        opened(acme)
        with pytest.raises(WorkerFailed, match="the queue grows"):
            measured(acme, tmp_path, scenario="server", rate_per_s=1000.0, min_ns=10**9, max_ns=2 * 10**8)


def test_nobody_is_left_behind(tmp_path: Path) -> None:
    with worker(tmp_path, "hang") as acme:
        opened(acme)
        pid = acme.pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.test_worker import *; from pathlib import Path\n"
        "acme = worker(Path(sys.argv[1])); opened(acme); print(acme.pid, flush=True); time.sleep(60)"
    )
    parent = psutil.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=-1, cwd=FAKES.parent.parent)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_missing_interpreter_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"cannot start /opt/acme/python: No such file"):
        Worker(ACME, {}, tmp_path, tmp_path / "log", "/opt/acme/python")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import acme_driver", "ModuleNotFoundError: No module named 'acme_driver'"),
        ("class Acme: name = 'acme'", "lacks discover, open"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def :", "SyntaxError"),
        ("class Acme:\n  name = 'other'\n  def discover(self): ...\n  def open(self): ...", "calls itself other"),
    ],
)
def test_a_broken_plugin_is_told(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "acme.py").write_text(source)
    plugin = Plugin("adapters", "acme", f"{tmp_path}/acme.py:Acme", "test")
    with worker(tmp_path, plugin=plugin) as acme, pytest.raises(WorkerFailed) as told:
        acme.call("discover", 30)
    assert words in told.value.failure.message


def test_frameworks_have_many_words_for_out_of_memory() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    assert failure_of(OutOfMemoryError("CUDA")).kind == "out of memory"
    assert failure_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")).kind == "out of memory"
    assert failure_of(RuntimeError("shape mismatch")).kind == "raised"
    assert failure_of(Unsupported("no", hint="try")).hint == "try"
    assert json.loads(failure_of(ValueError("x" * 9999)).model_dump_json())["message"].endswith("x")
