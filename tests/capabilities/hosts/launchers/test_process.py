"""Agents behind a real ssh server of the test's own, and of a Slurm allocation, with stand-ins for srun and scontrol:
no Slurm was ever there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, choose
from mixmark.harness.capabilities.hosts.launchers.process import ssh, without_address
from mixmark.harness.contracts.errors import UsageError
from tests.capabilities.hosts.launchers import facts, stand_in
from tests.capabilities.hosts.launchers.sshd import Machine

pytestmark = pytest.mark.slow

SRUN = """#!/bin/sh
echo "$@" >> {folder}/steps
case "$*" in *nodelist=node3*) echo 'srun: error: node3 is down' >&2; exit 1;; esac
while [ "${{1#--}}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def there(server: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", str(server.programs), prepend=":")
    return server


def test_no_shell_of_the_other_machine_reads_the_words_of_a_host(there: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(touch shell) venv"
    folder.mkdir()
    with Agents(ssh(), [Host("second", "rack2", stand_in(folder), cores=(0, 1))], tmp_path) as agents:
        assert facts(agents)["second"].cores == "0,1"
    assert not list(tmp_path.rglob("shell"))


def test_a_host_that_ssh_does_not_reach_costs_only_itself_and_no_reason_names_an_address(
    there: Machine, tmp_path: Path
) -> None:
    python = stand_in(tmp_path)
    hosts = [Host(name, python=python) for name in ("closed", "unknown", "locked", "rack1")]
    hosts += [Host("bare", "rack2", "/nowhere/python")]
    with Agents(ssh(), hosts, tmp_path) as agents:
        assert agents.present == ["rack1"]
        refused = agents.refused
    assert refused.pop("bare").startswith("its agent ended with exit status 12")
    assert refused == dict.fromkeys(("closed", "unknown", "locked"), "its ssh failed: `ssh ADDRESS true` shows why")
    assert there.address in (tmp_path / "agents/closed.log").read_text(), "its log names it"


def test_without_ssh_the_launcher_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs the program ssh"):
        ssh()


def test_the_address_of_a_host_is_not_repeated() -> None:
    host = Host("host1", "bench@rack1.lab")
    assert without_address("rack1.lab: bench@rack1.lab is down, not rack1.laboratory", host) == (
        "host1: host1 is down, not rack1.laboratory"
    )
    assert without_address("nothing of rack1", Host("rack1")) == "nothing of rack1"


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the stand-ins, which note their steps there."""
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
