"""One mix over many hosts, on a fake clock."""

from __future__ import annotations

import math

import pytest

from mixmark.harness.capabilities.hosts.coordinator import AHEAD_S
from mixmark.harness.capabilities.hosts.dispatcher import Tally
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan.placement import place
from tests.capabilities.hosts.simulated import Cluster, drawn, host, many
from tests.fakes.machine import GPU_AND_CPU, MIX, QUANTA, device, solo

HOSTS = {"gpu:0": "one", "cpu:0": "two"}


@pytest.mark.parametrize("link_s", [0.001, 0.05])
def test_two_hosts_do_what_one_machine_with_their_devices_does(link_s: float) -> None:
    cluster = Cluster(MIX, GPU_AND_CPU, QUANTA, HOSTS, link_s)
    assert cluster.run(1500) == pytest.approx(cluster.placement.bound_per_s, rel=0.01)


@pytest.mark.parametrize("link_s", [pytest.param(0.001, marks=pytest.mark.exhaustive), 0.05])
@pytest.mark.slow
def test_hosts_of_random_rates_reach_the_bound(link_s: float) -> None:
    cluster = many(hosts=20, devices=4, suites=4, seed=1, link_s=link_s)
    assert cluster.run(300) == pytest.approx(cluster.placement.bound_per_s, rel=0.01)
    assert cluster.messages == 20 * 2 * 150, "whatever the number of feeds"


def test_what_a_host_loses_of_its_speed_is_planned_around() -> None:
    def actual(pair: Pair, at_s: float) -> float:
        return 0.3 if at_s > 100 and host(pair[1]) == "h0" else 1.0

    cluster = many(hosts=6, devices=2, suites=3, seed=2, actual=actual)
    cluster.run(160)
    rates = {pair: rate * actual(pair, math.inf) for pair, rate in drawn(6, 2, 3, 2).items()}
    later = place(cluster.mix_units, solo(rates), [device(id) for id in dict.fromkeys(id for _, id in rates)])
    assert later.mixes_per_s < 0.95 * cluster.placement.mixes_per_s
    assert cluster.run(600) == pytest.approx(later.mixes_per_s, rel=0.02)


def test_a_host_that_is_lost_is_planned_around_and_what_it_did_counts() -> None:
    cluster = many(hosts=6, devices=2, suites=3, seed=3)
    cluster.run(100)
    before = cluster.mixes
    cluster.lose("h1")
    assert cluster.mixes == before
    rates = {pair: rate for pair, rate in drawn(6, 2, 3, 3).items() if host(pair[1]) != "h1"}
    later = place(cluster.mix_units, solo(rates), [device(id) for id in dict.fromkeys(id for _, id in rates)])
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
