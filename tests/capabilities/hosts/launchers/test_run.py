"""A whole run over several agents, as a person types it: it loses an agent, or is ended in its mix and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.record import store
from tests.capabilities.hosts.launchers import end_soon, lives
from tests.capabilities.hosts.launchers.conftest import SSH, Way
from tests.capabilities.hosts.launchers.slurm import NODES, allocated
from tests.capabilities.hosts.launchers.sshd import SLOW
from tests.cli.shell import ROOT, Shell

pytestmark = [pytest.mark.slow, pytest.mark.realtime]

BAND = f"{ROOT / 'tests/fakes/band.py'}:Band"
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SUITES = """
class Low(Null):
    name = "low"
class High(Null):
    name = "high"
"""


OWN = ("unshare", "--mount", "--time", "--monotonic")
MACHINE = """#!/bin/sh
export PYTHONPATH={paths} XDG_STATE_HOME={folder}/state MIXMARK_LOCK={folder}/lock{number}
exec {own} {number}000 sh -c \\
'mount --bind {folder}/boot{number} /proc/sys/kernel/random/boot_id && exec "$@"' sh {python} "$@"
"""


def made(tmp_path: Path) -> Shell:
    """A folder with two suites, and a mix of both."""
    made = Shell(tmp_path)
    null = (ROOT / "tests/fakes/null.py").read_text()  # whole, since the auditor loads the suite's own module alone
    (tmp_path / "site/duo.py").write_text(null + SUITES)
    shutil.rmtree(tmp_path / "site/null_suite-1.dist-info")
    made.install("duo", "[mixmark.suites]\nlow = duo:Low\nhigh = duo:High\n")
    (tmp_path / "duo.toml").write_text('[duo]\ntier = "smoke"\nunits = { low = 10, high = 10 }\n')
    return made


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with two hosts. Each has a device that runs a suite of its own."""
    if len(CORES) < 2:
        pytest.skip("one core for two agents: run it on a machine with two")
    found, hosts = made(tmp_path), ""
    for name, core, plays in (("left", CORES[0], "a.low"), ("right", CORES[1], "b.high")):
        (tmp_path / f"{name}.toml").write_text(f'[adapter.band]\n"s.{plays}" = 0.01\n')
        hosts += f'[host.{name}]\ncores = "{core}"\nconfig = "{tmp_path / name}.toml"\n'
    (tmp_path / "hosts.toml").write_text(hosts)
    return found


