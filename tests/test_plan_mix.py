"""What follows from solo records: rates, the plan, what is measured again, the mixed phases. No device, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from harness import plan, score
from harness.errors import MixmarkError
from harness.plan import Way, Workload
from harness.schema import Audit, Device, Gate, Limits, Mix, Record, Result, ServiceLimits
from tests.golden.sample import closed_loop, result

SECOND = 1_000_000_000
DEVICES = (
    Device(id="cpu:0", kind="cpu", memory_pool="host", memory_bytes=64 << 30, precisions=("fp32",)),
    Device(id="gpu:0", kind="gpu", memory_pool="gpu:0", memory_bytes=8 << 30, precisions=("fp32",)),
)
MIX = Mix(
    name="mine", tier="edge", units={"llm": 100, "dlrm": 1000}, limits={"dlrm": ServiceLimits(total_ns=2 * SECOND)}
)
LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=SECOND, max_ns=SECOND, min_feeds=1, audits=1)
PASSED = Audit(gate=Gate(metric="m", at_most=0.1), finished=4, feeds=(0,), values=(0.0,))


def solo(*devices: Device) -> Result:
    ways = [Way(device, "torch", {}) for device in devices]
    workloads = [Workload("llm", "1", ("single-stream",)), Workload("dlrm", "1", ("offline",))]
    phases = plan.solo(ways, workloads, "edge", plan.PRESETS["quick"])
    header = result().model_copy(update={"devices": devices, "mix": MIX, "phases": phases, "finished": False})
    return header.model_copy(update={"records": tuple(record(header, phase.name) for phase in phases)})


def record(header: Result, key: str, feed_s: float = 1.0, feeds: int = 4, **changed: Any) -> Record:
    """A feed of 100 tokens or of 1,000 samples takes so long."""
    (share,) = next(phase for phase in header.phases if phase.name == key).tasks[0].shares
    units = 100 if share.route.suite == "llm" else 1000
    return Record.model_validate(
        {
            "key": key,
            "phase": key,
            "route": share.route,
            "scenario": share.scenario,
            "unit": "unit",
            "batch": 1 if share.route.suite == "llm" else 1000,
            "completions": closed_loop([[int(feed_s * SECOND)]] * feeds, units),
            "audit": PASSED,
            "needed_bytes": 3 << 30,
            "peak_pss_bytes": 5 << 30,
            **changed,
        }
    )


def changed(before: Result, suite: str, device: str, **changes: Any) -> Result:
    records = tuple(
        each.model_copy(update=changes) if (each.route.suite, each.route.device) == (suite, device) else each
        for each in before.records
    )
    return before.model_copy(update={"records": records})


def test_rates_are_those_of_routes_that_passed_their_gate() -> None:
    before = solo(*DEVICES)
    rates = {(rate.suite, rate.device): rate for rate in score.rates(before, MIX)}
    assert rates["llm", "cpu:0"].units_per_s == pytest.approx(100)
    assert rates["dlrm", "gpu:0"].units_per_s == pytest.approx(1000)
    assert rates["dlrm", "gpu:0"].batch == 1000
    assert rates["llm", "cpu:0"].memory_bytes == 5 << 30  # what its process really took
    assert rates["llm", "gpu:0"].memory_bytes == 3 << 30  # what nobody sees from outside is budgeted
    wrong = PASSED.model_copy(update={"values": (0.2,)})
    unread = PASSED.model_copy(update={"values": ()})
    elsewhere = {
        "facts": {"elsewhere": "Conv on the CPU"}
    }  # invalid by a rule of honesty, though its answers are right
    for lost in ({"audit": wrong}, {"audit": None}, {"audit": unread}, elsewhere):
        left = score.rates(changed(before, "llm", "gpu:0", **lost), MIX)
        assert ("llm", "gpu:0") not in {(rate.suite, rate.device) for rate in left}


def test_feeds_beyond_the_mixs_limits_are_no_rate() -> None:
    before = solo(*DEVICES)
    half = closed_loop([[1 * SECOND], [3 * SECOND]], 1000)
    rates = {(r.suite, r.device): r for r in score.rates(changed(before, "dlrm", "cpu:0", completions=half), MIX)}
    assert rates["dlrm", "cpu:0"].units_per_s == pytest.approx(250)
    never = closed_loop([[3 * SECOND]], 1000)
    late = score.rates(changed(before, "dlrm", "cpu:0", completions=never), MIX)
    assert ("dlrm", "cpu:0") not in {(rate.suite, rate.device) for rate in late}


def later(before: Result, again: bool = False, runs: int = 1, **pools: int) -> Any:
    return plan.later(
        before, LIMITS, runs, again, "throughput", {name.replace("_", ":"): b for name, b in pools.items()}
    )


def test_a_mixed_phase_follows_and_its_runs_keep_the_plan() -> None:
    before = solo(*DEVICES)
    (first,) = later(before, runs=2)
    assert first.placement is not None
    assert first.placement.mixes_per_s == pytest.approx(1.0)  # two equal devices, each 2 s a mix
    assert {(share.route.suite, task.device) for task in first.tasks for share in task.shares} == {
        (suite, device.id) for suite in MIX.units for device in DEVICES
    }
    assert {share.scenario for task in first.tasks for share in task.shares} == {"mixed"}
    assert {share.batch for task in first.tasks for share in task.shares} == {1, 1000}
    after = before.model_copy(update={"phases": (*before.phases, first)})
    (second,) = later(after, runs=2)
    assert (second.name, second.placement) == ("mix2", first.placement)
    assert not {s.key for t in first.tasks for s in t.shares} & {s.key for t in second.tasks for s in t.shares}
    assert later(after.model_copy(update={"phases": (*after.phases, second)}), runs=2) == ()
    assert later(before.model_copy(update={"mix": None})) == ()


def test_chosen_routes_are_measured_again_and_only_that_counts() -> None:
    before = solo(DEVICES[0])
    phases = later(before, again=True)
    assert [phase.tasks[0].shares[0].route.suite for phase in phases] == ["llm", "dlrm"]
    assert [phase.tasks[0].shares[0].batch for phase in phases] == [1, 1000]  # no search
    after = before.model_copy(update={"phases": (*before.phases, *phases)})
    slower = tuple(record(after, phase.name, feed_s=2.0, feeds=2) for phase in phases)
    after = after.model_copy(update={"records": (*before.records, *slower)})
    # A sample takes as long as the limit allows and no longer.
    assert {rate.units_per_s for rate in score.rates(after, MIX)} == {50.0, 500.0}
    (mixed,) = later(after, again=True)
    assert mixed.placement is not None
    assert mixed.placement.mixes_per_s == pytest.approx(0.25)


def test_what_does_not_fit_beside_the_plan_is_not_loaded() -> None:
    """The GPU holds one suite of the two, the plan gives it one."""
    before = changed(solo(*DEVICES), "dlrm", "cpu:0", completions=closed_loop([[100]] * 4, 1000))
    (mixed,) = later(before, gpu_0=4 << 30, host=60 << 30)
    loaded = {(share.route.suite, task.device) for task in mixed.tasks for share in task.shares}
    assert ("llm", "gpu:0") in loaded
    assert ("dlrm", "gpu:0") not in loaded


def test_a_mix_without_a_route_for_a_suite_cannot_be_planned() -> None:
    before = changed(solo(*DEVICES), "llm", "cpu:0", audit=None)
    with pytest.raises(MixmarkError, match="no device can run llm"):
        later(changed(before, "llm", "gpu:0", audit=None))
