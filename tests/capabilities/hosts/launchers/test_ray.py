"""Agents on a real Ray cluster of three raylets on this machine, with token authentication; see also test_faults."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, choose
from mixmark.harness.capabilities.hosts.launchers.ray import SETTINGS, ray
from mixmark.harness.contracts.errors import UsageError
from tests.capabilities.hosts.launchers import end_soon, facts, stand_in

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_each_node_gets_an_agent_with_the_environment_of_its_raylet(ray_address: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    launcher, hosts = choose.choose(None, "ray", ray_address)
    assert [host.name for host in hosts] == ["host1", "host2", "host3"]
    assert signal.getsignal(signal.SIGTERM) is before, "Ray's own handler does not stay"
    python = stand_in(tmp_path)
    listed = [Host(f"host{number}", python=python, cores=(0,)) for number in (1, 2, 3, 5)]
    listed.append(Host("host4", "192.0.2.77", python))
    with Agents(launcher, listed, tmp_path) as agents:
        assert agents.refused == {
            "host4": "the cluster has no node of its address",
            "host5": "the cluster has no further node",
        }
        pids = [fact.pid for fact in facts(agents).values()]
        raylets = {psutil.Process(psutil.Process(pid).ppid()).ppid() for pid in pids}
        assert len(raylets) == 3, "each was started on a node of its own"
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=7" in environment, "Ray's limit of its workers is not the agent's"
            assert not [variable for variable in environment if variable.startswith(b"RAY_")]
    assert end_soon(pids)


@pytest.mark.exhaustive
def test_many_lines_arrive_in_their_order(ray_address: str, tmp_path: Path) -> None:
    with Agents(ray(ray_address), [Host("host1", python=stand_in(tmp_path))], tmp_path) as agents:
        for _ in range(200):
            agents["host1"].ping()
        facts(agents)
        sent = [trip.sent_ns for trip in agents["host1"].round_trips]
    assert sent == sorted(sent) and len(sent) >= 200


def test_a_cluster_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("ray")

    def init(**_: object) -> None:  # Ray's own looks for a cluster for minutes, or finds another test's
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(package, "init", init)
    with pytest.raises(UsageError, match="the Ray cluster cannot be used: Could not find any running Ray"):
        choose.choose(None, "ray", None)


def test_without_the_package_the_launcher_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs the package ray"):
        choose.choose(None, "ray", "auto")
