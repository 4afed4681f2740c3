"""What a plan says to a buyer: each machine by itself, what is only assumed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mixmark.harness.capabilities.plan import outlook, text
from mixmark.harness.capabilities.plan.machine import Assumption, Basis, Constraints, Kind, Speed
from mixmark.harness.capabilities.plan.program import Planner
from mixmark.harness.contracts.figures import Estimate
from mixmark.reporters import document
from tests.capabilities.plan.test_machine import MIX, host, kind

# It does 1 mix per second for 1,000 W, and a card as much for 100 W beside the 10 W of its idle host.
OWN = kind("own", 2, 2, 700, watts=990, idle_watts=10.0, is_host=True, slots=1, owned=1)
CARD = kind("card", 2, 2, 350, watts=90, idle_watts=10.0)
ADDED = Constraints(at_least={"card": 1, "own": 1}, at_most={"card": 1, "own": 1}, mixes_per_hour=3600)


def shown(found: outlook.Outlook) -> str:
    return document.console(text.plan(found, "work", {}))


def test_machines_by_themselves_are_sorted_by_work_for_their_price_then_for_their_energy() -> None:
    planner = Planner([OWN, replace(CARD, price=None)], MIX)
    boxes = outlook.boxes(planner, [({"own": 1}, None), ({"own": 1, "card": 1}, 700.0)])
    assert [box.counts for box in boxes] == [{"own": 1, "card": 1}, {"own": 1}]
    assert [outlook.per_price(box) for box in boxes] == pytest.approx([7200 / 700, 3600 / 700])
    assert [outlook.per_kwh(box) for box in boxes] == pytest.approx([7200 / 1.1, 3600 / 1])
    free = outlook.boxes(Planner([replace(OWN, price=None)], MIX), [({"own": 1}, None)])
    assert outlook.per_price(free[0]) is None
    said = shown(outlook.answered(planner, Constraints(at_most={"own": 1, "card": 1}), measured=[({"own": 1}, None)]))
    assert "1 × own 3,600 (3,600 to 3,600) 700 5,140 3,600" in " ".join(said.split())
    gone = outlook.answered(
        planner, Constraints(at_most={"own": 1, "card": 0}), measured=[({"own": 1, "card": 1}, None)]
    )
    assert gone.boxes == ()


def test_an_assumption_is_no_interval_and_meets_a_demand_only_if_it_holds() -> None:
    """The card does 4 mixes per second at most by its datasheet, and 2 at half of it."""
    speeds = tuple(Speed(suite, Estimate(4, 4, 8)) for suite in MIX)
    bounded = Assumption("a datasheet", {suite: Basis(4.0, 8.0, "memory in bf16") for suite in MIX})
    card = Kind("card", speeds, price=1, assumption=bounded).marked("assumed")
    said = " ".join(shown(outlook.answered(Planner([host(1), card], MIX), Constraints(mixes_per_hour=7000))).split())
    assert "the most is by datasheet device suite limited by computed with at most" in said
    assert "card (assumed) a memory in bf16 4.00 units/s 8.00 units/s" in said
    assert "does 7,200 mixes per hour at most, by datasheet 14,400 mixes per hour price" in said
    assert "are met only if card (assumed) does what is assumed of it" in said
    cheap = replace(card, price=0.5)
    both = outlook.answered(Planner([replace(OWN, owned=0), cheap], MIX), Constraints(mixes_per_hour=3500, budget=9000))
    assert [each.measured_per_hour >= 3500 for each in both.answers if each.question == "most"] == [True]
    assert "only if" not in [line for line in shown(both).splitlines() if "3,500" in line][-1]
    rated = replace(card, assumption=Assumption("a friend", {suite: Basis(4.0) for suite in MIX}))
    said = shown(outlook.answered(Planner([host(1), rated], MIX), Constraints(mixes_per_hour=7000)))
    assert "7,200 mixes per hour if the rates of card (assumed) are right" in said
    measured = shown(outlook.answered(Planner([host(1), CARD], MIX), Constraints(mixes_per_hour=3500)))
    assert "3,600 (3,600 to 3,600) mixes per hour" in measured and "met only if" not in measured
    added = outlook.answered(Planner([OWN, CARD], MIX), replace(ADDED, mixes_per_hour=None))
    [most] = [each for each in added.answers if each.question == "most"]
    low = most.mixes_per_hour.ends[0]
    for demand, words in (
        (low - 1, " mixes per hour are met"),
        (low + 1, " mixes per hour are not met by its low rates"),
    ):
        assert text._meets(added, most, demand).endswith(words)
