"""Agents on a real Ray cluster of three raylets on this machine, with token authentication."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.cluster.launchers import Host, choose
from mixmark.harness.measure.cluster.launchers.ray import SETTINGS, Ray
from tests.measure.cluster.launchers import ask, stand_in, started

pytestmark = pytest.mark.slow

SECRET = b"drawn for this run"
RAY = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the package ray")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster, whose raylets limit the threads of their workers and know a token."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "RAY_AUTH_TOKEN": "5" * 64, "OMP_NUM_THREADS": "7"}.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        sizes = {"num_cpus": 1, "object_store_memory": 80_000_000}
        found = Cluster(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
        try:
            for _ in range(2):
                found.add_node(**sizes)
            yield found.address
        finally:
            found.shutdown()


@RAY
def test_each_node_gets_an_agent_that_calls_back_and_ends_with_the_launcher(cluster: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    launcher, hosts = choose.chosen(None, "ray", cluster)
    assert isinstance(launcher, Ray) and [host.name for host in hosts] == ["host1", "host2", "host3"]
    assert signal.getsignal(signal.SIGTERM) is before, "Ray's own handler does not stay"
    python = stand_in(tmp_path)
    targets = {"host1": "echoes", "host2": "dies", "host3": "echoes"}
    with launcher:
        given = [Host(name, python=python, config=target, cores=(0,)) for name, target in targets.items()]
        found = launcher.start([*given, Host("host4", "192.0.2.77"), Host("host5")], SECRET, tmp_path)
        assert found["host2"] == "its agent ended with exit status 1; its log ends with: no accelerator here"
        assert found["host4"] == "the cluster has no node of its address"
        assert found["host5"] == "the cluster has no further node"
        said = [ask(started(found, name)) for name in ("host1", "host3")]
        assert [words[0] for words in said] == ["host1", "host3"]
        pids = [int(words[1]) for words in said]
        assert len({psutil.Process(pid).ppid() for pid in pids}) == 2, "each was started by an actor of its own"
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=7" in environment, "Ray's limit of its workers is not the agent's"
            assert not [each for each in environment if each.startswith(b"RAY_")], "the token is not the agent's"
            assert SECRET.hex().encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert not any(map(psutil.pid_exists, pids))
    assert (tmp_path / "host2.log").read_text() == "no accelerator \x1b[31mhere\n"


@RAY
def test_a_cluster_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "5" * 64)
    with pytest.raises(UsageError, match="the Ray cluster cannot be used: Could not find any running Ray"):
        choose.chosen(None, "ray", None)


def test_without_the_package_the_launcher_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs the package ray"):
        choose.chosen(None, "ray", "auto")
