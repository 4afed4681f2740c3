"""Ceilings from probes, and the share of the roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mixmark.harness.contracts.schema import Completions, Cost, Device, Record
from mixmark.harness.judge import roofline
from tests.golden.sample import closed_loop, probe, record

CEILING = roofline.Ceiling("cpu:0", "torch", "fp32", 1e10 * 1e9 / 50, "gemm", 4e9 * 1e9 / 400, "read")


def test_a_ceiling_is_the_best_of_all_probe_records() -> None:
    known = roofline.ceilings([probe("a", gemm_ns=100, read_ns=400), probe("b", gemm_ns=50, read_ns=500)])
    assert known == {("cpu:0", "torch", "fp32"): CEILING}


def test_a_probe_kernel_of_several_yields_is_timed_by_all_of_them() -> None:
    """A matrix of several may lie in a cache; all of them do not."""
    costs = (Cost(name="gemv", flops=0, bytes=6, yields=3), Cost(name="gemm", flops=8, bytes=0))
    [ceiling] = roofline.ceilings(
        [record("a", "p", "kernel", closed_loop([[1, 4, 4, 4]]), scenario="probe", costs=costs)]
    ).values()
    assert ceiling == roofline.Ceiling("cpu:0", "torch", "fp32", 2e9, "gemm", 2e9, "gemv")


def test_a_probe_that_streams_nothing_has_the_bytes_of_the_devices_best() -> None:
    narrow = probe("b", gemm_ns=50, read_ns=400)
    costs = tuple(cost.model_copy(update={"bytes": 0}) for cost in narrow.costs)
    route = narrow.route.model_copy(update={"precision": "int8", "adapter": "acme"})
    known = roofline.ceilings(
        [probe("a", gemm_ns=100, read_ns=400), narrow.model_copy(update={"costs": costs, "route": route})]
    )
    assert known["cpu:0", "acme", "int8"] == replace(CEILING, adapter="acme", precision="int8")


def test_a_ceiling_counts_what_all_feeds_in_flight_did_together() -> None:
    """Two streams, each on half of the device: alone, each would tell half of the ceiling."""
    costs = (Cost(name="gemm", flops=6, bytes=0), Cost(name="read", flops=0, bytes=8))
    columns = [0, 0], [0, 0], [2, 4], [3, 7, 3, 7], [1, 1, 1, 1]
    both = Completions(*map(np.array, columns))
    probed = record("a", "p", "kernel", both, scenario="probe", costs=costs)
    assert [*roofline.ceilings([probed]).values()] == [
        roofline.Ceiling("cpu:0", "torch", "fp32", 2e9, "gemm", 2e9, "read")
    ]
    [together] = roofline.ceilings([probed.model_copy(update={"concurrency": 2})]).values()
    assert together == roofline.Ceiling("cpu:0", "torch", "fp32", 4e9, "gemm", 4e9, "read")


def test_what_uses_another_part_of_the_device_meanwhile_raises_no_ceiling() -> None:
    """While one feed multiplies, the other one reads: neither adds to the other's rate."""
    costs = (Cost(name="gemm", flops=6, bytes=0), Cost(name="read", flops=0, bytes=6))
    columns = [0, 3], [0, 3], [2, 4], [3, 6, 6, 9], [1, 1, 1, 1]
    probed = record("a", "p", "kernel", Completions(*map(np.array, columns)), scenario="probe", costs=costs)
    [ceiling] = roofline.ceilings([probed.model_copy(update={"concurrency": 2})]).values()
    assert ceiling == roofline.Ceiling("cpu:0", "torch", "fp32", 2e9, "gemm", 2e9, "read")


def known(
    flops_per_s: float | None, bytes_per_s: float | None, adapter: str = "torch"
) -> dict[roofline.CeilingKey, roofline.Ceiling]:
    key = ("cpu:0", adapter, "fp32")
    return {key: roofline.Ceiling(*key, flops_per_s, "gemm", bytes_per_s, "read", adapter != "acme")}


COSTS = (Cost(name="prefill", flops=100, bytes=10), Cost(name="decode", flops=10, bytes=30, yields=2))


def on(device: str, flops_per_s: float, adapter: str = "torch") -> Record:
    told = probe(device.replace(":", "-"), gemm_ns=round(1e10 * 1e9 / flops_per_s), read_ns=400, device=device)
    return told.model_copy(update={"route": told.route.model_copy(update={"adapter": adapter})})


