"""Agents of a Slurm allocation, with stand-ins for srun and scontrol: no Slurm was ever there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.cluster.launchers import Host, choose
from mixmark.harness.measure.cluster.launchers.slurm import Slurm, interface
from tests.measure.cluster.launchers import ask, stand_in, started

pytestmark = pytest.mark.slow

SECRET = b"drawn for this run"
SRUN = """#!/bin/sh
echo "$@" >> {folder}/steps
case "$*" in *nodelist=127.0.0.3*) echo 'srun: error: 127.0.0.3 is down' >&2; exit 1;; esac
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
    monkeypatch.setenv("SLURM_JOB_NODELIST", "127.0.0.1,127.0.0.2,127.0.0.3")
    return tmp_path


def test_each_node_of_an_allocation_gets_an_agent_that_calls_back(allocation: Path) -> None:
    launcher, hosts = choose.chosen(None, "slurm", None)
    assert isinstance(launcher, Slurm)
    assert hosts == (Host("host1", "127.0.0.1"), Host("host2", "127.0.0.2"), Host("host3", "127.0.0.3"))
    python = stand_in(allocation)
    with launcher:
        found = launcher.start([replace(host, python=python) for host in hosts], SECRET, allocation)
        assert [ask(started(found, name))[0] for name in ("host1", "host2")] == ["host1", "host2"]
        assert found["host3"] == "its agent ended with exit status 1; its log ends with: srun: error: host3 is down"
    steps = sorted((allocation / "steps").read_text().splitlines(), key=lambda step: step.partition("--nodelist")[2])
    assert [
        f"--nodelist=127.0.0.{at} {python} -P -m mixmark agent --name host{at} --connect " in step
        for at, step in enumerate(steps, 1)
    ] == [True] * 3
    assert not any(SECRET.hex() in step for step in steps)


def test_an_agent_that_dies_is_told_by_its_step(allocation: Path) -> None:
    hosts = [Host("host1", "127.0.0.1", stand_in(allocation), config="dies")]
    with Slurm() as launcher:
        found = launcher.start(hosts, SECRET, allocation)
    assert found["host1"] == "its agent ended with exit status 1; its log ends with: no accelerator here"


def test_outside_of_an_allocation_it_is_refused(allocation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the name of no node is known here"):
        interface(["nowhere.invalid"])
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UsageError, match="needs the program scontrol"):
        choose.chosen(None, "slurm", None)
    with pytest.raises(UsageError, match="needs the program srun"), Slurm() as launcher:
        launcher.start([Host("host1", "127.0.0.1")], SECRET, allocation)
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(UsageError, match="this is no allocation of Slurm's"):
        choose.chosen(None, "slurm", None)


def test_agents_call_the_address_from_which_another_machine_is_reached() -> None:
    assert interface(["127.0.0.1"]) == "127.0.0.1"
    assert interface(["127.0.0.1", "127.0.0.2"]) == "127.0.0.1"
