"""A device is taken away from a simulated machine and given back."""

from __future__ import annotations

from functools import partial

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Drill, Phase, Placement, Result
from mixmark.harness.judge.judgement import judge
from mixmark.harness.measure.drill import DrillDispatcher
from mixmark.harness.plan import mixes
from mixmark.harness.plan.phases import device_to_lose
from mixmark.reporters import report
from tests.fakes.machine import EDGE, GPU_AND_CPU, MIX, QUANTA, SECOND, Machine, one_run, phase, recorded

PART_S = 600
DRILL = Drill(device="gpu:0", lost_ns=PART_S * SECOND, back_ns=2 * PART_S * SECOND)
ALONE_PER_S = 1 / (20 + 100 + 40 / 30 + 10)
"""The CPU does a mix in so many seconds by itself."""


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})


def drilled() -> Machine:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, source=partial(DrillDispatcher, drill=DRILL))
    machine.run(3 * PART_S)
    return machine


def with_drill(machine: Machine) -> Result:
    base = one_run(None)
    records, placement = recorded(machine, "drill")
    whole = phase(records, placement).model_dump() | {"purpose": "drill", "drill": DRILL}
    return base.model_copy(
        update={
            "drills": True,
            "phases": (*base.phases, Phase.model_validate(whole)),
            "records": (*base.records, *records),
        }
    )


def test_the_device_gets_nothing_while_it_is_away_and_the_rest_and_the_whole_reach_their_own_optimum() -> None:
    machine = drilled()
    begun = [begin for (_, id), spans in machine.done.items() if id == "gpu:0" for begin, _ in spans]
    assert len([at for at in begun if DRILL.lost_ns < at < DRILL.back_ns]) <= 1, "one was queued behind another"
    assert [at for at in begun if at > DRILL.back_ns]
    found = judge(with_drill(machine)).drill
    assert found is not None
    assert (found.device, found.problems) == ("gpu:0", ())
    whole = machine.placement.mixes_per_s * 3600
    assert found.before_per_hour == pytest.approx(whole, rel=0.03)
    assert found.after_per_hour == pytest.approx(whole, rel=0.12), "the CPU ends a picture of 100 s first"
    assert found.best_without_per_hour == pytest.approx(ALONE_PER_S * 3600, rel=1e-6)
    assert found.without_per_hour == pytest.approx(ALONE_PER_S * 3600, rel=0.15)
    assert 1 <= found.lost_feeds <= 2


def test_the_report_tells_what_the_loss_cost() -> None:
    text = " ".join(report.console(judge(with_drill(drilled()))).split())
    assert "a device lost without gpu" in text
    assert "of the plan of the rest" in text


def test_the_busiest_device_that_others_can_replace_is_taken_away() -> None:
    base = one_run(None)
    placement = base.phases[0].placement
    assert placement is not None
    assert device_to_lose(placement) == "gpu:0"

    def without(*pairs: tuple[str, str]) -> Placement:
        left = tuple(rate for rate in placement.rates if (rate.suite, rate.device) not in pairs)
        return placement.model_copy(update={"rates": left})

    assert device_to_lose(without(("llm", "cpu:0"))) == "cpu:0", "only the GPU does llm"
    with pytest.raises(UsageError, match="no device can be taken away"):
        device_to_lose(without(("llm", "cpu:0"), ("dlrm", "gpu:0")))


def test_a_device_that_fails_in_a_drill_stays_away() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, source=partial(DrillDispatcher, drill=DRILL))
    machine.run(PART_S + 100)
    machine.lose("gpu:0")
    machine.run(3 * PART_S)
    begun = [begin for (_, id), spans in machine.done.items() if id == "gpu:0" for begin, _ in spans]
    assert max(begun) < DRILL.lost_ns + 10 * SECOND