def cluster(engine: Way, folder: Path, hosts: int) -> tuple[Shell, tuple[str, ...]]:
    """A folder with hosts that are machines of their own to a run, though the nodes are on one: each has a boot id
    and a monotonic clock of its own, and a device that runs both suites. Returns the options of the run, too."""
    if subprocess.run([*OWN, "1", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespaces of its own for a process: they need root and Linux 5.6")
    shell, listed = made(folder), f'launcher = "{engine.name}"\n'
    paths = shell.environment["PYTHONPATH"]
    for number in range(1, hosts + 1):
        (folder / f"boot{number}").write_text(f"{number}\n")
        (folder / f"host{number}.toml").write_text('[adapter.band]\n"s.a.low" = 0.01\n"s.a.high" = 0.01\n')
        python = folder / f"python{number}"
        python.write_text(
            MACHINE.format(paths=paths, folder=folder, number=number, python=sys.executable, own=" ".join(OWN))
        )
        python.chmod(0o755)
        host = engine.host(number, str(python), str(folder / f"host{number}.toml"))
        listed += f'[host.{host.name}]\naddress = "{host.address}"\npython = "{python}"\nconfig = "{host.config}"\n'
    (folder / "hosts.toml").write_text(listed)
    return shell, ("--adapter", BAND, "--hosts", "hosts.toml", *(("--address", engine.address) * bool(engine.address)))


def processes(folder: Path) -> Iterator[psutil.Process]:
    """All processes whose environment names the folder: the leading one, the launcher's, and agents with workers."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in process.environ().get("PYTHONPATH", ""):
                yield process


def all_end(folder: Path) -> bool:
    return end_soon([each.pid for each in processes(folder)])


def begun(shell: Shell, *words: str) -> subprocess.Popen[str]:
    """A run that is in its mix."""
    run = ("--suite", "low", "--suite", "high", "--tier", "smoke", "--mix", "duo.toml", "--out", "out")
    leader = shell.start("run", *run, *words)
    journal = shell.folder / "out/journal.jsonl"
    deadline = time.monotonic() + 200
    while not (journal.exists() and '"mix1"' in journal.read_text()):
        assert leader.poll() is None, leader.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    return leader


def test_an_agent_that_is_killed_in_the_mix_costs_its_host(engine: Way, tmp_path: Path) -> None:
    shell, words = cluster(engine, tmp_path, NODES)
    leader = begun(shell, *words)
    agent = ["-P", "-m", "mixmark", "agent", "--name", "host2"]
    (killed,) = (each for each in processes(tmp_path) if each.cmdline()[1:7] == agent)
    killed.kill()
    out, err = leader.communicate(timeout=200)
    assert (leader.returncode, "Traceback" in err) == (1, False), (leader.returncode, out, err)
    assert all_end(tmp_path), [each.cmdline() for each in processes(tmp_path)]
    result = store.open(tmp_path / "out")
    played = {each.route.host: each for each in result.records if each.scenario == "mixed"}
    errors = {host: each.error.message for host, each in played.items() if each.error}
    assert result.finished and errors.keys() == {"host2"} and played.keys() == {"host1", "host2", "host3"}
    assert "ended with exit status 137" in errors["host2"] or engine.name == "ssh", errors
    assert all(each.audit and each.completions for host, each in played.items() if host != "host2")


def test_a_run_whose_leader_is_killed_or_whose_job_is_cancelled_goes_on(engine: Way, tmp_path: Path) -> None:
    """Slurm ends the agents of a cancelled job, and leaves a leading process that salloc started alone."""
    cancelled = engine.name == "slurm"
    shell, words = cluster(engine, tmp_path, NODES)
    leader = begun(shell, *words)
    if cancelled:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True, timeout=60)
    else:
        leader.kill()
    _, err = leader.communicate(timeout=60)
    assert (leader.returncode, "no host is left: host" in err) == ((2, True) if cancelled else (-9, False)), err
    assert all_end(tmp_path), [each.cmdline() for each in processes(tmp_path)]
    before = store.open(tmp_path / "out")
    assert not before.finished and len(before.records) == 2 * NODES and not any(each.error for each in before.records)
    again: AbstractContextManager[dict[str, str]] = allocated() if cancelled else nullcontext({})
    with again as variables:
        shell.environment |= variables
        done = shell("run", "--resume", "out", *words)
    assert done.returncode == 0, done.stderr
    result = store.open(tmp_path / "out")
    assert result.finished and judge(result).exit_code == 0
    kept = [(each.key, each.seed) for each in before.records]
    assert [(each.key, each.seed) for each in result.records[: len(kept)]] == kept, "none was measured again"
    assert {each.route.host for each in result.records if each.scenario == "mixed"} == {"host1", "host2", "host3"}
    assert all_end(tmp_path), [each.cmdline() for each in processes(tmp_path)]


STEPS = """
import os, time
true_ns = time.monotonic_ns
time.monotonic_ns = lambda: true_ns() + 1_000_000_000 * os.path.exists({now!r})
time.monotonic = lambda: time.monotonic_ns() / 1e9
"""


@pytest.mark.parametrize("engine", [SSH], indirect=True)
def test_a_slow_link_and_a_clock_that_steps_cost_certainty_alone(engine: Way, tmp_path: Path) -> None:
    """The first host's clock differs, the second's steps by a second in the mix, the third's messages take 0.1 s."""
    shell, words = cluster(engine, tmp_path, NODES)
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(hosts.read_text().replace('"rack3"', f'"{SLOW}"'))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/sitecustomize.py").write_text(STEPS.format(now=str(tmp_path / "now")))
    python = tmp_path / "python2"
    python.write_text(python.read_text().replace("PYTHONPATH=", f"PYTHONPATH={tmp_path / 'steps'}:"))
    begin_ns = time.monotonic_ns()
    leader = begun(shell, *words)
    (tmp_path / "now").touch()
    out, err = leader.communicate(timeout=200)
    end_ns = time.monotonic_ns()
    assert (leader.returncode, "Traceback" in err) == (0, False), (leader.returncode, out, err)
    assert all_end(tmp_path), [each.cmdline() for each in processes(tmp_path)]
    result = store.open(tmp_path / "out")
    clocks = {each.host: each.clock for each in result.connections if each.phase == "mix1"}
    bounds = {host: clock.bound_ns / 1e9 for host, clock in clocks.items()}
    assert bounds["host2"] > 0.25 and bounds["host3"] > 0.09, bounds
    for number, (_, clock) in enumerate(sorted(clocks.items()), 1):
        assert abs(clock.offset_ns - number * 10**12) <= clock.bound_ns + (number == 2) * 10**9, clock
    unsure = {each.values["host"] for each in judge(result).findings if each.code == "clocks_synchronised"}
    assert unsure >= {"host2", "host3"}
    played = {each.route.host: each for each in result.records if each.scenario == "mixed"}
    assert played.keys() == clocks.keys() == {"host1", "host2", "host3"}
    for host, record in played.items():
        within_ns = clocks[host].bound_ns
        assert record.completions and record.audit and not record.error
        assert begin_ns - within_ns < record.completions.issued_ns[0]
        assert record.completions.yielded_ns[-1] < end_ns + within_ns


def test_a_run_over_two_agents_is_interrupted_and_goes_on(shell: Shell, inline: None) -> None:
    """What this process itself starts are threads; all else are processes."""
    words = ("--adapter", BAND, "--hosts", "hosts.toml")
    begin_ns = time.monotonic_ns()
    leader = begun(shell, *words)
    family = psutil.Process(leader.pid).children(recursive=True)
    agents = [each for each in family if "agent" in each.cmdline()]
    leader.send_signal(signal.SIGINT)
    out, err = leader.communicate(timeout=60)
    assert (leader.returncode, "Traceback" in err) == (130, False), (leader.returncode, err)
    assert (len(agents), [each for each in family if lives(each.pid)]) == (2, [])
    assert f"next    mixmark run --resume out --mix duo.toml --adapter {BAND} --hosts hosts.toml" in out
    before = store.open(shell.folder / "out")
    assert len(before.records) == 4 and "mixed" not in {each.scenario for each in before.records}
    alone = shell("run", "--resume", "out", "--adapter", BAND)
    assert (alone.returncode, "resume it where it began" in alone.stderr) == (2, True), alone.stderr
    done = shell("run", "--resume", "out", *words)
    assert done.returncode == 0, done.stderr
    end_ns = time.monotonic_ns()
    result = store.open(shell.folder / "out")
    assert result.finished and judge(result).exit_code == 0
    assert [device.id for device in result.devices] == ["left/npu:a", "right/npu:b"]
    assert [each.names for each in result.hosts] == [("left", "right")]
    kept = [(each.key, each.seed) for each in before.records]
    assert [(each.key, each.seed) for each in result.records[: len(kept)]] == kept, "none was measured again"
    played = {each.route.device: each for each in result.records if each.scenario == "mixed"}
    assert played.keys() == {"left/npu:a", "right/npu:b"}
    for record in played.values():
        assert record.completions is not None and record.parent_window_ns is not None
        assert begin_ns < record.completions.issued_ns[0] < record.completions.yielded_ns[-1] < end_ns
        assert record.audit is not None and record.audit.values == (0.0,)
        assert kept_at(shell.folder / "out", record.key).is_file()
    (left, right) = (played["left/npu:a"].parent_window_ns, played["right/npu:b"].parent_window_ns)
    assert left and right and abs(left[0] - right[0]) < 5e9, "both began at once"
    measured_on = {(each.phase, each.host) for each in result.connections}
    assert {(each.phase, each.route.device.partition("/")[0]) for each in result.records} == measured_on
    for each in result.connections:
        assert abs(each.clock.offset_ns) <= each.clock.bound_ns, "all agents have this machine's clock"
        assert each.sent_bytes < 100_000 and each.received_bytes < 100_000
    written = b"".join(each.read_bytes() for each in (shell.folder / "out").rglob("*.json*"))
    assert str(shell.folder).encode() not in written and b"hosts.toml" not in json.dumps(result.hosts and []).encode()
    assert shell("report", "out").returncode == 0
