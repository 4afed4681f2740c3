"""A real process writes what a wall meter reads while `mixmark run` runs: joules a unit, or none and the reason."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from mixmark.reporters.data import as_json
from tests.cli.shell import ACME, Shell

pytestmark = pytest.mark.slow

WATTS = 60.0
METER = """
import os, sys, time
kind, where, journal, last = sys.argv[1:]
if kind == "log":
    out = open(where, "a")
    print("timestamp,watts", file=out, flush=True)
    print("is written", flush=True)
else:
    out = sys.stdout
due, turn = time.time(), 0
while not (last and os.path.exists(journal) and '"begun"' in open(journal).read()):
    while due <= time.time():  # a reading each 10 ms, also of those that a busy machine let us sleep through
        print(f"{due:.6f},{60 + (turn % 2 - 0.5) / 1e6}", file=out, flush=True)  # as one that is not frozen
        due, turn = due + 0.01, turn + 1
    time.sleep(0.005)
print(last, file=out, flush=True)
time.sleep(1000)
"""


@contextmanager
def meter(folder: Path, kind: str, last: str = "") -> Iterator[dict[str, str]]:
    """The options that read the meter. It reads 60 W, and once a window began, `last` if there is any, and no more."""
    words = [sys.executable, "-c", METER, kind, str(folder / "power.csv"), str(folder / "out/journal.jsonl"), last]
    if kind == "command":
        yield {"command": shlex.join(words)}
        return
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as printed:
        printed.readline()
        try:
            yield {"path": str(folder / "power.csv")}
        finally:
            process.kill()
            process.wait()


def run(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """`mixmark run` of the null suite; its report as JSON, with the suite's own figures."""
    shell = Shell(folder, window_ms=1000)
    section = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    (folder / "mixmark.toml").write_text(f"[adapter.acme]\nwork_s = 0.01\n[meter.external]\n{section}")
    words = ("--suite", "null", "--adapter", ACME, "--tier", "smoke", "--scenario", "single-stream", "--out", "out")
    done = shell("run", *words)
    assert done.returncode == 0, done.stderr
    result = store.open(folder / "out")
    shown: dict[str, Any] = json.loads(as_json(judge(result)))
    [figures] = [row for row in shown["runs"] if row["route"]["suite"] == "null"]
    return shown | {"figures": figures, "domains": [each.model_dump_json() for each in result.domains]}


def test_a_wall_meter_s_log_gives_a_run_its_joules_a_unit(tmp_path: Path) -> None:
    with meter(tmp_path, "log") as options:
        shown = run(tmp_path, options)
    figures, used = shown["figures"], shown["figures"]["energy"]
    assert used["boundary"] == "wall" and used["left_out"] == []
    assert used["watts"] == pytest.approx(WATTS)
    assert used["joules_per_unit"] == pytest.approx(used["joules"] / figures["units"])
    assert str(tmp_path) not in json.dumps(shown["domains"])


def test_a_meter_that_sends_rubbish_costs_a_run_its_joules_and_nothing_else(tmp_path: Path) -> None:
    with meter(tmp_path, "command", last="~;;6O watts") as options:
        shown = run(tmp_path, options)
    assert shown["figures"]["status"] == "ok" and shown["figures"]["units_per_s"]["estimate"] > 0
    assert shown["figures"]["energy"] is None
    [values] = [each["values"] for each in shown["findings"] if each["code"] == "energy_valid.unknown"]
    assert (values["domain"], values["why"][0]) == ("external", "lost")
    assert values["why"][1].startswith("output of python")
