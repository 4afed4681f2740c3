"""A whole run that ends with its mix, as a person types it: two suites on two devices that sleep for given times."""

from __future__ import annotations

import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Audit, Cost, Device, Gate, Mix, Record
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.plan import phases as plan
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import Target, Workload
from mixmark.harness.record import store
from mixmark.harness.worker import sealed
from tests.cli.shell import ROOT, Shell
from tests.fakes.folders import with_outputs
from tests.golden import sample

pytestmark = pytest.mark.usefixtures("inline_workers")

BAND = f"{ROOT / 'tests/fakes/band.py'}:Band"
OPTIONS = {"s.a.low": 0.01, "s.a.high": 0.05, "s.b.low": 0.05, "s.b.high": 0.01}
MIXED = ("--suite", "low", "--suite", "high", "--adapter", BAND, "--tier", "smoke", "--mix", "duo.toml", "--out", "out")
ENTRY_POINTS = "[mixmark.suites]\nlow = duo:Low\nhigh = duo:High\n"
SUITES = """
class Low(Null):
    name = "low"
class High(Null):
    name = "high"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    null = (ROOT / "tests/fakes/null.py").read_text()  # whole, since the auditor loads the suite's own module alone
    (tmp_path / "site/duo.py").write_text(null + SUITES)
    made.install("duo", ENTRY_POINTS)
    (tmp_path / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, high = 10 }\n')
    return made


def run(shell: Shell, *words: str, **options: Any) -> Any:
    lines = "".join(f'"{key}" = {value!r}\n' for key, value in {**OPTIONS, **options}.items())
    (shell.folder / "mixmark.toml").write_text(f"[adapter.band]\n{lines}")
    return shell("run", *MIXED, *words)


def result(shell: Shell) -> dict[str, Any]:
    return dict(json.loads((shell.folder / "out/result.json").read_text()))


def test_a_run_ends_with_its_mix(shell: Shell) -> None:
    done = run(shell, **{"parts.both": "a+b", "s.both.low": 0.008})
    assert done.returncode == 0, done.stderr
    content = result(shell)
    assert content["finished"]
    group = next(device for device in content["devices"] if device["id"] == "npu:both")
    assert group["parts"] == ["npu:a", "npu:b"]
    measured = {record["route"]["device"] for record in content["records"] if record["scenario"] == "offline"}
    assert measured == {"npu:a", "npu:b", "npu:both"}
    assert content["mix"]["name"] == "duo"
    (phase,) = [phase for phase in content["phases"] if phase["placement"]]
    shares = phase["placement"]["fractions"]
    assert shares["low"]["npu:a"] > 0.5  # each what it does best; real rates differ, so the faster one helps out
    assert shares["high"]["npu:b"] > 0.5
    parts = [record for record in content["records"] if record["phase"] == phase["name"]]
    assert {record["scenario"] for record in parts} == {"mixed"}
    assert {record["route"]["device"] for record in parts} == {"npu:a", "npu:b"}  # and their group was not even loaded
    assert phase["placement"]["device_prices"].keys() == {"npu:a or npu:both", "npu:b or npu:both"}
    assert all(record["audit"]["values"] == [0.0] for record in parts)  # by the adapter that is the reference
    assert "in the mix, low on npu:a" in done.stderr
    assert shell("report", "out").returncode == 0


def test_each_weight_class_has_a_mix_and_what_was_measured_alone_is_measured_once(shell: Shell) -> None:
    (shell.folder / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10 }\n')
    (shell.folder / "mixmark.toml").write_text('[adapter.band]\n"s.a.low" = 0.02\nint8 = 0.5\n')
    words = ("--suite", "low", "--adapter", BAND, "--tier", "smoke", "--mix", "duo.toml", "--out", "out")
    done = shell("run", *words, "--bits", "16,8")
    assert done.returncode == 0, done.stderr
    high, low = (store.open(shell.folder / name) for name in ("out", "out-8-bit"))
    assert (high.bits, [phase.purpose for phase in high.phases]) == (16, ["solo", "mixed"])
    assert (low.bits, [phase.purpose for phase in low.phases]) == (8, ["solo", "solo", "mixed"])
    assert low.records[-1].route.precision == "int8"
    assert high.records[0].model_dump() == low.records[0].model_dump()
    assert kept_at(shell.folder / "out-8-bit", low.records[0].key).exists()
    assert done.stdout.count("Speed (TX) ") == 2
    assert "16-bit weights" in done.stdout and "8-bit weights" in done.stdout
    assert judge(low).exit_code == 0


def test_no_mix_is_planned_from_wrong_outputs(shell: Shell, tmp_path: Path) -> None:
    wrong = (tmp_path / "site/duo.py").read_text() + "    def reference(self):\n        return Low(self.tier, {})\n"
    wrong += "    def quality(self, output, reference):\n        return 9.0\n"
    (tmp_path / "site/duo.py").write_text(wrong)
    done = run(shell)
    assert done.returncode == 1
    content = result(shell)
    assert content["finished"]
    assert not [phase for phase in content["phases"] if phase["placement"]]
    reason = next(each["reason"] for each in content["absent"] if (each["kind"], each["name"]) == ("mix", "duo"))
    assert reason.startswith("no device can run high")
    assert "No score: no device can run high" in done.stdout
    for form in ("markdown", "html", "csv", "json"):
        assert shell("report", "out", "--format", form).returncode == 1


def test_a_wrong_mix_is_refused_before_anything_runs(shell: Shell) -> None:
    (shell.folder / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, hihg = 10 }\n')
    done = run(shell)
    assert (done.returncode, "high" in done.stderr) == (2, True)
    (shell.folder / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 0, high = 10 }\n')
    done = run(shell)
    assert (done.returncode, "above 0" in done.stderr) == (2, True)
    done = shell("run", "--suite", "low", "--adapter", BAND, "--tier", "smoke", "--mix", "smoke-1")
    assert (done.returncode, "smoke-1" in done.stderr) == (2, True)
    (shell.folder / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, high = 10 }\n')
    (shell.folder / "out-8-bit").mkdir()
    (shell.folder / "out-8-bit/kept").touch()
    done = run(shell, "--bits", "16,8")
    assert (done.returncode, "out-8-bit exists and is not an empty folder" in done.stderr) == (2, True)
    assert not (shell.folder / "out").exists()


@pytest.mark.slow
@pytest.mark.realtime
def test_an_interrupted_mix_is_played_again(shell: Shell) -> None:
    lines = "".join(f'"{key}" = {value}\n' for key, value in OPTIONS.items())
    (shell.folder / "mixmark.toml").write_text(f"[adapter.band]\n{lines}")
    words = ("--suite", "low", "--suite", "high", "--adapter", BAND, "--tier", "smoke", "--mix", "duo.toml")
    process = shell.start("run", *words, "--out", "out")
    journal = shell.folder / "out/journal.jsonl"
    deadline = time.monotonic() + 100
    while not (journal.exists() and '"mix1"' in journal.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    for _ in range(3):  # an impatient hand
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False), (process.returncode, err)
    before = store.open(shell.folder / "out")
    assert not before.finished
    assert "mixed" not in {record.scenario for record in before.records}
    assert [phase.name for phase in before.phases if phase.placement] == ["mix1"]
    again = shell("run", "--resume", "out", "--adapter", BAND)
    assert again.returncode == 0, again.stderr
    after = result(shell)
    assert after["finished"]
    assert [phase["name"] for phase in after["phases"] if phase["placement"]] == ["mix1"]
    assert len([record for record in after["records"] if record["scenario"] == "mixed"]) >= 2


def measured_alone(folder: Path, devices: str) -> None:
    """A run that was interrupted before its mix: what each device did alone is made up."""
    targets = [
        Target(
            Device(id=f"npu:{name}", kind="npu", memory_pool=name, memory_bytes=8 << 30, precisions=("fp32",)),
            "band",
            {},
        )
        for name in devices
    ]
    phases = plan.solo(
        targets, [Workload(name, "1", ("offline",)) for name in ("low", "high")], "smoke", presets.PRESETS["quick"]
    )
    header = sample.result().model_copy(
        update={
            "tier": "smoke",
            "devices": tuple(target.device for target in targets),
            "phases": phases,
            "mix": Mix(name="duo", tier="smoke", units={"low": 10, "high": 10}),
            "finished": False,
            "code": dict(sealed.own().files),
        }
    )
    audit = Audit(gate=Gate(metric="difference", at_most=0.5), finished=9, feeds=(0,), values=(0.0,))
    keeper = store.create(folder, header)
    costs = (Cost(name="nothing", flops=2, bytes=16),)
    for number, phase in enumerate(phases, 1):
        (share,) = phase.shares
        done = sample.closed_loop([[20_000_000]] * 9, 2, number * 1_000_000_000)
        own = {"key": share.key, "phase": phase.name, "route": share.route, "scenario": share.scenario}
        made_up = sample.record(share.key, share.route.suite, "sample", done, batch=2, costs=costs)
        fields = vars(made_up) | {"completions": done, "audit": audit}
        previous_digests, outputs = np.zeros((1, 16), np.uint8), np.zeros((1, 2), np.int64)
        arrays = {"serials": np.array([0]), "previous_digests": previous_digests, "outputs": outputs}
        keeper.append(with_outputs(folder, Record.model_validate({**fields, **own}), **arrays))


@pytest.mark.slow
@pytest.mark.realtime
def test_faults_in_the_mix_are_named_and_what_was_done_is_kept(shell: Shell) -> None:
    """One device dies, one raises, one hangs, and at first the disk is full when that is to be written."""

    def play(**faults: str) -> None:
        options = {f"s.{device}.{suite}": 0.01 for device in "abc" for suite in ("low", "high")}
        options |= {f"{how}.{device}": 8 for device, how in faults.items()}  # feeds; the warm-up takes one or two
        lines = "".join(f'"{key}" = {value}\n' for key, value in options.items())
        (shell.folder / "mixmark.toml").write_text(f"[adapter.band]\n{lines}")

    measured_alone(shell.folder / "out", "abc")
    play(a="die", b="raise", c="die")
    again = ("run", "--resume", "out", "--adapter", BAND, "--timeout", "6")
    for device, suite in [*itertools.product("abc", ("low", "high"))][1:]:  # what comes first can be written
        (shell.folder / f"out/raw/.mix1.{suite}.band.npu-{device}.fp32.npz.part").symlink_to("/dev/full")
    full = shell(*again)
    assert full.returncode == 2, full.stderr
    assert "cannot write record mix1." in full.stderr
    assert "No space left on device" in full.stderr
    assert "free disk space; continue with: mixmark run --resume out" in full.stderr
    assert len(store.open(shell.folder / "out").records) == 6  # nothing of the mix, rather than a part of it
    for left in (shell.folder / "out/raw").glob(".*"):
        left.unlink()
    play(a="die", b="raise", c="hang")
    done = shell(*again)
    assert done.returncode == 1, done.stderr
    finished = store.open(shell.folder / "out")
    assert finished.finished
    parts = [record for record in finished.records if record.phase == "mix1"]
    assert {record.route.device for record in parts if record.completions} == {"npu:a", "npu:b", "npu:c"}
    lost = {record.route.device: record.cut_short for record in parts if record.completions}
    assert {device: failure and failure.kind for device, failure in lost.items()} == {
        "npu:a": "crashed",
        "npu:b": "raised",
        "npu:c": "hung",
    }
    for words in ("No score: ", "SIGSEGV", "a string broke", "no reply within 6 s"):
        assert words in " ".join(done.stdout.split())
