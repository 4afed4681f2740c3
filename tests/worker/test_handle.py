"""Real processes: whatever a vendor's code does to itself, the parent gets an answer and goes on."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts import seeds
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources.cgroups import CpuQuota
from mixmark.harness.worker import calls
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls
from mixmark.harness.worker.process import child_process
from tests.fakes.null import Null
from tests.fakes.workers import ACME, measured, opened, worker
from tests.marks import sweep

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("kill", "crashed", "SIGSEGV while warming up"),
        ("exit", "crashed", "exit code 7"),
        ("sys.exit", "raised", "licence expired"),
        ("hang", "hung", "no reply within 2 s while warming up"),
        ("hold the lock", "hung", "no reply within 2 s"),
        ("memory", "out of memory", "no room for the activations"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(
    request: pytest.FixtureRequest, tmp_path: Path, mode: str, kind: str, words: str
) -> None:
    if kind not in ("crashed", "hung"):
        request.getfixturevalue("inline")
    with worker(tmp_path, mode) as acme:
        opened(acme)
        with pytest.raises(WorkerFailed) as told:
            measured(acme, tmp_path, timeout_s=2 if kind == "hung" else 30)
    assert (told.value.failure.kind, words in told.value.failure.message) == (kind, True), told.value.failure


def test_an_audit_has_its_time_for_each_feed(tmp_path: Path) -> None:
    feed, file = Null("smoke", {}).feeds(1, 0), tmp_path / "outputs.npz"
    np.savez(
        file,
        serials=np.arange(6),
        previous_digests=np.zeros((6, 16), np.uint8),
        outputs=np.array([feed(seeds.nonce(7, at))["x"] for at in range(6)]),
    )
    with worker(tmp_path, work_s="0.5") as acme:
        opened(acme)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        given: dict[str, Any] = {
            "batch": 1,
            "pool": 0,
            "seeds": dict.fromkeys(range(6), 7),
            "outputs": str(file),
            "sha256": sha256,
        }
        compare = acme.call(AdapterCalls.compare_outputs, 2, per_stage=True)
        assert compare(key="a", **given).values == (0.0,) * 6
        with pytest.raises(WorkerFailed, match="no reply within 2 s while auditing"):
            acme.call(AdapterCalls.compare_outputs, 2)(key="a", **given)


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("7", "7")])
def test_a_worker_under_a_quota_starts_as_many_threads_as_are_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, threads: str
) -> None:
    monkeypatch.setattr("mixmark.harness.resources.cpus.quota", lambda *_: CpuQuota(1.5, Path("cpu.max"), "max"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with worker(tmp_path) as acme:
        opened(acme)
        variables = Path(f"/proc/{acme.pid}/environ").read_text().split("\0")
    assert [each for each in variables if each.startswith("OMP_NUM_THREADS")] == [f"OMP_NUM_THREADS={threads}"]


def test_noise_on_stdout_is_harmless(tmp_path: Path) -> None:
    with worker(tmp_path, "noisy") as acme:
        opened(acme)
        measured(acme, tmp_path)
    assert len(acme.completions(tmp_path / "stamps.npz")[0]) >= 3
    log = (tmp_path / "log").read_text()
    assert "noise of a child" in log
    assert '{"failure": 1}' in log


def test_a_missing_interpreter_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"cannot start /opt/acme/python: No such file"):
        Worker(ACME, {}, tmp_path, tmp_path / "log", "/opt/acme/python")


def discovering(folder: Path, body: str) -> Plugin:
    """An adapter that does this when it is asked for its devices."""
    head = "import os, pathlib, signal, stat, time\nclass Acme:\n  name = 'acme'\n  def __init__(self, options): ...\n"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "acme.py").write_text(f"{head}  def open(self): ...\n  def discover(self):\n{lines}")
    return Plugin("adapters", "acme", f"{folder}/acme.py:Acme", "test")


SENDS = """
said = pathlib.Path({said!r}).read_bytes()
for number in range(3, 64):
  try:
    if stat.S_ISSOCK(os.fstat(number).st_mode):
      os.set_blocking(number, True)
      while said: said = said[os.write(number, said):]
  except OSError: pass
"""


@pytest.mark.parametrize(
    ("said", "words"),
    sweep(
        (b"Traceback (most recent call last)\n", "cannot be read: not a message: Traceback"),
        (b'{"reply": "close", "value": null}\n', "discover was due, but close came"),
        (b'{"call": "sealed", "arguments": {"key": "a", "commitment": ""}}\n', "sealed came outside of a window"),
        (b"x" * (calls.LONGEST_BYTES + (1 << 20)), "cannot be read: a line of more than 16 MiB"),
        (b"\n", "cannot be read: not a message"),
        (b'{"call": "sealed", "arguments": {"key": 1}}\n', "cannot be read: a field is wrong"),
        (b'{"reply": "discover", "value": {"devices": 1}}\n', "the reply to discover has a wrong field"),
        (b'{"call": "discover", "arguments": {}}\n', "cannot be read: not a message"),
        usual=4,
    ),
    ids=["text", "order", "window", "endless", "empty", "argument", "value", "direction"],
)
def test_garbage_on_the_channel_is_a_failure_of_that_worker(tmp_path: Path, said: bytes, words: str) -> None:
    (tmp_path / "said").write_bytes(said)
    with worker(tmp_path, plugin=discovering(tmp_path, SENDS.format(said=str(tmp_path / "said")))) as acme:
        with pytest.raises(WorkerFailed) as told:
            acme.call(AdapterCalls.discover, 30)()
        assert told.value.failure.kind == "crashed"
        assert words in told.value.failure.message
        with pytest.raises(WorkerFailed):  # and it is gone
            acme.call(AdapterCalls.discover, 30)()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("os.closerange(3, 64); time.sleep(600)", "SIGKILL"),  # it hangs up, and is ended
        ("os.kill(os.getpid(), signal.SIGKILL)", "out of memory"),
    ],
)
def test_a_worker_that_ends_while_the_kernel_kills_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    monkeypatch.setattr(child_process, "ENDS_WITHIN_S", 0.2)
    monkeypatch.setattr(child_process, "_out_of_memory_kills", itertools.count().__next__)
    with worker(tmp_path, plugin=discovering(tmp_path, body)) as acme, pytest.raises(WorkerFailed, match=told):
        acme.call(AdapterCalls.discover, 30)()
