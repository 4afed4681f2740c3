"""Agents on the nodes of a Ray cluster: an actor on each node holds the agent's standard streams.

The calls of the actor's methods carry the messages: one call for each line that is sent, and one that waits until the
agent writes something. The actor starts the agent in the host's own interpreter, with the environment that the node's
raylet was started with, so that Ray's limits of threads and GPUs are not the agent's. Who may use the cluster is for
Ray's own authentication to decide; its usage statistics are off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.measure.cluster.launchers import Channel, Host, command, ray_actor
from mixmark.harness.measure.cluster.launchers.process import ENDS_WITHIN_S, EXITS_WITHIN_S, last_line

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


class RayLauncher:
    """Starts the agents on the nodes of the cluster at an address, or of the cluster that this machine is a node of
    (`auto`). The address of a host is that of its node; a host without one gets any node."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ray: Any = None
        self._actors: dict[str, Any] = {}
        self._logs = Path()

    def __enter__(self) -> RayLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray is None:
            return
        RayError = self._ray.exceptions.RayError
        with contextlib.suppress(RayError):
            names = {actor.end.remote(ENDS_WITHIN_S): name for name, actor in self._actors.items()}
            ended, _ = (
                self._ray.wait([*names], num_returns=len(names), timeout=2 * ENDS_WITHIN_S) if names else ([], [])
            )
            for call in ended:
                with contextlib.suppress(RayError, OSError):
                    (self._logs / f"{names[call]}.log").write_bytes(self._ray.get(call))
        self._ray.shutdown()
        self._ray = None

    def find_hosts(self) -> tuple[Host, ...]:
        """A host for each node of the cluster. Raises UsageError if it cannot be reached."""
        return tuple(Host(f"host{number}", address) for number, (address, _) in enumerate(self._alive(), 1))

    def start(self, hosts: Sequence[Host], logs: Path) -> Mapping[str, Channel | Reason]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._logs = logs
        nodes, found = self._placed(hosts)
        if not nodes:
            return found
        ray = self._connected()
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        actor = ray.remote(num_cpus=0, concurrency_groups={"send": 1, "receive": 1})(ray_actor.AgentActor)
        starting = {}
        for host in hosts:
            if host.name in nodes:
                node = NodeAffinitySchedulingStrategy(nodes[host.name], soft=False)
                self._actors[host.name] = actor.options(scheduling_strategy=node).remote()
                starting[self._actors[host.name].start.remote(command(host, ""))] = host
        ready, late = self._ray.wait([*starting], num_returns=len(starting), timeout=STARTS_WITHIN_S)
        found |= {starting[call].name: f"Ray did not start its actor within {STARTS_WITHIN_S:g} s" for call in late}
        for call in ready:
            host = starting[call]
            try:
                problem = self._ray.get(call)
                found[host.name] = problem or ActorChannel(self._ray, self._actors[host.name], host)
            except self._ray.exceptions.RayError as error:
                found[host.name] = f"its actor failed: {type(error).__name__}"
        return found

    def _placed(self, hosts: Sequence[Host]) -> tuple[dict[str, str], dict[str, Channel | Reason]]:
        """The node of each host by its name, and why the other hosts have none."""
        free = self._alive()
        nodes: dict[str, str] = {}
        missing: dict[str, Channel | Reason] = {}
        for host in sorted(hosts, key=lambda host: not host.address):  # those that name a node choose first
            chosen = next((place for place in free if host.address in ("", place[0])), None)
            if chosen:
                free.remove(chosen)
                nodes[host.name] = chosen[1]
            else:
                missing[host.name] = f"the cluster has no {'node of its address' if host.address else 'further node'}"
        return nodes, missing

    def _alive(self) -> list[tuple[str, str]]:
        """The address and the id of each node, this machine's first. Raises UsageError if the cluster cannot be
        reached."""
        ray = self._connected()
        here = ray.util.get_node_ip_address()
        nodes = sorted((node["NodeManagerAddress"], node["NodeID"]) for node in ray.nodes() if node["Alive"])
        return sorted(nodes, key=lambda node: node[0] != here)

    def _connected(self) -> Any:
        if self._ray is not None:
            return self._ray
        os.environ.update(SETTINGS)
        try:
            import ray
            import ray.cloudpickle
            import ray.util
        except ImportError as error:
            raise UsageError("the launcher ray needs the package ray", hint="pip install 'mixmark[ray]'") from error
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self._address, configure_logging=False, log_to_driver=False)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UsageError(f"the Ray cluster cannot be used: {plain(str(error), MAX_REASON)}", hint=HINT) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray puts a handler of its own there
        self._ray = ray
        return ray
