"""One mix over many hosts, on a fake clock."""

from __future__ import annotations

import math
import random
from unittest.mock import Mock

import pytest

from mixmark.harness.capabilities.hosts import classes
from mixmark.harness.capabilities.hosts.classes import by_classes
from mixmark.harness.capabilities.hosts.coordinator import AHEAD_S
from mixmark.harness.capabilities.hosts.dispatcher import Tally
from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.schema import Device, Placement, Rate
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan.bound import verify
from mixmark.harness.plan.placement import Objective, Power, place
from tests.capabilities.hosts import simulated
from tests.capabilities.hosts.simulated import Cluster, drawn, host, many
from tests.fakes.machine import GPU_AND_CPU, MIX, QUANTA, Rates, device, solo

HOSTS = {"gpu:0": "one", "cpu:0": "two"}


@pytest.mark.parametrize("link_s", [0.001, 0.05, pytest.param(0.99, id="as late as by a plan for 1,000 hosts")])
def test_two_hosts_do_what_one_machine_with_their_devices_does(link_s: float) -> None:
    cluster = Cluster(MIX, GPU_AND_CPU, QUANTA, HOSTS, link_s)
    assert cluster.run(1500) == pytest.approx(cluster.placement.bound_per_s, rel=0.01)


@pytest.mark.parametrize("link_s", [pytest.param(0.001, marks=pytest.mark.exhaustive), 0.05])
@pytest.mark.slow
def test_hosts_of_random_rates_reach_the_bound(link_s: float) -> None:
    cluster = many(hosts=20, devices=4, suites=4, seed=1, link_s=link_s)
    assert cluster.run(300) == pytest.approx(cluster.placement.bound_per_s, rel=0.01)
    assert cluster.messages == 20 * 2 * 150, "whatever the number of feeds"


def planned(cluster: Cluster, rates: Rates) -> Placement:
    """The best plan of its mix for these rates."""
    return place(cluster.mix_units, solo(rates), [device(id) for id in dict.fromkeys(id for _, id in rates)])


def test_what_a_host_loses_of_its_speed_is_planned_around() -> None:
    def actual(pair: Pair, at_s: float) -> float:
        return 0.3 if at_s > 100 and host(pair[1]) == "h0" else 1.0

    cluster = many(hosts=6, devices=2, suites=3, seed=2, actual=actual)
    cluster.run(160)
    rates = {pair: rate * actual(pair, math.inf) for pair, rate in drawn(6, 2, 3, 2).items()}
    later = planned(cluster, rates)
    assert later.mixes_per_s < 0.95 * cluster.placement.mixes_per_s
    assert cluster.run(600) == pytest.approx(later.mixes_per_s, rel=0.02)


def test_hosts_that_are_lost_are_planned_around_at_once_and_what_they_did_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulated, "place", plans := Mock(side_effect=place))
    cluster = many(hosts=6, devices=2, suites=3, seed=3)
    cluster.run(100)
    before = cluster.mixes
    plans.reset_mock()
    for lost in ("h1", "h4"):
        cluster.lose(lost)
    assert cluster.mixes == before
    cluster.coordinator.grants(cluster.now_s)
    assert plans.call_count == 1, "a rack that fails costs one plan"
    rates = {pair: rate for pair, rate in drawn(6, 2, 3, 3).items() if host(pair[1]) not in ("h1", "h4")}
    later = planned(cluster, rates)
    assert cluster.run(600) == pytest.approx(later.mixes_per_s, rel=0.02)
    with pytest.raises(KeyError, match="h1"):
        cluster.coordinator.update("h1", Tally({}, {}, {}, {}))


def test_a_host_whose_link_is_cut_works_off_its_credit_and_comes_back() -> None:
    cluster = many(hosts=6, devices=2, suites=3, seed=4)
    cluster.run(100)
    cluster.cut = {"h2"}
    done = sum(cluster.hosts["h2"].dispatcher.units.values())
    cluster.run(160)
    alone = sum(cluster.hosts["h2"].dispatcher.units.values()) - done
    per_s = done / 100
    assert per_s * 4 < alone < per_s * (AHEAD_S + 10), "its credit and the feeds that its devices held"
    cluster.cut = set()
    cluster.run(200)
    assert cluster.run(600) == pytest.approx(cluster.placement.bound_per_s, rel=0.02)


