"""A Slurm of a test's own: its controller and its nodes on the loopback address, without authentication."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NODES = 3
CONFIG = """
ClusterName=mixmark
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
PluginDir={plugins}
ProctrackType=proctrack/linuxproc
SelectType=select/linear
KillWait=2
NodeName=node[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}]
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def slurm(folder: Path, nodes: int = NODES) -> Iterator[Path]:
    """Serves as long as the block lasts. Yields the path of its configuration. The test is skipped where this machine
    has no Slurm."""
    controller = shutil.which("slurmctld")
    if not (controller and shutil.which("slurmd") and shutil.which("salloc")) or os.getuid():
        pytest.skip("no Slurm, or not root: apt-get install slurmctld slurmd slurm-client")
    real = Path(controller).resolve()
    plugins = next(iter(sorted(real.parents[1].glob("lib/*/slurm-wlm"))), "/usr/lib/slurm")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1] % 20000 + 10000  # below the ports that are given out
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(folder=folder, plugins=plugins, nodes=nodes, ports=(first, first + 1, first + nodes))
    )
    names = [f"node{number}" for number in range(1, nodes + 1)]
    for name in ("state", *names):
        (folder / name).mkdir()
    step = real.with_name(real.name.replace("slurmctld", "slurmstepd"))
    words = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", name, "-d", str(step)] for name in names)]
    environment = {**os.environ, "SLURM_CONF": str(config)}
    with ExitStack() as stack, (folder / "log").open("wb") as log:
        for each in words:
            started = stack.enter_context(subprocess.Popen(each, stdout=log, stderr=log, env=environment))
            stack.callback(started.terminate)
        deadline = time.monotonic() + 60
        show = ["sinfo", "--noheader", "--format=%T %D"]
        while time.monotonic() < deadline:
            shown = subprocess.run(show, env=environment, capture_output=True, text=True, timeout=60)
            if shown.stdout.split() == ["idle", str(nodes)]:
                break
            time.sleep(0.2)
        else:
            pytest.skip(f"Slurm does not start here: {(folder / 'log').read_text()[-300:]}")
        yield config


@contextmanager
def allocated() -> Iterator[dict[str, str]]:
    """Allocates all nodes. Yields the variables that salloc sets."""
    made = subprocess.run(["salloc", "--no-shell", f"-N{NODES}"], capture_output=True, text=True, timeout=60)
    found = re.search(r"Granted job allocation (\d+)", made.stderr)
    assert found, made.stderr
    yield {"SLURM_JOB_ID": found[1], "SLURM_JOB_NODELIST": f"node[1-{NODES}]"}
    subprocess.run(["scancel", found[1]], check=True, timeout=60)
