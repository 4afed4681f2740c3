"""The parts of `bench.accelerator`: what a call does, skips and continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from bench.accelerator import ABSENT, counters, peers, trials
from bench.accelerator import __main__ as accelerator

LISTING: dict[str, Any] = {
    "devices": [{"id": "cpu:0", "kind": "cpu"}, {"id": "gpu:0", "kind": "gpu"}],
    "routes": [
        {"device": device, "adapter": adapter, "precisions": ["fp16", "fp32"], "precisions_by_suite": by_suite}
        for device, adapter, by_suite in (
            ("cpu:0", "openvino", {}),
            ("cpu:0", "torch", {}),
            ("gpu:0", "inductor", {"llm": ["fp16", "fp8"]}),
            ("gpu:0", "torch", {"dlrm": ["fp32"]}),
        )
    ],
}


def test_the_accelerator_is_the_device_that_is_no_cpu_and_the_mix_runs_by_an_adapter_of_both(tmp_path: Path) -> None:
    on = accelerator.reached(LISTING, None, tmp_path, "edge")
    assert (on.device, on.adapters, on.both) == ("gpu:0", ["inductor", "torch"], "torch")
    assert on.engines["llm"] == {"fp16": "torch", "fp32": "torch", "fp8": "inductor"}
    assert on.engines["dlrm"] == {"fp32": "torch", "fp16": "inductor"}
    assert dict(accelerator.separation(on))["dlrm-smoke"][-3:] == ("--engines", "torch:fp32", "inductor:fp16")
    assert dict(accelerator.suites(on))["llm-fp8"][4:8] == ("--adapter", "inductor", "--precision", "fp8")
    [(_, mix)] = accelerator.chosen(on, ["mix-2"])
    out = str(tmp_path / "mix-2" / "run")
    assert mix.words[3:] == ("run", "--adapter", "torch", "--tier", "edge", "--out", out)
    Path(out).mkdir(parents=True)
    (Path(out) / "journal.jsonl").touch()
    assert mix.words[3:] == ("run", "--resume", out, "--adapter", "torch")
    again = ("--model", "small.onnx", "--mix", "none", "--adapter", "torch")
    own = accelerator.Step("own", accelerator.mixmark("run", *again, "--out", out), 1)
    assert own.words[3:] == ("run", "--resume", out, *again), "a resumed run does not keep these"
    [(_, join)] = accelerator.chosen(on, ["join"])
    assert {"--org", "--system", "--availability", "--form-factor", "--origin"} <= {*join.words}, "an entry needs all"
    assert [name for name, _ in accelerator.chosen(on, ["smoke"])] == ["smoke/inductor", "smoke/torch"]


@pytest.mark.parametrize("file", [None, "devices.json", "steps.json", ""])
def test_a_call_that_cannot_begin_ends_without_a_traceback(
    file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No accelerator is found, a file is damaged, or a file is in the folder's place. No list of devices is kept."""
    folder, found = tmp_path / "of", {**LISTING, "devices": []}
    monkeypatch.setattr(sys, "argv", ["accelerator", str(folder), "look"])
    monkeypatch.setattr(signal, "signal", Mock())
    if file is not None:
        found, damaged = LISTING, folder / file
        damaged.parent.mkdir(exist_ok=True)
        damaged.write_text('{"look/devices": 1}')
    monkeypatch.setattr(subprocess, "check_output", lambda command: json.dumps(found).encode())
    with pytest.raises(SystemExit, match=str(ABSENT)):
        accelerator.main()
    assert file == "devices.json" or not (folder / "devices.json").exists()


def test_a_step_has_its_part_of_the_minutes_and_the_next_call_does_an_interrupted_or_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, sent = Mock(pid=7, wait=Mock(side_effect=[KeyboardInterrupt, 0, ABSENT, 0])), Mock()
    monkeypatch.setattr(subprocess, "Popen", Mock(return_value=process))
    monkeypatch.setattr(os, "killpg", sent)
    monkeypatch.setattr(signal, "signal", Mock())
    monkeypatch.setattr(accelerator, "PARTS", {"a": (3, lambda on: iter([("b", ("mixmark",))]))})
    monkeypatch.setattr(sys, "argv", ["accelerator", str(tmp_path), "a", "--minutes", "90"])
    (tmp_path / "devices.json").write_text(json.dumps(LISTING))
    with pytest.raises(SystemExit, match=str(accelerator.INTERRUPTED)):
        accelerator.main()
    assert (process.wait.call_args_list[0].args, sent.call_args_list) == ((30,), [((7, signal.SIGINT),)])
    for _ in range(3):
        accelerator.main()
    assert json.loads((tmp_path / "steps.json").read_text())["a/b"][0] == 0 and process.wait.call_count == 4


NO_TORCH: Any = SimpleNamespace(name="onnxruntime")
NO_LIBRARY = Mock(nvmlInit=Mock(side_effect=RuntimeError("no library")))


@pytest.mark.parametrize(
    ("nvml", "step"),
    [
        (None, counters.main),
        (NO_LIBRARY, counters.main),
        (None, lambda: trials.tf32(NO_TORCH, Mock(), "smoke")),
        (None, lambda: peers.by_onnxruntime(Mock(), {}, "CUDAExecutionProvider")),
    ],
    ids=["package", "driver", "tf32", "provider"],
)
def test_a_step_that_the_machine_cannot_do_is_absent(
    nvml: Any, step: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code is not a fault's."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(SystemExit) as ended:
        step()
    assert ended.value.code == ABSENT


@pytest.mark.slow
def test_a_call_skips_what_is_done_and_stops_what_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def python(*codes: str) -> Any:
        return lambda on: ((f"{n}", (sys.executable, "-c", code)) for n, code in enumerate(codes))

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["accelerator", str(tmp_path), *words])
        accelerator.call()
        done: dict[str, Any] = json.loads((tmp_path / "steps.json").read_text())
        return {name: code for name, (code, _) in done.items()}

    (tmp_path / "devices.json").write_text(json.dumps(LISTING))
    short, sleeps = python("print('1')", "raise SystemExit(7)"), python("import time; time.sleep(60)")
    monkeypatch.setattr(accelerator, "PARTS", {"a": (5, short), "b": (1, sleeps)})
    assert run("a", "b") == {"a/0": 0, "a/1": 7, "b/0": accelerator.STOPPED}
    assert (tmp_path / "a" / "0.txt").read_text() == "1\n"
    capsys.readouterr()
    run("a/0")
    assert capsys.readouterr().out.startswith("a/0: done before\n")
    monkeypatch.setattr(accelerator, "MOST_BYTES", 0)
    run("b")
    assert capsys.readouterr().out.startswith("b/0: not started, the folder is full\n")
