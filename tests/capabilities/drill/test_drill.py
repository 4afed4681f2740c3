"""The drill: its phase, who hands out the feeds in it, and its figures."""

from __future__ import annotations

from functools import partial

import pytest

from mixmark.harness.capabilities.drill.outcome import DrillOutcome
from mixmark.harness.capabilities.drill.phase import Drill, DrillDispatcher, device_to_lose
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Placement, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.plan import mixes
from mixmark.harness.plan.placement import place
from mixmark.harness.record import store
from tests.cli.shell import Shell
from tests.fakes.machine import EDGE, SECOND, Machine, device, example, one_run, recorded, turn, with_turns
from tests.measure.test_benchmark import run

PART_S = 600
DRILL = Drill(device="gpu:0", lost_ns=PART_S * SECOND, back_ns=2 * PART_S * SECOND)
ALONE_PER_S = 1 / (20 + 100 + 40 / 30 + 10)
"""The CPU does a mix in so many seconds by itself."""


@pytest.fixture
def drill_run(monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Result]:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    machine = drilled()
    return machine, with_drill(machine)


def drilled(until_s: float = 3 * PART_S) -> Machine:
    """A machine whose GPU is taken away after a third of the phase, and given back after two."""
    plan = partial(place, devices=[device("gpu:0"), device("cpu:0")])
    return example(until_s=until_s, source=partial(DrillDispatcher, plan=plan, drill=DRILL))


def with_drill(machine: Machine) -> Result:
    drill = turn("drill", DRILL, *recorded(machine, "drill"))
    return with_turns(one_run(None), {"drill": {"drill": "lose-device"}}, drill)


def test_the_device_gets_nothing_while_it_is_away_and_the_rest_and_the_whole_reach_their_own_optimum(
    drill_run: tuple[Machine, Result],
) -> None:
    machine, result = drill_run
    begun = [begin for (_, id), spans in machine.done.items() if id == "gpu:0" for begin, _ in spans]
    assert len([at for at in begun if DRILL.lost_ns < at < DRILL.back_ns]) <= 1, "one was queued behind another"
    assert [at for at in begun if at > DRILL.back_ns]
    found = judge(result).experiments["drill"]
    assert isinstance(found, DrillOutcome)
    assert (found.device, found.problems) == ("gpu:0", ())
    whole = machine.placement.mixes_per_s * 3600
    assert found.before_per_hour == pytest.approx(whole, rel=0.03)
    assert found.after_per_hour == pytest.approx(whole, rel=0.12), "the CPU ends a picture of 100 s first"
    assert found.best_without_per_hour == pytest.approx(ALONE_PER_S * 3600, rel=1e-6)
    assert found.without_per_hour == pytest.approx(ALONE_PER_S * 3600, rel=0.15)
    assert 1 <= found.lost_feeds <= 2


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
    machine = drilled(PART_S + 100)
    machine.lose("gpu:0")
    machine.run(3 * PART_S)
    begun = [begin for (_, id), spans in machine.done.items() if id == "gpu:0" for begin, _ in spans]
    assert max(begun) < DRILL.lost_ns + 10 * SECOND


@pytest.mark.usefixtures("inline_workers")
def test_a_run_with_a_drill(duo: Shell) -> None:
    done = run(duo, "--drill", "lose-device")
    assert done.returncode == 0, done.stderr
    assert "in the drill, low on npu:" in done.stderr
    shown = " ".join(done.stdout.split())
    assert "a device lost without npu:" in shown and "of the plan of the rest" in shown
    result = store.open(duo.folder / "out")
    assert [phase.name for phase in result.phases if phase.placement] == ["mix1", "drill"]
    found = judge(result).experiments["drill"]
    assert isinstance(found, DrillOutcome)
    assert not found.problems and found.lost_feeds >= 1
    kept = duo("run", "--resume", "out", "--drill", "lose-device")
    assert (kept.returncode, "keeps its own --drill" in kept.stderr) == (2, True)


def test_facts_that_are_not_of_a_drill_contradict_the_result(drill_run: tuple[Machine, Result]) -> None:
    result = drill_run[1]
    whole = result.phases[-1]

    def said(**changes: object) -> list[str]:
        return [
            each
            for each in contradictions(result.model_copy(update=changes), SuiteClaims())
            if "drill keeps" in each or "of drill" in each
        ]

    def with_facts(**facts: object) -> list[str]:
        return said(phases=(*result.phases[:-1], whole.model_copy(update={"facts": facts})))

    assert said() == with_facts(**whole.facts) == []
    assert "drill has other facts than drill keeps" in with_facts()
    assert "drill has other facts than drill keeps" in with_facts(**whole.facts, more=1)
    assert "drill is of drill, which the run was not asked for" in said(experiments={})
    assert "the run has other facts than drill keeps" in said(experiments={"drill": {"drill": "lose-all"}})
