"""The ways to an agent that tests of faults take: this machine, a real ssh server, and a real Ray cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
from mixmark.harness.capabilities.hosts.launchers.process import local, nodes, ray, ssh
from mixmark.harness.capabilities.hosts.launchers.ray_bridge import SETTINGS
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
        return local() if self.name == "local" else ssh()

    def host(self, number: int, python: str, fault: str = "") -> Host:
        """The first, second or third host, with its fault."""
        address = f"rack{number}" if self.name == "ssh" else ""
        if self.name == "ray":
            address = nodes(self.address)[number - 1].address
        return Host(f"host{number}", address, python, fault)


def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    name: str = request.param
    if name == "ssh":
        server: Machine = request.getfixturevalue("server")
        monkeypatch.setenv("PATH", str(server.programs), prepend=":")
        return Way(name, "process.ssh()")
    if name == "ray":
        address = request.getfixturevalue("ray_address")
        return Way(name, f"process.ray({address!r})", address)
    return Way(name, "process.local()")


RAY = pytest.param("ray", marks=pytest.mark.exhaustive)
way = pytest.fixture(params=["local", "ssh", RAY], name="way")(_way)
a_way = pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.exhaustive), RAY], name="a_way")(_way)
"""For faults that look alike on each way."""
