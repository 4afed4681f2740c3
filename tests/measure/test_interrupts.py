"""A signal at any moment leaves an unfinished run, which `--resume` completes with the same figures."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.audit import pending
from mixmark.harness.measure.benchmark import interruptible, until_interrupted
from mixmark.harness.plugins import manifest, registry
from mixmark.harness.record import store
from mixmark.harness.worker import calls
from mixmark.harness.worker.child import SERVED
from tests.cli.shell import Shell
from tests.fakes.inline import InlineProcess
from tests.fakes.workers import worker
from tests.marks import sweep
from tests.measure.test_benchmark import BAND, run, shell

__all__ = ["shell"]

KINDS = {kind: served for kind in manifest.KINDS if (served := registry.kind_of(kind).served)}
METHODS = {
    f"{kind}.{name}": (kind, method)
    for kind, (interface, _) in {**SERVED, **KINDS}.items()
    for name in dir(interface)
    if not name.startswith("_") and callable(method := getattr(interface, name))
}
"""Each call of each process that the core or a capability starts for a plugin."""


@pytest.mark.parametrize("call", METHODS)
def test_a_process_in_the_middle_of_a_call_is_ended_and_not_called_again(
    call: str, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(InlineProcess, "kill", lambda self: ended.append(True))
    monkeypatch.setattr(calls, "write_call", lambda method, **arguments: b"\n")
    with worker(tmp_path) as acme:
        with monkeypatch.context() as patched:
            patched.setattr(InlineProcess, "send", lambda self, line: None)
            patched.setattr(InlineProcess, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                acme.call(METHODS[call][1], 1)()
        assert ended
        with pytest.raises(KeyboardInterrupt):  # not WorkerFailed, which would take the place of the interrupt
            try:
                raise KeyboardInterrupt
            finally:
                acme.finish()


MOMENTS = [("compare_outputs", 1), ("open", -2), ("feed", 9), ("open", 0), ("prepare", 1), ("begin", 2)]
MOMENTS += [("measure", 1), ("reveal", 0), ("hand_over", 1), ("close", 2), ("compare_outputs", 0), ("open", 4)]
MOMENTS += [("compare_outputs", 3), ("open", 6), ("prepare", -1), ("begin", -1), ("hand_over", -1), ("close", -1)]
MOMENTS += [("compare_outputs", -2), ("compare_outputs", -1), ("discover", 0)]
"""Calls of a run, by name and number: alone, in the comparison of outputs, in the mix, and in its comparison."""


def interrupting(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> Counter[str]:
    """Sends SIGINT to this process in the middle of a call, once. number: counted from 0. Returns the calls so far."""
    seen: Counter[str] = Counter()
    send, receive = InlineProcess.send, InlineProcess.receive
    due: list[InlineProcess] = []

    def sending(self: InlineProcess, line: bytes) -> None:
        called = json.loads(line).get("call")
        if called == name and seen[name] == number:
            due.append(self)
        seen[called] += 1
        send(self, line)

    def receiving(self: InlineProcess, timeout_s: float) -> bytes | None:
        if self in due:
            due.clear()
            os.kill(os.getpid(), signal.SIGINT)
        return receive(self, timeout_s)

    monkeypatch.setattr(InlineProcess, "send", sending)
    monkeypatch.setattr(InlineProcess, "receive", receiving)
    return seen


def figures(result: Result) -> Any:
    judged = judge(result)
    assert judged.score and judged.score.mixes_per_hour
    return judged.score.mixes_per_hour.estimate, sorted(audited(result).items())


def measured(folder: Path) -> dict[str, str]:
    """The hash of the timestamps of each record, by its key."""
    keys = {record.key for record in store.open(folder).records}
    return {name: sha256 for name, sha256 in store.sums(folder).items() if name.removesuffix(".npz") in keys}


def audited(result: Result) -> dict[str, Any]:
    return {record.key: record.audit and record.audit.values for record in result.records}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), sweep(*MOMENTS, usual=3))
def test_a_signal_in_any_call_leaves_a_run_that_is_resumed(
    shell: Shell, inline_workers: None, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    for suite in ("low", "high"):  # as built-in ones, which one process audits
        monkeypatch.setitem(registry.BUILT_IN["suites"], suite, f"duo:{suite.title()}")
    with monkeypatch.context() as counting:
        calls_of_run = interrupting(counting, "", 0)
        assert run(shell).returncode == 0
    whole = store.open(shell.folder / "out")
    (shell.folder / "out").rename(shell.folder / "whole")
    with monkeypatch.context() as patched:
        interrupting(patched, name, number % calls_of_run[name])
        done = run(shell)
    assert done.returncode == 130, done.stdout + done.stderr
    if name == "discover":
        assert not (shell.folder / "out").exists()  # nothing is measured before
        return
    before = store.open(shell.folder / "out")
    assert not before.finished and not any(record.unaudited or record.error for record in before.records)
    windows = measured(shell.folder / "out")
    assert "--resume" in done.stdout
    again = shell("run", "--resume", "out", "--adapter", BAND)
    assert again.returncode == 0, again.stdout + again.stderr
    after = store.open(shell.folder / "out")
    kept = {record.key: record for record in after.records}
    assert measured(shell.folder / "out").items() >= windows.items()  # not measured again
    done_before = [record for record in before.records if not pending(record)]
    assert [kept[record.key].model_dump_json() for record in done_before] == [
        record.model_dump_json() for record in done_before
    ]
    assert figures(after) == figures(whole)


def test_a_second_signal_skips_the_report_but_not_what_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    undone = False
    try:
        for each in handlers:  # under nohup SIGHUP is ignored, and stays so
            signal.signal(each, signal.default_int_handler)
        with until_interrupted():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                undone = True
        assert undone
        with pytest.raises(KeyboardInterrupt):
            interruptible()
        with until_interrupted():
            signal.raise_signal(signal.SIGHUP)
        interruptible()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


MOMENT_S = [random.Random(63).uniform(0.2, 16) for _ in range(20)]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.realtime
@pytest.mark.parametrize("number", range(20))
def test_a_real_run_is_ended_at_any_moment_and_resumed(number: int, tmp_path: Path) -> None:
    made = Shell(tmp_path)
    words = ("run", "--tier", "smoke", "--suite", "resnet50", "--adapter", "onnxruntime", "--mix", "one.toml")
    (tmp_path / "one.toml").write_text('[one]\ntier = "smoke"\nunits = { resnet50 = 8 }\n')
    process = made.start(*words, "--out", "out")
    with suppress(subprocess.TimeoutExpired):
        process.wait(MOMENT_S[number])
    process.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[number % 3])
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    if process.returncode == 0 or not (tmp_path / "out").exists():  # it had ended, or had not begun
        assert process.returncode in (0, 130, -signal.SIGTERM, -signal.SIGHUP)
        return
    assert process.returncode == 130, (process.returncode, out, err)
    before = store.open(tmp_path / "out")
    assert not before.finished and not any(record.unaudited or record.error for record in before.records)
    windows = measured(tmp_path / "out")
    again = made.start("run", "--resume", "out", "--adapter", "onnxruntime")
    out, err = again.communicate(timeout=100)
    assert again.returncode == 0, (out, err)
    assert measured(tmp_path / "out").items() >= windows.items()
    after = store.open(tmp_path / "out")
    assert all(record.audit and record.audit.values for record in after.records if record.scenario != "probe")
