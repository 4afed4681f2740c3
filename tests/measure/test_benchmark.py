"""A whole run that ends with its mix, as a person types it: two suites on two devices that sleep for given times."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Record
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.local_executor import LocalExecutor
from mixmark.harness.record import store
from tests.cli.shell import ROOT, Shell

pytestmark = pytest.mark.usefixtures("inline_workers")

BAND = f"{ROOT / 'tests/fakes/band.py'}:Band"
OPTIONS = {"s.a.low": 0.01, "s.a.high": 0.05, "s.b.low": 0.05, "s.b.high": 0.01}
PAIR = ("npu:a", "npu:b")
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
    assert not [*shell.folder.glob("out/raw/*.handed.npz")]
    assert shell("report", "out").returncode == 0


def test_the_score_comes_first_and_is_that_of_the_report(shell: Shell) -> None:
    """The plan is made of audited quick checks; what each suite does alone explains the score afterwards."""
    done = run(shell)
    assert done.returncode == 0, done.stderr
    found = store.open(shell.folder / "out")
    order = [purpose for purpose, _ in itertools.groupby(phase.purpose for phase in found.phases)]
    assert order == ["screening", "mixed", "solo"]
    checks = [each for each in found.records if each.screening]
    assert {(each.route.suite, each.route.device) for each in checks} == {*itertools.product(("low", "high"), PAIR)}
    assert all(each.audited for each in found.records), "the checks too"
    judged = judge(found)
    shown = " ".join(done.stderr.split())
    assert judged.score and f"{judged.score.headline}. Verdict: {judged.verdict.word}. Each suite" in shown, done.stderr
    (diagnosis,) = judged.diagnoses.values()
    halved = [each if each.screening or each.scenario == "mixed" else slower(each) for each in found.records]
    (of_half,) = judge(found.model_copy(update={"records": tuple(halved)})).diagnoses.values()
    assert not of_half.unproven, "the plan has the rates of the checks"
    assert of_half.bound_per_hour.estimate == pytest.approx(diagnosis.bound_per_hour.estimate / 2)
    for part, whole in zip(of_half.parts, diagnosis.parts, strict=True):
        assert whole.solo_units_per_s and part.solo_units_per_s == pytest.approx(whole.solo_units_per_s / 2)
    early = [each for each in found.records if each.screening or each.scenario == "mixed"]
    (unsure,) = judge(found.model_copy(update={"records": tuple(early), "finished": False})).diagnoses.values()
    assert unsure.bound_per_hour.half_width == pytest.approx(solo_rates.COARSE), "of the checks"
    slow_checks = [slower(each) if each.screening else each for each in found.records]
    forged = judge(found.model_copy(update={"records": tuple(slow_checks)})).score
    assert forged and {each.code for each in forged.problems} == {"mix_complete.no_rate"}, "the checks are invalid"


def slower(record: Record) -> Record:
    """The record of a window that was twice as long."""
    begin_ns, end_ns = record.parent_window_ns or (0, 0)
    return record.model_copy(update={"parent_window_ns": (begin_ns, 2 * end_ns - begin_ns)})


@pytest.mark.slow
def test_ctrl_c_after_the_score_keeps_it_and_resume_adds_the_rest(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = LocalExecutor.measure

    def interrupted(self: LocalExecutor, requests: Sequence[PhaseRequest], notify: Any) -> Any:
        if requests[0].phase.purpose == "solo":
            raise KeyboardInterrupt
        return alone(self, requests, notify)

    with monkeypatch.context() as patched:
        patched.setattr(LocalExecutor, "measure", interrupted)
        done = run(shell)
    early = judge(store.open(shell.folder / "out")).score
    assert (done.returncode, early and early.headline in " ".join(done.stdout.split())) == (130, True), done.stdout
    again = shell("run", "--resume", "out", "--adapter", BAND)
    assert again.returncode == 0, again.stderr
    late = judge(store.open(shell.folder / "out"))
    assert late.score and early and late.score.headline == early.headline and len(late.solos) == 4


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


def test_a_wrong_mix_is_refused_before_anything_runs(shell: Shell) -> None:
    (shell.folder / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, hihg = 10 }\n')
    done = run(shell)
    assert (done.returncode, "high" in done.stderr) == (2, True)
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


@pytest.mark.parametrize("writing", ["append", "finish"])
def test_a_run_that_cannot_write_says_how_it_goes_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, writing: str
) -> None:
    def full(*_: object) -> None:
        raise ResultError("no space is left", "free some")

    monkeypatch.setattr(store.Store, writing, full)
    done = run(shell)
    assert (done.returncode, "free some; continue with: mixmark run --resume out" in done.stderr) == (2, True)
