"""A run over several hosts is judged like a run on one: each host by itself, and by name where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import (
    Conditions,
    Connection,
    Cost,
    Hosts,
    Limits,
    Phase,
    Rate,
    Result,
    Share,
    System,
    Task,
)
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.energy import total
from mixmark.harness.judge.energy.reading import same
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.rules import integrity, interference, quality
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.plan.placement import place
from tests.fakes.hosts import BOUND_NS, WATTS, cluster, connection, environment_of, watched
from tests.fakes.machine import SECOND, device
from tests.golden import sample
from tests.judge.found import canaries, facts, said, says, scored

LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=SECOND, min_feeds=1, audits=0)


@pytest.fixture(scope="module")
def two() -> Result:
    return cluster()


def on_host(about: Result, host: str, phase: str = "mixed.1", **changed: Any) -> Result:
    """The same, with these facts of all records of a host in a phase."""
    return sample.altered(about, lambda each: (host_of(each.route.device), each.phase) == (host, phase), **changed)


def bounded(about: Result, bound_ns: int, host: str = "host2") -> Result:
    told = (
        connection(each.phase, host, bound_ns) if (each.phase, each.host) == ("mixed.1", host) else each
        for each in about.connections
    )
    return about.model_copy(update={"connections": tuple(told)})


def test_a_good_run_over_two_hosts_has_a_score_and_nothing_invalid_or_noticed(two: Result) -> None:
    found = judge(two)
    assert [each for each in found.findings if each.severity != "note"] == []
    assert found.score and found.score.mixes_per_kwh and found.exit_code == 0


# the clocks


def test_what_is_not_known_of_a_clock_makes_the_window_longer_and_never_the_rate_higher(two: Result) -> None:
    plain = scored(two.model_copy(update={"connections": ()})).runs[0]
    [run], [off] = scored(two).runs, scored(bounded(two, 30 * SECOND)).runs
    assert plain.clock_bound_ns == 0 and run.clock_bound_ns == BOUND_NS and off.clock_bound_ns == 30 * SECOND
    assert (off.begin_ns, off.end_ns) == (plain.begin_ns - 30 * SECOND, plain.end_ns + 30 * SECOND)
    assert off.mixes == run.mixes == plain.mixes, "not one unit more is counted"
    seconds = plain.length_ns / SECOND
    assert off.mixes_per_hour.estimate == pytest.approx(plain.mixes_per_hour.estimate * seconds / (seconds + 60))


def test_the_joules_are_those_of_the_longer_window(two: Result) -> None:
    """A meter reads for 2 s before and after the phase, and by half a second beyond."""
    plain, off = scored(two.model_copy(update={"connections": ()})).runs[0], scored(bounded(two, SECOND)).runs[0]
    assert plain.total.joules and off.total.joules == pytest.approx(plain.total.joules + 2 * 1200, rel=1e-4)
    assert plain.mixes_per_kwh and off.mixes_per_kwh and off.mixes_per_kwh.estimate < plain.mixes_per_kwh.estimate


def test_a_stamp_may_be_as_late_as_its_clock_is_off(two: Result) -> None:
    solo = next(each for each in two.records if each.phase != "mixed.1" and host_of(each.route.device) == "host2")
    assert solo.parent_window_ns is not None
    begin_ns, end_ns = solo.parent_window_ns
    early = on_host(two, "host2", solo.phase, parent_window_ns=(begin_ns + SECOND, end_ns + SECOND))
    assert [key for _, key, _ in said(integrity.window_bracketed, early)] == [solo.key]
    connections = (*two.connections, connection(solo.phase, "host2", SECOND))
    off = early.model_copy(update={"connections": connections})
    assert said(integrity.window_bracketed, off) == said(integrity.window_bracketed, two) == []


# hosts that are lost


def test_a_host_that_begins_late_is_a_finding_and_contradicts_nothing(two: Result) -> None:
    begin_ns, end_ns = two.records[0].parent_window_ns or (0, 0)
    seconds = (end_ns - begin_ns + 2 * BOUND_NS) / SECOND
    planned = needs(two, end_ns - begin_ns)
    for late_s in (10, 20):
        late = on_host(planned, "host2", parent_window_ns=(begin_ns + late_s * SECOND, end_ns))
        values = {"phase": "mixed.1", "host": "host2", "idle_s": 20.0, "window_s": seconds}
        expected = [says("hosts_at_work.late", "run", **values)] if late_s == 20 else []
        assert said(quality.hosts_at_work, late) == expected
        assert scored(late).runs[0].length_ns == scored(two).runs[0].length_ns
        assert not [each for each in contradictions(late, SuiteClaims()) if "shorter than planned" in each]
    cut = sample.altered(planned, lambda each: each.phase == "mixed.1", parent_window_ns=(begin_ns, end_ns - SECOND))
    assert [each for each in contradictions(cut, SuiteClaims()) if "shorter than planned" in each]


def needs(about: Result, min_ns: int) -> Result:
    """The same, of a plan whose windows last at least so long."""
    said = about.model_dump_json(include={"phases"}).replace('"min_ns":0', f'"min_ns":{min_ns}')
    return about.model_copy(update={"phases": tuple(map(Phase.model_validate, json.loads(said)["phases"]))})


def test_a_leading_process_that_stood_still_is_named_first_where_it_moved_the_figure(two: Result) -> None:
    slept = two.model_copy(update={"connections": (connection("mixed.1", "host2", unled_ns=34 * SECOND),)})
    [(_, _, values)] = found = said(quality.hosts_at_work, slept)
    assert values["idle_s"] == 34 and judge(slept).verdict.word == "fair"
    busy = watched(0, 600 * SECOND, busy_ns=300 * SECOND)
    disturbed = judge(on_host(slept, "host2", conditions=busy)).verdict
    assert (disturbed.word, facts(disturbed.reasons[0])) == ("disturbed", found[0])


# what each host went through


def test_a_disturbance_is_told_with_the_name_of_its_host(two: Result) -> None:
    begin, end = two.records[0].parent_window_ns or (0, 0)
    third = (end - begin) // 3 + 1
    busy = on_host(two, "host2", conditions=watched(begin, end, busy_ns=third + third // 5, stolen_ns=third // 5))
    foreign = said(interference.no_foreign_load, busy)
    assert foreign and {host_of(each.route.device) for each in busy.records if each.key in {a for _, a, _ in foreign}}
    assert all(values["cores"] == pytest.approx(0.2) and values["cpus"] == 2 for _, _, values in foreign)
    assert said(interference.no_steal_time, busy)
    used, taken = (facts(each) for each in judge(busy).verdict.reasons)
    assert (used[0], used[2]["machine"]) == ("no_foreign_load.much", "host2")
    assert (taken[0], taken[2]["machine"]) == ("no_steal_time.much", "host2")


def looped(about: Result, host: str, *times: int) -> Result:
    """A loop took so long on a host, before the mix and after it."""
    blocks = ((at * SECOND, each) for at, each in zip((-10, 700), times, strict=True))
    canary = tuple(Conditions(begin_ns=at, end_ns=at + SECOND, canary_ns=(each,)) for at, each in blocks)
    return on_host(about, host, conditions=canary)


def test_the_fixed_loop_is_compared_on_each_host_by_itself(two: Result) -> None:
    """A loop of 1 ms on one host and of 2 ms on the other tells that the hosts differ, and nothing else."""
    apart = looped(looped(two, "host1", 1_000_000, 1_000_000), "host2", 2_000_000, 2_000_000)
    assert said(interference.canary_stable, apart) == []
    slower = looped(apart, "host2", 2_000_000, 2_100_000)
    apart_ms = {"fastest_ms": 2.0, "slowest_ms": 2.1, "drift": 0.05, "limit": 0.02}
    assert said(interference.canary_stable, slower) == [says("canary_stable", "host2", **apart_ms)]
    [(_, about, _)] = said(interference.canary_stable, canaries((1_000_000,), (1_100_000,)))
    assert about == "run", "this machine alone has no name"


def test_what_is_too_fast_for_the_cache_of_its_host_is_told() -> None:
    """Four times a cache of 32 MiB is less than what it streams, and four times one of 512 MiB is more."""
    fast = sample.record("b", "llm", "token", sample.closed_loop([[20]] * 4), device="host2/cpu:0", costs=STREAMED)
    about = sample.result(sample.probe("a", 70, 400, device="host2/cpu:0"), fast)
    small, large = (sample.system().model_copy(update={"caches": {"L3": size}}) for size in ("32768K", "512M"))

    def told(first: System, second: System) -> list[str]:
        hosts = (Hosts(names=("host1",), system=first), Hosts(names=("host2",), system=second))
        of_both = about.model_copy(update={"system": first, "hosts": hosts})
        return [values["unit"] for _, _, values in said(integrity.below_ceiling, of_both)]

    assert told(large, small) == ["FLOP/s", "byte/s"]
    assert told(small, large) == ["FLOP/s"]


STREAMED = (Cost(name="forward", flops=1e11, bytes=4e8, streamed_bytes=4e8),)


# traffic


def carrying(about: Result, host: str, bytes_per_s: int) -> Result:
    begin, end = about.records[0].parent_window_ns or (0, 0)
    third_s = ((end - begin) // 3 + 1) / SECOND
    return on_host(about, host, conditions=watched(begin, end, received_bytes=round(bytes_per_s * third_s)))


def test_traffic_beside_the_agent_s_own_is_told_of_its_host(two: Result) -> None:
    assert said(integrity.network_quiet, two) == []
    loud = carrying(two, "host2", 500_000)
    found = said(integrity.network_quiet, loud)
    for code, _, values in found:
        assert (code, values["machine"]) == ("network_quiet", "host2")
        assert round(values["outside_kb_per_s"]) == 500
    assert {about.split(".")[-1] for _, about, _ in found} <= {"host2-gpu-0", "host2-cpu-0"}
    streamed = tuple(
        connection(each.phase, each.host, received_bytes=300_000_000) if each.phase == "mixed.1" else each
        for each in loud.connections
    )
    assert said(integrity.network_quiet, loud.model_copy(update={"connections": streamed})) == [], "it was the agent's"


# what cannot be true


GOOD = cluster(seconds=60)
BASE = frozenset(contradictions(GOOD, SuiteClaims()))


def contradicted(about: Result) -> list[str]:
    """What is said beside what is said of the simulation, whose records alone were never planned."""
    return [each for each in contradictions(about, SuiteClaims()) if each not in BASE]


def test_the_hosts_of_a_result_do_not_contradict_each_other() -> None:
    [group] = GOOD.hosts
    first = GOOD.connections[0]
    double = Hosts(names=("host1",), system=group.system)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"hosts": (group, double)}, "two of the hosts have the same name"),
        ({"hosts": (Hosts(names=("host1",), system=group.system),)}, "host2/gpu:0 belongs to no host of the run"),
        ({"hosts": ()}, "host1/plug belongs to no host of the run"),
        ({"connections": (first, *GOOD.connections)}, "two of the connections have the same name"),
        (
            {"connections": (connection(first.phase, "host9"), *GOOD.connections)},
            f"host9 in {first.phase} belongs to no host of the run",
        ),
        ({"devices": (*GOOD.devices, device("gpu:7"))}, "gpu:7 belongs to no host of the run"),
        ({"environments": {"host9/acme": environment_of("3.12")}}, "host9/acme belongs to no host of the run"),
    )
    assert contradicted(GOOD) == []
    for changed, text in cases:
        said_of_it = contradicted(GOOD.model_copy(update=changed))
        assert any(text in each for each in said_of_it), (text, said_of_it)


class Counted(tuple[Connection, ...]):
    """It counts how often it is looked through."""

    looks = 0

    def __iter__(self) -> Iterator[Connection]:
        self.looks += 1
        return super().__iter__()


def test_what_contradicts_itself_is_found_in_as_many_looks_whatever_the_number_of_hosts() -> None:
    several = [cluster(names, seconds=5) for names in (("a", "b"), ("a", "b", "c", "d"))]
    connections = [Counted(each.connections) for each in several]
    for whole, own in zip(several, connections, strict=True):
        contradicted(sample.but(whole, connections=own))
    assert connections[0].looks == connections[1].looks


def test_phases_may_overlap_by_as_much_as_the_clocks_of_their_hosts_are_not_known() -> None:
    """All phases of the simulation begin at the same time."""
    bounds = tuple(connection(each.phase, each.host, 10**12) for each in GOOD.connections)
    vague = contradictions(GOOD.model_copy(update={"connections": bounds}), SuiteClaims())
    assert [each for each in vague if "was over" in each] == []
    over = [each for each in BASE if "was over" in each and "mixed.1" not in each]
    assert over and not [each for each in over if "host1" in each and "host2" in each], "hosts measure side by side"


@pytest.mark.parametrize(("order", "early"), [((0, 2, 1), []), ((1, 2, 0), [0])], ids=["side by side", "swapped"])
def test_each_host_has_measured_its_phases_in_their_order(order: tuple[int, ...], early: list[int]) -> None:
    solo = [each for each in GOOD.records if each.scenario == "offline"]
    first, second, other = solo[0], solo[1], next(each for each in solo if each.route.host == "host2")
    shares = [
        Share(key=each.key, route=each.route, scenario="offline", limits=LIMITS) for each in (first, second, other)
    ]
    phases = [
        Phase(name=each.key, purpose="solo", tasks=(Task(device=each.route.device, shares=(each,)),)) for each in shares
    ]
    records = tuple((first, second, other)[at] for at in order)
    found = contradictions(GOOD.model_copy(update={"phases": tuple(phases), "records": records}), SuiteClaims())
    assert [each for each in found if "turn" in each] == [
        f"{(first, second, other)[at].key} was measured before its turn" for at in early
    ]


def test_a_device_of_two_hosts_is_no_fact() -> None:
    gpu, *rest = GOOD.devices
    for changed in ({"parts": ("host1/gpu:0", "host2/gpu:0")}, {"memory_pool": "host2/gpu:0"}):
        forged = sample.but(GOOD, devices=(sample.but(gpu, **changed), *rest))
        assert contradicted(forged) == ["host1/gpu:0 has parts or memory of another host"]
    with pytest.raises(ValidationError):
        connection("mixed.1", "host1", 1 << 61)


def test_hosts_are_watched_and_begin_each_by_its_own_clock() -> None:
    begin, end = next(each.parent_window_ns for each in GOOD.records if each.phase == "mixed.1") or (0, 0)
    off = on_host(GOOD, "host2", parent_window_ns=(begin + 1000, end + 1000), conditions=watched(begin, end, busy_ns=1))
    assert contradicted(off) == []
    one = next(each for each in GOOD.records if each.phase == "mixed.1")
    found = contradicted(sample.altered(GOOD, lambda each: each is one, parent_window_ns=(begin + 1000, end + 1000)))
    assert any(" did not begin and end with mixed.1" in each for each in found)


# the plan


def test_the_threads_of_an_accelerator_take_time_of_its_own_host_only() -> None:
    """Four accelerators on host1 leave its processor nothing; the processor of host2 helps with all of its time."""
    gpus = [f"host1/gpu:{at}" for at in range(4)]
    ids = [*gpus, "host1/cpu:0", "host2/cpu:0"]
    known = [
        Rate(suite=suite, device=id, adapter="acme", precision="bf16", batch=1, units_per_s=rate)
        for id in ids
        for suite, rate in (("llm", 10.0 if "gpu" in id else 1.0), ("dlrm", 1.0 if "gpu" in id else 10.0))
    ]
    found = place({"llm": 1, "dlrm": 1}, known, [device(id) for id in ids], host_fraction=0.25)
    used = {id: sum(parts.get(id, 0) for parts in found.fractions.values()) for id in ids}
    assert used["host2/cpu:0"] == pytest.approx(1, abs=1e-6)
    together = place({"llm": 1, "dlrm": 1}, known, [device(id) for id in ids], host_fraction=0.0)
    assert found.mixes_per_s < together.mixes_per_s * (1 - 1e-3), "host1's processor is taken"


# energy


def test_hosts_that_name_one_plug_are_found_without_comparing_each_two_and_a_solo_has_the_energy_of_its_own_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = cluster([f"host{number}" for number in range(1, 7)], seconds=60)
    solo = next(each for each in gather(whole).measured if each.key == "solo.llm.host3-gpu-0")
    assert solo.energy is not None and solo.energy.domains == ("host3/plug",)
    assert solo.energy.joules == pytest.approx(WATTS * 1000, rel=1e-4)
    compared = Mock(side_effect=same)
    monkeypatch.setattr(total, "same", compared)
    assert scored(whole).boundary == "wall" and not compared.called
    meterings = tuple(
        each.model_copy(update={"samples": {**each.samples, "host6/plug": each.samples["host4/plug"]}})
        if each.phase == "mixed.1"
        else each
        for each in whole.meterings
    )
    cheat = whole.model_copy(update={"meterings": meterings})
    twins = {"phase": "mixed.1", "domain": "host4/plug", "other": "host6/plug"}
    assert said(quality.energy_agrees, cheat) == [says("energy_agrees.twins", "run", **twins)]
    assert scored(cheat).boundary is None and compared.call_count == 4, "once for each look"
