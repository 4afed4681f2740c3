"""The planner of machines, on small tables whose best machine is known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.capabilities.plan.machine import Answer, Assumption, Constraints, Kind, Retained, Speed, Tariff
from mixmark.harness.capabilities.plan.program import Planner
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Device, Rate
from mixmark.harness.plan.bound import bound
from mixmark.harness.plan.placement import place

MIX = {"a": 1.0, "b": 1.0}


def kind(name: str, a: float, b: float, price: float | None = None, watts: float = 0, **more: Any) -> Kind:
    """An accelerator that does a and b units per second of the two suites; 0: it does not run the suite."""
    speeds = [Speed(suite, Estimate(rate), extra_watts=watts) for suite, rate in (("a", a), ("b", b)) if rate]
    return Kind(name, tuple(speeds), price=price, **{"idle_watts": 0.0, **more})


def host(price: float = 0, slots: int = 100, name: str = "host", **more: Any) -> Kind:
    return kind(name, 0, 0, price, is_host=True, slots=slots, **more)


ALL = Retained()


def best(kinds: Sequence[Kind], question: str, retained: Retained = ALL, **limits: object) -> Answer:
    return Planner(kinds, MIX, retained).answer(question, Constraints(**limits))  # type: ignore[arg-type]


# Alone, X does 1/(1/4 + 1) = 0.8 mixes per second and Y as much. Together each does its own suite, 4 mixes per second.
X, Y = kind("X", 4, 1, 100), kind("Y", 1, 4, 100)


def test_the_cheapest_machine_by_hand() -> None:
    answer = best([host(50), X, Y], "cheapest", mixes_per_hour=4 * 3600)
    assert answer.counts == {"host": 1, "X": 1, "Y": 1}
    assert answer.price == 250
    assert answer.gap == 0
    assert answer.time["a"] == pytest.approx({"X": 1})
    assert answer.time["b"] == pytest.approx({"Y": 1})


def test_one_kind_alone_costs_more_than_a_mixture() -> None:
    alone = Planner([host(50), X, Y], MIX).alone("cheapest", Constraints(mixes_per_hour=4 * 3600))
    assert {name: answer.price for name, answer in alone.items()} == {"X": 550, "Y": 550}  # 5 of it in a host


def test_the_most_per_kwh_switches_off_what_costs_more_than_it_does() -> None:
    """The frugal one does 3600 mixes an hour in 100 W, the hungry one twice that in 500 W."""
    frugal = kind("frugal", 2, 2, idle_watts=10.0, watts=40.0, owned=1)
    hungry = kind("hungry", 4, 4, idle_watts=100.0, watts=350.0, owned=1)
    base = host(idle_watts=50.0, owned=1)
    own = {"host": 1, "frugal": 1, "hungry": 1}
    answer = best([base, frugal, hungry], "efficient", at_most=own)
    assert answer.counts == {"host": 1, "frugal": 1}
    assert answer.watts == pytest.approx(100)
    assert answer.mixes_per_hour.estimate == pytest.approx(3600)
    assert answer.gap == 0


def test_a_cap_of_power_limits_the_load_and_not_only_the_count() -> None:
    hot = kind("hot", 2, 2, idle_watts=100.0, watts=100.0)
    answer = best([host(idle_watts=0.0), hot], "most", watts=150, at_most={"hot": 1})
    assert answer.mixes_per_hour.estimate == pytest.approx(1800)  # half of its time


def test_accelerators_take_slots_and_the_time_of_their_threads() -> None:
    """Two of three accelerators fit into a host. Their threads take half of its processors' time."""
    base = replace(host(slots=2), speeds=(Speed("a", Estimate(8)),))
    card = kind("card", 0, 1, threads=0.25)
    answer = best([base, card], "cheapest", at_least={"card": 3}, mixes_per_hour=1)
    assert answer.counts == {"host": 2, "card": 3}
    full = best([base, card], "most", at_most={"card": 2, "host": 1})
    assert full.mixes_per_hour.estimate == pytest.approx(2 * 3600)
    assert full.time["a"]["host"] == pytest.approx(0.25)


