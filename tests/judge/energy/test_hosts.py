"""The energy of several hosts: all of them or none, by one boundary, and the host's name where one has no meter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mixmark.harness.contracts.device_ids import on
from mixmark.harness.contracts.schema import Domain, Hosts, Metering, Result, Samples
from mixmark.harness.judge.energy.coverage import antichain, needed, uncovered
from mixmark.harness.judge.energy.reading import in_phase
from mixmark.harness.judge.energy.total import total
from mixmark.harness.judge.rules import quality
from mixmark.harness.judge.solo_rates import power
from tests.fakes.hosts import NAMES, WATTS, cluster, wall
from tests.fakes.machine import SECOND, device, one_run
from tests.golden.sample import domain, system
from tests.judge.energy.test_energy import samples
from tests.judge.found import not_none, said, says, scored


@pytest.fixture(scope="module")
def two() -> Result:
    return cluster()


def test_the_joules_of_all_hosts_are_added_and_the_efficiency_is_that_of_one(two: Result) -> None:
    found, alone = scored(two), scored(one_run(WATTS))
    [run], [one] = found.runs, alone.runs
    assert run.total.domains == ("host1/plug", "host2/plug") and run.total.boundary == "wall"
    assert run.total.watts == pytest.approx(2 * WATTS, rel=1e-4)
    assert found.mixes_per_hour and alone.mixes_per_hour and found.mixes_per_kwh and alone.mixes_per_kwh
    assert found.mixes_per_hour.estimate == pytest.approx(2 * alone.mixes_per_hour.estimate, rel=0.02)
    assert found.mixes_per_kwh.estimate == pytest.approx(alone.mixes_per_kwh.estimate, rel=0.02)
    assert one.total.domains == ("wall",)
    assert said(quality.energy_complete, two) == [] and said(quality.energy_valid, two) == []


def test_a_host_without_a_meter_leaves_no_efficiency_and_is_named(two: Result) -> None:
    half = two.model_copy(update={"domains": two.domains[:1]})
    found = scored(half)
    assert found.mixes_per_hour and found.mixes_per_kwh is None
    assert found.unmeasured == "host2 is not metered"
    assert said(quality.energy_complete, half) == [says("energy_complete", "run", why="host2 is not metered")]
    none = says("energy_measured", "run", missing=("host1", "host2"))
    assert said(quality.energy_measured, two.model_copy(update={"domains": ()})) == [none]
    part = two.domains[1].model_copy(update={"covers": ("host2/cpu:0",)})
    blind = two.model_copy(update={"domains": (two.domains[0], part)})
    assert scored(blind).unmeasured == "host2/gpu:0 is not metered", "part of it is"


def test_a_host_of_which_no_device_is_in_the_run_is_metered_too(two: Result) -> None:
    """It could do the work of the others."""
    more = two.model_copy(update={"hosts": (*two.hosts, Hosts(names=("host3",), system=system()))})
    assert scored(more).unmeasured == "host3 is not metered"


def test_each_host_has_its_own_processor_and_its_own_node() -> None:
    gpus = needed([device("host1/gpu:0"), device("host2/gpu:0")], NAMES)
    assert uncovered((), gpus) == ("host1/cpu:0", "host2/cpu:0", "host1/gpu:0", "host2/gpu:0")
    node = domain("a", ("host1/node",))
    assert uncovered([node], gpus) == ("host2/cpu:0", "host2/gpu:0")
    halves = [domain(at, (f"host1/node/{at}-of-2",)) for at in "12"]
    first = needed([device("host1/gpu:0")], ("host1",))
    assert uncovered(halves, first) == () and uncovered(halves[:1], first) == ("host1/cpu:0", "host1/gpu:0")
    assert uncovered([domain("a", ("node",))], gpus), "a node without a host is no node of these hosts"
    rack = domain("rack", ("host1/node", "host2/node"))
    assert uncovered([rack], gpus) == (), "one meter may hold several hosts"


def test_one_boundary_holds_all_hosts() -> None:
    """A wall on one host and counters on both: the counters are added, and the wall is not."""
    cpus = [device("host1/cpu:0"), device("host2/cpu:0")]
    counters = [domain(f"{host}/rapl", (f"{host}/cpu:0",)) for host in NAMES]
    plug = wall("host1")
    every = [*counters, plug]
    chosen = antichain(every, {each.id for each in every}, cpus)
    assert [each.id for each in chosen] == ["host1/rapl", "host2/rapl"]
    both = [*every, wall("host2")]
    assert [each.id for each in antichain(both, {each.id for each in both}, cpus)] == ["host1/plug", "host2/plug"]


def test_hosts_that_are_metered_by_different_boundaries_are_never_added(two: Result) -> None:
    node = two.domains[1].model_copy(update={"boundary": "node", "method": "integrated"})
    assert scored(two.model_copy(update={"domains": (two.domains[0], node)})).unmeasured == (
        "different boundaries are never added: host1 by wall, host2 by node"
    )


AT_NS = np.arange(0, 70 * SECOND, SECOND // 10)
CPUS = (device("host1/cpu:0"), device("host2/cpu:0"))


def counter(watts: float) -> Samples:
    """70 s of a counter of joules that rises at this power."""
    return samples(AT_NS, watts * AT_NS / SECOND)


def metered(read: Mapping[Domain, Samples], idle_ns: tuple[tuple[int, int], ...] = ()) -> Result:
    """The processors of two hosts and one phase `a` of 70 s with these samples."""
    by_id = {domain.id: samples for domain, samples in read.items()}
    metering = Metering(phase="a", begin_ns=0, end_ns=70 * SECOND, cpu_ns=0, samples=by_id, idle_ns=idle_ns)
    return cluster(seconds=1).model_copy(update={"devices": CPUS, "domains": (*read,), "meterings": (metering,)})


def test_what_lies_outside_of_the_boundary_is_named_with_its_host() -> None:
    one, two = domain("host1/rapl", ("host1/cpu:0", "host1/memory")), domain("host2/rapl", ("host2/cpu:0",))
    found = total(metered({one: counter(50), two: counter(51)}), "a", 5 * SECOND, 65 * SECOND)
    assert found.watts == pytest.approx(101)
    assert found.unmetered == ("memory of host2", "mainboard", "drives", "fans", "network", "power supply")


@pytest.mark.parametrize(("node_watts", "reasons"), [(100, ()), (50, ("less than its parts",))])
def test_the_parts_of_one_host_are_no_parts_of_another(node_watts: float, reasons: tuple[str, ...]) -> None:
    """A processor of 60 W lies behind a node; another host's processor draws 90 W."""
    node = domain("host1/bmc", ("host1/node",), boundary="node")
    one, two = (domain(f"{host}/rapl", (f"{host}/cpu:0",)) for host in NAMES)
    read = {node: counter(node_watts), one: counter(60), two: counter(90)}
    readings = total(metered(read), "a", 5 * SECOND, 65 * SECOND).readings
    assert {id: each.reasons for id, each in readings.items()} == {node.id: reasons, one.id: (), two.id: ()}


