"""Agents on other machines: the standard streams of the system's `ssh` are those of the agent.

Keys, ports, jump hosts and known hosts are those of the user's own ssh configuration. ssh asks nothing and forwards
nothing, and shares no connection with another ssh: the connection ends with the process. An agent whose standard input
ends, ends itself and its workers; no process of the other machine can be reached from here.
"""

from __future__ import annotations

import shlex
from functools import partial

from mixmark.harness.contracts.text import Reason
from mixmark.harness.measure.cluster.launchers import Host, Launcher, command
from mixmark.harness.measure.cluster.launchers.process import processes, program

CONNECTS_WITHIN_S = 20
OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal; neither the user's ssh agent nor a display is forwarded
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECTS_WITHIN_S}"),
    *("-o", "LogLevel=ERROR"),  # no banner and no warning: the log is the agent's
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"),
)
FAILED = 255  # the exit status of ssh's own failures; any other is that of the command
FAILURES = (
    *("Permission denied", "Host key verification failed", "Could not resolve hostname", "Connection refused"),
    *("Connection timed out", "No route to host", "Network is unreachable", "Connection reset", "Connection closed"),
    *("not responding", "Broken pipe"),
)
"""The failures of ssh that may be repeated. The rest of its messages names addresses and keys, which belong in no
result."""


def ssh() -> Launcher:
    """Runs `ssh ADDRESS PYTHON -m mixmark agent`; a host without an address has its name for one. Raises UsageError."""
    path = program("ssh", "ssh", "install openssh-client")

    def command_of(host: Host) -> list[str]:
        agent = shlex.join(command(host, "python3"))
        return [path, *OPTIONS, "--", host.address or host.name, f"exec {agent}"]

    return partial(processes, command_of=command_of, failure=failure)


def failure(status: int, log: str) -> Reason | None:
    """ssh's own failure, without an address."""
    if status != FAILED:
        return None
    why = next((words for words in FAILURES if words in log), "its log says why")
    return f"its ssh failed: {why[0].lower()}{why[1:]}"
