from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from mixmark.harness.capabilities.doctor import checks as doctor
from mixmark.harness.capabilities.doctor.checks import checks
from mixmark.harness.contracts.protocols import Check
from mixmark.harness.machine.counters import MachineCounters
from mixmark.harness.plugins import registry
from mixmark.harness.resources import cpus
from tests.cli.shell import Shell
from tests.machine.nvml import GPU, FakeNvml
from tests.machine.test_counters import counted, process, quiet, write

CPU = "sys/devices/system/cpu"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(driver=False))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setitem(registry.BUILT_IN, "checks", {})


def check(root: Path, name: str, files: Mapping[str, str] = {}, during: Mapping[str, str] = {}) -> Check:
    """One check's answer on a quiet machine with other files. during: what changes within the sample."""
    write(quiet(root), dict(files))
    found = {each.name: each for each in checks(root, wait=lambda seconds: write(root, dict(during)))}
    return found[name]


def test_a_variable_that_leaves_cores_idle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "cores", lambda root: 4)
    assert check(tmp_path, "threads").state == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert check(tmp_path, "threads").state == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    found = check(tmp_path, "threads")
    assert (found.state, found.fix) == ("warn", "unset OMP_NUM_THREADS MKL_NUM_THREADS")
    assert found.message == "OMP_NUM_THREADS=1, MKL_NUM_THREADS=2: engines use fewer threads than 4 cores"


GOOD: list[tuple[str, dict[str, str], str]] = [
    (
        "governor",
        {f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in (0, 1)},
        "every CPU uses the governor performance",
    ),
    ("power supply", {"sys/class/power_supply/none": ""}, "the machine reports no battery of its own"),
    (
        "power supply",
        {"sys/class/power_supply/AC/type": "Mains", "sys/class/power_supply/AC/online": "1"},
        "mains, and no battery is charged",
    ),
    ("power profile", {"sys/firmware/acpi/platform_profile": "balanced\n"}, "balanced"),
    ("swap", {"proc/swaps": "Filename Type Size Used Priority\n/swap file 2048 0 -2\n"}, "no swap area is used"),
    ("cpu limit", {"sys/fs/cgroup/job/cpu.max": "max 100000\n"}, "no CPU quota was found"),
    (
        "watchable",
        {},
        "all disturbances can be observed: CPU clocks, CPU temperature, thermal throttling, memory pressure, paging",
    ),
]


@pytest.mark.parametrize(("name", "files", "message"), GOOD)
def test_what_is_well_is_ok(tmp_path: Path, name: str, files: dict[str, str], message: str) -> None:
    work = {"proc/stat": counted(cpu0=50)}  # so that the clocks have something to be weighted by
    assert check(tmp_path, name, files, work) == Check(name, "ok", message)


@pytest.mark.parametrize(("name", "on", "off"), [("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")])
def test_clocks_that_depend_on_the_load_are_named(tmp_path: Path, name: str, on: str, off: str) -> None:
    message = "on: the clock depends on temperature and on how many cores work"
    file = f"{CPU}/{name}"
    assert check(tmp_path, "boost", {file: on}) == Check("boost", "ok", message, f"echo {off} | sudo tee /{file}")
    message = "off: the clocks hold, below what the CPU could reach"
    assert check(tmp_path, "boost", {file: off}) == Check("boost", "ok", message)


WRONG: list[tuple[str, dict[str, str], str, str]] = [
    (
        "governor",
        {f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": word for cpu, word in enumerate(("performance", "powersave"))},
        "performance, powersave: the clocks follow the load with a delay",
        f"echo performance | sudo tee /{CPU}/cpu*/cpufreq/scaling_governor",
    ),
    (
        "power supply",
        {
            f"sys/class/power_supply/BAT0/{name}": word
            for name, word in (("type", "Battery"), ("status", "Discharging"))
        },
        "the machine runs on its battery, which slows it down and which no meter at the wall sees: plug it in",
        "",
    ),
    (
        "power supply",
        {f"sys/class/power_supply/BAT0/{name}": word for name, word in (("type", "Battery"), ("status", "Charging"))},
        "the battery is being charged, and a meter at the wall reads that, too: wait until it is full",
        "",
    ),
    (
        "power profile",
        {
            "sys/firmware/acpi/platform_profile": "low-power\n",
            f"{CPU}/cpu0/cpufreq/energy_performance_preference": "performance",
        },
        "low-power: it saves power and slows the machine down",
        "echo performance | sudo tee /sys/firmware/acpi/platform_profile",
    ),
    (
        "power profile",
        {f"{CPU}/cpu0/cpufreq/energy_performance_preference": "balance_power\n"},
        "balance_power: it saves power and slows the machine down",
        f"echo performance | sudo tee /{CPU}/cpu*/cpufreq/energy_performance_preference",
    ),
    (
        "swap",
        {"proc/swaps": "Filename Type Size Used Priority\n/a file 9 1024 -2\n/b file 9 2048 -3\n"},
        "3.15 MB of memory are swapped out, and reading them back takes time",
        "sudo swapoff -a",
    ),
    (
        "cpu limit",  # the one above ours is tighter
        {"sys/fs/cgroup/job/cpu.max": "400000 100000\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        "the cgroup may use 1.50 CPUs, and is stopped for the rest of a period once it has used them",
        "echo max | sudo tee /sys/fs/cgroup/cpu.max",
    ),
    (
        "cpu limit",
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        },
        "the cgroup may use 0.50 CPUs, and is stopped for the rest of a period once it has used them",
        "echo -1 | sudo tee /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
    ),
]


@pytest.mark.parametrize(("name", "files", "message", "fix"), WRONG)
def test_what_will_disturb_comes_with_the_command_that_stops_it(
    tmp_path: Path, name: str, files: dict[str, str], message: str, fix: str
) -> None:
    assert check(tmp_path, name, files) == Check(name, "warn", message, fix)


def sampled(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, stat: str) -> Check:
    """As if the sample took exactly a second."""
    now = iter((0, 1_000_000_000))
    monkeypatch.setattr(doctor, "MachineCounters", partial(MachineCounters, clock=lambda: next(now)))
    return check(root, name, during={"proc/stat": stat})


@pytest.mark.parametrize(("ticks", "state"), [(2, "ok"), (50, "warn")])
def test_others_on_the_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ticks: int, state: str) -> None:
    found = sampled(monkeypatch, tmp_path, "load", counted(cpu1=ticks))
    fix = "ps -eo pid,pcpu,comm --sort=-pcpu | head" if state == "warn" else ""
    message = f"other programs keep {ticks / 100:.2f} of 2 CPUs busy (limit 0.02)"
    assert (found.state, found.message, found.fix) == (state, message, fix)