def test_each_device_holds_whole_suites_in_its_own_memory() -> None:
    """Two devices of 10 GB hold 12 GB of suites only if each holds one of 6 GB; one device does no mix at all."""
    speeds = tuple(Speed(suite, Estimate(1), memory_bytes=6) for suite in "ab")
    small = Kind("small", speeds, pool_bytes={"": 10}, price=1)
    answer = best([host(), small], "cheapest", mixes_per_hour=1)
    assert answer.counts["small"] == 2
    three = best([host(), small], "most", at_most={"small": 3})
    assert three.mixes_per_hour.estimate == pytest.approx(3600)  # the third has no partner
    with pytest.raises(UsageError, match="no machine keeps at most 1 of small"):
        best([host(), small], "cheapest", mixes_per_hour=1, at_most={"small": 1})


def test_what_is_owned_is_used_before_anything_is_bought() -> None:
    answer = best([host(50, owned=1), replace(X, owned=1), Y], "cheapest", mixes_per_hour=4 * 3600)
    assert answer.counts == {"host": 1, "X": 1, "Y": 1}
    assert answer.price == 100


def test_electricity_decides_between_a_cheap_and_a_frugal_device() -> None:
    cheap, frugal = kind("cheap", 2, 2, 100, watts=200.0), kind("frugal", 2, 2, 200, watts=100.0)
    kinds = [host(idle_watts=0.0), cheap, frugal]
    limits = Constraints(mixes_per_hour=3600)
    assert Planner(kinds, MIX).answer("cheapest", limits).counts == {"host": 1, "cheap": 1}
    answer = Planner(kinds, MIX, energy=Tariff(per_kwh=0.2, years=1)).answer("cheapest", limits)
    assert answer.counts == {"host": 1, "frugal": 1}
    assert answer.price == 200
    assert answer.energy_cost == pytest.approx(0.2 * 8.766 * 100)  # 100 W for a year


def test_limits_that_exclude_each_other_are_named_and_no_others() -> None:
    with pytest.raises(UsageError) as caught:
        best([host(50), X, Y], "cheapest", mixes_per_hour=14_400, budget=200, hosts=3, at_most={"X": 7})
    assert str(caught.value) == (
        "no machine keeps 14,400 mixes per hour and a budget of 200: the largest does at least 2,880 mixes per hour"
    )
    with pytest.raises(UsageError, match=r"no machine keeps a power of 1\.00 W$"):
        best([host(), kind("hot", 1, 1, watts=9, idle_watts=9)], "most", watts=1, at_least={"hot": 1})


def test_the_interval_holds_the_rates_and_what_mixed_runs_kept() -> None:
    device = Kind("one", tuple(Speed(suite, Estimate.within(2, 0.1)) for suite in "ab"), is_host=True)
    answer = best([device], "most", Retained(0.9, 0.8, 0.95, runs=3), at_most={"one": 1})
    kept = answer.mixes_per_hour
    assert [kept.low, kept.estimate, kept.high] == pytest.approx([3600 * x for x in (0.72, 0.9, 0.95 * 1.1)])


