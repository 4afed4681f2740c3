"""Carries the standard streams of an agent on a node of a Ray cluster: `python ray_bridge.py ADDRESS NODE COMMAND…`.

What this program reads from its standard input the agent gets, and what the agent writes it prints; at the end it
prints the end of the agent's log to the standard error, and ends with the agent's exit status. Without a node it prints
the ids of all nodes, this machine's first. Who may use the cluster is for Ray's own authentication to decide.

The program imports only the standard library and Ray, and the class travels by value, as all classes of a program do:
Ray's own interpreter on a node need not have Mixmark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any, NoReturn

SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
CHUNK_BYTES = 1 << 16
LOG_BYTES = 1 << 20
ENDS_WITHIN_S = 5.0  # from the end of an agent's standard input to its end, before it is killed


class AgentActor:
    """Starts the agent on its node, and holds its streams."""

    def start(self, words: list[str]) -> None:
        """Starts the agent with the environment that the raylet was started with: Ray limits the threads and GPUs of
        its workers. Raises OSError."""
        with open(f"/proc/{os.getppid()}/environ", "rb") as raylet:
            pairs = [os.fsdecode(pair).partition("=") for pair in raylet.read().split(b"\0") if b"=" in pair]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the actor
        self.process = subprocess.Popen(
            [words[0] or sys.executable, *words[1:]],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={name: value for name, _, value in pairs if not name.startswith("RAY_")},
            cwd=os.path.expanduser("~"),
            start_new_session=True,
        )

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        with suppress(OSError, ValueError):  # its end is what `receive` returns
            while data:
                data = data[self.process.stdin.write(data) :]

    def receive(self) -> bytes:
        """The next bytes that the agent writes; empty at its end."""
        assert self.process.stdout
        return os.read(self.process.stdout.fileno(), CHUNK_BYTES)

    def end(self) -> tuple[int, bytes]:
        """Ends the agent. Returns its exit status, as a shell has it, and the end of its log."""
        assert self.process.stdin
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDS_WITHIN_S)
        if sys.platform != "win32":  # never run there
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.log.seek(max(0, self.log.seek(0, 2) - LOG_BYTES))
        return status if status >= 0 else 128 - status, self.log.read()


def carry(ray: Any, node: str, words: list[str], output: int) -> NoReturn:
    """Carries the streams until the agent's end, and ends with its exit status. Raises RayError."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = ray.remote(num_cpus=0, concurrency_groups={"send": 1, "receive": 1})(AgentActor)
    actor = kind.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
    ray.get(actor.start.remote(words))

    def feed() -> None:
        with suppress(ray.exceptions.RayError):  # the other thread has it, too
            with suppress(ConnectionError):  # a leading process that was killed leaves what it had not read
                while data := os.read(0, CHUNK_BYTES):
                    ray.get(actor.send.options(concurrency_group="send").remote(data))
            actor.end.remote()

    threading.Thread(target=feed, daemon=True).start()
    with suppress(ConnectionError), os.fdopen(output, "wb") as printed:  # without a reader the agent is ended
        while data := ray.get(actor.receive.options(concurrency_group="receive").remote()):
            printed.write(data)
            printed.flush()
    status, log = ray.get(actor.end.remote())
    os.write(2, log)
    os._exit(
        status
    )  # at once: a call of the other thread while Ray shuts down would print, and end this process with 1


def main(address: str, wanted: str = "", *words: str) -> int | str:
    """Returns the exit status, or why there is none."""
    output = os.dup(1)
    os.dup2(2, 1)  # Ray prints, too
    os.environ.update(SETTINGS)
    import ray
    import ray.util

    try:
        ray.init(address=address, configure_logging=False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        return f"the Ray cluster cannot be used: {error}"
    nodes = [(each["NodeManagerAddress"], each["NodeID"]) for each in ray.nodes() if each["Alive"]]
    if not wanted:
        here = ray.util.get_node_ip_address()
        os.write(output, "".join(f"{id}\n" for at, id in sorted(nodes, key=lambda node: node[0] != here)).encode())
        return 0
    node = next((id for at, id in nodes if wanted in (at, id)), None)
    if node is None:
        return "the cluster has no node of its address"
    try:
        carry(ray, node, list(words), output)
    except ray.exceptions.RayTaskError as error:
        return f"its agent cannot be started: {error.cause}"
    except ray.exceptions.RayError as error:
        return f"Ray has lost its actor: {type(error).__name__}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
