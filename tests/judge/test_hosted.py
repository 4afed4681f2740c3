"""A hosted service has weights of its own: its outputs stand on a table of its own, and in no score."""

from __future__ import annotations

from typing import Any

import pytest

from mixmark.harness.contracts.schema import Cost, Device, Mix, Record, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.rules import integrity
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.judge.solo_rates import solo as solo_rates
from mixmark.harness.machine import suite_claims
from mixmark.harness.plan.phases import Target, Workload, solo
from mixmark.harness.plan.presets import PRESETS
from mixmark.reporters import report
from mixmark.reporters.summary import summary
from mixmark.suites.llm import Llm
from tests.golden.sample import REPORTERS, RIGHT, closed_loop, phase, record, result
from tests.judge.found import facts, says

SERVICE = Device(
    id="asic:api.acme.test",
    kind="asic",
    name="api.acme.test",
    memory_pool="asic:api.acme.test",
    precisions_by_suite={"llm": ("fp8",)},
    hosted="acme-70b",
)
DECODE = (Cost(name="decode", flops=1e9, bytes=1e9, yields=8),)


def hosted(**changed: Any) -> Record:
    """A record as a run of the service makes it, 1,000 tokens a second; torch has 100."""
    told = record("h", "llm", "token", closed_loop([[1_000_000] * 8] * 70), device=SERVICE.id, adapter="acme")
    route = told.route.model_copy(update={"weights": "hosted: acme-70b", "precision": "fp8"})
    return told.model_copy(update={"route": route, "audit": None, "exempt": "hosted", **changed})


def run(*records: Record, device: Device = SERVICE) -> Result:
    told = result(*records)
    return told.model_copy(update={"devices": (*told.devices, device), "phases": tuple(map(phase, records))})


TORCH = record("t", "llm", "token", closed_loop([[10_000_000] * 8] * 70), costs=DECODE)


def both() -> Assessment:
    return judge(run(TORCH, hosted()))


def test_the_plan_says_whose_weights_they_are() -> None:
    llm = Workload("llm", "1", ("single-stream",), weights="mine sampled-sha256:00")
    [planned] = solo([Target(SERVICE, "acme", {})], [llm], "edge", PRESETS["quick"], bits=8)
    route = planned.shares[0].route
    assert (route.weights, route.hosted, route.precision) == ("hosted: acme-70b", True, "fp8")
    assert not TORCH.route.hosted


def test_it_stands_on_a_table_of_its_own() -> None:
    told = both()
    assert [row.key for row in told.solos] == ["t"] and [row.key for row in told.hosted] == ["h"]
    assert [row.status for row in told.runs] == ["ok", "unaudited"]
    assert told.matrix is None  # of two devices, one is compared with nothing
    assert told.exit_code == 0
    [finding] = [each for each in told.findings if (each.rule, each.about) == ("audited", "h")]
    assert facts(finding) == says("audited.unasked", "h", why="hosted")
    first = summary(told)
    assert [line.rate for line in first.suites] == ["100 tok/s ± 0.0 %"] and "acme" not in first.suites[0].others
    assert [(line.rate, line.others) for line in first.hosted] == [("1,000 tok/s, ± 0.0 %", "hosted: acme-70b")]


def test_what_has_nothing_else_is_fair_at_best() -> None:
    told = judge(run(hosted()))
    assert told.verdict.word == "fair" and told.verdict.reasons[0].code == "audited.unasked"
    assert told.solos == () and told.exit_code == 0
    for render in (*REPORTERS.values(), report.html):
        assert "1,000" in render(told) or "1000.0" in render(told)


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({}, "note"),
        ({"scenario": "mixed"}, "invalid"),
        ({"exempt": None, "unaudited": "torch is not installed"}, "invalid"),
        ({"route": TORCH.route}, "invalid"),  # synthetic weights are audited
    ],
)
def test_only_what_is_hosted_and_alone_is_excused(changed: dict[str, Any], severity: str) -> None:
    found = integrity.audited(gather(run(hosted(**changed))))
    assert [each.severity for each in found] == [severity]


def test_no_plan_of_a_mix_knows_it() -> None:
    mix = Mix(name="mine", tier="edge", units={"llm": 10.0})
    assert [rate.adapter for rate in solo_rates(gather(run(TORCH, hosted())), mix, ())] == ["torch"]


def contradicted(told: Record, device: Device = SERVICE) -> list[str]:
    return [each for each in contradictions(run(told, device=device), SuiteClaims()) if "hosted" in each]


def test_a_folder_that_confuses_the_two_is_refused() -> None:
    assert contradicted(hosted()) == []
    [said] = contradicted(hosted(), SERVICE.model_copy(update={"hosted": ""}))
    assert said == f"h has the weights hosted: acme-70b, and {SERVICE.id} is not"
    drawn = hosted().route.model_copy(update={"weights": "synthetic"})
    [said] = contradicted(hosted(route=drawn, exempt="not asked for"))
    assert said == f"h has the weights synthetic, and {SERVICE.id} is hosted"
    [said] = contradicted(hosted(audit=RIGHT, exempt=None))
    assert "which cannot be audited" in said


def test_its_suite_promises_no_gate_and_no_costs() -> None:
    installed = {"tier": "smoke", "suite_version": Llm.version}
    at_smoke = {name: each.route.model_copy(update=installed) for name, each in (("t", TORCH), ("h", hosted()))}
    records = [each.model_copy(update={"route": at_smoke[each.key], "costs": ()}) for each in (TORCH, hosted())]
    found = suite_claims.claims(run(*records))
    assert not found.unknown
    claimed = found.claims["h"]
    assert (claimed.gate, claimed.costs, claimed.feed_units) == (None, (), 128)
    assert found.claims["t"].gate and found.claims["t"].costs
