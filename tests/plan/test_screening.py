"""The routes that are measured: those of a weight class, ranked by screening runs of a few seconds. No device, no
clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Audit, Completions, Device, Gate, Mix, Phase, Precision, Record, Result
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.judgement import judge
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.judge.statistics.timestamps import screening_per_s
from mixmark.harness.measure import next_phases
from mixmark.harness.plan import phases as plan
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import Target, Workload
from mixmark.reporters.summary import summary
from tests.golden.sample import result

SECOND = 1_000_000_000
ZERO = np.zeros(1, np.int64)
LLM = Workload("llm", "1", ("single-stream",))
DLRM = Workload("dlrm", "1", ("offline", "single-stream"))
PROBE = Workload("probe", "1", ("probe",))
MIX = Mix(name="mine", tier="edge", units={"llm": 100, "dlrm": 1000})
PASSED = Audit(gate=Gate(metric="m", at_most=0.1), finished=1, feeds=(0,), values=(0.0,))


def target(adapter: str, *precisions: Precision, dlrm: tuple[Precision, ...] = ("fp32",)) -> Target:
    device = Device(
        id="cpu:0", kind="cpu", memory_pool="host", precisions=precisions, precisions_by_suite={"dlrm": dlrm}
    )
    return Target(device, adapter, {})


def candidates(*targets: Target, bits: Any = 16) -> tuple[Phase, ...]:
    return plan.solo(targets, (LLM, DLRM), "edge", presets.PRESETS["quick"], probe=PROBE, bits=bits)


def told(phases: tuple[Phase, ...]) -> list[tuple[str, str, str, str]]:
    shares = [phase.shares[0] for phase in phases]
    return [
        (phase.purpose, each.route.suite, each.route.adapter, each.route.precision)
        for phase, each in zip(phases, shares, strict=True)
    ]


def began(routes: tuple[Phase, ...]) -> Result:
    device = Device(id="cpu:0", kind="cpu", memory_pool="host", precisions=("bf16", "fp32", "int8"))
    changes = {
        "devices": (device,),
        "mix": MIX,
        "phases": plan.screening_phases(routes),
        "candidates": routes,
        "finished": False,
    }
    return result().model_copy(update=changes)


def went(before: Result, speeds: dict[str, float], audit: Audit | None = PASSED) -> Result:
    """Every phase that has no record gets one. speeds: units per second by adapter."""
    known = {record.phase for record in before.records}
    fresh = []
    for phase in (phase for phase in before.phases if phase.name not in known):
        (share,) = phase.shares
        step_ns = round(SECOND / speeds[share.route.adapter])
        marks = np.arange(1, 5) * step_ns
        done = Completions(ZERO, ZERO, np.array([4]), marks, np.ones(4, np.int64))
        record = {"key": share.key, "phase": phase.name, "route": share.route, "scenario": share.scenario}
        record |= {
            "unit": "unit",
            "batch": 1,
            "completions": done,
            "screening": share.limits.screening,
            "feed_units": 4,
        }
        fresh.append(Record.model_validate(record | ({} if share.limits.screening else {"audit": audit})))
    return before.model_copy(update={"records": (*before.records, *fresh)})


def grown(before: Result, *phases: Phase) -> Result:
    return before.model_copy(update={"phases": (*before.phases, *phases)})


def test_a_class_has_the_best_precision_of_each_class_that_is_no_lower() -> None:
    torch = target("torch", "bf16", "fp32", "int8", "fp8", "int4")

    def tried(bits: Any) -> list[str]:
        return [each for _, suite, _, each in told(candidates(torch, bits=bits)) if suite == "llm"]

    assert (tried(16), tried(8), tried(4)) == (["bf16"], ["bf16", "int8"], ["bf16", "int8", "int4"])


def test_a_device_below_the_class_is_left_out_and_told() -> None:
    npu = Target(Device(id="npu:0", kind="npu", memory_pool="npu:0", precisions=("int8",)), "acme", {})
    routes = candidates(target("torch", "bf16"), npu)
    assert {phase.shares[0].route.device for phase in routes} == {"cpu:0"}
    (absent,) = plan.left_out((target("torch", "bf16"), npu), routes, 16)
    assert (absent.label, absent.reason) == ("npu:0", "it computes in int8, below 16 bits; --bits 8 uses it")
    both = candidates(target("torch", "bf16"), npu, bits=8)
    assert not list(plan.left_out((target("torch", "bf16"), npu), both, 8))


def test_a_pilot_for_each_route_of_a_suite_that_has_several() -> None:
    routes = candidates(target("torch", "bf16"), target("onnxruntime", "fp32", dlrm=()))
    assert told(plan.screening_phases(routes)) == [
        ("screening", "llm", "torch", "bf16"),
        ("screening", "llm", "onnxruntime", "fp32"),
    ]
    assert {phase.shares[0].limits for phase in plan.screening_phases(routes)} == {presets.SCREENING}
    assert plan.screening_phases(candidates(target("torch", "bf16"))) == ()


def test_a_pilot_of_a_server_is_a_closed_loop() -> None:
    server = Workload("llm", "1", ("single-stream", "server"))
    targets = target("torch", "bf16"), target("onnxruntime", "fp32")
    routes = plan.solo(targets, (server,), "edge", presets.PRESETS["quick"], scenarios=("server",), rate_per_s=2.0)
    screenings = [phase.shares[0] for phase in plan.screening_phases(routes)]
    assert [(each.scenario, each.rate_per_s, each.batch) for each in screenings] == [("single-stream", None, 1)] * 2
    assert {phase.shares[0].scenario for phase in routes} == {"server"}


def test_a_class_that_no_device_has_names_the_one_that_helps() -> None:
    with pytest.raises(UsageError) as told:
        plan.solo((target("acme", "int8", dlrm=("int4",)),), (LLM, DLRM), "edge", presets.PRESETS["quick"])
    assert told.value.hint == "the devices compute in int4, int8; --bits 8 uses that"


def test_the_fastest_route_is_measured_and_a_suite_of_one_route_too() -> None:
    routes = candidates(target("torch", "bf16", dlrm=()), target("onnxruntime", "fp32"))
    after = went(began(routes), {"torch": 7, "onnxruntime": 5})
    assert told(next_phases.fastest_routes(gather(after), ())) == [
        ("probe", "probe", "torch", "bf16"),
        ("solo", "llm", "torch", "bf16"),
        ("probe", "probe", "torch", "bf16"),
        ("probe", "probe", "onnxruntime", "fp32"),
        ("solo", "dlrm", "onnxruntime", "fp32"),
        ("probe", "probe", "onnxruntime", "fp32"),
    ]


def test_where_the_fastest_fails_its_audit_the_next_one_is_measured() -> None:
    routes = candidates(target("torch", "bf16", dlrm=()), target("onnxruntime", "fp32", dlrm=()))
    screenings = went(began(routes), {"torch": 7, "onnxruntime": 5})
    wrong = PASSED.model_copy(update={"values": (0.2,)})
    failed = went(grown(screenings, *next_phases.fastest_routes(gather(screenings), ())), {"torch": 7}, wrong)
    assert ("solo", "llm", "onnxruntime", "fp32") in told(next_phases.fastest_routes(gather(failed), ()))
    right = went(grown(screenings, *next_phases.fastest_routes(gather(screenings), ())), {"torch": 4})
    assert (
        next_phases.fastest_routes(gather(right), ()) == ()
    )  # measured slower than the other's screening run: screening runs rank, once
    assert (
        next_phases.fastest_routes(gather(right), {right.records[-2].key}) != ()
    )  # a rule of honesty found it invalid


def test_a_lower_class_goes_on_from_what_a_higher_one_measured() -> None:
    high = candidates(target("torch", "bf16", "int8", dlrm=()))
    before = grown(began(()), *high).model_copy(update={"candidates": ()})
    measured = went(before, {"torch": 7})
    low = plan.carried(measured, 8, candidates(target("torch", "bf16", "int8", dlrm=()), bits=8), all_routes=False)
    assert (low.bits, len(low.records), low.finished) == (8, len(measured.records), False)
    assert told(low.phases)[len(high) :] == [("screening", "llm", "torch", "int8")]
    faster = went(low, {"torch": 12})
    assert ("solo", "llm", "torch", "int8") in told(next_phases.fastest_routes(gather(faster), ()))
    assert next_phases.fastest_routes(gather(went(low, {"torch": 6})), ()) == ()
    whole = plan.carried(measured, 8, candidates(target("torch", "bf16", "int8", dlrm=()), bits=8), all_routes=True)
    assert told(whole.phases)[len(high) :] == [
        ("probe", "probe", "torch", "int8"),
        ("solo", "llm", "torch", "int8"),
        ("probe", "probe", "torch", "int8"),
    ]


def test_a_run_claims_no_weight_class_above_its_routes() -> None:
    routes = candidates(target("torch", "bf16", "int8", dlrm=()), bits=8)
    screenings = went(began(routes), {"torch": 7}).model_copy(update={"bits": 8})
    told = "llm.torch.cpu-0.int8.single-stream computes in int8, and the run is of 16 bits"
    assert not [each for each in contradictions(screenings, SuiteClaims()) if "and the run is of" in each]
    claimed = screenings.model_copy(update={"bits": 16})
    assert any(told in each for each in contradictions(claimed, SuiteClaims()))


def test_a_feed_that_was_broken_off_goes_on_at_its_pace() -> None:
    # 1 s to the first of 8 units, and 0.5 s to each other: 4.5 s a feed; three of them were seen
    done = Completions(ZERO, ZERO, np.array([3]), np.array([10, 15, 20]) * SECOND // 10, np.ones(3, np.int64))
    assert screening_per_s(done, 8) == pytest.approx(8 / 4.5)
    whole = Completions(ZERO, ZERO, np.array([1]), np.array([SECOND]), np.array([8]))
    assert screening_per_s(whole, 8) == pytest.approx(8)


def test_a_scouted_route_is_shown_as_such() -> None:
    routes = candidates(target("torch", "bf16", dlrm=()), target("onnxruntime", "fp32", dlrm=()))
    screenings = went(began(routes), {"torch": 7, "onnxruntime": 5})
    after = went(grown(screenings, *next_phases.fastest_routes(gather(screenings), ())), {"torch": 8})
    judged = judge(after)
    assert [(row.record.route.adapter, row.status) for row in judged.rows] == [
        ("onnxruntime", "screened"),
        ("torch", "ok"),
    ]
    (line,) = summary(judged).suites
    assert (line.route, line.others) == ("torch bf16", "1.60 × onnxruntime fp32 screened")
    assert [each.about for each in judged.findings if each.rule == "screened"] == [judged.rows[0].record.key]
