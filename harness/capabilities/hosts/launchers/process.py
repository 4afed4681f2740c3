"""Agents as processes of this machine, or at the end of a program that reaches another machine: `ssh`, `srun`, or
`ray_bridge`.

The standard streams of the program are the agent's. An agent whose standard input ends, ends itself and its workers; no
process of the other machine can be reached from here.

Keys, ports, jump hosts and known hosts stand in the user's own configuration of ssh. ssh asks nothing and forwards
nothing, and shares no connection with another ssh: the connection ends with the process.

Slurm: each host has a job step of its own, because srun ends a step when a node of it fails, and because each host may
have an interpreter of its own. It has run on virtual nodes of Slurm 22.05 on one machine, and never over a network.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from mixmark.harness.capabilities.hosts.launchers import Channel, Host, Launcher, command
from mixmark.harness.capabilities.hosts.streams import CHUNK_BYTES
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.plugins import install
from mixmark.harness.worker.process.child_process import ConnectedProcess

ENDS_WITHIN_S = 10.0  # from the end of an agent's standard input to the end of the agent, before it is killed
EXITS_WITHIN_S = 2.0  # from the end of an agent's standard output to the end of the process
STALLS_S = 30.0  # an agent that reads nothing of a line for this long is given up
LOG_END_BYTES = 4096  # read from the end of a log to find its last line
MAX_LINE = 200  # characters of a log's last line

CommandOf = Callable[[Host], Sequence[str]]
SSH_CONNECTS_WITHIN_S = 20
SSH_OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal; neither the user's ssh agent nor a display is forwarded
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={SSH_CONNECTS_WITHIN_S}"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),  # it ends when the network was cut off
    *("-o", "LogLevel=ERROR"),  # no banner and no warning: the log is the agent's
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"),
)
SSH_FAILURES = {255: "its ssh failed: `ssh ADDRESS true` shows why"}
"""The log of ssh names addresses and keys, which belong in no result. Any other status is the command's."""
SLURM_STEP = (
    *("--nodes=1", "--ntasks=1"),
    "--overlap",  # beside the step that this process may run in
    *("--cpu-bind=none", "--mem=0"),  # all that the allocation has on the node
    "--job-name=mixmark",
)
"""Without --unbuffered, which would put a pseudo-terminal between srun and the agent: the agent writes whole lines."""
SRUN_REPEATS = re.compile(r"srun: error: \S+: task 0: ")  # the exit status, after the agent's own last line
REPLIES_WITHIN_S = 60  # a program that lists the nodes
RAY_BRIDGE = str(Path(__file__).with_name("ray_bridge.py"))
RAY_HINT = "start Ray here with `ray start`, or name its cluster by --address; both need the same authentication"
SLURM_HINT = "run it in an allocation: salloc or sbatch, with --exclusive"


@contextlib.contextmanager
def processes(
    hosts: Sequence[Host], logs: Path, command_of: CommandOf, failures: Mapping[int, Reason] = {}
) -> Iterator[Mapping[str, Channel | Reason]]:
    """A `Launcher` that runs one command for each host."""
    found: dict[str, Channel | Reason] = {}
    started: list[AgentProcess] = []
    try:
        for host in hosts:
            words = command_of(host)
            try:
                started.append(AgentProcess(host, words, logs, failures))
                found[host.name] = started[-1]
            except OSError as error:
                found[host.name] = f"its agent cannot be started: {words[0]}: {error.strerror}"
        yield found
    finally:
        for process in started:
            process.close()
        deadline = time.monotonic() + ENDS_WITHIN_S
        for process in started:
            process.wait(max(0.0, deadline - time.monotonic()))
        for process in started:
            process.end()


