"""Agents on the nodes of a Slurm allocation: the standard streams of `srun` are those of the agent.

Written against the documentation of srun(1) and scontrol(1) of Slurm 24, and never run on a Slurm cluster: the tests
replace both programs. Each host has a job step of its own, because srun ends a step when a node of it fails, and
because each host may have an interpreter of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain
from mixmark.harness.measure.cluster.launchers import Host, Launcher, command
from mixmark.harness.measure.cluster.launchers.process import processes, program

STEP = (
    *("--nodes=1", "--ntasks=1"),
    "--overlap",  # beside the step that this process may run in
    *("--cpu-bind=none", "--mem=0"),  # all that the allocation has on the node
    "--job-name=mixmark",
)
"""Without --unbuffered, which would put a pseudo-terminal between srun and the agent: the agent writes whole lines."""
REPLIES_WITHIN_S = 30
HINT = "run it in an allocation: salloc or sbatch, with --exclusive"


def slurm() -> Launcher:
    """Runs `srun --nodelist=NODE PYTHON -m mixmark agent`; the node is the host's address, or its name. Raises
    UsageError."""
    path = program("slurm", "srun", HINT)

    def command_of(host: Host) -> list[str]:
        return [path, *STEP, f"--nodelist={host.address or host.name}", *command(host, sys.executable)]

    return partial(processes, command_of=command_of)


def allocated() -> tuple[Host, ...]:
    """A host for each node of the allocation that this process runs in. Raises UsageError outside of one."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        raise UsageError("this is no Slurm allocation", hint=HINT)
    words = [program("slurm", "scontrol", HINT), "show", "hostnames", nodes]
    try:
        listed = subprocess.run(words, capture_output=True, text=True, timeout=REPLIES_WITHIN_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"scontrol does not list the nodes: {plain(str(error))}") from error
    return tuple(Host(f"host{number}", node) for number, node in enumerate(listed.split(), 1))