def test_the_power_at_rest_is_that_of_all_hosts() -> None:
    """35 W and 45 W of the processors, in a wall of 100 W each."""
    plugged = samples(AT_NS, 100 + 1e-3 * np.resize(np.arange(7), len(AT_NS)))
    read: dict[Domain, Samples] = {}
    for host, watts in zip(NAMES, (35, 45), strict=True):
        covers = (on(host, "cpu:0"), on(host, "node"))
        read |= {domain(on(host, "rapl"), covers[:1]): counter(watts)}
        read |= {wall(host).model_copy(update={"covers": covers}): plugged}
    found = not_none(power(metered(read, idle_ns=((5 * SECOND, 65 * SECOND),))))
    assert found.idle_watts == pytest.approx({"host1/cpu:0": 35, "host2/cpu:0": 45})
    assert found.rest_watts == pytest.approx(120, rel=1e-3)


@pytest.mark.parametrize(("covers", "reasons"), [("host2/cpu:0", ("stood still",)), ("host2/gpu:0", ())])
def test_a_power_that_is_frozen_across_a_rest_is_none_on_any_host(covers: str, reasons: tuple[str, ...]) -> None:
    """A GPU may well draw the same while it is not used; the processor of a host does not."""
    power = domain("d", (covers,), quantity="power", method="integrated")
    frozen = samples(AT_NS, np.full(len(AT_NS), 50.0), took_ns=0)
    rests = ((0, 10 * SECOND), (60 * SECOND, 70 * SECOND))
    [metering] = metered({power: frozen}, rests).meterings
    assert in_phase(power, metering, 15 * SECOND, 55 * SECOND).reasons == reasons
