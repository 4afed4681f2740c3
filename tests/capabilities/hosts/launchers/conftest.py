"""The ways to an agent that tests of faults take: this machine, a real ssh server, Ray cluster and Slurm."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
from mixmark.harness.capabilities.hosts.launchers.process import local, nodes, ray, slurm, ssh
from mixmark.harness.capabilities.hosts.launchers.ray_bridge import SETTINGS
from tests.capabilities.hosts.launchers import slurm as slurm_nodes
from tests.capabilities.hosts.launchers.sshd import Machine, machine

RAY_NODES = 3


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="package")
def ray_address() -> Iterator[str]:
    """The address of a cluster with token authentication, whose raylets limit the threads of their workers."""
    if not importlib.util.find_spec("ray"):
        pytest.skip("no ray: pip install 'mixmark[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 64, "OMP_NUM_THREADS": "7"}
        for name, value in {**SETTINGS, **own}.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        sizes: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
        cluster: Any = Cluster(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
        try:
            for _ in range(RAY_NODES - 1):
                cluster.add_node(**sizes)
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.fixture(scope="package")
def slurm_config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_nodes.slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@dataclass(frozen=True)
class Way:
    """A launcher by its name, and how another process makes one."""

    name: str
    code: str
    """A Python expression that makes the launcher, after `from …launchers.<module> import *`."""
    address: str = ""

    def launcher(self) -> Launcher:
        if self.name == "ray":
            return ray(self.address)
        if self.name == "slurm":
            return slurm()
        return local() if self.name == "local" else ssh()

    def host(self, number: int, python: str, fault: str = "") -> Host:
        """The first, second or third host, with its fault."""
        address = {"ssh": f"rack{number}", "slurm": f"node{number}"}.get(self.name, "")
        if self.name == "ray":
            address = nodes(self.address)[number - 1].address
        return Host(f"host{number}", address, python, fault)


def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    name: str = request.param
    if name == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("slurm_config")))
        with slurm_nodes.allocated() as variables:
            for variable, value in variables.items():
                monkeypatch.setenv(variable, value)
            yield Way(name, "process.slurm()")
        return
    if name == "ssh":
        server: Machine = request.getfixturevalue("server")
        monkeypatch.setenv("PATH", str(server.programs), prepend=":")
        yield Way(name, "process.ssh()")
    if name == "ray":
        address = request.getfixturevalue("ray_address")
        yield Way(name, f"process.ray({address!r})", address)
    if name == "local":
        yield Way(name, "process.local()")


SSH, RAY, SLURM = (pytest.param(name, marks=pytest.mark.exhaustive) for name in ("ssh", "ray", "slurm"))
way = pytest.fixture(params=["local", "ssh", RAY, SLURM], name="way")(_way)
a_way = pytest.fixture(params=["local", SSH, RAY, SLURM], name="a_way")(_way)
engine = pytest.fixture(params=[SSH, RAY, SLURM], name="engine")(_way)
"""For faults that look alike on each way."""
