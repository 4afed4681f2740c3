"""Agents behind a real ssh server of the test's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.cluster.launchers import Host
from mixmark.harness.measure.cluster.launchers.process import unaddressed
from mixmark.harness.measure.cluster.launchers.ssh import Ssh
from tests.measure.cluster.launchers import ask, stand_in, started
from tests.measure.cluster.launchers.sshd import Machine, machine

pytestmark = pytest.mark.slow

SECRET = b"drawn for this run"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def there(server: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", str(server.programs), prepend=":")
    return server


def test_agents_answer_through_ssh_and_end_with_it(there: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(touch shell) venv"
    folder.mkdir()
    python = stand_in(folder)
    with Ssh() as launcher:
        hosts = (Host("rack1", python=python, cores=(0, 1)), Host("second", "rack2", python))
        found = launcher.start(hosts, SECRET, tmp_path)
        said = [ask(started(found, name)) for name in ("rack1", "second")]
        assert [(words[0], words[2]) for words in said] == [("rack1", "0,1"), ("second", "-")]
        pids = [int(words[1]) for words in said]
        for pid in pids:
            assert SECRET.hex().encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert not list(tmp_path.rglob("shell"))
    deadline = time.monotonic() + 60
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def test_a_host_that_ssh_does_not_reach_costs_only_itself_and_no_reason_names_an_address(
    there: Machine, tmp_path: Path
) -> None:
    python = stand_in(tmp_path)
    hosts = [Host(name, python=python) for name in ("closed", "unknown", "locked", "rack1")]
    hosts += [Host("bare", "rack2", "/nowhere/python"), Host("dead", "rack3", python, config="dies")]
    with Ssh() as launcher:
        found = launcher.start(hosts, SECRET, tmp_path)
        assert ask(started(found, "rack1"))[0] == "rack1"
    reasons = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    assert reasons.pop("bare").startswith("its agent ended with exit status 12")
    assert reasons == {
        "closed": "its ssh failed: connection refused",
        "unknown": "its ssh failed: host key verification failed",
        "locked": "its ssh failed: permission denied",
        "dead": "its agent ended with exit status 1; its log ends with: no accelerator here",
    }
    assert there.address in (tmp_path / "closed.log").read_text(), "whoever runs it can read more"


def test_a_link_that_is_cut_for_a_moment_loses_nothing(there: Machine, tmp_path: Path) -> None:
    if not there.link:
        pytest.skip("needs the right to make a network namespace")
    with Ssh() as launcher:
        agent = started(launcher.start([Host("rack1", python=stand_in(tmp_path))], SECRET, tmp_path), "rack1")
        there.cut()
        try:
            agent.link.send(b"across\n")
            assert agent.link.receive(0.3) is None
        finally:
            there.mend()
        answer = agent.link.receive(60)
        assert answer and answer.endswith(b"across\n")


def test_without_ssh_the_launcher_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with Ssh() as launcher, pytest.raises(UsageError, match="needs the program ssh"):
        launcher.start([Host("rack1")], SECRET, tmp_path)


def test_the_address_of_a_host_is_not_repeated() -> None:
    host = Host("host1", "bench@rack1.lab")
    assert unaddressed("rack1.lab: bench@rack1.lab is down, not rack1.laboratory", host) == (
        "host1: host1 is down, not rack1.laboratory"
    )
    assert unaddressed("nothing of rack1", Host("rack1")) == "nothing of rack1"
