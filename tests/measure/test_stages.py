"""What follows from solo records: rates, the plan, what is measured again, the mixed phases. No device, no clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts import schema
from mixmark.harness.judge import solo_rates as rates
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.findings import voided
from mixmark.harness.judge.rules import registered
from mixmark.harness.measure.request import RunRequest
from mixmark.harness.measure.run import prepare
from mixmark.harness.measure.run_state import RunState
from mixmark.harness.measure.stages import next_steps
from mixmark.harness.plan import phases as plan
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import Target, Workload
from tests.golden.sample import altered, closed_loop, domain, result

SECOND = 1_000_000_000
DEVICES = (
    schema.Device(id="cpu:0", kind="cpu", memory_pool="host", memory_bytes=64 << 30, precisions=("fp32",)),
    schema.Device(id="gpu:0", kind="gpu", memory_pool="gpu:0", memory_bytes=8 << 30, precisions=("fp32",)),
)
MIX = schema.Mix(
    name="mine",
    tier="edge",
    units={"llm": 100, "dlrm": 1000},
    limits={"dlrm": schema.ServiceLimits(total_ns=2 * SECOND)},
)
LIMITS = schema.Limits(warmup_ns=0, search_ns=0, min_ns=SECOND, max_ns=SECOND, min_feeds=1, audits=1)
BRIEF = replace(presets.of("quick", "smoke"), mix=LIMITS)
PASSED = schema.Audit(gate=schema.Gate(metric="m", at_most=0.1), finished=4, feeds=(0,), values=(0.0,))


def solo_rates(result: schema.Result, mix: schema.Mix) -> tuple[schema.Rate, ...]:
    evidence = gather(result)
    return rates.solo(evidence, mix, voided(registered.findings("facts", evidence)))


def solo(*devices: schema.Device) -> schema.Result:
    targets = [Target(device, "torch", {}) for device in devices]
    workloads = [Workload("llm", "1", ("single-stream",)), Workload("dlrm", "1", ("offline",))]
    phases = plan.solo(targets, workloads, "edge", presets.PRESETS["quick"])
    header = result().model_copy(update={"devices": devices, "mix": MIX, "phases": phases, "finished": False})
    return header.model_copy(update={"records": tuple(record(header, phase.name) for phase in phases)})


def record(header: schema.Result, key: str, feed_s: float = 1.0, feeds: int = 4, **changed: Any) -> schema.Record:
    """A feed of 100 tokens or of 1,000 samples takes so long."""
    (share,) = next(phase for phase in header.phases if phase.name == key).tasks[0].shares
    units = 100 if share.route.suite == "llm" else 1000
    return schema.Record.model_validate(
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


def changed(before: schema.Result, suite: str, device: str, **changes: Any) -> schema.Result:
    return altered(before, lambda each: (each.route.suite, each.route.device) == (suite, device), **changes)


def test_rates_are_those_of_routes_that_passed_their_gate() -> None:
    before = solo(*DEVICES)
    rate_of = {(rate.suite, rate.device): rate for rate in solo_rates(before, MIX)}
    assert rate_of["llm", "cpu:0"].units_per_s == pytest.approx(100)
    assert rate_of["dlrm", "gpu:0"].units_per_s == pytest.approx(1000)
    assert rate_of["dlrm", "gpu:0"].batch == 1000
    assert rate_of["llm", "cpu:0"].memory_bytes == 5 << 30  # what its process really took
    assert rate_of["llm", "gpu:0"].memory_bytes == 3 << 30  # what nobody sees from outside is budgeted
    wrong = PASSED.model_copy(update={"values": (0.2,)})
    unread = PASSED.model_copy(update={"values": ()})
    elsewhere = {"facts": {"elsewhere": "Conv on the CPU"}}  # by a rule of honesty; its outputs are right
    for lost in ({"audit": wrong}, {"audit": None}, {"audit": unread}, elsewhere):
        left = solo_rates(changed(before, "llm", "gpu:0", **lost), MIX)
        assert ("llm", "gpu:0") not in {(rate.suite, rate.device) for rate in left}


def test_a_mix_without_a_suite_carries_the_reason_why_that_failed() -> None:
    before = solo(DEVICES[0])
    failure = schema.Failure(kind="refused", message="needs 12.0 GiB of host memory, 8.0 GiB are free")
    refused = changed(before, "llm", "cpu:0", completions=None, audit=None, error=failure)
    found = RunState(refused, BRIEF, {}).placement
    assert isinstance(found, schema.Absent) and found.reason == f"no device can run llm; llm: {failure.message}"
    wrong = changed(before, "llm", "cpu:0", audit=PASSED.model_copy(update={"values": (0.2,)}))
    found = RunState(wrong, BRIEF, {}).placement
    assert isinstance(found, schema.Absent) and "the solo records say why" in found.reason
    strict = MIX.model_copy(update={"limits": {"llm": schema.ServiceLimits(total_ns=1)}})
    found = RunState(before.model_copy(update={"mix": strict}), BRIEF, {}).placement
    assert isinstance(found, schema.Absent) and found.reason.endswith(
        "llm; llm: each feed took longer than the mix allows"
    )


def units_per_s(of: schema.Result) -> dict[tuple[str, str], float]:
    return {(rate.suite, rate.device): round(rate.units_per_s, 6) for rate in solo_rates(of, MIX)}


def test_what_ran_beside_others_or_waited_for_arrivals_is_no_solo_rate() -> None:
    before = solo(DEVICES[0])
    honest = {("llm", "cpu:0"): 100.0, ("dlrm", "cpu:0"): 1000.0}
    assert units_per_s(before) == honest
    llm = next(each for each in before.records if each.route.suite == "llm")
    fast = {"completions": closed_loop([[SECOND // 10]] * 4, 100), "key": "fast", "phase": "fast"}
    for more in ({"scenario": "mixed", "phase": "mix1"}, {"scenario": "server"}):
        faster = llm.model_copy(update={**fast, **more})
        assert units_per_s(before.model_copy(update={"records": (*before.records, faster)})) == honest
    stranger = llm.model_copy(update={**fast, "route": llm.route.model_copy(update={"suite": "resnet50"})})
    assert units_per_s(before.model_copy(update={"records": (*before.records, stranger)})) == honest
    failed = llm.model_copy(update={"completions": None})
    others = tuple(each for each in before.records if each is not llm)
    assert units_per_s(before.model_copy(update={"records": (failed, *others)})) == {("dlrm", "cpu:0"): 1000.0}
    sudden = llm.model_copy(update={"completions": closed_loop([[0]], 100)})
    assert units_per_s(before.model_copy(update={"records": (sudden, *others)})) == {("dlrm", "cpu:0"): 1000.0}


@pytest.mark.parametrize("fast_first", [True, False])
def test_of_several_runs_of_a_route_the_best_counts(fast_first: bool) -> None:
    before = solo(DEVICES[0])
    llm = next(each for each in before.records if each.route.suite == "llm")
    fast = llm.model_copy(update={"key": "fast", "phase": "fast", "completions": closed_loop([[SECOND // 2]] * 4, 100)})
    records = (fast, *before.records) if fast_first else (*before.records, fast)
    assert units_per_s(before.model_copy(update={"records": records}))["llm", "cpu:0"] == 200


def metered(before: schema.Result, watts: dict[str, tuple[float, float, float]], wall: float | None) -> schema.Result:
    """Each phase: a minute of rest, 80 s of work, a minute of rest; so many watts of each device in each of them."""
    at = np.arange(0, 200 * SECOND + 1, SECOND // 2)
    curves = {f"own/{id}": each for id, each in watts.items()} | ({"wall": (wall, 2 * wall, wall)} if wall else {})
    domains = [domain(f"own/{id}", (id,), quantity="power", method="integrated") for id in watts]
    if wall:
        domains.append(domain("wall", tuple(watts), boundary="wall", quantity="power", method="external"))
    samples = {
        id: schema.Samples(at, at, np.select((at < 60 * SECOND, at < 140 * SECOND), each[:2], each[2]))
        for id, each in curves.items()
    }
    idle = ((0, 59 * SECOND), (141 * SECOND, 200 * SECOND))
    meterings = tuple(
        schema.Metering(phase=each.phase, begin_ns=0, end_ns=200 * SECOND, cpu_ns=0, idle_ns=idle, samples=samples)
        for each in before.records
    )
    return before.model_copy(update={"domains": tuple(domains), "meterings": meterings})


WATTS = {"cpu:0": (50.0, 170.0, 54.0), "gpu:0": (60.0, 300.0, 60.0)}


def test_the_power_of_a_machine_at_rest_is_that_of_its_pauses() -> None:
    resting = rates.power(metered(solo(*DEVICES), WATTS, 250.0))
    assert resting is not None
    assert resting.idle_watts == {"cpu:0": pytest.approx(52), "gpu:0": pytest.approx(60)}
    assert resting.rest_watts == pytest.approx(250 - 112)
    alone = rates.power(metered(solo(*DEVICES), WATTS, None))
    assert alone is not None and alone.rest_watts == pytest.approx(0), "what nobody meters is no part of the boundary"
    less = rates.power(metered(solo(*DEVICES), WATTS, 100.0))
    assert less is not None and less.rest_watts == 0, "meters disagree, and nothing draws less than nothing"
    assert rates.power(metered(solo(*DEVICES), {"gpu:0": WATTS["gpu:0"]}, 250.0)) is None, (
        "whose the rest is, nobody knows"
    )
    assert rates.power(solo(*DEVICES)) is None
    hidden = schema.Absent(kind="meter", name="rapl dram", reason="only root may read it", covers=("memory",))
    partly = rates.power(metered(solo(*DEVICES), WATTS, None).model_copy(update={"absent": (hidden,)}))
    assert partly is not None and partly.rest_watts == 0, "no boundary holds more than the devices"


def test_a_rate_has_the_watts_of_its_own_window() -> None:
    done = closed_loop([[SECOND]] * 40, 100, begin_ns=80 * SECOND)
    before = metered(changed(solo(*DEVICES), "llm", "gpu:0", completions=done), WATTS, None)
    watts = {(rate.suite, rate.device): rate.watts for rate in solo_rates(before, MIX)}
    assert watts["llm", "gpu:0"] == pytest.approx(300)
    assert watts["llm", "cpu:0"] is None, "four seconds are too few of that meter's readings"


def test_an_accelerators_host_threads_are_those_of_its_hungriest_suite() -> None:
    def busy(seconds: float, cpus: int | None = 8) -> dict[str, Any]:
        block = schema.Conditions(begin_ns=1_000, end_ns=4 * SECOND, cpus=cpus, own_ns=int(seconds * SECOND))
        return {"conditions": (block,)}

    def host_fraction(of: schema.Result) -> float:
        (mixed,) = later(of)
        assert mixed.placement is not None
        return float(round(mixed.placement.host_fraction, 3))

    before = solo(*DEVICES)
    assert host_fraction(before) == 0
    assert host_fraction(changed(before, "llm", "cpu:0", **busy(32))) == 0, "a CPU's work is no host thread"
    one = changed(before, "llm", "gpu:0", **busy(3.2))
    assert host_fraction(one) == 0.1
    assert host_fraction(changed(one, "dlrm", "gpu:0", **busy(6.4))) == 0.2
    assert host_fraction(changed(one, "dlrm", "gpu:0", **busy(6.4, None))) == 0.1
    assert host_fraction(changed(one, "dlrm", "gpu:0", **busy(640))) == 1
    beside = next(each for each in one.records if (each.route.suite, each.route.device) == ("llm", "gpu:0"))
    mixed = beside.model_copy(update={"key": "m", "scenario": "mixed", "phase": "mix1", **busy(32)})
    assert host_fraction(one.model_copy(update={"records": (*one.records, mixed)})) == 0.1


def test_feeds_beyond_the_mixs_limits_are_no_rate() -> None:
    before = solo(*DEVICES)
    half = closed_loop([[1 * SECOND], [3 * SECOND]], 1000)
    rates = {(r.suite, r.device): r for r in solo_rates(changed(before, "dlrm", "cpu:0", completions=half), MIX)}
    assert rates["dlrm", "cpu:0"].units_per_s == pytest.approx(250)
    never = closed_loop([[3 * SECOND]], 1000)
    late = solo_rates(changed(before, "dlrm", "cpu:0", completions=never), MIX)
    assert ("dlrm", "cpu:0") not in {(rate.suite, rate.device) for rate in late}


def later(before: schema.Result, confirm: bool = False, runs: int = 1, **pools: int) -> Any:
    pool_bytes = {name.replace("_", ":"): size for name, size in pools.items()}
    return [*next_steps(RunState(before, replace(BRIEF, runs=runs, confirm=confirm), pool_bytes))]


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
    assert later(after.model_copy(update={"phases": (*after.phases, second)}), runs=2) == []
    assert later(before.model_copy(update={"mix": None})) == []


def test_chosen_routes_are_measured_again_and_only_that_counts() -> None:
    before = solo(DEVICES[0])
    phases = later(before, confirm=True)
    assert [phase.tasks[0].shares[0].route.suite for phase in phases] == ["llm", "dlrm"]
    assert [phase.tasks[0].shares[0].batch for phase in phases] == [1, 1000]  # no search
    after = before.model_copy(update={"phases": (*before.phases, *phases)})
    slower = tuple(record(after, phase.name, feed_s=2.0, feeds=2) for phase in phases)
    after = after.model_copy(update={"records": (*before.records, *slower)})
    # A sample takes as long as the limit allows and no longer.
    assert {rate.units_per_s for rate in solo_rates(after, MIX)} == {50.0, 500.0}
    (mixed,) = later(after, confirm=True)
    assert mixed.placement is not None
    assert mixed.placement.mixes_per_s == pytest.approx(0.25)


def test_only_what_a_plan_uses_is_measured_again() -> None:
    """The CPU is no good for one of the two."""
    before = solo(*DEVICES)
    lame = changed(before, "llm", "cpu:0", completions=closed_loop([[100 * SECOND]] * 4, 100))
    phases = later(lame, confirm=True)
    assert {(p.tasks[0].device, p.tasks[0].shares[0].route.suite) for p in phases} == {
        ("gpu:0", "llm"),
        ("cpu:0", "dlrm"),
    }


def test_where_memory_is_short_the_fastest_of_what_is_spare_is_loaded() -> None:
    before = solo(*DEVICES)
    for suite, units in (("llm", 100), ("dlrm", 1000)):
        before = changed(before, suite, "gpu:0", completions=closed_loop([[100 * SECOND]] * 4, units))
    before = before.model_copy(update={"mix": MIX.model_copy(update={"limits": {}})})
    (mixed,) = later(before, gpu_0=4 << 30, host=60 << 30)
    used = {(suite, device) for suite, parts in mixed.placement.fractions.items() for device in parts}
    loaded = [(share.route.suite, task.device) for task in mixed.tasks for share in task.shares]
    assert used <= set(loaded) and len(loaded) == 3, "one of the GPU's two has room"


def test_a_mix_without_a_route_for_a_suite_cannot_be_planned() -> None:
    before = changed(solo(*DEVICES), "llm", "cpu:0", audit=None)
    for confirm in (False, True):
        [absent] = later(changed(before, "llm", "gpu:0", audit=None), confirm)
        assert (absent.kind, absent.name) == ("mix", "mine") and "llm" in absent.reason


@pytest.mark.parametrize(
    ("asked", "suites", "measured"),
    [
        ("mine", (), {"dlrm", "resnet50"}),
        ("mine", ("dlrm", "resnet50", "llm"), {"dlrm", "resnet50", "llm"}),
        ("none", (), {"llm", "diffusion", "dlrm", "resnet50"}),
    ],
)
def test_a_mix_of_some_suites_measures_only_these_unless_suites_are_named(
    tmp_path: Path, asked: str, suites: tuple[str, ...], measured: set[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[mine]\ntier = "smoke"\nunits = { resnet50 = 2, dlrm = 20 }\n')
    mix = str(path) if asked == "mine" else asked
    run = prepare(RunRequest(suites=suites, tier="smoke", mix=mix, out=tmp_path / "out"))
    assert {workload.name for workload in run.workloads} == measured