class AgentProcess:
    """A process whose standard input and output are one end of a private socket. It is a `Channel`."""

    def __init__(self, host: Host, words: Sequence[str], logs: Path, failures: Mapping[int, Reason]) -> None:
        """Starts the process in a session of its own. Raises OSError if it cannot be started.

        failures: the exit statuses of the program itself, which are not the agent's."""
        self._host, self._failures = host, failures
        self._log = logs / f"{host.name}.log"

        def start(channel: int, log: BinaryIO) -> subprocess.Popen[bytes]:
            return subprocess.Popen(words, stdin=channel, stdout=channel, stderr=log, start_new_session=True)

        self._connected = ConnectedProcess(start, self._log)
        self.pid, self._channel = self._connected.pid, self._connected.channel
        self._channel.settimeout(STALLS_S)

    def send(self, line: bytes) -> None:
        try:
            self._channel.sendall(line)
        except OSError:  # it is gone, or it has read nothing for STALLS_S
            self.close()

    def receive(self) -> bytes:
        while True:
            try:
                return self._channel.recv(CHUNK_BYTES)
            except TimeoutError:
                continue
            except OSError:
                return b""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            self._channel.shutdown(socket.SHUT_RDWR)

    def why_ended(self) -> Reason | None:
        status = self.wait(EXITS_WITHIN_S)
        if status is None or status in self._failures:
            return self._failures[status] if status else None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        return f"its agent {how}{last_line(self._log_end(), self._host)}"

    def _log_end(self) -> str:
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_END_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def wait(self, seconds: float) -> int | None:
        """Waits for the end of the process, at most this long. Returns its exit status, None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._connected.process.wait(seconds)
        return self._connected.process.poll()

    def end(self) -> None:
        """Ends the process and all its descendants. Harmless if they are gone."""
        self._connected.close()


def local() -> Launcher:
    """Starts all agents on this machine, to try a run over several hosts."""
    return partial(processes, command_of=lambda host: command(host, sys.executable))


def program(launcher: str, name: str, hint: str) -> str:
    """The path of a program that a launcher needs. Raises UsageError."""
    if found := shutil.which(name):
        return found
    raise UsageError(f"the launcher {launcher} needs the program {name}, which is not there", hint=hint)


def last_line(log: str, host: Host) -> str:
    """The last line of a log as the end of a sentence, without the host's address."""
    lines = [plain(line, MAX_LINE) for line in log.splitlines() if not SRUN_REPEATS.match(line)]
    last = next((line for line in reversed(lines) if line), "")
    return f"; its log ends with: {without_address(last, host)}" if last else ""


def without_address(text: str, host: Host) -> str:
    """Replaces the host's address by its name: an address belongs in no result."""
    for part in (host.address, host.address.rpartition("@")[2]):
        if part:
            text = re.sub(rf"(?<![\w.-]){re.escape(part)}(?![\w-])", host.name, text)
    return text


def ssh() -> Launcher:
    """Runs `ssh ADDRESS PYTHON -m mixmark agent`; a host without an address has its name for one. Raises UsageError."""
    path = program("ssh", "ssh", "install openssh-client")

    def command_of(host: Host) -> list[str]:
        agent = shlex.join(command(host, "python3"))
        return [path, *SSH_OPTIONS, "--", host.address or host.name, f"exec {agent}"]

    return partial(processes, command_of=command_of, failures=SSH_FAILURES)


def slurm() -> Launcher:
    """Runs `srun --nodelist=NODE PYTHON -m mixmark agent`; the node is the host's address, or its name. Raises
    UsageError."""
    path = program("slurm", "srun", SLURM_HINT)

    def command_of(host: Host) -> list[str]:
        return [path, *SLURM_STEP, f"--nodelist={host.address or host.name}", *command(host, sys.executable)]

    return partial(processes, command_of=command_of)


def allocated() -> tuple[Host, ...]:
    """A host for each node of the allocation that this process runs in. Raises UsageError outside of one."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("this is no Slurm allocation", hint=SLURM_HINT)
    return _listed([program("slurm", "scontrol", SLURM_HINT), "show", "hostnames", nodes], SLURM_HINT)


def ray(address: str) -> Launcher:
    """Runs `ray_bridge` for each host. The address of a host is its node's address or id. Raises UsageError."""
    _need_ray()

    def command_of(host: Host) -> list[str]:
        return [sys.executable, "-P", RAY_BRIDGE, address, host.address or host.name, *command(host, "")]

    return partial(processes, command_of=command_of)


def nodes(address: str) -> tuple[Host, ...]:
    """A host for each node of the Ray cluster at an address, or of this machine's (`auto`). Raises UsageError."""
    _need_ray()
    return _listed([sys.executable, "-P", RAY_BRIDGE, address], RAY_HINT)


def _need_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UsageError("the launcher ray needs the package ray", hint=install.command("ray"))


def _listed(words: Sequence[str], hint: str) -> tuple[Host, ...]:
    """A host for each node that a program lists. Raises UsageError."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=REPLIES_WITHIN_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"the nodes are not listed: {plain(str(error))}", hint) from error
    if done.returncode:
        raise UsageError(f"the nodes are not listed: {plain(done.stderr[-MAX_LINE:])}", hint)
    return tuple(Host(f"host{number}", node) for number, node in enumerate(done.stdout.split(), 1))
