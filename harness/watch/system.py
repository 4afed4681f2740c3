"""What machine this is: everything that a reader needs to judge a number, read from files, never from a shell.

Linux first; elsewhere what is not known is None. `root` is the file system to read, so that tests can lay one
out. Text from the machine is cleaned of control characters and cut, since it ends up on terminals. Nothing that
names a person or a unit is read: no host name, serial number or MAC.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.schema import System
from harness.text import plain

ROOT = Path("/")
CHECKOUT = Path(__file__).resolve().parent.parent.parent
MAX_TEXT = 200

# Extensions that decide how fast matrices are multiplied; names as in /proc/cpuinfo of x86, Arm and RISC-V.
FLAGS = """
    sse4_2 f16c fma avx avx2 avx_vnni avx_vnni_int8 avx_ne_convert avx512f avx512bw avx512vl avx512_vnni
    avx512_bf16 avx512_fp16 avx10 amx_tile amx_int8 amx_bf16 amx_fp16 asimd asimdhp asimddp fphp i8mm bf16 sve
    sve2 svei8mm svebf16 sme sme2
"""
PACKAGES = """
    numpy torch triton onnxruntime onnxruntime-gpu onnx onnxscript openvino tensorrt safetensors
    intel-extension-for-pytorch mkl nvidia-ml-py nvidia-cublas-cu12 nvidia-cudnn-cu12 pydantic psutil
"""

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


def disclose(root: Path = ROOT, environment: Mapping[str, str] | None = None, checkout: Path = CHECKOUT) -> System:
    """The machine, the software and the settings; None where the machine does not say."""
    cpus = _cpuinfo(root)
    memory = _table(root / "proc/meminfo")
    cpu = root / "sys/devices/system/cpu/cpu0"
    return System(
        cpu_model=cpu_name(root),
        cpu_cores=_cores(cpus),
        cpu_threads=len(cpus) or None,
        cpu_flags=_flags(cpus),
        microcode=_first(cpus, "microcode"),
        firmware=_joined(root / "sys/class/dmi/id", ("bios_vendor", "bios_version", "bios_date")),
        governor=_line(cpu / "cpufreq/scaling_governor"),
        clock_max_mhz=_clock_max_mhz(cpu),
        memory_bytes=_bytes(memory.get("MemTotal")),
        swap_bytes=_bytes(memory.get("SwapTotal")),
        caches=dict(_caches(cpu / "cache")),
        kernel=f"{_line(root / 'proc/sys/kernel/osrelease') or plain(platform.release())} {platform.machine()}",
        operating_system=_operating_system(root),
        virtualization=_virtualization(root, cpus),
        container=_container(root),
        cgroup_limits=dict(_cgroup_limits(root)),
        accelerators=tuple(_accelerators()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: version for name in PACKAGES.split() if (version := _version(name))},
        environment=dict(_variables(os.environ if environment is None else environment)),
        mixmark=_version("mixmark") or "not installed",
        git_commit=git_commit(checkout),
    )


def cpu_name(root: Path = ROOT) -> str | None:
    """The CPU's model as the kernel names it."""
    cpus = _cpuinfo(root)
    return _first(cpus, "model name") or _first(cpus, "Model") or _line(root / "proc/device-tree/model")


def memory_total_bytes(root: Path = ROOT) -> int | None:
    """The machine's memory, or the tightest cgroup's limit where that is less; None where neither is known."""
    total = _bytes(_table(root / "proc/meminfo").get("MemTotal"))
    if total is None and root == ROOT:
        total = int(psutil.virtual_memory().total)
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_integer(folder / name) for folder in cgroups(root, "memory") for name in names]
    return min((limit for limit in (total, *limits) if limit), default=None)


def memory_available_bytes(root: Path = ROOT) -> int:
    """What can still be allocated here without swapping: the machine's, or the tightest cgroup's headroom."""
    available = _bytes(_table(root / "proc/meminfo").get("MemAvailable"))
    if available is None:
        available = int(psutil.virtual_memory().available)
    return max(0, min((available, *_cgroup_headrooms(root))))


def git_commit(checkout: Path) -> str | None:
    """HEAD of a checkout or worktree, from its files; None where this is no checkout."""
    git = checkout / ".git"
    if git.is_file():
        git = checkout / (_line(git) or "").removeprefix("gitdir: ")
    head = _line(git / "HEAD") or ""
    if not head.startswith("ref: "):
        return _commit(head)
    name = head.removeprefix("ref: ")
    common = git / (_line(git / "commondir") or ".")
    for folder in (git, common):
        if commit := _commit(_line(folder / name)):
            return commit
    for line in _text(common / "packed-refs", 1 << 22).splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return _commit(commit)
    return None


