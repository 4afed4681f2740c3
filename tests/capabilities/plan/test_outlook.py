"""What a plan says to a buyer: each machine by itself, when an addition has paid for itself, what is only assumed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mixmark.harness.capabilities.plan import outlook, text
from mixmark.harness.capabilities.plan.machine import Assumption, Basis, Energy, Kind, Limits, Planner, Speed
from mixmark.harness.contracts.figures import Estimate
from mixmark.reporters import document
from tests.capabilities.plan.test_machine import MIX, host, kind

# It does 1 mix per second for 1,000 W, and a card as much for 100 W beside the 10 W of its idle host.
OWN = kind("own", 2, 2, 700, watts=990, idle_watts=10.0, is_host=True, slots=1, owned=1)
CARD = kind("card", 2, 2, 350, watts=90, idle_watts=10.0)
ADDED = Limits(at_least={"card": 1, "own": 1}, at_most={"card": 1, "own": 1}, mixes_per_hour=3600)
A_KWH = Energy(per_kwh=0.5, years=2.0)


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
    said = shown(outlook.answered(planner, Limits(at_most={"own": 1, "card": 1}), measured=[({"own": 1}, None)]))
    assert "1 × own 3,600 (3,600 to 3,600) 5,140 3,600" in " ".join(said.split())
    gone = outlook.answered(planner, Limits(at_most={"own": 1, "card": 0}), measured=[({"own": 1, "card": 1}, None)])
    assert gone.boxes == ()


@pytest.mark.parametrize(
    ("card", "energy", "paid", "words"),
    [
        # A mix an hour less costs 890 W: 0.445 a hour, and 350 / 0.445 hours are 1.08 months.
        (
            CARD,
            A_KWH,
            350 / (0.89 * 0.5) / (8766 / 12),
            "in month 2 of 3,600 mixes per hour, by the electricity that today's machine takes",
        ),
        (
            replace(CARD, idle_watts=990.0),
            A_KWH,
            math.inf,
            "never by electricity: for 3,600 mixes per hour today's machine takes no more",
        ),
        (CARD, None, "it needs --tariff", "not known: it needs --tariff"),
        (
            replace(CARD, price=None, idle_watts=None),
            None,
            "it needs the price of card, the watts of card, --tariff",
            "",
        ),
    ],
)
def test_an_addition_has_paid_for_itself_when_the_electricity_that_it_saves_has(
    card: Kind, energy: Energy | None, paid: float | str, words: str
) -> None:
    found = outlook.answered(Planner([OWN, card], MIX, energy=energy), replace(ADDED, mixes_per_hour=None))
    [question] = [each.question for each in found.answers if each.question == "most"]
    cheapest = outlook.answered(Planner([OWN, card], MIX, energy=energy), ADDED) if card.price else found
    months = {**found.paid_back_months, **cheapest.paid_back_months}
    assert months.get("cheapest", months[question]) == (paid if isinstance(paid, str) else pytest.approx(paid))
    assert words in " ".join(shown(cheapest).split())


def test_an_assumption_is_no_interval_and_meets_a_demand_only_if_it_holds() -> None:
    """The card does 4 mixes per second at most by its datasheet, and 2 at half of it."""
    speeds = tuple(Speed(suite, Estimate(4, 4, 8)) for suite in MIX)
    bounded = Assumption("a datasheet", 0.5, {suite: Basis(8.0, "memory in bf16") for suite in MIX})
    card = Kind("card", speeds, price=1, assumption=bounded).marked("assumed")
    said = shown(outlook.answered(Planner([host(1), card], MIX), Limits(mixes_per_hour=7000)))
    assert "at most 14,400 mixes per hour by datasheet; 7,200 at 50 % of it" in said
    assert "are met only if card (assumed) does what is assumed of it" in said
    rated = replace(card, assumption=Assumption("a friend", 0.5, {suite: Basis() for suite in MIX}))
    said = shown(outlook.answered(Planner([host(1), rated], MIX), Limits(mixes_per_hour=7000)))
    assert "7,200 mixes per hour if the rates of card (assumed) are right" in said
    measured = shown(outlook.answered(Planner([host(1), CARD], MIX), Limits(mixes_per_hour=3500)))
    assert "3,600 (3,600 to 3,600) mixes per hour" in measured and "met only if" not in measured
    added = outlook.answered(Planner([OWN, CARD], MIX), replace(ADDED, mixes_per_hour=None))
    [most] = [each for each in added.answers if each.question == "most"]
    low = most.mixes_per_hour.ends[0]
    for demand, words in (
        (low - 1, " mixes per hour are met"),
        (low + 1, " mixes per hour are not met by its low rates"),
    ):
        assert text._meets(added, most, demand).endswith(words)


def test_the_chart_has_the_words_of_the_text() -> None:
    """112 W are of 3,600 mixes an hour, and not of the 7,200 at full load."""
    planner = Planner([OWN, CARD], MIX, energy=A_KWH)
    found = outlook.answered(planner, replace(ADDED, mixes_per_hour=1800))
    efficient = next(each for each in found.answers if each.question == "efficient")
    _, price, power = text._does(found, efficient)
    assert (price, power) == ("350 for 1 × card", "65.0 W while it does 1,800 mixes per hour")
    page = document.html(text.plan(found, "work", {}))
    assert shown(found).count(power) == 1
    assert page.count(power) == 4, "in the text, and in the bars of two questions and of the card alone"