def test_a_group_has_its_own_ceiling_or_what_those_of_its_parts_add_up_to() -> None:
    parts = [Device(id=f"gpu:{name}", kind="gpu", memory_pool=name) for name in "ab"]
    group = Device(id="gpu:pair", kind="gpu", memory_pool="pair", parts=("gpu:a", "gpu:b"))
    devices, alone = [*parts, group], [on("gpu:a", 1e17), on("gpu:b", 2e17)]
    summed = roofline.ceilings(alone, devices)["gpu:pair", "torch", "fp32"]
    assert summed == roofline.Ceiling("gpu:pair", "torch", "fp32", 3e17, "all parts", 2 * 4e9 * 1e9 / 400, "all parts")
    assert ("gpu:pair", "torch", "fp32") not in roofline.ceilings(alone[:1], devices)
    own = roofline.ceilings([*alone, on("gpu:pair", 2.5e17)], devices)["gpu:pair", "torch", "fp32"]
    assert own.flops_per_s == 2.5e17
    peaks = roofline.peak_rates(alone, devices)
    assert peaks.flops_per_s["gpu:pair", "fp32"] == 3e17
    assert peaks.bytes_per_s["gpu:pair"] == 2 * 4e9 * 1e9 / 400


def test_a_group_has_a_witness_if_all_of_its_parts_have_one() -> None:
    parts = [Device(id=f"gpu:{name}", kind="gpu", memory_pool=name) for name in "ab"]
    devices = [*parts, Device(id="gpu:pair", kind="gpu", memory_pool="pair", parts=("gpu:a", "gpu:b"))]
    alone = [on("gpu:a", 1e17), on("gpu:b", 2e17)]
    for witnesses, both in ((["gpu-a"], False), (["gpu-a", "gpu-b"], True)):
        known = roofline.ceilings(alone, devices, witnesses)
        assert known["gpu:a", "torch", "fp32"].witnessed
        assert known["gpu:pair", "torch", "fp32"].witnessed is both


def test_the_roofline_takes_the_slower_of_compute_and_memory_at_each_yield() -> None:
    done = closed_loop([[200, 50, 50], [200, 50, 50]])
    least_s = 2 * (100 / 1e9 + 2 * 30 / 1e9)
    one = record("a", "llm", "token", done, costs=COSTS)
    assert roofline.achieved(one, known(1e9, 1e9)) == roofline.Achieved(least_s * 1e9 / 600)


def test_a_built_in_adapter_has_its_own_ceiling_and_others_have_the_highest_of_those() -> None:
    def reached(adapter: str, *ceilings: dict[roofline.CeilingKey, roofline.Ceiling]) -> tuple[float | None, str]:
        one = record("a", "llm", "token", closed_loop([[100, 30, 30]]), costs=COSTS, adapter=adapter)
        found = roofline.achieved(one, {key: each for known in ceilings for key, each in known.items()})
        return found.fraction and round(found.fraction, 9), found.note or ""

    torch, openvino, acme = known(1e9, 1e9), known(2e9, 2e9, "openvino"), known(4e9, 4e9, "acme")
    assert reached("torch", torch, openvino, acme) == (1.0, "")
    for adapter in ("acme", "onnxruntime"):
        assert reached(adapter, torch, acme) == (1.0, "ceiling from adapter torch")
        assert reached(adapter, torch, openvino, acme) == (0.5, "ceiling from adapter openvino")
    own = "cpu:0 has its own ceiling only, since no built-in adapter probed it in fp32"
    assert reached("acme", acme) == (None, own)


def test_an_unknown_share_of_the_roofline_says_why() -> None:
    done = closed_loop([[1, 1, 1]])
    one = record("a", "llm", "token", done, costs=COSTS)
    assert roofline.achieved(one, {}) == roofline.Achieved(
        None, "no undisturbed probe of cpu:0 in fp32 passed its audit"
    )
    assert "lacks" in (roofline.achieved(one, known(1e9, None)).note or "")
    assert "no cost model" in (roofline.achieved(record("a", "llm", "token", done), known(1, 1)).note or "")
    short = record("a", "llm", "token", closed_loop([[1, 1]]), costs=COSTS)
    assert roofline.achieved(short, known(1, 1)).note == "the cost model has 3 yields a feed, the record 2 to 2"
    still = record("a", "llm", "token", closed_loop([[0, 0, 0]]), costs=COSTS)
    assert roofline.achieved(still, known(1, 1)) == roofline.Achieved(None, "the clock did not tick")


def test_what_moves_no_bytes_needs_no_ceiling_of_them() -> None:
    one = record("a", "gemm", "product", closed_loop([[400]]), costs=(Cost(name="gemm", flops=100, bytes=0),))
    assert roofline.achieved(one, known(1e9, None)) == roofline.Achieved(0.25)
