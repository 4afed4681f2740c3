"""The routes of a weight class that are measured, ranked by screening runs of a few seconds. No device, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import integrity, quality
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.judge.statistics.timestamps import screening_per_s
from mixmark.harness.measure import stages
from mixmark.harness.measure.run_state import Outlook, RunState
from mixmark.harness.plan import phases as plan
from mixmark.harness.plan import presets
from mixmark.harness.plan.equals import equals
from mixmark.harness.plan.phases import Target, Workload
from mixmark.reporters.summary import summary
from tests.fakes.machine import completions, record
from tests.golden.sample import altered, but, result
from tests.judge.found import not_none, said

SECOND = 1_000_000_000
ZERO = np.zeros(1, np.int64)
LLM = Workload("llm", "1", ("single-stream",))
DLRM = Workload("dlrm", "1", ("offline", "single-stream"))
PROBE = Workload("probe", "1", ("probe",))
MIX = schema.Mix(name="mine", tier="edge", units={"llm": 100, "dlrm": 1000})
Speeds = Mapping[str, float | Sequence[float]]
PASSED = schema.Audit(gate=schema.Gate(metric="m", at_most=0.1), finished=1, feeds=(0,), values=(0.0,))


def target(adapter: str, *precisions: schema.Precision, dlrm: tuple[schema.Precision, ...] = ("fp32",)) -> Target:
    device = schema.Device(
        id="cpu:0", kind="cpu", memory_pool="host", precisions=precisions, precisions_by_suite={"dlrm": dlrm}
    )
    return Target(device, adapter, {})


def candidates(*targets: Target, bits: Any = 16) -> tuple[schema.Phase, ...]:
    return plan.solo(targets, (LLM, DLRM), "edge", presets.PRESETS["quick"], probe=PROBE, bits=bits)


def told(phases: Sequence[schema.Phase]) -> list[tuple[str, str, str, str]]:
    shares = [phase.shares[0] for phase in phases]
    return [
        (phase.purpose, each.route.suite, each.route.adapter, each.route.precision)
        for phase, each in zip(phases, shares, strict=True)
    ]


def began(routes: tuple[schema.Phase, ...]) -> schema.Result:
    device = schema.Device(id="cpu:0", kind="cpu", memory_pool="host", precisions=("bf16", "fp32", "int8"))
    torch = result().environments["torch"]
    changes = {
        "devices": (device,),
        "environments": dict.fromkeys(("torch", "onnxruntime", "openvino"), torch),
        "mix": MIX,
        "phases": (),
        "candidates": routes,
        "finished": False,
    }
    return result().model_copy(update=changes)


def went(before: schema.Result, speeds: Speeds, audit: schema.Audit | None = PASSED, flops: float = 0) -> schema.Result:
    """Every phase that has no record gets one. speeds: units per second by adapter or precision; a pair are the
    speeds of its screening run and of its measurement, and 0 is a crash. flops: of each unit, also of the probes."""
    known = {record.phase for record in before.records}
    fresh = []
    for phase in (phase for phase in before.phases if phase.name not in known):
        (share,) = phase.shares
        speed = speeds.get(share.route.precision) or speeds[share.route.adapter]
        speed = speed[not share.limits.screening] if isinstance(speed, Sequence) else speed
        if not speed:
            crash = schema.Failure(kind="crashed", message="so it is")
            about = {"key": share.key, "phase": phase.name, "route": share.route, "scenario": share.scenario}
            fresh.append(schema.Record.model_validate(about | {"unit": "unit", "screening": True, "error": crash}))
            continue
        step_ns = round(SECOND / speed)
        marks = np.arange(1, 5) * step_ns
        done = schema.Completions(ZERO, ZERO, np.array([4]), marks, np.ones(4, np.int64))
        record = {"key": share.key, "phase": phase.name, "route": share.route, "scenario": share.scenario}
        record |= {
            "unit": "unit",
            "batch": 1,
            "completions": done,
            "run": share.run,
            "screening": share.limits.screening,
            "feed_units": 4,
            "costs": (schema.Cost(name="all", flops=flops, bytes=flops, yields=4),) if flops else (),
        }
        fresh.append(schema.Record.model_validate(record | ({} if share.limits.cut_off else {"audit": audit})))
    return before.model_copy(update={"records": (*before.records, *fresh)})


def grown(before: schema.Result, *phases: schema.Phase) -> schema.Result:
    return before.model_copy(update={"phases": (*before.phases, *phases)})


RANKED = presets.of("ranked", "smoke")


def state(after: schema.Result, preset: presets.Preset = RANKED) -> RunState:
    return RunState(after, preset, {})


def planned(after: schema.Result) -> list[schema.Phase]:
    """The phases that come next before the mix."""
    steps: Sequence[schema.Phase | schema.Absent] = stages.SCREENING.solo(state(after)) or stages.SOLO.solo(
        state(after)
    )
    return [each for each in steps if isinstance(each, schema.Phase)]


def tried(before: schema.Result, speeds: Speeds) -> schema.Result:
    """All runs before the mix. speeds: see `went`."""
    after = before
    while phases := planned(after):
        after = went(grown(after, *phases), speeds)
    return after


def measured(after: schema.Result) -> list[tuple[str, str]]:
    """(suite, adapter) of the routes that were measured, in order."""
    return [(suite, adapter) for purpose, suite, adapter, _ in told(after.phases) if purpose == "solo"]


PAIR = target("torch", "bf16", dlrm=()), target("onnxruntime", "fp32", dlrm=())


def test_a_class_has_the_best_precision_of_each_class_that_is_no_lower() -> None:
    torch = target("torch", "bf16", "fp32", "int8", "fp8", "int4")

    def tried(bits: Any) -> list[str]:
        return [each for _, suite, _, each in told(candidates(torch, bits=bits)) if suite == "llm"]

    assert (tried(16), tried(8), tried(4)) == (["bf16"], ["bf16", "int8"], ["bf16", "int8", "int4"])


def test_a_device_below_the_class_is_left_out_and_told() -> None:
    npu = Target(schema.Device(id="npu:0", kind="npu", memory_pool="npu:0", precisions=("int8",)), "acme", {})
    routes = candidates(target("torch", "bf16"), npu)
    assert {phase.shares[0].route.device for phase in routes} == {"cpu:0"}
    (absent,) = plan.left_out((target("torch", "bf16"), npu), routes, 16)
    assert (absent.label, absent.reason) == ("npu:0", "it computes in int8, below 16 bits; --bits 8 uses it")
    both = candidates(target("torch", "bf16"), npu, bits=8)
    assert not list(plan.left_out((target("torch", "bf16"), npu), both, 8))


def test_the_likely_fastest_route_is_measured_and_the_others_are_screened() -> None:
    routes = candidates(target("onnxruntime", "fp32", dlrm=()), target("torch", "bf16"))
    after = tried(began(routes), {"torch": 7, "onnxruntime": 5})
    assert told(after.phases) == [
        *[("probe", "probe", "torch", "bf16"), ("solo", "llm", "torch", "bf16"), ("probe", "probe", "torch", "bf16")],
        ("solo", "dlrm", "torch", "fp32"),
        ("screening", "llm", "onnxruntime", "fp32"),
    ], "fewer bits first; dlrm has one route"
    pair = tried(began(candidates(*reversed(PAIR))), {"torch": 7, "onnxruntime": 5})
    assert told(pair.phases)[:2] == [("probe", "probe", "onnxruntime", "fp32"), ("probe", "probe", "torch", "bf16")]
    assert len(pair.phases) == 5, "one probe in fp32 tells what it allows"
    limits = {phase.purpose: phase.shares[0].limits for phase in after.phases}
    assert limits["screening"] == presets.SCREENING
    run = Outlook(after, presets.PRESETS["ranked"])
    idle_s = {each.purpose: stages.stage_of(each).idle_s(each, run) for each in after.phases}
    assert idle_s == {"screening": 0, "probe": 0, "solo": 5}, "the meters read the idle machine around it"
    waiting = Outlook(began(routes), presets.PRESETS["ranked"])
    assert [share.route.adapter for (share,) in stages.SCREENING.to_come(waiting)] == ["onnxruntime"]


@pytest.mark.parametrize(("probe_per_s", "out"), [(5, True), (6, False)])
def test_a_route_that_cannot_win_by_its_ceiling_is_not_tried(probe_per_s: float, out: bool) -> None:
    """An honest record may exceed the probe by a quarter."""
    start = began(candidates(*PAIR))
    speeds = {"torch": 7, "onnxruntime": probe_per_s}
    after = went(grown(start, *planned(start)), speeds, flops=1e9)
    steps = stages.SCREENING.solo(state(after))
    assert [isinstance(each, schema.Absent) for each in steps] == [out]
    if out:
        (absent,) = (each for each in steps if isinstance(each, schema.Absent))
        assert absent.label == "route llm on cpu:0 by onnxruntime in fp32"
        assert ("at most 6.25 tok/s in fp32" in absent.reason, "torch bf16 reached 7.00" in absent.reason) == (
            True,
            True,
        )
        told_once = after.model_copy(update={"absent": (absent,)})
        assert (*stages.SCREENING.solo(state(told_once)), *planned(told_once)) == ()


def test_the_routes_of_a_server_are_screened_as_a_closed_loop_before_one_is_measured() -> None:
    server = Workload("llm", "1", ("single-stream", "server"))
    targets = target("torch", "bf16"), target("onnxruntime", "fp32")
    routes = plan.solo(targets, (server,), "edge", presets.PRESETS["quick"], scenarios=("server",), rate_per_s=2.0)
    first = planned(began(routes))
    asked = [(each.scenario, each.rate_per_s, each.batch) for each in (phase.shares[0] for phase in first)]
    assert asked == [("single-stream", None, 1)] * 2
    (then,) = planned(went(grown(began(routes), *first), {"torch": 5, "onnxruntime": 7}))
    assert (then.purpose, then.shares[0].route.adapter, then.shares[0].scenario) == ("solo", "onnxruntime", "server")
    one = plan.solo(targets[:1], (server,), "edge", presets.PRESETS["quick"], scenarios=("server",), rate_per_s=2.0)
    assert told(planned(began(one))) == [("solo", "llm", "torch", "bf16")]


def test_a_class_that_no_device_has_names_the_one_that_helps() -> None:
    with pytest.raises(UsageError) as told:
        plan.solo((target("acme", "int8", dlrm=("int4",)),), (LLM, DLRM), "edge", presets.PRESETS["quick"])
    assert told.value.hint == "the devices compute in int4, int8; --bits 8 uses that"
    with pytest.raises(UsageError) as told:
        plan.solo((target("acme", "int8"),), (LLM,), "edge", presets.PRESETS["quick"], scenarios=("offline",), bits=8)
    assert told.value.hint.startswith("precisions here: int8;"), "more bits would change nothing"


def test_where_a_route_fails_its_audit_the_next_one_is_measured() -> None:
    start = began(candidates(*PAIR))
    wrong = PASSED.model_copy(update={"values": (0.2,)})
    first = grown(start, *planned(start))
    speeds = {"torch": 7, "onnxruntime": 5}
    right, failed = went(first, speeds), went(first, speeds, wrong)
    assert measured(tried(right, speeds)) == [("llm", "torch")]
    assert measured(tried(failed, speeds)) == [("llm", "torch"), ("llm", "onnxruntime")]
    (solo,) = (each for each in right.records if each.scenario == "single-stream")
    fallen_back = solo.model_copy(update={"facts": {"elsewhere": "Conv on the CPU"}})
    records = tuple(fallen_back if each is solo else each for each in right.records)
    invalid = tried(right.model_copy(update={"records": records}), speeds)
    assert ("llm", "onnxruntime") in measured(invalid), "a rule of integrity found it invalid"


def test_the_fastest_screening_run_is_measured_until_none_is_faster_than_a_measurement() -> None:
    """The screening runs of onnxruntime and openvino were lucky."""
    routes = candidates(*PAIR, target("openvino", "fp32", dlrm=()), target("acme", "fp32", dlrm=()))
    speeds: Speeds = {"torch": 7, "onnxruntime": (7.3, 6.8), "openvino": (7.5, 7.2), "acme": 6.9}
    assert measured(tried(began(routes), speeds)) == [("llm", "torch"), ("llm", "openvino"), ("llm", "onnxruntime")]
    faster = tried(began(routes), {**speeds, "openvino": (7.5, 7.4)})
    assert measured(faster) == [("llm", "torch"), ("llm", "openvino")]
    crashed = tried(began(routes), {**speeds, "openvino": (7.5, 0)})
    assert measured(crashed) == [("llm", "torch"), ("llm", "openvino"), ("llm", "onnxruntime")]
    assert not [each for each in contradictions(faster, SuiteClaims()) if "planned" in each]
    assert {adapter for purpose, _, adapter, _ in told(faster.phases) if purpose == "screening"} == set(
        ("onnxruntime", "openvino", "acme")
    ), "each once"
    even = tried(began(candidates(*PAIR)), {"torch": 7, "onnxruntime": 7})
    assert measured(even) == [("llm", "torch")]


def test_if_the_score_comes_first_checks_choose_the_routes_and_near_ones_are_checked_once_more() -> None:
    routes = candidates(*PAIR, target("openvino", "fp32", dlrm=("fp32",)), target("acme", "fp32", dlrm=()))
    speeds: Speeds = {"torch": 7, "onnxruntime": 7.5, "openvino": 6.8, "acme": 5}
    quick = replace(presets.of("quick", "edge"), mix=presets.SMOKE_MIX)
    after, waiting, audits = began(routes), PASSED.model_copy(update={"values": ()}), 0
    named: list[str] = []
    while len(named) < 30:
        if not stages.audits_wait(state(after, quick)):
            audits += 1
            right = [each.model_copy(update={"audit": PASSED}) if each.audit else each for each in after.records]
            after = after.model_copy(update={"records": tuple(right)})
        steps = [step for step in stages.next_steps(state(after, quick)) if isinstance(step, schema.Phase)]
        named += [phase.name.replace(".single-stream", "").replace("cpu-0.", "") for phase in steps]
        if not steps or steps[0].purpose == "mixed":
            break
        after = went(grown(after, *steps), speeds, waiting)
    first = [name for name in named if not name.startswith("around")]
    llm = [name for name in first if "llm" in name]
    assert [name.split(".")[0] + " " + name.split(".")[3] for name in llm] == [
        "check torch",
        *("screening onnxruntime", "screening openvino", "screening acme"),
        *("again torch", "again onnxruntime", "again openvino"),
        "check onnxruntime",
    ], "acme is a third slower"
    assert [name for name in named if name.startswith("around")] == ["around0.003.probe.onnxruntime.fp32.probe"]
    assert (named[-1], audits) == ("mix1", 1), "before the plan, and not between the probe and the mix"
    (mixed,) = [phase.placement for phase in steps if phase.placement]
    assert {(rate.suite, rate.adapter) for rate in mixed.rates} == {("llm", "onnxruntime"), ("dlrm", "openvino")}


def test_a_run_claims_no_weight_class_above_its_routes() -> None:
    routes = candidates(target("torch", "bf16", "int8", dlrm=()), bits=8)
    screenings = went(began(routes), {"torch": 7}).model_copy(update={"bits": 8})
    told = "llm.torch.cpu-0.int8.single-stream computes in int8, and the run is of 16 bits"
    assert not [each for each in contradictions(screenings, SuiteClaims()) if "and the run is of" in each]
    claimed = screenings.model_copy(update={"bits": 16})
    assert any(told in each for each in contradictions(claimed, SuiteClaims()))


def test_a_feed_that_was_broken_off_goes_on_at_its_pace() -> None:
    # 1 s to the first of 8 units, and 0.5 s to each other: 4.5 s a feed; three of them were seen
    done = schema.Completions(ZERO, ZERO, np.array([3]), np.array([10, 15, 20]) * SECOND // 10, np.ones(3, np.int64))
    assert screening_per_s(done, 8) == pytest.approx(8 / 4.5)
    whole = schema.Completions(ZERO, ZERO, np.array([1]), np.array([SECOND]), np.array([8]))
    assert screening_per_s(whole, 8) == pytest.approx(8)


@pytest.mark.parametrize(("screened", "times"), [(0, "1.40"), (1, "1.00")])
def test_a_screened_route_is_compared_with_the_screening_run_of_the_fastest(screened: int, times: str) -> None:
    after = tried(began(candidates(*PAIR)), {"torch": 7, "onnxruntime": 5})
    same = {"key": "check", "phase": "check", "screening": True, "completions": after.records[-1].completions}
    checks = [after.records[2].model_copy(update=same)] * screened
    judged = judge(after.model_copy(update={"records": (*after.records, *checks)}))
    assert [(row.route.adapter, row.status) for row in judged.runs] == [("torch", "ok"), ("onnxruntime", "screened")]
    (line,) = summary(judged).suites
    assert (line.route, line.others) == ("torch bf16", f"by quick checks of seconds: {times} × onnxruntime fp32")
    assert [each.about for each in judged.findings if each.rule == "screened"] == [judged.runs[1].key]


def test_a_disturbed_screening_run_compares_with_nothing() -> None:
    after = tried(began(candidates(*PAIR)), {"torch": 7, "onnxruntime": 5})
    beside = schema.Conditions(begin_ns=0, end_ns=SECOND, cpus=1, stolen_ns=SECOND // 4)
    records = [each.model_copy(update={"conditions": (beside,)}) if each.screening else each for each in after.records]
    (line,) = summary(judge(after.model_copy(update={"records": tuple(records)}))).suites
    assert (line.route, line.others) == ("torch bf16", "")


NAMES = {"npu:0": "Acme", "npu:1": "Acme", "npu:2": "Acme", "npu:3": "Acme Pro"}
NPU = schema.Device(id="npu:0", kind="npu", memory_pool="npu:0", memory_bytes=1 << 33, precisions=("bf16",))
DEVICES = tuple(NPU.model_copy(update={"id": id, "name": name, "memory_pool": id}) for id, name in NAMES.items())
UNITS = {"llm": 100, "dlrm": 1000}


def to_begin(preset: str) -> schema.Result:
    targets, limits = [Target(each, "torch", {}) for each in DEVICES], presets.PRESETS[preset]
    system = result().system.model_copy(update={"accelerators": tuple({"id": id, "driver": "1"} for id in NAMES)})
    routes = plan.solo(targets, (LLM, DLRM), "edge", limits, probe=PROBE)
    facts = {"preset": preset, "devices": DEVICES, "system": system, "mix": MIX, "candidates": routes}
    return result().model_copy(update=facts)


def ran(preset: str, step_ns: int = SECOND, crashes: str = "") -> schema.Result:
    """A run in which each device does 100 tokens or 1,000 samples a second, or 2,000 units of a probe. step_ns: the
    length of a feed of npu:2 in the mix. crashes: the device that does no llm."""
    after = to_begin(preset)
    while steps := stages.next_steps(RunState(after, presets.PRESETS[preset], {})):
        for phase in (step for step in steps if isinstance(step, schema.Phase)):
            after, (suite, device, *_) = grown(after, phase), phase.shares[0].route.key
            if phase.purpose == "mixed":
                on_2 = {"npu:2": step_ns}
                mixed = (_mixed(phase, share, on_2.get(share.route.device, SECOND)) for share in phase.shares)
                after = after.model_copy(update={"records": (*after.records, *mixed)})
            else:
                after = went(
                    after, {"torch": 0 if (suite, device) == ("llm", crashes) else UNITS.get(suite, 2000)}, flops=1e9
                )
    return after


def did(record: schema.Record, suite: str, device: str) -> bool:
    """Whether a record is of a suite on a device in the mix."""
    return (record.phase, *record.route.key[:2]) == ("mix1", suite, device)


def _mixed(phase: schema.Phase, share: schema.Share, step_ns: int) -> schema.Record:
    """A device does its llm in the first half of a minute, and its dlrm in the second one."""
    suite, device, *_ = share.route.key
    begins = range(*((0, 30 * SECOND) if suite == "llm" else (30 * SECOND, 60 * SECOND)), step_ns)
    done = completions([(begin, begin + step_ns) for begin in begins], UNITS[suite])
    made = record(phase.name, (suite, device), done, (0, 60 * SECOND), 1)
    return made.model_copy(update={"key": share.key, "route": share.route, "run": share.run})


def alone(run: schema.Result) -> dict[str, list[str]]:
    """The suites that were measured on each device outside of the mix, in their order."""
    routes = [phase.shares[0].route for phase in run.phases if phase.purpose != "mixed"]
    return {id: [route.suite for route in routes if route.device == id] for id in NAMES}


ONCE = ["probe", "llm", "dlrm", "probe", "probe", "llm", "dlrm"]  # checked, probed around the mix, and measured alone


def test_quick_measures_one_of_equal_devices_and_ranked_measures_each() -> None:
    quick, ranked = ran("quick"), ran("ranked")
    assert alone(quick) == {"npu:0": ONCE, "npu:1": [], "npu:2": [], "npu:3": ONCE}
    assert alone(ranked) == dict.fromkeys(NAMES, ONCE[:4])
    expected = [*stages.to_come(Outlook(to_begin("quick"), presets.PRESETS["quick"]))]
    assert sorted(shares[0].route.device for shares in expected if len(shares) == 1) == ["npu:0"] * 7 + ["npu:3"] * 7
    for run in (quick, ranked):
        diagnosis = judge(run).diagnoses["mix1"]
        assert {(each.suite, each.device): each.units_per_s for each in diagnosis.plan.rates} == pytest.approx(
            {(suite, id): units for suite, units in UNITS.items() for id in NAMES}
        )
        assert diagnosis.unproven == () and diagnosis.bound_per_hour.estimate == pytest.approx(7200)
    assert said(quality.equals_alike, ranked) == []


@pytest.mark.parametrize(
    ("times", "by_equal", "llm"), [(0.5, True, 0.1), (0.8, True, 0.1), (0.5, False, 0.25), (0.8, False, None)]
)
def test_a_slow_twin_is_found_and_a_run_that_trusted_equals_has_no_rank(
    times: float, by_equal: bool, llm: float | None
) -> None:
    """by_equal: whether npu:0, which was measured for npu:2, does llm in the mix too. llm: the limit of the finding."""
    whole = ran("quick", step_ns=round(SECOND / times))
    run = but(whole, records=tuple(each for each in whole.records if by_equal or not did(each, "llm", "npu:0")))
    found = {(code, about, values.get("suite")): values for code, about, values in said(quality.equals_alike, run)}
    limits = {"dlrm": 0.1} | ({"llm": llm} if llm else {})
    once = ("equals_alike.once", "npu:0", None)
    assert found.keys() == {once, *(("equals_alike", "npu:2", suite) for suite in limits)}
    for suite, limit in limits.items():
        values = found["equals_alike", "npu:2", suite]
        assert (values["times"], values["limit"]) == (pytest.approx(times, rel=0.02), limit)
    assert [each.code for each in not_none(judge(run).score).unranked].count("equals_alike.unranked") == 1


def test_the_peaks_of_a_device_are_those_of_its_equals() -> None:
    run = ran("quick")
    assert said(integrity.probed, run) == [] and "npu:2" not in {each.device for each in judge(run).ceilings}
    limit = not_none(judge(run).hardware_limit_per_hour)
    assert limit.estimate == pytest.approx(4 * 2000 * 3600 / sum(UNITS.values())), "four devices, two of them lent"
    cost = schema.Cost(name="all", flops=3e12, bytes=3e12, streamed_bytes=3e12)
    fast = altered(run, lambda each: did(each, "llm", "npu:2"), costs=(cost,))
    over = [(values["device"], values["unit"], values["times"]) for *_, values in said(integrity.below_ceiling, fast)]
    assert over == [("npu:2", unit, pytest.approx(1.5)) for unit in ("FLOP/s", "byte/s")]


def test_if_a_suite_fails_on_one_of_equal_devices_the_next_one_is_tried() -> None:
    run = ran("quick", crashes="npu:0")
    assert alone(run)["npu:1"] == ["probe", "llm", "probe", "probe", "llm"]
    rates = next(phase.placement.rates for phase in run.phases if phase.placement)
    assert {each.device for each in rates if each.suite == "llm"} == {"npu:1", "npu:2", "npu:3"}


def test_devices_are_equal_by_their_facts() -> None:
    run = to_begin("quick")
    assert set(equals(run)) == {"npu:0", "npu:1", "npu:2"}
    others: list[dict[str, Any]] = [{"name": "Acme 2"}, {"name": ""}, {"memory_bytes": 1 << 32}, {"hosted": "a model"}]
    others += [{"parts": ("npu:2/1-of-2",)}, {"slice_of": "npu:9"}, {"precisions": ()}, {"memory_pool": "host"}]
    for other in others:
        unlike = tuple(each.model_copy(update=other) if each.id == "npu:2" else each for each in DEVICES)
        assert set(equals(run.model_copy(update={"devices": unlike}))) == {"npu:0", "npu:1"}, other
    last = [phase for phase in run.candidates if phase.shares[0].route.device == "npu:2"]
    by_others = [but(phase, tasks=()) if phase in last else phase for phase in run.candidates]
    assert set(equals(run.model_copy(update={"candidates": tuple(by_others)}))) == {"npu:0", "npu:1"}
    newer = tuple({"id": id, "driver": "2" if id == "npu:2" else "1"} for id in NAMES)
    old, new = (run.system.model_copy(update={"accelerators": cards}) for cards in (run.system.accelerators, newer))
    assert set(equals(run.model_copy(update={"system": new}))) == {"npu:0", "npu:1"}
    far = tuple(each.model_copy(update={"id": f"host{n}/{each.id}"}) for n in (1, 2) for each in DEVICES[1:3])
    for system, like in ((old, 4), (new, 3), (old.model_copy(update={"kernel": "7"}), 2)):
        both = tuple(schema.Hosts(names=(f"host{n}",), system=own) for n, own in ((1, old), (2, system)))
        assert len(equals(run.model_copy(update={"devices": far, "hosts": both}))["host1/npu:1"]) == like
