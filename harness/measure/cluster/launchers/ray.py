"""Agents on the nodes of a Ray cluster: Ray starts them before a run and ends them after it, and is not used between.

One actor without a CPU stands on each node, placed by a STRICT_SPREAD group. It starts the agent in the host's own
interpreter, with the environment that the node's raylet was started with, and then does nothing. The agent calls back
to this machine, so that nothing of what it says goes through Ray. Ray's token authentication is demanded, and its usage
statistics are off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster.launchers import Host, Started
from mixmark.harness.measure.cluster.launchers.listener import Listener
from mixmark.harness.measure.cluster.launchers.process import STARTS_WITHIN_S, command, unaddressed
from mixmark.harness.measure.cluster.link import Link

SETTINGS = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
PLACED_WITHIN_S = 60.0
ENDS_WITHIN_S = 30.0  # for all actors to end their agents and hand over their logs
HINT = "mixmark and every node of the cluster need RAY_AUTH_MODE=token and the same token (ray get-auth-token)"
BIT = 0.001  # of a node's own resource, by which a bundle is put there
MAX_REASON = 200  # characters of Ray's words


@dataclass
class Agent:
    """An agent that an actor started."""

    link: Link

    def ended(self) -> str:
        """Only a call of Ray's could tell."""
        return ""


class Ray:
    """Starts the agents on the nodes of the cluster at an address, or of the cluster that this machine is a node of
    (`auto`). The address of a host is its node's; a host without one gets any node."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ray: Any = None
        self._actors: dict[str, Any] = {}
        self._links: list[Link] = []
        self._logs = Path()

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ray is None:
            return
        for link in self._links:
            link.close()
        with contextlib.suppress(self._ray.exceptions.RayError):
            names = {actor.end.remote(): name for name, actor in self._actors.items()}
            ended, _ = self._ray.wait(list(names), num_returns=len(names), timeout=ENDS_WITHIN_S) if names else ([], [])
            for each in ended:
                with contextlib.suppress(self._ray.exceptions.RayError, OSError):
                    (self._logs / f"{names[each]}.log").write_bytes(self._ray.get(each))
        self._ray.shutdown()
        self._ray = None

    def nodes(self) -> tuple[Host, ...]:
        """A host for each node of the cluster. Raises UsageError where it cannot be reached."""
        alive = self._alive()
        return tuple(Host(f"host{number}", address) for number, address in enumerate(alive, 1))

    def start(self, hosts: Sequence[Host], secret: bytes, logs: Path) -> Mapping[str, Started | str]:
        placed, found = self._placed(hosts)
        if not placed:
            return found
        self._logs = logs
        named = {host.name: host for host, _ in placed}
        interface = self._ray.util.get_node_ip_address()
        with Listener(interface, named, secret, logs / "listener.log") as listener:
            failures = self._begin(placed, listener.address, secret)

            def gone(name: str) -> str:
                return failures.get(name) or self._said(named[name], self._actors[name].ended.remote())

            come = listener.agents(STARTS_WITHIN_S, gone)
        for name, link in come.items():
            if isinstance(link, str):
                found[name] = link
            else:
                self._links.append(link)
                found[name] = Agent(link)
        return found

    def _begin(self, placed: Sequence[tuple[Host, str]], address: str, secret: bytes) -> dict[str, str]:
        """Places an actor for each host and lets it start the agent. Returns why some did not."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{f"node:{node}": BIT} for _, node in placed], strategy="STRICT_SPREAD")
        if not group.wait(PLACED_WITHIN_S):
            return {host.name: f"Ray did not place its actor within {PLACED_WITHIN_S:g} s" for host, _ in placed}
        actor = self._ray.remote(num_cpus=0)(starter())
        begun = {}
        for at, (host, _) in enumerate(placed):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
            self._actors[host.name] = actor.options(scheduling_strategy=strategy).remote()
            begun[self._actors[host.name].begin.remote(command(host, "", address), secret.hex())] = host
        ready, late = self._ray.wait(list(begun), num_returns=len(begun), timeout=PLACED_WITHIN_S)
        failures = {begun[each].name: f"Ray did not start its actor within {PLACED_WITHIN_S:g} s" for each in late}
        for each in ready:
            if problem := self._said(begun[each], each):
                failures[begun[each].name] = problem
        return failures

    def _said(self, host: Host, answer: Any) -> str:
        """What an actor said of its agent, in words without an address; empty where all is well."""
        try:
            said = str(self._ray.get(answer, timeout=PLACED_WITHIN_S))
        except self._ray.exceptions.RayError as error:
            return f"its actor failed: {type(error).__name__}"
        return unaddressed(plain(said, MAX_REASON), host)

    def _placed(self, hosts: Sequence[Host]) -> tuple[list[tuple[Host, str]], dict[str, Started | str]]:
        """Each host with the address of its node, and the hosts that have none, with the reason."""
        free = self._alive()
        missing: dict[str, Started | str] = {}
        places: dict[str, str] = {}
        for host in hosts:
            if host.address in free:
                free.remove(host.address)
                places[host.name] = host.address
            elif host.address:
                missing[host.name] = "the cluster has no node of its address"
        for host in hosts:
            if not host.address and free:
                places[host.name] = free.pop(0)
            elif not host.address:
                missing[host.name] = "the cluster has no further node"
        return [(host, places[host.name]) for host in hosts if host.name in places], missing

    def _alive(self) -> list[str]:
        """The addresses of all nodes, this machine's first. Raises UsageError where the cluster cannot be reached."""
        ray = self._connected()
        mine = ray.util.get_node_ip_address()
        addresses = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        return sorted(addresses, key=lambda address: address != mine)

    def _connected(self) -> Any:
        if self._ray is not None:
            return self._ray
        os.environ.update(SETTINGS)
        try:
            import ray
            import ray.util
        except ImportError as error:
            raise UsageError("the launcher ray needs the package ray", hint="pip install 'mixmark[ray]'") from error
        ends = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self._address, configure_logging=False, log_to_driver=False)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UsageError(f"the Ray cluster cannot be used: {plain(str(error), MAX_REASON)}", hint=HINT) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, ends)  # Ray puts a handler of its own there
        self._ray = ray
        return ray


