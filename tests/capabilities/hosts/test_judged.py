"""What is judged and shown of several hosts: their clocks, and what their networks carried."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.hosts import rules
from mixmark.harness.capabilities.hosts.figures import of_runs
from mixmark.harness.contracts.schema import Absent, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.mixed_run import Traffic
from mixmark.harness.plan import mixes
from mixmark.harness.record import files
from mixmark.reporters import report
from tests.fakes.hosts import BOUND_NS, cluster, connection, watched
from tests.fakes.machine import EDGE, SECOND, one_run
from tests.judge.found import facts, said, says, scored
from tests.judge.test_hosts import bounded, carrying, contradicted, on_host


@pytest.fixture(scope="module")
def two() -> Result:
    return cluster()


def traffic(result: Result) -> tuple[Traffic, ...]:
    found = of_runs(judge(result))
    return found[0].traffic if found else ()


def test_a_clock_that_is_not_known_to_a_thousandth_of_the_window_is_told(two: Result) -> None:
    assert said(rules.clocks_synchronised, two) == []
    assert said(rules.clocks_synchronised, bounded(two, 599_000_000)) == []
    [(code, about, values)] = said(rules.clocks_synchronised, bounded(two, SECOND))
    assert (code, about, values["phase"], values["host"]) == ("clocks_synchronised", "run", "mixed.1", "host2")
    assert (values["bound_ms"], values["longer_ms"], round(values["uncertain_pct"], 2)) == (1000, 2000, 0.17)
    alone = tuple(connection(each.phase, "host2", SECOND) for each in two.connections if each.phase != "mixed.1")
    rest = tuple(each for each in two.connections if each.phase == "mixed.1")
    assert said(rules.clocks_synchronised, two.model_copy(update={"connections": (*rest, *alone)})) == [], (
        "no mixed run"
    )


def test_the_score_is_of_the_hosts_that_took_part_and_another_one_is_named(two: Result) -> None:
    absent = (Absent(kind="host", name="host3", reason="its Mixmark is 0.0.9, and this one 0.1.0"),)
    missing = says("hosts_took_part", "run", host="host3", why=absent[0].reason)
    lost = two.model_copy(update={"absent": absent})
    assert scored(lost).problems == () and scored(lost).mixes_per_kwh == scored(two).mixes_per_kwh
    found = judge(lost)
    assert (found.verdict.word, found.exit_code) == ("fair", 0)
    assert says("hosts_took_part.noticed", "run", share=()) in map(facts, found.verdict.reasons)
    without = lost.model_copy(update={"mix": None, "phases": ()})
    assert said(rules.hosts_took_part, without) == said(rules.hosts_took_part, lost) == [missing]
    assert said(rules.hosts_took_part, two) == []


def test_a_clock_that_drifts_as_none_does_and_a_host_that_was_not_reached_are_no_facts() -> None:
    good = cluster(seconds=60)
    first, *others = good.connections
    steep = first.model_copy(update={"clock": first.clock.model_copy(update={"drift": -0.2})})
    assert contradicted(good.model_copy(update={"connections": (steep, *others)})) == [
        f"the clock of host1 drifts by -0.2 in {first.phase}, as no clock does"
    ]
    unreached = contradicted(good.model_copy(update={"connections": others}))
    assert unreached and all("on host1, and the bound of its clock is not known" in each for each in unreached)


def test_the_result_of_a_thousand_hosts_can_be_read_again() -> None:
    few, more = (cluster(names, seconds=5).model_dump_json(indent=2) for names in (("a", "b"), ("a", "b", "c", "d")))
    limits = {"": files.MAX_JSON_BYTES, "{": files.MAX_JSON_OBJECTS, "[": files.MAX_JSON_OBJECTS}
    for sign, most in (limits | {",": files.MAX_JSON_VALUES}).items():
        assert 2 * 500 * (more.count(sign) - few.count(sign)) < most, (
            "twice as much, since real ones are watched longer"
        )


def test_the_traffic_of_each_host_that_was_reached_is_known(two: Result) -> None:
    loud = carrying(two, "host2", 500_000)
    assert [(each.host, each.self_contained) for each in traffic(loud)] == [("host1", True), ("host2", False)]
    unreached = two.model_copy(update={"connections": two.connections[:1]})
    assert [each.host for each in traffic(unreached)] == ["host1"]
    assert of_runs(judge(one_run(None))) is None, "this machine alone"
    begin, end = two.records[0].parent_window_ns or (0, 0)
    silent = traffic(on_host(two, "host1", conditions=watched(begin, end, received_bytes=None)))
    assert [each.self_contained for each in silent] == [None, True]
    assert silent[1] == Traffic("host2", silent[1].seconds, 0, 50_000)
    found = of_runs(judge(two))
    assert found is not None and [(each.phase, each.clock_bound_ns) for each in found] == [("mixed.1", BOUND_NS)]


def test_the_report_shows_clocks_traffic_and_whether_the_run_was_self_contained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    full = report.full(judge(carrying(cluster(("host1", "host2", "host3")), "host3", 500_000)))
    text = " ".join(full.split())
    assert "known to ±200 µs; the window is counted 400 µs longer for it" in text
    assert "300 MB beside the agents' own 150 kB: not self-contained" in text
    row = next(line for line in full.splitlines() if line.startswith("host3 "))
    assert row.split() == ["host3", "50.0", "kB", "300", "MB", "500", "kB/s", "NO"]
    assert "0 B beside the agents' own 100 kB: self-contained" in " ".join(report.full(judge(cluster())).split())
