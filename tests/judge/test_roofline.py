"""Ceilings from probes, and the share of the roofline."""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("moved", "columns", "together"),
    [(8, ([0, 0], [0, 0], [2, 4], [3, 7, 3, 7]), 4e9), (6, ([0, 3], [0, 3], [2, 4], [3, 6, 6, 9]), 2e9)],
    ids=["each on half of the device", "one multiplies while the other reads"],
)
def test_a_ceiling_counts_what_all_feeds_in_flight_did_together(
    moved: int, columns: tuple[list[int], ...], together: float
) -> None:
    """A feed that uses another part of the device meanwhile raises no ceiling."""
    costs = (Cost(name="gemm", flops=6, bytes=0), Cost(name="read", flops=0, bytes=moved))
    done = Completions(*map(np.array, (*columns, [1] * 4)))
    probed = record("a", "p", "kernel", done, scenario="probe", costs=costs)
    for concurrency, per_s in ((1, 2e9), (2, together)):
        [ceiling] = roofline.ceilings([probed.model_copy(update={"concurrency": concurrency})]).values()
        assert ceiling == roofline.Ceiling("cpu:0", "torch", "fp32", per_s, "gemm", per_s, "read")


def known(flops_per_s: float | None, bytes_per_s: float | None) -> roofline.PeakRates:
    flops = {("cpu:0", "fp32"): flops_per_s} if flops_per_s else {}
    return roofline.PeakRates(flops, {"cpu:0": bytes_per_s} if bytes_per_s else {})


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
    peaks, _ = roofline.peak_rates(alone, devices)
    assert peaks.flops_per_s["gpu:pair", "fp32"] == 3e17
    assert peaks.bytes_per_s["gpu:pair"] == 2 * 4e9 * 1e9 / 400
    for witnesses, both in ((["gpu-a"], False), (["gpu-a", "gpu-b"], True)):
        known = roofline.ceilings(alone, devices, witnesses)
        assert (known["gpu:a", "torch", "fp32"].witnessed, known["gpu:pair", "torch", "fp32"].witnessed) == (True, both)


def test_the_roofline_takes_the_slower_of_compute_and_memory_at_each_yield() -> None:
    done = closed_loop([[200, 50, 50], [200, 50, 50]])
    least_s = 2 * (100 / 1e9 + 2 * 30 / 1e9)
    one = record("a", "llm", "token", done, costs=COSTS)
    reached = roofline.achieved(one, known(1e9, 1e9), known(5e8, 5e8))
    assert reached == roofline.Achieved(least_s * 1e9 / 600, typical=2 * least_s * 1e9 / 600)


def test_a_device_has_one_ceiling_a_type_whichever_adapter_reached_it() -> None:
    """The fastest kernel of any witness, with the median of its passes; bytes count in every precision. A slower kernel
    or witness changes nothing."""

    def by(adapter: str, precision: str, *read_ns: int, gemm_ns: int = 100) -> Record:
        done = closed_loop([[gemm_ns, each] for each in read_ns])
        base = probe("a", gemm_ns=1, read_ns=1)
        route = base.route.model_copy(update={"adapter": adapter, "precision": precision})
        return base.model_copy(update={"completions": done, "route": route})

    slow = by("openvino", "bf16", 760, 1080, 1080)
    for probes in (
        [slow, by("onnxruntime", "fp32", 1000, 701, 800)],
        [by("onnxruntime", "fp32", 800, 701, 1000), slow],
    ):
        best, typical = roofline.peak_rates(probes)
        assert best.bytes_per_s == {"cpu:0": 4e9 * 1e9 / 701}
        assert typical.bytes_per_s == {"cpu:0": 4e9 * 1e9 / 800}
        assert best.flops_per_s.keys() == {("cpu:0", "bf16"), ("cpu:0", "fp32")}


def test_an_unknown_share_of_the_roofline_says_why() -> None:
    done = closed_loop([[1, 1, 1]])
    one = record("a", "llm", "token", done, costs=COSTS)

    def why(one: Record, peaks: roofline.PeakRates) -> str | None:
        found = roofline.achieved(one, peaks, peaks)
        assert found.fraction is None
        return found.note

    unknown = "no undisturbed probe of a built-in adapter found the ceiling of cpu:0 in fp32"
    assert why(one, known(None, None)) == why(one, known(1e9, None)) == why(one, known(None, 1e9)) == unknown
    assert "no cost model" in (why(record("a", "llm", "token", done), known(1, 1)) or "")
    short = record("a", "llm", "token", closed_loop([[1, 1]]), costs=COSTS)
    assert why(short, known(1, 1)) == "the cost model has 3 yields a feed, the record 2 to 2"
    still = record("a", "llm", "token", closed_loop([[0, 0, 0]]), costs=COSTS)
    assert why(still, known(1, 1)) == "the clock did not tick"
    multiplied = record("a", "gemm", "product", closed_loop([[400]]), costs=(Cost(name="gemm", flops=100, bytes=0),))
    assert roofline.achieved(multiplied, known(1e9, None), known(1e9, None)).fraction == 0.25, "it moves no bytes"