def test_a_suite_that_only_a_lost_host_could_run_is_given_up() -> None:
    rates = {("a", "gpu:h0.0"): 1.0, ("b", "gpu:h1.0"): 1.0}
    cluster = Cluster({"a": 1.0, "b": 1.0}, rates, dict.fromkeys(rates, 1), {id: host(id) for _, id in rates})
    cluster.run(20)
    cluster.lose("h1")
    assert cluster.run(100) == pytest.approx(1, rel=0.02)


def test_a_host_that_is_ahead_waits_for_the_others() -> None:
    """The other host does a tenth of what the plan believes, and nobody else can run its suite."""
    rates = {("a", "gpu:h0.0"): 1.0, ("b", "gpu:h1.0"): 1.0}
    cluster = Cluster(
        {"a": 1.0, "b": 1.0},
        rates,
        dict.fromkeys(rates, 1),
        {id: host(id) for _, id in rates},
        actual=lambda pair, at_s: 0.1 if pair[0] == "b" else 1.0,
    )
    for seconds in (100, 1000):
        cluster.run(seconds)
        done = cluster.coordinator.units
        assert done["b"] == pytest.approx(seconds / 10, abs=2)
        assert done["b"] + 2 <= done["a"] <= done["b"] + 4 + AHEAD_S, "two feeds at each device, and the credit"


def on_hosts(hosts: int, seed: int, apart: float) -> tuple[dict[str, float], list[Rate], list[Device]]:
    """Like hosts of two kinds, one of which has an accelerator, in turn. apart: the deviation of a rate's logarithm."""
    draw = random.Random(seed)
    mix_units = {f"s{suite}": draw.uniform(1, 9) for suite in range(3)}
    mean = {(suite, kind): draw.lognormvariate(0, 1) for suite in mix_units for kind in ("cpu:0", "gpu:0")}
    ids = [f"h{host}/{kind}" for host in range(hosts) for kind in ("cpu:0", "gpu:0")[: 1 + host % 2]]
    known = {(suite, id): mean[suite, local(id)] * draw.lognormvariate(0, apart) for id in ids for suite in mix_units}
    return mix_units, solo(known, dict.fromkeys(known, 100.0)), list(map(device, ids))


@pytest.mark.parametrize("host_fraction", [0.0, 0.1])
@pytest.mark.parametrize("objective", ["throughput", "efficiency"])
@pytest.mark.parametrize("seed", [1, 2])
def test_hosts_of_equal_rates_are_planned_as_one_and_no_worse(
    seed: int, objective: Objective, host_fraction: float
) -> None:
    mix_units, rates, devices = on_hosts(9, seed, 0.0)
    power = Power({each.id: 40.0 for each in devices}, 90.0)
    every = place(mix_units, rates, devices, objective, host_fraction=host_fraction, power=power)
    found = by_classes(every, devices)(mix_units, rates)
    assert found.bound_per_s == pytest.approx(every.bound_per_s) and found.watts is not None and every.watts is not None
    assert verify(found, mix_units, devices) == ()
    better = every.mixes_per_s if objective == "throughput" else every.mixes_per_s / every.watts
    reached = found.mixes_per_s if objective == "throughput" else found.mixes_per_s / found.watts
    assert reached >= better * (0.95 if host_fraction else 1 - 1e-6), "threads take whole fractions of a processor"


def test_hosts_of_unlike_rates_are_joined_if_there_are_many_and_little_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    mix_units, rates, devices = on_hosts(60, 1, 0.1)
    every = place(mix_units, rates, devices)
    assert by_classes(every, devices)(mix_units, rates).mixes_per_s == pytest.approx(every.mixes_per_s)
    monkeypatch.setattr(classes, "MOST_PAIRS", 60)
    joined = by_classes(every, devices)(mix_units, rates)
    assert 0.95 * every.mixes_per_s < joined.mixes_per_s < 0.9999 * every.mixes_per_s
    assert joined.fractions.keys() == mix_units.keys() and len(joined.rates) == len(rates)
