from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from mixmark.harness.machine import disclosure
from mixmark.harness.resources import memory
from tests.machine.test_counters import write

MIB, GIB = 1 << 20, 1 << 30
CPUINFO = """\
processor\t: 0
model name\t: Acme Quartz\x1b[31m 9000\x07
physical id\t: 0
core id\t: 0
microcode\t: 0x2b
flags\t: fpu avx2 avx512f amx_bf16 hypervisor

processor\t: 1
model name\t: Acme Quartz 9000
physical id\t: 0
core id\t: 0
flags\t: fpu avx2 avx512f hypervisor
"""


def laid_out(root: Path, **extra: str) -> Path:
    """A synthetic machine; keys of `extra` are paths with `__` for a slash."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:  8388608 kB\nMemAvailable: 4194304 kB\nSwapTotal: 0 kB\n",
        "proc/sys/kernel/osrelease": "6.12.0\n",
        "etc/os-release": 'NAME="Example"\nPRETTY_NAME="Example Linux 12"\n',
        "sys/class/dmi/id/sys_vendor": "QEMU\n",
        "sys/class/dmi/id/bios_version": "1.2\n",
        "sys/class/dmi/id/product_serial": "SECRET-SERIAL\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "4200000\n",
        "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0-1\n",
        "sys/devices/system/cpu/cpu1/topology/core_cpus_list": "0-1\n",
        "sys/devices/system/cpu/cpu0/cache/index0/level": "1\n",
        "sys/devices/system/cpu/cpu0/cache/index0/type": "Data\n",
        "sys/devices/system/cpu/cpu0/cache/index0/size": "48K\n",
    }
    write(root, files | {key.replace("__", "/"): text for key, text in extra.items()})
    return root


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    found = disclosure.disclose(laid_out(tmp_path), environment={}, checkout=tmp_path)
    assert (found.cpu_model, found.cpu_cores, found.cpu_threads) == ("Acme Quartz 9000", 1, 2)
    assert found.cpu_flags == ("avx2", "avx512f")  # what only one thread has does not count
    assert (found.microcode, found.firmware, found.governor) == ("0x2b", "1.2", "performance")
    assert (found.clock_max_mhz, found.memory_bytes, found.swap_bytes) == (4200.0, 8 * GIB, 0)
    assert (found.caches, found.operating_system) == ({"L1d": "48K"}, "Example Linux 12")
    assert found.kernel.startswith("6.12.0 ")
    assert (found.virtualization, found.container, found.git_commit) == ("QEMU", None, None)
    assert "numpy" in found.packages


def test_what_a_machine_does_not_say_is_none(tmp_path: Path) -> None:
    found = disclosure.disclose(tmp_path, environment={}, checkout=tmp_path)
    unknown = (found.cpu_model, found.cpu_cores, found.cpu_threads, found.memory_bytes, found.virtualization)
    assert unknown == (None,) * 5
    assert (found.swap_bytes, found.governor, found.firmware) == (None, None, None)


def test_nothing_that_names_a_unit_or_a_person_is_disclosed(tmp_path: Path) -> None:
    environment = {
        "OMP_NUM_THREADS": "4",
        "LD_PRELOAD": "/home/ann/lib/libjemalloc.so:/opt/x.so",
        "HF_TOKEN": "hunter2",
        "HOME": "/home/ann",
    }
    found = disclosure.disclose(laid_out(tmp_path), environment=environment, checkout=tmp_path)
    assert found.environment == {"OMP_NUM_THREADS": "4", "LD_PRELOAD": "libjemalloc.so:x.so"}
    text = found.model_dump_json()
    assert not [secret for secret in ("SECRET-SERIAL", "hunter2", "/home/ann") if secret in text]


def test_files_that_are_no_text_are_unknown(tmp_path: Path) -> None:
    root = laid_out(tmp_path)
    (root / "proc/meminfo").write_bytes(b"\x00\xffMemTotal: 99999999999999999999999 kB\n")
    (root / "proc/cpuinfo").unlink()
    (root / "proc/cpuinfo").mkdir()
    (root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").write_text("²")
    found = disclosure.disclose(root, environment={}, checkout=tmp_path)
    assert (found.memory_bytes, found.cpu_threads, found.clock_max_mhz) == (None, None, None)


V2 = {
    "proc__self__cgroup": "0::/jobs/one\n",
    "sys__fs__cgroup__jobs__memory.max": str(3 * GIB),
    "sys__fs__cgroup__jobs__memory.current": str(2 * GIB),
    "sys__fs__cgroup__jobs__memory.stat": f"anon 1\ninactive_file {GIB}\n",
    "sys__fs__cgroup__jobs__one__memory.max": "max\n",
    "sys__fs__cgroup__jobs__one__cpu.max": "200000 100000\n",
}


def test_cgroup_2_bounds_memory_from_any_level(tmp_path: Path) -> None:
    root = laid_out(tmp_path, **V2)
    assert memory.available_bytes(root) == 2 * GIB  # 3 − 2, and 1 of droppable cache
    assert memory.total_bytes(root) == 3 * GIB
    limits = disclosure.disclose(root, environment={}, checkout=root).cgroup_limits
    assert limits == {"cpu.max": "200000 100000", "memory.max": "max"}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"memory.max": 80, "memory.current": 79, "memory.stat": (2, 75, 0)}, 78),
        ({"memory.max": 80, "memory.current": 79, "memory.stat": (2, 5, 30)}, 38),
        ({"memory.max": 80, "memory.current": 10, "memory.stat": (10, 10, 0)}, 80),  # counted late
        ({"memory.max": 80, "memory.high": 40, "memory.current": 30, "memory.stat": (2, 5, 3)}, 20),
        ({"memory.high": 40, "memory.current": 45, "memory.stat": (1, 1, 0)}, 0),
    ],
)
def test_cache_that_the_kernel_can_drop_is_available(
    tmp_path: Path, files: Mapping[str, int | tuple[int, ...]], available: int
) -> None:
    """In MiB. cache: inactive, active and slab."""
    stat = "inactive_file {}\nactive_file {}\nslab_reclaimable {}\nactive_anon 9\n"
    texts = {
        name: stat.format(*(each * MIB for each in size)) if isinstance(size, tuple) else str(size * MIB)
        for name, size in files.items()
    }
    write(
        laid_out(tmp_path, proc__self__cgroup="0::/\n"), {f"sys/fs/cgroup/{name}": text for name, text in texts.items()}
    )
    assert memory.available_bytes(tmp_path) == available * MIB


def test_cgroup_1_bounds_memory_too(tmp_path: Path) -> None:
    root = laid_out(
        tmp_path,
        proc__self__cgroup="5:cpu,cpuacct:/\n4:memory:/../docker/abc\n",
        **{
            "sys__fs__cgroup__memory__memory.limit_in_bytes": str(2 * GIB),
            "sys__fs__cgroup__memory__memory.usage_in_bytes": str(GIB),
        },
    )
    assert memory.available_bytes(root) == GIB
    assert disclosure.disclose(root, environment={}, checkout=root).container == "docker"


@pytest.mark.parametrize(("allowed", "total", "available"), [("0-1", 8 * GIB, 4 * GIB), ("1", 3 * GIB, GIB)])
def test_memory_is_of_the_nodes_that_a_process_may_use(
    tmp_path: Path, allowed: str, total: int, available: int
) -> None:
    quarter = ("Inactive(file)", "Active(file)", "SReclaimable")
    node = "Node {0} MemTotal: {1} kB\n" + "".join(f"Node {{0}} {name}: {{2}} kB\n" for name in ("MemFree", *quarter))
    nodes = {
        f"sys__devices__system__node__node{at}__meminfo": node.format(at, size >> 10, free >> 11)
        for at, size, free in ((0, 5 * GIB, 2 * GIB), (1, 3 * GIB, GIB // 2))
    }
    root = laid_out(tmp_path, proc__self__status=f"Name:\tpython\nMems_allowed_list:\t{allowed}\n", **nodes)
    assert (memory.total_bytes(root), memory.available_bytes(root)) == (total, available)


def test_without_a_limit_the_machine_is_the_bound(tmp_path: Path) -> None:
    assert memory.available_bytes(laid_out(tmp_path)) == 4 * GIB
    assert memory.total_bytes(tmp_path) == 8 * GIB


@pytest.mark.parametrize(
    ("files", "virtualization"),
    [
        ({}, "QEMU"),
        ({"sys__class__dmi__id__sys_vendor": "Acme"}, "hypervisor"),
        ({"sys__class__dmi__id__sys_vendor": "Acme", "proc__cpuinfo": "processor: 0\nflags: fpu\n"}, None),
        ({"sys__class__dmi__id__sys_vendor": "Acme", "sys__hypervisor__type": "xen"}, "xen"),
    ],
)
def test_virtual_machines_are_told_from_metal(
    tmp_path: Path, files: dict[str, str], virtualization: str | None
) -> None:
    root = laid_out(tmp_path, **files)
    assert disclosure.disclose(root, environment={}, checkout=root).virtualization == virtualization


def test_the_commit_is_that_of_a_checkout_alone(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *author, *words]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook
        return subprocess.run(command, env=outside, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    assert disclosure.git_commit(tmp_path) is None, "no commit yet"
    git("commit", "--allow-empty", "-m", "a")
    assert disclosure.git_commit(tmp_path) == git("rev-parse", "HEAD")
    assert Path(__file__).absolute().parents[2] == disclosure.CHECKOUT
    (tmp_path / "site-packages").mkdir()
    assert disclosure.git_commit(tmp_path / "site-packages") is None
