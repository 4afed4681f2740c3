"""The table of claims about mixtures, on made-up devices whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence

from mixmark.harness.capabilities.plan.machine import Kind, Retained, Speed
from mixmark.harness.contracts.figures import Estimate
from tests.capabilities.plan.claims_page import savings

MIX = {"a": 1.0, "b": 1.0}


def kind(name: str, a: float, b: float, price: float | None, is_host: bool = False) -> Kind:
    speeds = (Speed("a", Estimate(a)), Speed("b", Estimate(b)))
    return Kind(name, speeds, is_host=is_host, slots=1000 * is_host, price=price)


def saved(kinds: Sequence[Kind]) -> list[str]:
    """The last column of the table."""
    rows = list(savings(kinds, MIX, Retained(), "EUR"))[2:]
    return [row.split("|")[-2].strip() for row in rows]


HOST = kind("synthetic host", 0.1, 0.1, 100, is_host=True)
LEFT, RIGHT = kind("synthetic left", 10, 1, 1000), kind("synthetic right", 1, 10, 1000)


def test_devices_that_are_good_at_different_suites_save_most_of_the_price() -> None:
    """Alone one does 1/(1/10 + 1) = 0.91 mixes a second for 1,000; of two, each does 5: much work costs a fifth."""
    assert saved([HOST, LEFT, RIGHT])[-1] == "81 %"


def test_half_the_load_costs_more_than_four_fifths_of_it() -> None:
    rows = [row.split("|") for row in savings([HOST, LEFT], MIX, Retained(), "EUR")][2:]
    prices = [float(row[3].replace(",", "")) for row in rows]
    assert prices[-1] / prices[-2] == 11_000 / 6_900  # nearly 80 over 50, for much work


def test_what_cannot_be_told_is_said_with_its_reason() -> None:
    [first, why] = savings([HOST], MIX, Retained(), "")
    assert first.startswith("It cannot be told yet")
    assert why == "only machines of processors are published."
    [_, why] = savings([HOST, kind("synthetic card", 1, 1, None)], MIX, Retained(), "")
    assert why == "no price is declared of synthetic card."