def _text(path: Path, limit: int = 1 << 20) -> str:
    """Empty where it is absent, unreadable, or no plain file."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _line(path: Path) -> str | None:
    return plain(_text(path), MAX_TEXT) or None


def _integer(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) else None


def _table(path: Path, separator: str = ":") -> dict[str, str]:
    pairs = (line.partition(separator) for line in _text(path).splitlines())
    return {key.strip(): plain(value, 10_000) for key, _, value in pairs}


def _bytes(kibibytes: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,15}) kB", kibibytes or "", re.ASCII)
    return int(found[1]) * 1024 if found else None


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """One table a hardware thread."""
    cpus: list[dict[str, str]] = []
    for line in _text(root / "proc/cpuinfo", 1 << 24).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "processor":
            cpus.append({})
        if cpus and key.strip():
            cpus[-1][key.strip()] = value
    return cpus


def _first(cpus: list[dict[str, str]], key: str) -> str | None:
    return next((text for cpu in cpus if (text := plain(cpu.get(key, ""), MAX_TEXT))), None)


def _cores(cpus: list[dict[str, str]]) -> int | None:
    cores = {(cpu["physical id"], cpu["core id"]) for cpu in cpus if "physical id" in cpu and "core id" in cpu}
    return len(cores) or None


def _flags(cpus: list[dict[str, str]]) -> tuple[str, ...]:
    """Those that every thread has."""
    sets = [set(cpu.get("flags", cpu.get("Features", "")).split()) for cpu in cpus]
    return tuple(sorted(set(FLAGS.split()).intersection(*sets))) if sets else ()


def _joined(folder: Path, names: tuple[str, ...]) -> str | None:
    return " ".join(text for name in names if (text := _line(folder / name))) or None


def _clock_max_mhz(cpu: Path) -> float | None:
    kilohertz = _integer(cpu / "cpufreq/cpuinfo_max_freq")
    return kilohertz / 1000 if kilohertz else None


def _caches(folder: Path) -> Iterator[tuple[str, str]]:
    kinds = {"Data": "d", "Instruction": "i", "Unified": ""}
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_line(index / name) for name in ("level", "type", "size"))
        if level and size:
            yield f"L{level}{kinds.get(kind or '', '')}", size


def _operating_system(root: Path) -> str | None:
    release = _table(root / "etc/os-release", "=")
    return release.get("PRETTY_NAME", "").strip("\"'")[:MAX_TEXT] or None


def _virtualization(root: Path, cpus: list[dict[str, str]]) -> str | None:
    product = _joined(root / "sys/class/dmi/id", ("sys_vendor", "product_name", "bios_vendor")) or ""
    for word, name in HYPERVISORS.items():
        if word in product.lower():
            return name
    if kind := _line(root / "sys/hypervisor/type"):
        return kind
    return "hypervisor" if any("hypervisor" in cpu.get("flags", "").split() for cpu in cpus) else None


def _container(root: Path) -> str | None:
    with suppress(OSError):
        if (root / ".dockerenv").exists():
            return "docker"
        if (root / "run/.containerenv").exists():
            return "podman"
    if manager := _line(root / "run/systemd/container"):
        return manager
    groups = _text(root / "proc/self/cgroup") + _text(root / "proc/1/cgroup")
    return next((name for name in ("kubepods", "docker", "libpod", "containerd", "lxc") if name in groups), None)


def cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above it, version 2 or 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        # In a container the path may be the host's, or climb out by "..": what does not exist reads as unknown.
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _cgroup_limits(root: Path) -> Iterator[tuple[str, str]]:
    """The limit nearest to this process of each kind; memory is bounded by all of them."""
    files = {
        "cpu": ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.weight", "cpu.shares"),
        "memory": ("memory.max", "memory.high", "memory.swap.max", "memory.limit_in_bytes"),
        "cpuset": ("cpuset.cpus.effective", "cpuset.mems.effective", "cpuset.cpus", "cpuset.mems"),
    }
    for controller, names in files.items():
        folders = list(cgroups(root, controller))
        for name in names:
            if limit := next((text for folder in folders if (text := _line(folder / name))), None):
                yield name, limit


def _cgroup_headrooms(root: Path) -> Iterator[int]:
    """Limit − use, where the page cache that can be dropped does not count as used."""
    for folder in cgroups(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _integer(folder / limit_name), _integer(folder / used_name)
            if limit is None or used is None:
                continue
            cache = re.search(rf"^{cache_name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE | re.ASCII)
            yield limit - used + (int(cache[1]) if cache else 0)


def _accelerators() -> Iterator[dict[str, str]]:
    """NVIDIA's, as NVML reports them; nothing where there is no driver. What a device does not report is left out."""
    import pynvml  # here, since most commands never need it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):
                yield _nvidia(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _nvidia(nvml: Any, device: object) -> dict[str, str]:
    facts: dict[str, Callable[[], object]] = {
        "name": lambda: nvml.nvmlDeviceGetName(device),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(device),
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "cuda": lambda: "{}.{}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion() // 10, 100)),
        "firmware": lambda: nvml.nvmlDeviceGetVbiosVersion(device),
        "compute_capability": lambda: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(device))),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).total,
        "power_limit_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device),
        "power_limit_default_mw": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(device),
        "clock_max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM),
        "clock_max_memory_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_MEM),
        "pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(device),
        "pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(device),
        "ecc": lambda: "on" if nvml.nvmlDeviceGetEccMode(device)[0] else "off",
        "mig": lambda: "on" if nvml.nvmlDeviceGetMigMode(device)[0] else "off",
        "persistence": lambda: "on" if nvml.nvmlDeviceGetPersistenceMode(device) else "off",
    }
    found = {}
    for name, read in facts.items():
        with suppress(nvml.NVMLError):
            found[name] = plain(str(read()), MAX_TEXT)
    return found


def _version(distribution: str) -> str | None:
    try:
        return plain(importlib.metadata.version(distribution), 40)
    except importlib.metadata.PackageNotFoundError:
        return None


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Paths are cut to their last part: they may name a user."""
    for name in VARIABLES.split():
        if name in environment:
            yield name, plain(re.sub(r"[^\s:,;=]*[/\\]", "", environment[name]), MAX_TEXT)


def _commit(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
