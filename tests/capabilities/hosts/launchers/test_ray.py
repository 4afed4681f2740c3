"""Agents on a real Ray cluster of three raylets on this machine, with token authentication; see also test_faults."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, choose, process
from mixmark.harness.contracts.errors import UsageError
from tests.capabilities.hosts.launchers import end_soon, facts, stand_in

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_each_node_gets_an_agent_with_the_environment_of_its_raylet(ray_address: str, tmp_path: Path) -> None:
    launcher, hosts = choose.choose(None, "ray", ray_address)
    assert [host.name for host in hosts] == ["host1", "host2", "host3"]
    python = stand_in(tmp_path)
    listed = [replace(host, python=python, cores=(0,)) for host in hosts]
    listed.append(Host("host4", "192.0.2.77", python))
    with Agents(launcher, listed, tmp_path) as agents:
        assert agents.refused == {
            "host4": "its agent ended with exit status 1; its log ends with: the cluster has no node of its address"
        }
        pids = [fact.pid for fact in facts(agents).values()]
        raylets = {psutil.Process(psutil.Process(pid).ppid()).ppid() for pid in pids}
        assert len(raylets) == 3, "each was started on a node of its own"
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=7" in environment, "Ray's limit of its workers is not the agent's"
            assert not [variable for variable in environment if variable.startswith(b"RAY_")]
    assert end_soon(pids)


def test_a_cluster_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own package would look for a cluster for minutes, or find another test's."""
    pytest.importorskip("ray")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/util.py").touch()
    (tmp_path / "ray/__init__.py").write_text(
        "class exceptions: RayError = OSError\ndef init(**_): raise ConnectionError('Could not find any running Ray')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match="the Ray cluster cannot be used: Could not find any running Ray"):
        choose.choose(None, "ray", None)


STRATEGY = "def NodeAffinitySchedulingStrategy(*_, **__): ..."
RAY_THAT_SHUTS_DOWN = """
import atexit, os, threading, types
class exceptions: RayError = RayTaskError = OSError
down = threading.Event()
@atexit.register
def shutdown():
    down.set()
    threading.Event().wait(5)  # while the other threads still call
def init(**_): ...
def nodes(): return [{"NodeManagerAddress": "n", "NodeID": "n", "Alive": True}]
def get(value):
    if down.is_set():
        os.write(2, b"the core worker has already been shutdown\\n")
        os._exit(1)
    return value
class Call:
    def __init__(self, method): self.remote = method
    def options(self, **_): return self
def remote(**_):
    def of(kind):
        actor = kind()
        calls = {name: Call(getattr(actor, name)) for name in ("start", "send", "receive", "end")}
        made = types.SimpleNamespace(remote=lambda: types.SimpleNamespace(**calls))
        return types.SimpleNamespace(options=lambda **_: made)
    return of
"""


def test_the_bridge_ends_with_the_status_and_the_last_line_of_its_agent_whatever_ray_does_then(tmp_path: Path) -> None:
    for name, text in (("", RAY_THAT_SHUTS_DOWN), ("util/", ""), ("util/scheduling_strategies/", STRATEGY)):
        (tmp_path / f"ray/{name}").mkdir()
        (tmp_path / f"ray/{name}__init__.py").write_text(text)
    words = [
        sys.executable,
        process.RAY_BRIDGE,
        "auto",
        "n",
        "sh",
        "-c",
        "sleep 0.3; echo the last line >&2; kill -9 $$",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0) as bridge:
        assert bridge.stdin and bridge.stderr
        with suppress(BrokenPipeError):
            while bridge.poll() is None:
                bridge.stdin.write(b"x\n")
        assert (bridge.wait(), bridge.stderr.read().splitlines()[-1]) == (137, b"the last line")


def test_without_the_package_the_launcher_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs the package ray"):
        choose.choose(None, "ray", "auto")
