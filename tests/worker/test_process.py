"""Workers on this machine: nothing outlives what started it, and the kernel's kills are told apart."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mixmark.harness.worker.failures import WorkerFailed
from tests.fakes.workers import ROOT, measured, opened, worker

pytestmark = pytest.mark.slow

CGROUPS = Path("/sys/fs/cgroup")


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from tests.fakes.workers import *; from pathlib import Path\n"
        "acme = worker(Path(sys.argv[1])); opened(acme); print(acme.pid, flush=True); time.sleep(60)"
    )
    parent = psutil.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=-1, cwd=ROOT)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup of 400 MiB; what is moved into it and outgrows it is killed by the kernel."""
    group = next(
        (root / "mixmark-test" for root in (CGROUPS / "memory", CGROUPS) if (root / "cgroup.procs").exists()), None
    )
    limit = {"memory": "memory.limit_in_bytes"}.get(group.parent.name, "memory.max") if group else ""
    try:
        assert group is not None
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
    except (OSError, AssertionError):
        pytest.skip("no memory cgroup that it may create: run it as root on a machine that lends one")
    yield group
    deadline = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()


def test_a_kernel_out_of_memory_kill_is_told_apart_from_a_crash(tmp_path: Path, small_memory: Path) -> None:
    with worker(tmp_path, "hoard") as acme:
        opened(acme)
        (small_memory / "cgroup.procs").write_text(str(acme.pid))
        with pytest.raises(WorkerFailed) as told:
            measured(acme, tmp_path)
    assert told.value.failure.kind == "out of memory"
    assert "the kernel killed the worker" in told.value.failure.message