def starter() -> type:
    """The class of the actors. It is made here, and uses only the standard library, so that it travels by value: Ray's
    own interpreter on a node need not know Mixmark."""

    class Starter:
        def begin(self, words: list[str], secret: str) -> str:
            """Starts the agent. Returns why it did not start."""
            import os
            import subprocess
            import sys
            import tempfile

            with open(f"/proc/{os.getppid()}/environ", "rb") as raylet:  # Ray limits threads and GPUs of its workers
                pairs = [each.partition(b"=") for each in raylet.read().split(b"\0") if b"=" in each]
            own = {name: value for name, _, value in pairs if not name.startswith(b"RAY_")}
            descriptor, path = tempfile.mkstemp()
            os.unlink(path)
            self.log = os.fdopen(descriptor, "w+b")
            try:
                self.process = subprocess.Popen(
                    [words[0] or sys.executable, *words[1:]],
                    stdin=subprocess.PIPE,
                    stdout=self.log,
                    stderr=self.log,
                    env=own,
                    cwd=os.path.expanduser("~"),
                    start_new_session=True,
                )
                assert self.process.stdin
                self.process.stdin.write(f"{secret}\n".encode())
                self.process.stdin.flush()
            except OSError as error:
                return f"its agent cannot be started: {words[0] or sys.executable}: {error.strerror}"
            return ""

        def ended(self) -> str:
            """How the agent ended, with the last line of its log; empty while it runs."""
            status = self.process.poll()
            if status is None:
                return ""
            lines = self._log_end().decode("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "nothing")
            return f"its agent ended with exit status {status}; its log ends with: {last}"

        def end(self) -> bytes:
            """Ends the agent. Returns the end of its log."""
            import os
            import signal
            import subprocess

            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            return self._log_end()

        def _log_end(self) -> bytes:
            size = self.log.seek(0, 2)
            self.log.seek(max(0, size - (1 << 20)))
            return self.log.read()

    return Starter
