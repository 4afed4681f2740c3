"""Describes this machine: hardware, software and settings, read from files.

Most of it is read from Linux's /proc and /sys; on other systems those fields are None. `root` is the file system to
read, so that tests can lay one out. Text from the machine is cleaned of control characters and cut, since it is shown
on terminals. Nothing is read that identifies a person or one copy of a machine: no host name, serial number or MAC
address.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import System
from mixmark.harness.contracts.text import plain
from mixmark.harness.machine import power_supply
from mixmark.harness.resources import cgroups, cpus, memory, processor
from mixmark.harness.resources.files import MAX_TEXT, ROOT, line, table, text
from mixmark.harness.worker.messages import package_versions, python_version

CHECKOUT = Path(__file__).absolute().parents[3]  # not resolved: mixmark/harness is a link to a folder beside it
GIT_S = 10.0

# Names, never patterns: nothing that could hold a secret may slip in.
VARIABLES = """
    OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES OMP_WAIT_POLICY OMP_DYNAMIC OMP_THREAD_LIMIT GOMP_CPU_AFFINITY
    GOMP_SPINCOUNT KMP_AFFINITY KMP_BLOCKTIME KMP_SETTINGS MKL_NUM_THREADS MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS
    MKL_CBWR MKL_DEBUG_CPU_TYPE OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE ONEDNN_MAX_CPU_ISA
    ONEDNN_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING
    CUDA_MODULE_LOADING NVIDIA_TF32_OVERRIDE ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES HSA_OVERRIDE_GFX_VERSION
    ZE_AFFINITY_MASK PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    TORCH_NUM_THREADS MALLOC_ARENA_MAX MALLOC_CONF LD_PRELOAD
"""

# DMI vendor and product words that only hypervisors write.
HYPERVISORS = {
    "qemu": "QEMU",
    "kvm": "KVM",
    "vmware": "VMware",
    "virtualbox": "VirtualBox",
    "xen": "Xen",
    "bochs": "Bochs",
    "parallels": "Parallels",
    "virtual machine": "Hyper-V",
    "amazon ec2": "Amazon EC2",
    "google compute engine": "Google Compute Engine",
    "openstack": "OpenStack",
    "firecracker": "Firecracker",
}


def disclose(
    root: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    checkout: Path = CHECKOUT,
    accelerators: Sequence[Mapping[str, str]] = (),
) -> System:
    """The machine, its software and its settings; None for what the machine does not report.

    accelerators: the facts of each, from `Accelerators.disclose`. environment: by default this process's.
    """
    threads, limit = processor.threads(root), cpus.quota(root)
    return System(
        cpu_model=processor.name(root),
        cpu_cores=processor.cores(threads, root),
        cpu_threads=len(threads) or None,
        cpu_quota=limit.cpus if limit else None,
        cpu_flags=processor.flags(threads),
        microcode=processor.first(threads, "microcode"),
        firmware=_joined(root / "sys/class/dmi/id", ("bios_vendor", "bios_version", "bios_date")),
        governor=line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        power_source=power_supply.source(root),
        power_profile=power_supply.profile(root),
        clock_max_mhz=processor.clock_max_mhz(root),
        memory_bytes=memory.installed_bytes(root),
        swap_bytes=memory.swap_bytes(root),
        caches=dict(processor.caches(root)),
        kernel=f"{line(root / 'proc/sys/kernel/osrelease') or plain(platform.release())} {platform.machine()}",
        operating_system=_operating_system(root),
        virtualization=_virtualization(root, threads),
        container=_container(root),
        cgroup_limits=dict(cgroups.limits(root)),
        accelerators=tuple(dict(each) for each in accelerators),
        python=python_version(),
        packages=package_versions(),
        environment=dict(_variables(os.environ if environment is None else environment)),
        mixmark=VERSION,
        git_commit=git_commit(checkout),
    )


def git_commit(checkout: Path) -> str | None:
    """The commit that a checkout or worktree is at. None if this is no checkout, or git is not installed."""
    git = checkout / ".git"
    if not git.exists():  # the folder of installed packages may lie in another repository
        return None
    command = ["git", f"--git-dir={git}", "rev-parse", "HEAD"]  # as named, whatever GIT_DIR says and whoever owns it
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_S).stdout.strip()
    return None


def _joined(folder: Path, names: tuple[str, ...]) -> str | None:
    return " ".join(found for name in names if (found := line(folder / name))) or None


def _operating_system(root: Path) -> str | None:
    release = table(root / "etc/os-release", "=")
    return release.get("PRETTY_NAME", "").strip("\"'")[:MAX_TEXT] or None


def _virtualization(root: Path, threads: Sequence[processor.Thread]) -> str | None:
    product = _joined(root / "sys/class/dmi/id", ("sys_vendor", "product_name", "bios_vendor")) or ""
    for word, name in HYPERVISORS.items():
        if word in product.lower():
            return name
    if kind := line(root / "sys/hypervisor/type"):
        return kind
    return "hypervisor" if any("hypervisor" in thread.get("flags", "").split() for thread in threads) else None


def _container(root: Path) -> str | None:
    with suppress(OSError):
        if (root / ".dockerenv").exists():
            return "docker"
        if (root / "run/.containerenv").exists():
            return "podman"
    if manager := line(root / "run/systemd/container"):
        return manager
    groups = text(root / "proc/self/cgroup") + text(root / "proc/1/cgroup")
    return next((name for name in ("kubepods", "docker", "libpod", "containerd", "lxc") if name in groups), None)


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The allow-listed variables that are set. Paths are cut to their last part, since they may name a user."""
    for name in VARIABLES.split():
        if name in environment:
            yield name, plain(re.sub(r"[^\s:,;=]*[/\\]", "", environment[name]), MAX_TEXT)
