"""What a process may use of the processors, on trees of files as kernels lay them out, and in a real control group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mixmark.harness.resources import cpus
from tests.machine.test_counters import write
from tests.machine.test_cpu_slices import machine


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores with two threads each; the core_id repeats in each of two clusters."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return machine(tmp_path, {thread: (thread % 4 // 2, thread % 2) for thread in range(8)})


def test_without_a_quota_the_affinity_decides(eight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (cpus.count(eight), cpus.cores(eight), cpus.quota(eight)) == (8, 4, None)
    assert cpus.by_core(range(8), eight) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4})
    assert (cpus.count(eight), cpus.cores(eight)) == (2, 1)  # two threads of one core


@pytest.mark.parametrize(
    ("affinity", "rows", "restricted"),
    [
        (range(5), range(32), True),  # LXC: /proc/cpuinfo shows five, /proc/stat the host's
        ((8, 9), range(32), True),
        (range(8), range(8), False),
        (range(8), range(4), False),  # four of them went offline
        (range(8), (), False),  # no kernel counts
        ((24,), (0,), True),  # the container's view counts from 0
    ],
)
def test_a_process_is_restricted_if_the_time_of_other_cpus_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: Sequence[int], rows: Sequence[int], restricted: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(affinity), raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: len(affinity))
    write(tmp_path, {"proc/stat": "cpu 9 9\n" + "".join(f"cpu{cpu} 1 2 3 4 5 6 7 8\n" for cpu in rows) + "intr 1\n"})
    assert cpus.restricted(tmp_path) == (set(affinity) if restricted else None)


def mounted(*rows: str) -> dict[str, str]:
    """/proc/self/mountinfo with these mounts: a folder of a group, where it is, and with which options."""
    return {
        "proc/self/mountinfo": "24 1 8:1 / / rw - ext4 /dev/sda rw\n" + "".join(f"30 24 0:26 {row}\n" for row in rows)
    }


V2 = {"proc/self/cgroup": "0::/pod/box\n"}
HYBRID = {"proc/self/cgroup": "4:cpu,cpuacct:/pod/box\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "quota", "threads", "cores"),
    [
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "50000 100000"}, 0.5, 1, 1),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "150000 100000"}, 1.5, 1, 1),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "600000 100000"}, 6.0, 6, 4),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "800000 100000"}, None, 8, 4),
        (V2 | {"sys/fs/cgroup/pod/box/cpu.max": "max 100000"}, None, 8, 4),
        (
            V2 | {"sys/fs/cgroup/pod/box/cpu.max": "600000 100000", "sys/fs/cgroup/pod/cpu.max": "300000 100000"},
            3.0,
            3,
            3,
        ),
        (
            HYBRID
            | {
                "sys/fs/cgroup/cpu/pod/box/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/pod/box/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "20000",
            },
            2.5,
            2,
            2,
        ),
        (
            HYBRID
            | mounted(
                "/ /cgroups/cpuset rw - cgroup none rw,cpuset",
                "/ /cgroups/cpu rw shared:9 - cgroup none rw,cpuacct,cpu",
            )
            | {"cgroups/cpu/pod/cpu.cfs_quota_us": "100000", "cgroups/cpu/pod/cpu.cfs_period_us": "100000"},
            1.0,
            1,
            1,
        ),
        (
            V2
            | mounted("/ /run/cgroup2 rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
            | {"run/cgroup2/pod/cpu.max": "200000 100000"},
            2.0,
            2,
            2,
        ),
    ],
)
def test_the_tightest_quota_of_all_levels_counts(
    eight: Path, files: Mapping[str, str], quota: float | None, threads: int, cores: int
) -> None:
    write(eight, dict(files))
    found = cpus.quota(eight)
    assert (found.cpus if found else None, cpus.count(eight), cpus.cores(eight)) == (quota, threads, cores)


def test_a_machine_that_reports_no_cores_has_at_most_one_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 3 if logical else 2)
    assert (cpus.count(tmp_path), cpus.cores(tmp_path)) == (3, 2)
