"""Agents on other machines, each at the end of the system's ssh: its standard streams are the agent's.

Keys, ports, jumps and known hosts are those of the user's own ssh configuration. ssh asks nothing and forwards nothing,
and no connection is shared with another ssh, so that ending the process ends the connection. An agent whose stream ends
ends itself and its workers: what runs on the other machine is out of reach from here.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.cluster.launchers import Host, Started
from mixmark.harness.measure.cluster.launchers.process import Processes, command, greeted

CONNECTS_WITHIN_S = 20
OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal; neither the user's agent nor a display is forwarded
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECTS_WITHIN_S}"),
    *("-o", "LogLevel=ERROR"),  # no banner and no warning: the log is the agent's
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"),
)
FAILED = 255  # the exit status by which ssh tells its own failures from those of the command
FAILURES = (
    *("Permission denied", "Host key verification failed", "Could not resolve hostname", "Connection refused"),
    *("Connection timed out", "No route to host", "Network is unreachable", "Connection reset", "Connection closed"),
    *("not responding", "Broken pipe"),
)
"""What ssh may say of a failure. The rest of its words names addresses and keys, which belong in no result."""


class Ssh:
    """Runs `ssh ADDRESS PYTHON -m mixmark agent`. The address is the host's name where it has no other."""

    def __init__(self) -> None:
        self._processes = Processes()

    def __enter__(self) -> Ssh:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.end()

    def start(self, hosts: Sequence[Host], secret: bytes, logs: Path) -> Mapping[str, Started | str]:
        program = shutil.which("ssh")
        if program is None:
            raise UsageError(
                "the launcher ssh needs the program ssh, which is not there", hint="install openssh-client"
            )
        found = {}
        for host in hosts:
            there = shlex.join(command(host, "python3"))
            words = [program, *OPTIONS, "--", host.address or host.name, f"exec {there}"]
            found[host.name] = self._processes.start(host, words, logs, failure)
        return greeted(found, secret)


def failure(status: int, log: str) -> str:
    """What ssh's own failure was, in words without an address; empty where the agent's own end is told."""
    if status != FAILED:
        return ""
    why = next((each for each in FAILURES if each in log), "its log says why")
    return f"its ssh failed: {why[0].lower()}{why[1:]}"
