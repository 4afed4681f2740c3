"""Agents on the nodes of a Slurm allocation, each started by a job step of its own.

Written against the documentation of srun(1) and scontrol(1) of Slurm 24, and never run on a Slurm cluster: the tests
replace both programs. One step for each host, and not one for all, because srun ends a step whose node fails, and
because each host may have an interpreter of its own. srun hands the secret to the agent's standard input, so that it
stands in no command line and in no record of the job. The agent calls back to this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster.launchers import Host, Started
from mixmark.harness.measure.cluster.launchers.listener import Listener
from mixmark.harness.measure.cluster.launchers.process import STARTS_WITHIN_S, Process, Processes, command
from mixmark.harness.measure.cluster.link import Link, give_secret

STEP = (
    *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
    "--overlap",  # beside the step that this process may run in
    *("--cpu-bind=none", "--mem=0"),  # all that the allocation has on the node
    "--job-name=mixmark",
)
ANSWERS_WITHIN_S = 30
ANY_PORT = 9  # no packet is sent to it: the kernel only chooses the address of the sender


class Slurm:
    """Runs `srun --nodelist=NODE PYTHON -m mixmark agent`. The node is the host's address, or else its name."""

    def __init__(self) -> None:
        self._processes = Processes()
        self._links: list[Link] = []

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self._processes.end()

    def start(self, hosts: Sequence[Host], secret: bytes, logs: Path) -> Mapping[str, Started | str]:
        srun = _program("srun")
        nodes = {host.name: host.address or host.name for host in hosts}
        with Listener(interface(tuple(nodes.values())), tuple(nodes), secret, logs / "listener.log") as listener:
            steps: dict[str, Process | str] = {}
            for host in hosts:
                there = command(host, sys.executable, listener.address)
                step = self._processes.start(host, [srun, *STEP, f"--nodelist={nodes[host.name]}", *there], logs)
                steps[host.name] = step
                if isinstance(step, Process):
                    with contextlib.suppress(OSError):  # it has ended, which it is asked for below
                        give_secret(step.stream, secret)

            def gone(name: str) -> str:
                step = steps[name]
                return step if isinstance(step, str) else step.ended()

            found: dict[str, Started | str] = {}
            for name, link in listener.agents(STARTS_WITHIN_S, gone).items():
                step = steps[name]
                if isinstance(link, str) or isinstance(step, str):
                    found[name] = str(link)
                else:
                    step.link = link
                    self._links.append(link)
                    found[name] = step
        return found


def allocated() -> tuple[Host, ...]:
    """A host for each node of the allocation that this process runs in. Raises UsageError where there is none."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("this is no allocation of Slurm's", hint="run it in one: salloc or sbatch, with --exclusive")
    scontrol = _program("scontrol")
    try:
        told = subprocess.run(
            [scontrol, "show", "hostnames", nodes], capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"scontrol does not list the nodes: {plain(str(error))}") from error
    return tuple(Host(f"host{number}", node) for number, node in enumerate(told.stdout.split(), 1))


def interface(nodes: Sequence[str]) -> str:
    """The address of this machine that the nodes reach: the one from which it would send to the first of them that is
    another machine. Raises UsageError where no node's name is known."""
    found = []
    for node in nodes:
        with contextlib.suppress(OSError):
            family, kind, _, _, there = socket.getaddrinfo(node, ANY_PORT, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(there)
                mine, its = probe.getsockname()[0], there[0]
            if mine != its:
                return str(mine)
            found.append(str(mine))
    if not found:
        raise UsageError(f"the name of no node is known here: {', '.join(nodes)}", hint="check the list of hosts")
    return found[0]


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    raise UsageError(f"the launcher slurm needs the program {name}, which is not there", hint="run it in an allocation")
