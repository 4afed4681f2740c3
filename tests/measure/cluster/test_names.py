"""What a host calls its own, as the run calls it; its stamps on the run's clock; the readings of all hosts together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.contracts.device_ids import host_of, local
from mixmark.harness.contracts.schema import (
    Absent,
    AcceleratorConditions,
    Clock,
    Completions,
    Conditions,
    Device,
    Domain,
    Failure,
    Limits,
    Metering,
    Phase,
    Placement,
    Record,
    Route,
    Samples,
    Share,
    Task,
)
from mixmark.harness.measure.cluster import clocks, names
from tests.fakes.stand_ins import rate
from tests.golden import sample

HOUR_NS = 3_600_000_000_000
LIMITS = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=0, min_feeds=1)
SAME = Clock(at_ns=0, offset_ns=0, drift=0.0, bound_ns=0, pings=1)
AHEAD = Clock(at_ns=1_000, offset_ns=500, drift=0.0, bound_ns=7, pings=1)

hosts = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)
drifting = st.builds(
    Clock,
    at_ns=st.integers(0, 1 << 58),
    offset_ns=st.integers(-(1 << 59), 1 << 59),
    drift=st.floats(-1e-3, 1e-3),
    bound_ns=st.just(0),
    pings=st.just(1),
)


def theirs(clock: Clock, since_ns: list[int]) -> list[int]:
    """Stamps of the other host so long after the middle of the time in which its clock was looked at."""
    return sorted(clock.at_ns + clock.offset_ns + each for each in since_ns)


def completions(stamps: list[int]) -> Completions:
    """A feed for every two stamps."""
    issued, marks = np.array(stamps[0::2]), np.array(stamps[1::2])
    return Completions(issued, issued, np.arange(1, len(issued) + 1), marks, np.ones(len(marks), np.int64))


def test_all_names_of_a_device_get_the_host_and_nothing_else_changes() -> None:
    slice_ = Device(
        id="cpu:0.1", kind="cpu", parts=("cpu:0/1-of-2",), memory_pool="host", slice_of="cpu:0", cores=(0, 1)
    )
    there = names.device_on("left", slice_)
    assert there.model_dump(exclude_defaults=True) == {
        "id": "left/cpu:0.1",
        "kind": "cpu",
        "parts": ("left/cpu:0/1-of-2",),
        "memory_pool": "left/host",
        "slice_of": "left/cpu:0",
        "cores": (0, 1),
    }
    assert there.host == "left" and there.on_host
    group = Device(id="gpu:both", kind="gpu", parts=("gpu:0", "gpu:1"), memory_pool="gpu:both")
    assert names.device_on("left", group).parts == ("left/gpu:0", "left/gpu:1")
    Device.model_validate(names.device_on("left", group).model_dump())


@given(host=hosts, name=st.sampled_from(["cpu:0", "cpu:0/1-of-2", "gpu:GPU-1/2-of-7", "host", "npu:a.b"]))
def test_a_name_goes_there_and_back(host: str, name: str) -> None:
    there = names.absent_on(host, Absent(kind="device", name=name, reason="")).name
    assert (host_of(there), local(there)) == (host, name)


def test_what_a_meter_reads_is_of_all_agents_on_its_machine() -> None:
    package = Domain(
        id="rapl:0",
        meter="rapl",
        covers=("cpu:0",),
        boundary="devices",
        quantity="energy",
        method="counter",
        parent="rapl:all",
        source="",
    )
    there = names.domain_on("left", package, ["right"])
    assert (there.id, there.parent, there.covers) == ("left/rapl:0", "left/rapl:all", ("left/cpu:0", "right/cpu:0"))
    lacks = Absent(kind="meter", name="nvml", reason="no driver", covers=("gpu:0",))
    there_lacks = names.absent_on("left", lacks)
    assert (there_lacks.name, there_lacks.covers, there_lacks.reason) == ("left/nvml", ("left/gpu:0",), "no driver")


def share(device: str, suite: str) -> Share:
    route = Route(suite=suite, tier="smoke", suite_version="1", device=device, adapter="band", precision="fp32")
    return Share(
        key=f"mix1.{suite}.{device.replace('/', '-').replace(':', '-')}", route=route, scenario="mixed", limits=LIMITS
    )


@given(
    placed=st.lists(st.tuples(st.sampled_from(["left", "mid", "right"]), st.integers(0, 3)), unique=True, min_size=1)
)
def test_the_parts_of_all_hosts_together_are_the_phase(placed: list[tuple[str, int]]) -> None:
    devices = [f"{host}/npu:{number}" for host, number in placed]
    tasks = tuple(Task(device=each, shares=(share(each, "low"), share(each, "high"))) for each in devices)
    rates = tuple(rate(suite, each) for each in devices for suite in ("low", "high"))
    placement = Placement(
        objective="throughput",
        rates=rates,
        fractions={"low": dict.fromkeys(devices, 0.5)},
        mixes_per_s=1,
        bound_per_s=2,
        bound_fractions={"low": dict.fromkeys(devices, 1.0)},
        suite_prices={"low": 1.0},
        device_prices=dict.fromkeys(devices, 1.0),
        pool_bytes={"left/host": 9},
    )
    phase = Phase(name="mix1", purpose="mixed", tasks=tasks, placement=placement)
    parts = {host: names.phase_of(host, phase) for host in dict.fromkeys(host for host, _ in placed)}
    for host, part in parts.items():
        assert {each.device for each in part.tasks} == {f"npu:{number}" for at, number in placed if at == host}
        assert {one.route.device for one in part.shares} == {each.device for each in part.tasks}
        assert part.placement is not None
        assert (part.placement.fractions, part.placement.device_prices, part.placement.pool_bytes) == ({}, {}, {})
        assert {each.device for each in part.placement.rates} == {each.device for each in part.tasks}
        assert (part.name, part.purpose) == (phase.name, phase.purpose)
        Phase.model_validate(part.model_dump(mode="json"))  # as it goes over the line
    assert sorted(one.key for part in parts.values() for one in part.shares) == sorted(one.key for one in phase.shares)
    there = [(f"{host}/{one.route.device}", one.key) for host, part in parts.items() for one in part.shares]
    assert sorted(there) == sorted((one.route.device, one.key) for one in phase.shares)
    assert sum(len(part.placement.rates) for part in parts.values() if part.placement) == len(rates)
    assert names.phase_of("elsewhere", phase).tasks == ()


def test_a_record_gets_the_hosts_names_and_the_runs_stamps() -> None:
    conditions = Conditions(begin_ns=1_400, end_ns=2_600, accelerators=(AcceleratorConditions(id="gpu:0"),))
    at_home = sample.record("low.a", "low", "sample", completions([1_500, 1_600, 1_700, 1_900])).model_copy(
        update={
            "parent_window_ns": (1_450, 2_500),
            "conditions": (conditions,),
            "failed_watchers": (Absent(kind="watcher", name="nvml", reason="no driver"),),
        }
    )
    there = names.record_on("left", at_home, AHEAD)
    assert there.route.device == "left/cpu:0"
    assert there.parent_window_ns == (950, 2_000)
    assert [(each.begin_ns, each.end_ns) for each in there.conditions] == [(900, 2_100)]
    assert there.conditions[0].accelerators[0].id == "left/gpu:0"
    assert there.failed_watchers[0].name == "left/nvml"
    assert there.completions is not None
    assert there.completions.issued_ns.tolist() == [1_000, 1_200]
    assert there.completions.yielded_ns.tolist() == [1_100, 1_400]
    assert there.completions.due_ns.tolist() == [1_000, 1_200]
    failed = Record(
        key="x",
        phase="x",
        route=at_home.route,
        scenario="offline",
        unit="sample",
        error=Failure(kind="hung", message="a"),
    )
    assert names.record_on("left", failed, AHEAD).completions is None


def test_no_digit_of_a_stamp_is_lost_after_years_of_uptime() -> None:
    years = 3 * 365 * 24 * HOUR_NS
    clock = Clock(at_ns=years, offset_ns=-years + 1, drift=0.0, bound_ns=0, pings=1)
    stamps = [years + clock.offset_ns + each for each in (-3, -1, 0, 1, 2, 9)]
    moved = names.record_on("left", sample.record("a", "low", "sample", completions(stamps)), clock).completions
    assert moved is not None
    assert moved.issued_ns.tolist() + moved.yielded_ns.tolist() == [years + each for each in (-3, 0, 2, -1, 1, 9)]


@given(clock=drifting, since_ns=st.lists(st.integers(-HOUR_NS, HOUR_NS), min_size=2, max_size=40))
def test_moved_stamps_keep_their_order_and_durations_change_by_the_drift_alone(
    clock: Clock, since_ns: list[int]
) -> None:
    stamps = theirs(clock, since_ns)
    low, high = clocks.ours_ns(clock, stamps[0]), clocks.ours_ns(clock, stamps[-1])
    even = stamps[: len(stamps) // 2 * 2]
    moved = names.record_on("left", sample.record("a", "low", "sample", completions(even)), clock).completions
    assert moved is not None
    ours = np.ravel(np.column_stack([moved.issued_ns, moved.yielded_ns])).tolist()
    assert ours == sorted(ours)
    assert ours == [clocks.ours_ns(clock, each) for each in even], "a single stamp and a column move alike"
    assert abs((high - low) * (1 + clock.drift) - (stamps[-1] - stamps[0])) <= 2
    drifted = [their - our - clock.offset_ns for our, their in zip(ours, even, strict=True)]
    lines = [clock.drift * (our - clock.at_ns) for our in ours]
    assert all(abs(offset - line) <= 2 for offset, line in zip(drifted, lines, strict=True))


def metering(host: str, begin_ns: int, idle_ns: list[tuple[int, int]], clock: Clock = SAME) -> Metering:
    samples = Samples(
        np.array([begin_ns, begin_ns + 10]), np.array([begin_ns + 1, begin_ns + 11]), np.array([5.0, 6.0])
    )
    at_home = Metering(
        phase="mix1",
        begin_ns=begin_ns,
        end_ns=begin_ns + 1_000,
        cpu_ns=3,
        idle_ns=tuple(idle_ns),
        samples={"rapl:0": samples},
        lost={"nvml:0": "unplugged"},
        reading_age_ns={"rapl:0": 4},
    )
    return names.metering_on(host, at_home, clock)


def test_the_meters_of_all_hosts_are_one_metering() -> None:
    left = metering("left", 100, [(100, 200), (900, 1_000)])
    right = metering("right", 600, [(640, 740), (1_440, 1_500)], AHEAD)
    together = names.merged([left, right])
    assert together is not None
    assert (together.begin_ns, together.end_ns, together.cpu_ns) == (100, 1_100, 6)
    assert together.idle_ns == ((140, 200), (940, 1_000)), "idle while every host was"
    assert together.samples["right/rapl:0"].before_ns.tolist() == [100, 110]
    assert together.samples["left/rapl:0"].values.tolist() == [5.0, 6.0]
    assert together.lost == {"left/nvml:0": "unplugged", "right/nvml:0": "unplugged"}
    assert together.reading_age_ns == {"left/rapl:0": 4, "right/rapl:0": 4}


@pytest.mark.parametrize("other", [[], [(500, 600), (900, 1_000)]])
def test_hosts_that_were_never_idle_together_have_no_idle_time(other: list[tuple[int, int]]) -> None:
    together = names.merged([metering("left", 100, [(100, 200)]), metering("right", 100, other)])
    assert together is not None and together.idle_ns == ()
    assert names.merged([]) is None
