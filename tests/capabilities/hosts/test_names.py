"""A host's ids and timestamps translated into the run's, and back; the meterings of all hosts as one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.capabilities.hosts import clocks, names
from mixmark.harness.contracts.schema import (
    Absent,
    AcceleratorConditions,
    Clock,
    Conditions,
    Device,
    Fact,
    Metering,
    Phase,
    Samples,
    Task,
)
from mixmark.harness.plan.placement import place
from tests.capabilities.hosts.stand_ins import PACKAGE, device, rate, share
from tests.fakes.machine import completions
from tests.golden import sample

HOUR_NS = 3_600_000_000_000
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


class Own(Fact):
    """A fact of an experiment."""

    ids: ClassVar = ("device",)
    device: str
    what: str


def test_every_id_of_a_device_a_domain_and_a_lacking_source_gets_the_host_and_nothing_else_changes() -> None:
    piece = Device(
        id="cpu:0.1", kind="cpu", parts=("cpu:0/1-of-2",), memory_pool="host", slice_of="cpu:0", cores=(0, 1)
    )
    there = names.to_run("left", piece)
    assert there.model_dump(exclude_defaults=True) == {
        "id": "left/cpu:0.1",
        "kind": "cpu",
        "parts": ("left/cpu:0/1-of-2",),
        "memory_pool": "left/host",
        "slice_of": "left/cpu:0",
        "cores": (0, 1),
    }
    assert there.host == "left" and there.on_host
    Device.model_validate(there.model_dump())
    package = PACKAGE.model_copy(update={"parent": "rapl:all"})
    domain = names.to_run("left", package)
    assert (domain.id, domain.parent, domain.covers) == ("left/rapl:0", "left/rapl:all", ("left/cpu:0",))
    absent = names.to_run("left", Absent(kind="meter", name="nvml", reason="no driver", covers=("gpu:0",)))
    assert (absent.name, absent.covers, absent.reason) == ("left/nvml", ("left/gpu:0",), "no driver")
    own = Own(device="gpu:0", what="host/x")
    moved = names.to_run("left", own)
    assert (moved.device, moved.what) == ("left/gpu:0", "host/x")
    assert [names.to_host(fact) for fact in (there, domain, moved)] == [piece, package, own]


@given(
    placed=st.lists(st.tuples(st.sampled_from(["left", "mid", "right"]), st.integers(0, 3)), unique=True, min_size=1)
)
def test_the_parts_of_all_hosts_together_are_the_phase(placed: list[tuple[str, int]]) -> None:
    devices = [f"{host}/npu:{number}" for host, number in placed]
    tasks = tuple(Task(device=id, shares=(share("mix1", "low", id), share("mix1", "high", id))) for id in devices)
    rates = tuple(rate(suite, id) for id in devices for suite in ("low", "high"))
    placement = place({"low": 1, "high": 1}, rates, list(map(device, devices)), pool_bytes={"left/host": 9})
    phase = Phase(name="mix1", purpose="mixed", tasks=tasks, placement=placement)
    parts = {host: names.phase_of(host, phase) for host in dict.fromkeys(host for host, _ in placed)}
    joined = [names.to_run(host, part) for host, part in parts.items()]
    by_device = {task.device: task for part in joined for task in part.tasks}
    assert [by_device[task.device] for task in tasks] == list(tasks)
    assert {rate for part in joined if part.placement for rate in part.placement.rates} == set(rates)
    for part in parts.values():
        assert part.placement is not None
        assert not any(getattr(part.placement, name) for name in names.PLANS)
        assert {rate.device for rate in part.placement.rates} == {task.device for task in part.tasks}
        assert (part.name, part.purpose) == (phase.name, phase.purpose)
        Phase.model_validate(part.model_dump(mode="json"))  # as it crosses the network
    assert names.phase_of("elsewhere", phase).tasks == ()


def test_a_record_gets_the_hosts_names_and_the_runs_timestamps() -> None:
    conditions = Conditions(begin_ns=1_400, end_ns=2_600, accelerators=(AcceleratorConditions(id="gpu:0"),))
    at_home = sample.record("low.a", "low", "sample", completions([(1_500, 1_600), (1_700, 1_900)], 1)).model_copy(
        update={
            "parent_window_ns": (1_450, 2_500),
            "conditions": (conditions,),
            "failed_watchers": (Absent(kind="watcher", name="nvml", reason="no driver"),),
        }
    )
    there = names.to_run("left", at_home, AHEAD)
    assert there.route.device == "left/cpu:0"
    assert there.parent_window_ns == (950, 2_000)
    assert [(block.begin_ns, block.end_ns) for block in there.conditions] == [(900, 2_100)]
    assert there.conditions[0].accelerators[0].id == "left/gpu:0"
    assert there.failed_watchers[0].name == "left/nvml"
    assert there.completions is not None
    assert there.completions.issued_ns.tolist() == there.completions.due_ns.tolist() == [1_000, 1_200]
    assert there.completions.yielded_ns.tolist() == [1_100, 1_400]
    failed = at_home.model_copy(update={"completions": None, "parent_window_ns": None})
    assert names.to_run("left", failed, AHEAD).completions is None


@given(clock=drifting, since_ns=st.lists(st.integers(-HOUR_NS, HOUR_NS), min_size=2, max_size=40))
def test_timestamps_keep_their_order_and_durations_change_by_the_drift_alone(clock: Clock, since_ns: list[int]) -> None:
    stamps = sorted(clock.at_ns + clock.offset_ns + since for since in since_ns[: len(since_ns) // 2 * 2])
    moved = names.to_run("left", completions([*zip(stamps[::2], stamps[1::2], strict=True)], 1), clock)
    ours = np.ravel(np.column_stack([moved.issued_ns, moved.yielded_ns])).tolist()
    assert ours == sorted(ours)
    assert ours == [clocks.ours_ns(clock, stamp) for stamp in stamps], "one timestamp and a column move alike"
    assert abs((ours[-1] - ours[0]) * (1 + clock.drift) - (stamps[-1] - stamps[0])) <= 2
    for our, stamp in zip(ours, stamps, strict=True):
        assert abs(stamp - our - clock.offset_ns - clock.drift * (our - clock.at_ns)) <= 2


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
    return names.to_run(host, at_home, clock)


def test_the_meters_of_all_hosts_are_one_metering() -> None:
    left = metering("left", 100, [(100, 200), (900, 1_000)])
    right = metering("right", 600, [(640, 740), (1_440, 1_500)], AHEAD)
    assert (right.begin_ns, right.end_ns) == (100, 1_100)
    together = names.merged([left, right])
    assert together is not None
    assert (together.begin_ns, together.end_ns, together.cpu_ns) == (100, 1_100, 6)
    assert together.idle_ns == ((140, 200), (940, 1_000)), "idle while every host was"
    samples = together.samples["right/rapl:0"]
    assert (samples.before_ns.tolist(), samples.after_ns.tolist()) == ([100, 110], [101, 111])
    assert together.samples["left/rapl:0"].values.tolist() == [5.0, 6.0]
    assert together.lost == {"left/nvml:0": "unplugged", "right/nvml:0": "unplugged"}
    assert together.reading_age_ns == {"left/rapl:0": 4, "right/rapl:0": 4}


@pytest.mark.parametrize("other", [[], [(500, 600), (900, 1_000)]])
def test_hosts_that_were_never_idle_together_have_no_idle_time(other: list[tuple[int, int]]) -> None:
    together = names.merged([metering("left", 100, [(100, 200)]), metering("right", 100, other)])
    assert together is not None and together.idle_ns == ()
    assert names.merged([]) is None