@pytest.mark.parametrize(("ticks", "state"), [(1, "ok"), (5, "warn")])
def test_a_hypervisor_that_takes_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ticks: int, state: str) -> None:
    write(tmp_path, {"sys/class/dmi/id/sys_vendor": "QEMU\n"})
    found = sampled(monkeypatch, tmp_path, "steal", counted(steal=ticks))
    message = f"under QEMU; {ticks / 2:.1f} % of the CPUs' time was stolen (limit 0.5 %)"
    assert (found.state, found.message, found.fix) == (state, message, "")


def test_a_machine_that_says_nothing_is_unknown_and_never_ok(tmp_path: Path) -> None:
    found = {each.name: each for each in checks(tmp_path, wait=lambda seconds: None)}
    said = {name for name, each in found.items() if each.state != "unknown"}
    assert said == {"cpu limit", "threads"}  # where none is seen, none is


def disclosing(persistence: int, limit_mw: int) -> dict[str, object]:
    """What a GPU answers to the questions of the disclosure."""
    return GPU | {
        "nvmlDeviceGetName": "Topaz",
        "nvmlDeviceGetPersistenceMode": persistence,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetEnforcedPowerLimit": limit_mw,
    }


def gpu_checks(monkeypatch: pytest.MonkeyPatch, root: Path, nvml: FakeNvml) -> list[tuple[str, str, str, str]]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    write(quiet(root), process(99, (0, 0, 0, 0)))
    found = checks(root, wait=lambda seconds: None)
    return [(each.name, each.state, each.message, each.fix) for each in found if each.name.startswith("gpu")]


def test_a_gpu_that_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert gpu_checks(monkeypatch, tmp_path, FakeNvml(answers=disclosing(1, 700_000))) == [
        ("gpu Topaz persistence", "ok", "on", ""),
        ("gpu Topaz power limit", "ok", "700 W, by default 700 W", ""),
        ("gpu Topaz company", "ok", "no foreign process computes on it", ""),
    ]


def test_a_gpu_that_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    off = "off: the driver unloads between runs, and clocks and settings with it"
    assert gpu_checks(monkeypatch, tmp_path, FakeNvml([99], answers=disclosing(0, 350_000))) == [
        ("gpu Topaz persistence", "warn", off, "sudo nvidia-smi -i GPU-1 -pm 1"),
        ("gpu Topaz power limit", "warn", "350 W, by default 700 W", "sudo nvidia-smi -i GPU-1 -pl 700"),
        ("gpu Topaz company", "warn", "foreign processes compute on it: 1 (99)", "ps -o pid,user,comm -p 99"),
    ]


def test_a_gpu_that_keeps_silent_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = {"nvmlDeviceGetUUID": "GPU-1", "nvmlDeviceGetName": "Topaz"}
    silent = FakeNvml([12345], answers=named)  # a process of another namespace
    message = "the driver does not report which processes use it, or counts in another process namespace"
    assert gpu_checks(monkeypatch, tmp_path, silent) == [("gpu Topaz company", "unknown", message, "")]


def of_a_capability() -> list[Check]:
    return [Check("acme", "ok", "all is well")]


@pytest.mark.usefixtures("jumping_clock")
def test_the_command_lists_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "checks", {"acme": f"{__name__}:of_a_capability"})
    monkeypatch.delitem(sys.modules, "pynvml")
    shell = Shell(tmp_path)
    listed = json.loads(shell("doctor", "--json").stdout)["checks"]
    assert {"governor", "load", "steal", "swap", "acme"} <= {check["name"] for check in listed}
    assert "governor" in shell("doctor").stdout


@pytest.mark.slow
def test_an_installed_package_brings_a_watcher_whose_printing_spoils_no_answer(tmp_path: Path) -> None:
    """A vendor's accelerator is one file and an entry point; its library prints to file descriptor 1."""
    info = tmp_path / "onyx_mixmark-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onyx-mixmark\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mixmark.watchers]\nonyx = tests.fakes.watchers:Printing\nbroken = tests.fakes.watchers:Unbuilt\n"
    )
    paths = (str(tmp_path), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from mixmark.harness.cli.commands import main; main()", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {each["name"]: (each["state"], each["message"]) for each in json.loads(done.stdout)["checks"]}
    assert found["npu Onyx fan"] == ("warn", "off")
    assert found["npu Onyx company"] == ("ok", "no foreign process computes on it")
    state, message = found["watcher broken"]
    failed = "it failed, so its accelerators were not checked: OSError: libonyx.so: cannot open shared object file"
    assert state == "unknown" and message.startswith(failed)
    assert "ONYX 1.0" not in done.stdout + done.stderr, "it goes to the log of the watcher's process"