RATE = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
TABLE = st.lists(st.tuples(RATE, RATE, st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


def test_a_run_that_did_more_than_its_plan_raises_no_figure_that_nobody_measured() -> None:
    more, less, rate = Retained(1.06, 1.02, 1.1, 2), Retained(0.9, 0.8, 1.0, 2), Speed("a", Estimate.within(100, 0.1))
    seen = host()
    guessed = replace(seen, assumption=Assumption("a friend", {}))

    def rates(retained: Retained, kind: Kind) -> list[float]:
        return [round(retained.of(kind).units_per_s(rate, level), 6) for level in (-1, 0, 1)]

    assert rates(more, seen) == [91.8, 106, 121] and rates(more, guessed) == [90, 100, 110]
    assert rates(less, seen) == rates(less, guessed) == [72, 90, 110]


def kinds_of(table: list[tuple[float, float, int, int]]) -> list[Kind]:
    kinds = [kind(f"k{n}", a, b, price, idle_watts=float(watts)) for n, (a, b, price, watts) in enumerate(table)]
    return [host(1, slots=9, idle_watts=2.0), *(each for each in kinds if each.speeds)]


def runs_all(kinds: Sequence[Kind]) -> bool:
    return {speed.suite for each in kinds for speed in each.speeds} == set(MIX)


def by_bound(kinds: Sequence[Kind], counts: Sequence[int]) -> float:
    """The mixes per hour of these devices by the linear program of mixed runs, each device by itself."""
    rates = [
        Rate(
            suite=speed.suite,
            device=f"gpu:{k}-{n}",
            adapter="x",
            precision="bf16",
            batch=1,
            units_per_s=speed.units_per_s.estimate,
        )
        for k, (each, count) in enumerate(zip(kinds, counts, strict=True))
        for n in range(count)
        for speed in each.speeds
    ]
    return bound(MIX, rates).mixes_per_s * 3600 if {rate.suite for rate in rates} == set(MIX) else 0.0


@given(TABLE, st.integers(1, 12), st.integers(0, 30))
@pytest.mark.slow
def test_random_machines_are_those_of_an_exhaustive_search(
    table: list[tuple[float, float, int, int]], demand: int, budget: int
) -> None:
    """Every machine of at most 6 accelerators is evaluated by `bound`."""
    kinds = kinds_of(table)
    if not runs_all(kinds):
        return
    at_most = {"host": 1} | {each.name: 2 for each in kinds[1:]}
    machines = list(itertools.product(*(range(at_most[each.name] + 1) for each in kinds[1:])))
    does = {counts: by_bound(kinds[1:], counts) for counts in machines if any(counts)}
    costs = {
        counts: 1 + sum(n * (each.price or 0) for n, each in zip(counts, kinds[1:], strict=True)) for counts in does
    }
    able = [costs[counts] for counts in does if does[counts] >= demand * 900 * (1 - 1e-9)]
    if able:
        found = best(kinds, "cheapest", mixes_per_hour=demand * 900, at_most=at_most)
        assert found.price == pytest.approx(min(able), rel=1e-12)
        assert found.gap == 0
    affordable = [does[counts] for counts in does if does[counts] and costs[counts] <= budget]
    if affordable:
        found = best(kinds, "most", budget=budget, at_most=at_most)
        assert found.mixes_per_hour.estimate == pytest.approx(max(affordable), rel=1e-9)
    watts = {
        counts: 2 + sum(n * (each.idle_watts or 0) for n, each in zip(counts, kinds[1:], strict=True))
        for counts in does
    }
    found = best(kinds, "efficient", at_most=at_most)
    assert found.watts is not None
    reached = found.mixes_per_hour.estimate / found.watts
    assert reached == pytest.approx(max(does[counts] / watts[counts] for counts in does), rel=1e-6)


def test_one_of_each_is_planned_as_a_mixed_run_plans_it() -> None:
    """The same devices, memory and host threads through the program that plans mixed runs."""
    gpu = Device(id="gpu:0", kind="gpu", memory_pool="gpu:0")
    cpu = Device(id="cpu:0", kind="cpu", memory_pool="host")
    table = {("a", "gpu:0"): 9.0, ("b", "gpu:0"): 5.0, ("a", "cpu:0"): 2.0, ("b", "cpu:0"): 3.0}
    rates = [
        Rate(suite=suite, device=id, adapter="x", precision="bf16", batch=1, units_per_s=units, memory_bytes=6)
        for (suite, id), units in table.items()
    ]
    plan = place(MIX, rates, [gpu, cpu], pool_bytes={"gpu:0": 10, "host": 100}, host_fraction=0.3)

    def speeds(id: str) -> tuple[Speed, ...]:
        return tuple(
            Speed(rate.suite, Estimate(rate.units_per_s), memory_bytes=6) for rate in rates if rate.device == id
        )

    kinds = [
        Kind("host", speeds("cpu:0"), is_host=True, slots=1, pool_bytes={"": 100}),
        Kind("gpu", speeds("gpu:0"), pool_bytes={"": 10}, threads=0.3),
    ]
    answer = best(kinds, "most", at_most={"host": 1, "gpu": 1})
    assert answer.mixes_per_hour.estimate == pytest.approx(plan.mixes_per_s * 3600)


def test_the_low_ends_of_the_rates_meet_the_demand() -> None:
    """At ± 10 %, a device does 0.9 to 1.1 mixes per second: three do the work of 2.7, and for 2.8 there are four."""
    card = Kind("card", tuple(Speed(suite, Estimate.within(2.0, 0.1)) for suite in "ab"), price=1, idle_watts=0)
    enough = best([host(), card], "cheapest", mixes_per_hour=2.7 * 3600)
    assert enough.counts["card"] == 3
    assert enough.planned_per_hour == pytest.approx(2.7 * 3600)
    assert enough.mixes_per_hour.ends == pytest.approx((2.7 * 3600, 3.3 * 3600))
    assert best([host(), card], "cheapest", mixes_per_hour=2.8 * 3600).counts["card"] == 4
