"""Agents on this machine: those that greet, those that do not, and none that outlives its launcher."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from mixmark.harness.measure.cluster.launchers import Host, process
from mixmark.harness.measure.cluster.launchers.local import Local
from tests.measure.cluster.launchers import ask, stand_in, started

pytestmark = pytest.mark.slow

SECRET = b"drawn for this run"


@pytest.fixture
def python(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_agents_answer_each_by_its_own_stream_and_end_with_the_launcher(tmp_path: Path, python: str) -> None:
    hosts = (Host("host1", python=python, cores=(0, 1)), Host("host2", python=python), Host("host3", python=python))
    with Local() as launcher:
        found = launcher.start(hosts, SECRET, tmp_path)
        said = {name: ask(started(found, name)) for name in found}
        assert [words[0] for words in said.values()] == ["host1", "host2", "host3"]
        assert [words[2] for words in said.values()] == ["0,1", "-", "-"]
        pids = [int(words[1]) for words in said.values()]
        assert len({os.getsid(pid) for pid in (0, *pids)}) == 4, "each has a session of its own"
        for pid in pids:
            for file in ("cmdline", "environ"):
                assert SECRET.hex().encode() not in Path(f"/proc/{pid}/{file}").read_bytes()
        assert [started(found, name).ended() for name in found] == ["", "", ""]
    assert not any(map(lives, pids))


def test_an_agent_that_is_killed_is_told_by_its_stream_and_its_status(tmp_path: Path, python: str) -> None:
    with Local() as launcher:
        agent = started(launcher.start([Host("host1", python=python)], SECRET, tmp_path), "host1")
        os.kill(int(ask(agent)[1]), signal.SIGKILL)
        assert agent.link.receive(60) == b""
        deadline = time.monotonic() + 60
        while not agent.ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert agent.ended() == "its agent was killed by signal 9"


def test_one_that_does_not_end_by_itself_is_killed_with_what_it_started(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ENDS_WITHIN_S", 0.1)
    with Local() as launcher:
        agent = started(launcher.start([Host("host1", python=python, config="stays")], SECRET, tmp_path), "host1")
        _, pid, _, child, _ = ask(agent)
        assert lives(int(pid)) and lives(int(child))
    assert not lives(int(pid)) and not lives(int(child))


def test_an_agent_that_cannot_be_greeted_costs_only_itself(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SAYS_WITHIN_S", 30)
    targets = ("dies", "chatters", "stranger", "echoes")
    hosts = [
        *(Host(target, python=python, config=target) for target in targets),
        Host("nowhere", python=str(tmp_path / "none")),
    ]
    with Local() as launcher:
        found = launcher.start(hosts, SECRET, tmp_path)
        assert ask(started(found, "echoes"))[0] == "echoes"
    reasons = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    assert reasons["dies"] == "its agent ended with exit status 1; its log ends with: no accelerator here"
    assert reasons["chatters"].startswith("it speaks another protocol than mixmark-link-1; it looks so where")
    assert reasons["stranger"].startswith("it does not know the secret of this run")
    assert reasons["nowhere"] == f"its agent cannot be started: {tmp_path / 'none'}: No such file or directory"
    assert (tmp_path / "dies.log").read_text() == "no accelerator \x1b[31mhere\n"


def test_an_agent_that_says_nothing_is_given_up(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STARTS_WITHIN_S", 0.5)
    with Local() as launcher:
        found = launcher.start([Host("host1", python=python, config="silent")], SECRET, tmp_path)
    assert found["host1"] == "its agent did not greet within 0.5 s"
