"""The parts of `bench.accelerator`: what a call does, skips and continues."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.accelerator import __main__ as accelerator
from bench.accelerator.__main__ import Step

LISTING: dict[str, Any] = {
    "devices": [
        {"id": "cpu:0", "kind": "cpu", "precisions": ["bf16", "fp32"]},
        {"id": "gpu:0", "kind": "gpu", "precisions": ["bf16", "fp16", "fp32"]},
    ],
    "routes": [
        {"device": device, "adapter": adapter}
        for device, adapter in (("cpu:0", "openvino"), ("cpu:0", "torch"), ("gpu:0", "torch"), ("gpu:0", "inductor"))
    ],
}


def test_the_accelerator_is_the_device_that_is_no_cpu_and_the_mix_runs_by_an_adapter_of_both(tmp_path: Path) -> None:
    on = accelerator.reached(LISTING, None)
    assert (on.device, on.adapters, on.on_both) == ("gpu:0", ["torch", "inductor"], ["torch"])
    plan = accelerator.parts(on, tmp_path, "edge")
    [mix] = plan["mix-2"]
    assert mix.command[3:] == ("run", "--tier", "edge", "--out", str(tmp_path / "mix-2" / "run"), "--adapter", "torch")
    assert sum(step.limit_s for step in plan["look"]) <= 60 * accelerator.MOST_MINUTES
    with pytest.raises(SystemExit, match="no adapter finds an accelerator"):
        accelerator.reached({**LISTING, "devices": LISTING["devices"][:1]}, None)


@pytest.mark.slow
def test_a_call_skips_what_is_done_and_a_step_that_was_stopped_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def python(code: str) -> tuple[str, ...]:
        return (sys.executable, "-c", code, "--adapter", "torch")

    steps = [Step("one", python("print('1')"), 5), Step("two", python("raise SystemExit(7)"), 5)]
    sleeps = Step("long", python("import time; time.sleep(60)"), 1, tmp_path / "run")

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["accelerator", str(tmp_path), *words])
        accelerator.main()
        done: dict[str, Any] = json.loads((tmp_path / "steps.json").read_text())
        return {name: code for name, (code, _) in done.items()}

    (tmp_path / "devices.json").write_text(json.dumps(LISTING))
    monkeypatch.setattr(accelerator, "parts", lambda *_: {"a": steps, "b": [sleeps]})
    assert run("a", "b", "--minutes", "0.35") == {"a/one": 0, "a/two": 7, "b/long": accelerator.STOPPED}
    assert (tmp_path / "a" / "one.txt").read_text() == "1\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").touch()
    assert sleeps.words[3:] == ("run", "--resume", str(tmp_path / "run"), "--adapter", "torch")
    capsys.readouterr()
    run("a/one")
    assert capsys.readouterr().out.startswith("a/one: done before\n")
