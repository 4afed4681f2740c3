"""Slices of a CPU whose topology is laid out in files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Device
from mixmark.harness.machine.cpu_slices import cut, ranges, split, usable
from mixmark.harness.plan.phases import Target
from mixmark.harness.resources.cpus import listed
from tests.machine.test_counters import write

CPU = Device(id="cpu:0", kind="cpu", name="Quartz", memory_pool="host", precisions=("fp32",))
GPU = Device(id="gpu:0", kind="gpu", memory_pool="gpu:0", precisions=("fp32",))


def machine(root: Path, cores: Mapping[int, tuple[int, int]], files: Mapping[str, str] | None = None) -> Path:
    """cores: (cluster, core_id, which repeats in each cluster) of each hardware thread."""
    for thread, (cluster, core) in cores.items():
        topology = root / f"sys/devices/system/cpu/cpu{thread}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{core}\n")
        siblings = ",".join(str(each) for each, place in cores.items() if place == (cluster, core))
        (topology / ("core_cpus_list" if thread % 2 else "thread_siblings_list")).write_text(f"{siblings}\n")
    write(root, dict(files or {}))
    return root


def test_the_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = machine(tmp_path, {thread: (0, thread % 4) for thread in range(8)})
    assert cut("2", range(8), root) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert cut("3", range(8), root) == [(0, 1, 4, 5), (2, 6), (3, 7)]
    assert cut("2", (0, 1, 2), root) == [(0, 1), (2,)]  # what taskset leaves


def test_a_core_id_is_unique_in_its_cluster_only(tmp_path: Path) -> None:
    root = machine(tmp_path, {thread: (thread // 4, thread % 4) for thread in range(8)})
    assert cut("4", range(8), root) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert len(cut("8", range(8), root)) == 8


def test_slices_do_not_share_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    root = machine(tmp_path, {thread: (0, thread) for thread in range(8)}, quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    with pytest.raises(UsageError, match=r"share one quota of 2\.5 CPUs") as refused:
        split((Target(CPU, "torch", {}),), "2", root)
    assert "taskset -c 0-1 " in refused.value.hint
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5})
    assert [target.device.cores for target in split((Target(CPU, "torch", {}),), "2", root)] == [(4,), (5,)]


def test_a_machine_that_tells_no_topology_is_cut_by_threads(tmp_path: Path) -> None:
    assert cut("2", range(4), tmp_path) == [(0, 1), (2, 3)]


def test_by_numa_node_and_by_kind_of_core(tmp_path: Path) -> None:
    nodes = {"sys/devices/system/node/node0/cpulist": "0-1,4\n", "sys/devices/system/node/node1/cpulist": "2-3\n"}
    kinds = {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2-4\n"}
    root = machine(tmp_path, {thread: (0, thread) for thread in range(5)}, nodes | kinds)
    assert cut("numa", range(5), root) == [(0, 1, 4), (2, 3)]
    assert cut("type", range(5), root) == [(0, 1), (2, 3, 4)]


def by_thread(source: str, values: Sequence[int]) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{thread}/{source}": f"{value}\n" for thread, value in enumerate(values)}


PREFERRED = (196, 191, 186, 181)  # cores of one kind, which the firmware ranks
CLOCKS = by_thread("cpufreq/cpuinfo_max_freq", [4_900_000, 3_500_000, 3_500_000, 4_900_000])
KINDS: Mapping[str, tuple[dict[str, str], Sequence[str]]] = {
    "Zen 5 and Zen 5c": (
        by_thread("acpi_cppc/highest_perf", 2 * (*PREFERRED, 129, 127, 125, 123, 121, 119, 117, 115)),
        ("0-3,12-15", "4-11,16-23"),
    ),
    "Zen 4 and Zen 4c by old firmware": (by_thread("acpi_cppc/highest_perf", [255] * 4) | CLOCKS, ("0,3", "1-2")),
    "A720 in steps and A520": (by_thread("cpu_capacity", [1024, 279, 984, 905, 866, 279]), ("0,2-4", "1,5")),
    "X4, A720 and A520": (by_thread("cpu_capacity", [330, 330, 830, 870, 1024]), ("0-1", "2-3", "4")),
    "a value that a core lacks": (by_thread("acpi_cppc/highest_perf", [99, 9, 9]) | CLOCKS, ("0,3", "1-2")),
    "a core of low power": (
        {f"sys/devices/cpu_{kind}/cpus": cpus for kind, cpus in (("core", "0"), ("atom", "1"), ("lowpower", "2"))},
        ("0", "1", "2"),
    ),
    "cores that are preferred": (by_thread("acpi_cppc/highest_perf", PREFERRED), ()),
    "two clocks of one kind": (by_thread("cpufreq/cpuinfo_max_freq", [5_700_000, 5_500_000]), ()),
}


@pytest.mark.parametrize(("files", "slices"), KINDS.values(), ids=KINDS)
def test_the_kinds_of_cores_are_what_the_kernel_tells(
    tmp_path: Path, files: dict[str, str], slices: Sequence[str]
) -> None:
    write(tmp_path, files)
    threads = [*listed(",".join(slices))] or [0, 1]
    if slices:
        assert [*map(ranges, cut("type", sorted(threads), tmp_path))] == [*slices]
    else:
        with pytest.raises(UsageError, match="the kernel names no kinds of core"):
            cut("type", threads, tmp_path)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("numa", "one NUMA node"),
        ("type", "names no kinds of core"),
        ("3", "has 2 cores"),
        ("1", "nothing to split by"),
        ("many", "nothing to split by"),
    ],
)
def test_what_cannot_be_split_is_told(tmp_path: Path, how: str, told: str) -> None:
    root = machine(tmp_path, {0: (0, 0), 1: (0, 1)}, {"sys/devices/system/node/node0/cpulist": "0-1"})
    with pytest.raises(UsageError, match=told):
        cut(how, (0, 1), root)


def test_every_way_onto_the_cpu_becomes_one_a_slice() -> None:
    if len(usable()) < 2:
        pytest.skip("one hardware thread: run it on a processor with two")
    targets = split((Target(CPU, "torch", {}), Target(GPU, "torch", {}), Target(CPU, "onnxruntime", {})), "2")
    assert [(target.device.id, target.adapter) for target in targets] == [
        ("cpu:0.0", "torch"),
        ("cpu:0.1", "torch"),
        ("gpu:0", "torch"),
        ("cpu:0.0", "onnxruntime"),
        ("cpu:0.1", "onnxruntime"),
    ]
    first, second = targets[0].device, targets[1].device
    assert not set(first.cores) & set(second.cores)
    assert first.slice_of == "cpu:0"
    assert first.silicon != second.silicon
    assert first.whole == CPU.model_copy(update={"name": first.name})
    assert targets[2].device.whole == GPU
    group = CPU.model_copy(update={"id": "cpu:pair", "parts": ("cpu:0/1-of-2", "cpu:0/2-of-2")})
    assert split((*targets[:1], Target(CPU, "acme", {}), Target(group, "acme", {})), "2")[-1].device == group
    with pytest.raises(UsageError, match="no adapter here reaches the CPU"):
        split((Target(GPU, "torch", {}), Target(group, "acme", {})), "2")


def test_devices_overlap_where_they_share_silicon() -> None:
    def gpu(name: str, *parts: str) -> Device:
        return Device(id=f"gpu:{name}", kind="gpu", memory_pool=name, parts=parts)

    a, pair, half, quarter = gpu("a"), gpu("p", "gpu:a", "gpu:b"), gpu("h", "gpu:a/1-of-2"), gpu("q", "gpu:a/3-of-4")
    assert a.overlaps(pair) and pair.overlaps(a) and a.overlaps(half) and pair.overlaps(half) and a.overlaps(a)
    assert not half.overlaps(gpu("h2", "gpu:a/2-of-2"))
    assert half.overlaps(quarter), "nothing tells where the cuts of two divisions are"
    assert not gpu("c").overlaps(pair)
    one, two = (CPU.model_copy(update={"id": f"cpu:0.{at}", "slice_of": "cpu:0", "cores": (at,)}) for at in range(2))
    assert one.overlaps(CPU) and one.overlaps(one) and not one.overlaps(two)
    assert one.overlaps(two.model_copy(update={"cores": (0, 1)}))
    assert one.overlaps(CPU.model_copy(update={"id": "cpu:pair", "parts": ("cpu:0/1-of-2", "cpu:0/2-of-2")}))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (("gpu:a", "gpu:a"), "gpu:a and gpu:a are the same silicon"),
        (("gpu:a", "gpu:a/1-of-2"), "are the same silicon"),
        (("gpu:a/1-of-2", "gpu:a/2-of-4"), "are the same silicon"),
        (("core-0",), "core-0 is not a name of silicon"),
        (("gpu:a/3-of-2",), "is not a name of silicon"),
        (("gpu:a/0-of-2",), "is not a name of silicon"),
    ],
)
def test_parts_name_silicon_and_each_once(parts: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Device(id="gpu:p", kind="gpu", memory_pool="p", parts=parts)
