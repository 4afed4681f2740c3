"""A whole run over two agents on this machine, as a person types it: interrupted in its mix, and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.record import store
from tests.cli.shell import ROOT, Shell

pytestmark = [pytest.mark.slow, pytest.mark.realtime]

BAND = f"{ROOT / 'tests/fakes/band.py'}:Band"
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SUITES = """
class Low(Null):
    name = "low"
class High(Null):
    name = "high"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with two hosts. Each has a device that runs a suite of its own."""
    if len(CORES) < 2:
        pytest.skip("one core for two agents: run it on a machine with two")
    made = Shell(tmp_path)
    null = (ROOT / "tests/fakes/null.py").read_text()  # whole, since the auditor loads the suite's own module alone
    (tmp_path / "site/duo.py").write_text(null + SUITES)
    shutil.rmtree(tmp_path / "site/null_suite-1.dist-info")
    made.install("duo", "[mixmark.suites]\nlow = duo:Low\nhigh = duo:High\n")
    (tmp_path / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, high = 10 }\n')
    hosts = ""
    for name, core, plays in (("left", CORES[0], "a.low"), ("right", CORES[1], "b.high")):
        (tmp_path / f"{name}.toml").write_text(f'[adapter.band]\n"s.{plays}" = 0.01\n')
        hosts += f'[host.{name}]\ncores = "{core}"\nconfig = "{tmp_path / name}.toml"\n'
    (tmp_path / "hosts.toml").write_text(hosts)
    return made


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_run_over_two_agents_is_interrupted_and_goes_on(shell: Shell, inline: None) -> None:
    """What this process itself starts are threads; all else are processes."""
    words = ("--adapter", BAND, "--hosts", "hosts.toml")
    measured = ("--suite", "low", "--suite", "high", "--tier", "smoke", "--mix", "duo.toml", "--out", "out")
    begin_ns = time.monotonic_ns()
    leader = shell.start("run", *measured, *words)
    journal = shell.folder / "out/journal.jsonl"
    deadline = time.monotonic() + 100
    while not (journal.exists() and '"mix1"' in journal.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    family = psutil.Process(leader.pid).children(recursive=True)
    agents = [each for each in family if "agent" in each.cmdline()]
    leader.send_signal(signal.SIGINT)
    out, err = leader.communicate(timeout=60)
    assert (leader.returncode, "Traceback" in err) == (130, False), (leader.returncode, err)
    assert (len(agents), [each for each in family if lives(each)]) == (2, [])
    assert f"next    mixmark run --resume out --mix duo.toml --adapter {BAND} --hosts hosts.toml" in out
    before = store.open(shell.folder / "out")
    assert len(before.records) == 4 and "mixed" not in {each.scenario for each in before.records}
    alone = shell("run", "--resume", "out", "--adapter", BAND)
    assert (alone.returncode, "resume it where it began" in alone.stderr) == (2, True), alone.stderr
    done = shell("run", "--resume", "out", *words)
    assert done.returncode == 0, done.stderr
    end_ns = time.monotonic_ns()
    result = store.open(shell.folder / "out")
    assert result.finished and judge(result).exit_code == 0
    assert [device.id for device in result.devices] == ["left/npu:a", "right/npu:b"]
    assert [each.names for each in result.hosts] == [("left", "right")]
    kept = [(each.key, each.seed) for each in before.records]
    assert [(each.key, each.seed) for each in result.records[: len(kept)]] == kept, "none was measured again"
    played = {each.route.device: each for each in result.records if each.scenario == "mixed"}
    assert played.keys() == {"left/npu:a", "right/npu:b"}
    for record in played.values():
        assert record.completions is not None and record.parent_window_ns is not None
        assert begin_ns < record.completions.issued_ns[0] < record.completions.yielded_ns[-1] < end_ns
        assert record.audit is not None and record.audit.values == (0.0,)
        assert kept_at(shell.folder / "out", record.key).is_file()
    (left, right) = (played["left/npu:a"].parent_window_ns, played["right/npu:b"].parent_window_ns)
    assert left and right and abs(left[0] - right[0]) < 5e9, "both began at once"
    measured_on = {(each.phase, each.host) for each in result.connections}
    assert {(each.phase, each.route.device.partition("/")[0]) for each in result.records} == measured_on
    for each in result.connections:
        assert abs(each.clock.offset_ns) <= each.clock.bound_ns, "all agents have this machine's clock"
        assert each.sent_bytes < 100_000 and each.received_bytes < 100_000
    written = b"".join(each.read_bytes() for each in (shell.folder / "out").rglob("*.json*"))
    assert str(shell.folder).encode() not in written and b"hosts.toml" not in json.dumps(result.hosts and []).encode()
    assert shell("report", "out").returncode == 0
