"""Agents of a Slurm allocation, with stand-ins for srun and scontrol: no Slurm was ever there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.cluster.agents import Agents
from mixmark.harness.measure.cluster.launchers import Host, choose
from tests.measure.cluster.launchers import facts, stand_in

pytestmark = pytest.mark.slow

SRUN = """#!/bin/sh
echo "$@" >> {folder}/steps
case "$*" in *nodelist=node3*) echo 'srun: error: node3 is down' >&2; exit 1;; esac
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-ins, in which steps are noted."""
    programs = {"srun": SRUN.format(folder=tmp_path), "scontrol": '#!/bin/sh\necho "$3" | tr , "\\n"\n'}
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1,node2,node3")
    return tmp_path


def test_each_node_of_an_allocation_gets_an_agent_in_a_step_of_its_own(allocation: Path) -> None:
    launcher, hosts = choose.choose(None, "slurm", None)
    assert hosts == (Host("host1", "node1"), Host("host2", "node2"), Host("host3", "node3"))
    python = stand_in(allocation)
    faults = {"host2": "dies"}
    listed = [replace(host, python=python, config=faults.get(host.name, "")) for host in hosts]
    with Agents(launcher, listed, allocation) as agents:
        assert facts(agents)["host1"].name == "host1"
        assert agents.refused == {
            "host2": "its agent ended with exit status 1; its log ends with: no accelerator here",
            "host3": "its agent ended with exit status 1; its log ends with: srun: error: host3 is down",
        }
    steps = sorted((allocation / "steps").read_text().splitlines(), key=lambda step: step.partition("--nodelist")[2])
    assert [
        f"--nodelist=node{number} {python} -P -m mixmark agent --name host{number}" in step
        for number, step in enumerate(steps, 1)
    ] == [True] * 3


def test_outside_of_an_allocation_it_is_refused(allocation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (allocation / "bin/scontrol").unlink()
    with pytest.raises(UsageError, match="needs the program scontrol"):
        choose.choose(None, "slurm", None)
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(UsageError, match="this is no Slurm allocation"):
        choose.choose(None, "slurm", None)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UsageError, match="needs the program srun"):
        choose.choose(None, "slurm", None)
