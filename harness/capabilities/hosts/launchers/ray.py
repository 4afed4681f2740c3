"""Agents on the nodes of a Ray cluster: an actor on each node holds the agent's standard streams.

The calls of the actor's methods carry the messages: one call for each line, and one call that waits until the agent
writes something. The actor starts the agent in the host's own interpreter, with the environment that the node's
raylet was started with, so that Ray's limits of threads and GPUs are not the agent's. Who may use the cluster is for
Ray's own authentication to decide; its usage statistics are off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mixmark.harness.capabilities.hosts.launchers import Channel, Host, Launcher, command, ray_actor
from mixmark.harness.capabilities.hosts.launchers.process import ENDS_WITHIN_S, EXITS_WITHIN_S, last_line
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.plugins import install

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
"""The second keeps a late call from starting a cluster of its own after this process has left the cluster."""
STARTS_WITHIN_S = 60.0
RECEIVES_WITHIN_S = 10.0  # how long one call waits for the agent to write something; nothing depends on it
POLL_S = 0.5  # how often a waiting thread looks whether its channel was closed
HINT = "start Ray here with `ray start`, or name its cluster by --address; both need the same authentication"
MAX_REASON = 200  # characters of Ray's own words


class ActorChannel:
    """The agent that an actor has started. It is a `Channel`."""

    def __init__(self, ray: Any, actor: Any, host: Host) -> None:
        self._ray, self._actor, self._host = ray, actor, host
        self._sent = 0
        self._closed = False
        self._why_ended: Reason | None = None

    def send(self, line: bytes) -> None:
        """The lines have numbers, because an actor with several threads does not promise the order of its calls."""
        if not self._closed:
            self._actor.send.options(concurrency_group="send").remote(self._sent, line)
            self._sent += 1

    def receive(self) -> bytes:
        data: bytes | None = None
        try:
            while data is None:
                call = self._actor.receive.options(concurrency_group="receive").remote(RECEIVES_WITHIN_S)
                data = self._result(call)
            if not data and not self._closed:
                status, log = self._ray.get(self._actor.ended.remote(EXITS_WITHIN_S), timeout=2 * EXITS_WITHIN_S)
                how = "lives on" if status is None else f"ended with exit status {status}"
                self._why_ended = f"its agent {how}{last_line(log, self._host)}"
        except self._ray.exceptions.RayError as error:
            self._why_ended = f"Ray has lost its actor: {type(error).__name__}"
        return data or b""

    def _result(self, call: Any) -> bytes | None:
        while not self._closed:
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                result: bytes | None = self._ray.get(call, timeout=POLL_S)
                return result
        return b""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._actor.close.options(concurrency_group="send").remote()

    def why_ended(self) -> Reason | None:
        return self._why_ended


def ray(address: str) -> Launcher:
    """Starts the agents on the nodes of the cluster at an address, or of the cluster that this machine is a node of
    (`auto`). The address of a host is its node's address; a host without an address gets any node."""
    return partial(_actors, address=address)


def nodes(address: str) -> tuple[Host, ...]:
    """A host for each node of the cluster. Raises UsageError if the cluster cannot be reached."""
    alive = _alive(_connected(address))
    return tuple(Host(f"host{number}", node) for number, (node, _) in enumerate(alive, 1))


@contextlib.contextmanager
def _actors(hosts: Sequence[Host], logs: Path, address: str) -> Iterator[Mapping[str, Channel | Reason]]:
    ray = _connected(address)
    actors: dict[str, Any] = {}
    try:
        node_of, found = _placed(hosts, _alive(ray))
        yield found | _started(ray, [host for host in hosts if host.name in node_of], node_of, actors)
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            _end(ray, actors, logs)
        ray.shutdown()


def _started(
    ray: Any, hosts: Sequence[Host], node_of: Mapping[str, str], actors: dict[str, Any]
) -> dict[str, Channel | Reason]:
    """Starts an actor on the node of each host, and adds it to the actors."""
    if not hosts:
        return {}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(ray_actor)
    actor = ray.remote(num_cpus=0, concurrency_groups={"send": 1, "receive": 1})(ray_actor.AgentActor)
    starting = {}
    for host in hosts:
        node = NodeAffinitySchedulingStrategy(node_of[host.name], soft=False)
        actors[host.name] = actor.options(scheduling_strategy=node).remote()
        starting[actors[host.name].start.remote(command(host, ""))] = host
    ready, late = ray.wait([*starting], num_returns=len(starting), timeout=STARTS_WITHIN_S)
    found: dict[str, Channel | Reason] = {
        starting[call].name: f"Ray did not start its actor within {STARTS_WITHIN_S:g} s" for call in late
    }
    for call in ready:
        host = starting[call]
        try:
            found[host.name] = ray.get(call) or ActorChannel(ray, actors[host.name], host)
        except ray.exceptions.RayError as error:
            found[host.name] = f"its actor failed: {type(error).__name__}"
    return found


def _end(ray: Any, actors: Mapping[str, Any], logs: Path) -> None:
    """Ends all agents, and keeps their logs."""
    host_of = {actor.end.remote(ENDS_WITHIN_S): host for host, actor in actors.items()}
    if not host_of:
        return
    ended, _ = ray.wait([*host_of], num_returns=len(host_of), timeout=2 * ENDS_WITHIN_S)
    for call in ended:
        with contextlib.suppress(ray.exceptions.RayError, OSError):
            (logs / f"{host_of[call]}.log").write_bytes(ray.get(call))


def _placed(hosts: Sequence[Host], free: list[tuple[str, str]]) -> tuple[dict[str, str], dict[str, Channel | Reason]]:
    """The id of each host's node by the host's name, and why the other hosts have none. free: the address and the id of
    each node."""
    node_of: dict[str, str] = {}
    missing: dict[str, Channel | Reason] = {}
    for host in sorted(hosts, key=lambda host: not host.address):  # hosts that name a node choose first
        chosen = next((node for node in free if host.address in ("", node[0])), None)
        if chosen:
            free.remove(chosen)
            node_of[host.name] = chosen[1]
        else:
            missing[host.name] = f"the cluster has no {'node of its address' if host.address else 'further node'}"
    return node_of, missing


def _alive(ray: Any) -> list[tuple[str, str]]:
    """The address and the id of each node of the cluster, this machine's first."""
    here = ray.util.get_node_ip_address()
    found = sorted((node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
    return sorted(found, key=lambda node: node[0] != here)


def _connected(address: str) -> Any:
    """The package ray, which is connected to a cluster from now on. Raises UsageError."""
    os.environ.update(SETTINGS)
    try:
        import ray
        import ray.cloudpickle
        import ray.util
    except ImportError as error:
        raise UsageError("the launcher ray needs the package ray", hint=install.command("ray")) from error
    if ray.is_initialized():
        return ray
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, configure_logging=False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(f"the Ray cluster cannot be used: {plain(str(error), MAX_REASON)}", hint=HINT) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray puts a handler of its own there
    return ray
