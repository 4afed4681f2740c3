"""Agents that are started on this machine, by ssh and by Ray: their faults, and that no process outlives the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark.harness.capabilities.hosts import agents as agents_module
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, process
from tests.capabilities.hosts.launchers import ROOT, end_soon, facts, lives, stand_in
from tests.capabilities.hosts.launchers.conftest import Way

pytestmark = pytest.mark.slow


@pytest.fixture
def python(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def listen(agents: Agents, seconds: float) -> None:
    for _ in agents.received(time.monotonic() + seconds):
        pass


def test_each_agent_replies_and_ends_with_the_launcher(way: Way, tmp_path: Path, python: str) -> None:
    hosts = [way.host(number, python) for number in (1, 2, 3)]
    with Agents(way.launcher(), hosts, tmp_path) as agents:
        assert (agents.present, agents.refused) == (["host1", "host2", "host3"], {})
        found = facts(agents)
        assert [fact.name for fact in found.values()] == agents.present
        pids = [fact.pid for fact in found.values()]
        assert len({os.getsid(pid) for pid in (0, *pids)}) == 4, "each has a session of its own"
        agents.burst()
        deadline = time.monotonic() + 60  # on a busy machine the replies come after the burst
        while any(len(agents[name].round_trips) < 2 for name in agents.present) and time.monotonic() < deadline:
            listen(agents, 0.1)
        assert all(len(agents[name].round_trips) > 1 for name in agents.present)
    assert end_soon(pids)
    assert "a library prints this" in (tmp_path / "agents/host1.log").read_text(), "and not into the stream"


def test_an_agent_that_is_killed_costs_only_itself(way: Way, tmp_path: Path, python: str) -> None:
    with Agents(way.launcher(), [way.host(1, python), way.host(2, python)], tmp_path) as agents:
        os.kill(facts(agents)["host1"].pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not agents["host1"].lost and time.monotonic() < deadline:
            listen(agents, 0.1)
        reason = str(agents["host1"].lost)
        killed = {
            "local": "was killed by signal 9",
            "ssh": "ended with exit status 137",
            "ray": "exit status 137",
            "slurm": "exit status 137",
        }
        assert killed[way.name] in reason or "exit status 255" in reason or "its ssh failed" in reason, reason
        assert facts(agents).keys() == {"host2"}


@pytest.mark.realtime
@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGSTOP, signal.SIGCONT)], ids=["killed", "stopped"])
def test_no_agent_outlives_a_leading_process_and_a_pause_of_it_loses_none(
    way: Way, tmp_path: Path, python: str, signals: tuple[signal.Signals, ...]
) -> None:
    hosts = [way.host(number, python) for number in (1, 2)]
    code = f"""
import sys, time
from pathlib import Path
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, process
from tests.capabilities.hosts.launchers import facts
with Agents({way.code}, {hosts!r}, Path({str(tmp_path)!r})) as agents:
    for _ in range(2):
        print(*(fact.pid for fact in facts(agents).values()), flush=True)
        sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as leader:
        assert leader.stdin and leader.stdout
        pids = [int(pid) for pid in leader.stdout.readline().split()]
        assert len(pids) == 2 and all(map(lives, pids))
        leader.send_signal(signals[0])
        if len(signals) == 2:
            time.sleep(2)
            assert all(map(lives, pids))
            leader.send_signal(signals[1])
            leader.stdin.write("\n")
            leader.stdin.flush()
            assert [int(pid) for pid in leader.stdout.readline().split()] == pids
            leader.stdin.write("\n")
            leader.stdin.flush()
        leader.wait(60)
        assert end_soon(pids)


def test_an_agent_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 0.1)
    with Agents(process.local(), [Host("host1", python=python, config="stays")], tmp_path) as agents:
        found = facts(agents)["host1"]
        assert lives(found.pid) and lives(found.child)
    assert not lives(found.pid) and not lives(found.child)


def test_an_agent_that_sends_nothing_is_given_up(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_module, "STARTS_WITHIN_S", 0.5)
    with Agents(process.local(), [Host("host1", python=python, config="silent")], tmp_path) as agents:
        assert agents.refused == {"host1": "its agent sent nothing within 0.5 s"}


def test_an_agent_that_does_not_arrive_costs_only_itself(a_way: Way, tmp_path: Path, python: str) -> None:
    faults = ["dies", "chatters"] if a_way.name in ("ray", "slurm") else ["dies", "chatters", "old"]  # three nodes
    hosts = [replace(a_way.host(at, python, fault), name=fault) for at, fault in enumerate(faults, 2)]
    with Agents(a_way.launcher(), [*hosts, a_way.host(1, python)], tmp_path) as agents:
        assert facts(agents)["host1"].name == "host1"
        refused = agents.refused
    assert refused.pop("dies") == "its agent ended with exit status 1; its log ends with: no accelerator here"
    assert refused.pop("chatters").startswith(
        "its agent broke the protocol: its first line is 'Welcome to this machine!"
    )
    if "old" in faults:
        assert refused.pop("old") == (
            "it has Mixmark 9.9 with other files than Mixmark 0.1.0 of this host; install the same Mixmark on all hosts"
        )
    assert not refused
    assert "no accelerator \x1b[31mhere\n" in (tmp_path / "agents/dies.log").read_text(), "srun adds lines of its own"
