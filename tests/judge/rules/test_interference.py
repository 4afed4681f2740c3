"""The rules about disturbances: what keeps them and what does not."""

from __future__ import annotations

import pytest

from mixmark.harness.contracts.schema import Absent, Cost, Record
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import interference, records
from mixmark.harness.judge.rules.rule import Rule
from tests.golden.sample import GPU, closed_loop, probe, record, result
from tests.judge.found import QUIET, SECOND, beside, block, canaries, done, failed, gpu_state, said, six


@pytest.mark.parametrize(
    "rule",
    [
        records.finished,
        records.batch_search_finished,
        records.enough_feeds,
        records.ceiling_known,
        interference.speed_stable,
    ],
)
def test_a_clean_result_passes(rule: Rule) -> None:
    assert said(rule, done()) == []


def test_a_probe_that_slows_down_is_a_warning() -> None:
    drifting = result(probe("a", 100, 400), probe("c", 120, 400))
    [(severity, about, message)] = said(interference.speed_stable, drifting)
    assert (severity, about) == ("warning", "cpu:0")
    assert "flop/s" in message
    assert "20 %" in message


def test_a_drift_within_the_scatter_of_a_probes_passes_says_nothing() -> None:
    def passes(key: str, *gemm_ns: int) -> Record:
        costs = (Cost(name="gemm", flops=1e10, bytes=1e8), Cost(name="read", flops=1e9, bytes=4e9))
        done = closed_loop([[each, 400] for each in gemm_ns])
        return record(key, "probe", "kernel", done, scenario="probe", costs=costs)

    calm = passes("a", 1000, 1000, 1000, 1000, 700), passes("c", 1000, 1000, 1000, 1000, 1000)
    assert said(interference.speed_stable, result(*calm)) == [], "one fast pass is luck"
    rough = passes("a", 1000, 1300, 1600, 1900, 2200), passes("c", 1200, 1200, 1200, 1200, 1200)
    assert said(interference.speed_stable, result(*rough)) == [], "33 % apart, and the first one's quartiles 39 %"
    slow = passes("a", 1600, 1600, 1600, 1600, 1600), passes("c", 1200, 1200, 1200, 1200, 1200)
    [(severity, _, message)] = said(interference.speed_stable, result(*slow))
    assert severity == "warning" and "moved by 33 % in flop/s" in message


DISTURBANCES = (
    interference.no_steal_time,
    interference.no_quota_throttling,
    interference.no_foreign_load,
    interference.no_memory_pressure,
    interference.no_paging,
    interference.frequency_stable,
    interference.no_thermal_throttling,
    interference.no_accelerator_throttling,
    interference.accelerators_exclusive,
    interference.canary_stable,
    interference.wall_clock_steady,
)


@pytest.mark.parametrize("rule", DISTURBANCES)
def test_what_is_at_its_limit_or_unknown_passes(rule: Rule) -> None:
    assert said(rule, six()) == []
    assert said(rule, six(**dict.fromkeys(QUIET))) == []
    assert said(rule, result(record("b", "llm", "token", closed_loop([[1]])))) == []
    assert said(rule, failed("crashed")) == []


@pytest.mark.parametrize(
    ("rule", "changed", "message"),
    [
        (
            interference.no_steal_time,
            {"stolen_ns": 12_000_000},
            "the hypervisor took 0.6 % of the CPUs' time (limit 0.5 %), 0.6 % in the worst block (limit 2.0 %)",
        ),
        (
            interference.no_quota_throttling,
            {"throttled_periods": 2, "throttled_ns": 50_000_000},
            "the cgroup's CPU quota ran out in 10 periods, for 0.25 s in all (limit 0)",
        ),
        (
            interference.no_quota_throttling,
            {"throttled_periods": 2, "throttled_ns": None},
            "the cgroup's CPU quota ran out in 10 periods (limit 0)",
        ),
        (
            interference.no_foreign_load,
            {"own_ns": SECOND // 2},
            "other programs kept 0.50 of 2 CPUs busy, 25 % of the machine (limit 1.0 %)",
        ),
        (
            interference.no_foreign_load,
            {"cpus": 100, "own_ns": SECOND // 2},
            "other programs kept 0.50 of 100 CPUs busy, 0.5 % of the machine (limit 0.2 %)",
        ),
        (
            interference.no_memory_pressure,
            {"memory_stall_ns": 20_000_000},
            "tasks waited for memory during 2.0 % of the time (limit 0.1 %)",
        ),
        (interference.no_paging, {"major_faults": 3}, "the workers waited for 3.0 pages a second from disk (limit 1)"),
        (interference.no_paging, {"swapped_in_pages": 3}, "3.0 pages a second were swapped in (limit 1)"),
        (interference.no_paging, {"swapped_out_pages": 3}, "3.0 pages a second were swapped out (limit 1)"),
        (
            interference.no_thermal_throttling,
            {"thermal_throttles": 4},
            "the CPUs' thermal throttle counters rose by 20 at up to 60 °C (limit 0)",
        ),
        (
            interference.wall_clock_steady,
            {"clock_step_ns": -3 * SECOND},
            "the wall clock stepped by -3.00 s (limit 0.1 s): it was set, or the machine slept",
        ),
    ],
)
def test_a_disturbance_is_a_warning_with_figure_and_limit(rule: Rule, changed: dict[str, object], message: str) -> None:
    assert said(rule, six(**changed)) == [("warning", "b", message)]


def test_what_the_kernel_does_is_no_foreign_load() -> None:
    """A tenth of the CPUs' time is not the run's, and the kernel's threads had all of it but 1 %."""
    others = {"own_ns": SECOND - 200_000_000}
    assert said(interference.no_foreign_load, six(**others))
    assert not said(interference.no_foreign_load, six(**others, kernel_ns=180_000_000))
    assert judge(six(**others)).verdict.word == "disturbed"
    assert judge(six(**others, kernel_ns=180_000_000)).verdict.word == "fair"


def test_one_bad_block_of_steal_is_enough() -> None:
    spread = beside(*(block(second, stolen_ns=50_000_000 if second == 3 else 0) for second in range(1, 6)))
    [(_, _, message)] = said(interference.no_steal_time, spread)
    assert message.endswith("2.5 % in the worst block (limit 2.0 %)")


def test_what_happens_outside_the_window_does_not_count() -> None:
    calm = [block(second) for second in range(1, 6)]
    loading = block(-1, major_faults=9_999)
    reaching_in = block(0, major_faults=9_999)
    ending = block(6, major_faults=9_999)
    assert said(interference.no_paging, beside(loading, reaching_in, *calm, ending)) == []
    assert said(interference.no_paging, beside(loading, reaching_in)) != []  # all there is


def test_clocks_that_sink_are_a_warning() -> None:
    falling = beside(*(block(second, clock_mean_mhz=4000.0 - 50 * second) for second in range(6)))
    message = "the clock of the CPUs fell by 5.1 %: 3950 MHz at first, 3750 MHz at last (limit 3.0 %)"
    held = beside(*(block(second, clock_mean_mhz=4000.0 - 20 * second) for second in range(6)))
    assert said(interference.frequency_stable, held) == []
    assert said(interference.frequency_stable, beside(*falling.records[0].conditions[:2])) == []  # too few to tell
    [(severity, about, told)] = said(interference.frequency_stable, falling)
    assert (severity, about) == ("warning", "b")
    assert told == message


def test_a_gpu_is_judged_only_where_the_record_ran_on_it() -> None:
    hot = gpu_state(reasons=("thermal protection",), foreign_pids=(41, 42))
    for rule in (interference.no_accelerator_throttling, interference.accelerators_exclusive):
        assert said(rule, beside(block(1, **hot), device="cpu:0")) == []
    on_it = beside(block(1, **hot), block(2, **gpu_state()), device=GPU)
    message = f"{GPU} was held back by thermal protection in 1 of 2 blocks (limit 0)"
    assert said(interference.no_accelerator_throttling, on_it) == [("warning", "b", message)]
    assert said(interference.accelerators_exclusive, on_it) == [
        ("warning", "b", f"foreign processes on {GPU}: 2 (41, 42; limit 0)")
    ]


def test_a_group_is_judged_by_its_parts() -> None:
    hot = beside(block(1, **gpu_state(foreign_pids=(41,))), device="gpu:both")
    group = hot.devices[1].model_copy(update={"id": "gpu:both", "parts": (GPU, "gpu:other")})
    [(_, about, message)] = said(interference.accelerators_exclusive, hot.model_copy(update={"devices": (group,)}))
    assert (about, message) == ("b", f"foreign processes on {GPU}: 1 (41; limit 0)")


def test_a_gpu_left_alone_passes() -> None:
    calm = beside(*(block(second, **gpu_state()) for second in range(1, 6)), device=GPU)
    for rule in (
        interference.no_accelerator_throttling,
        interference.accelerators_exclusive,
        interference.frequency_stable,
    ):
        assert said(rule, calm) == []


def test_a_watcher_that_failed_is_told_once() -> None:
    gone = Absent(kind="watcher", name="onyx", reason="the driver is gone")
    calm = beside(block(1))
    blind = calm.model_copy(
        update={"records": tuple(each.model_copy(update={"failed_watchers": (gone,)}) for each in calm.records * 2)}
    )
    message = (
        "watcher onyx failed, so whether its accelerators were disturbed is not known from here on: the driver is gone"
    )
    assert said(interference.accelerators_watched, calm) == []
    assert said(interference.accelerators_watched, blind) == [("warning", "b", message)]
    before = blind.model_copy(update={"absent": (gone,)})
    assert said(interference.accelerators_watched, before) == []  # the run's absences tell it


def test_a_power_cap_is_a_note() -> None:
    capped = beside(block(1, **gpu_state(reasons=("power cap",), power_cap_mw=350_000)), device=GPU)
    message = f"{GPU} was held back by power cap of 350 W in 1 of 1 blocks"
    assert said(interference.no_accelerator_throttling, capped) == [("note", "b", message)]


def test_a_gpu_that_slows_down_is_a_warning() -> None:
    slowing = (block(second, **gpu_state(clock_mhz=1800 - 100 * second)) for second in range(1, 6))
    [(_, _, message)] = said(interference.frequency_stable, beside(*slowing, device=GPU))
    assert message == f"the clock of {GPU} fell by 24 %: 1700 MHz at first, 1300 MHz at last (limit 3.0 %)"


def test_a_canary_that_slows_down_is_a_warning_unless_it_scatters_as_much() -> None:
    assert said(interference.canary_stable, canaries((1000,) * 5)) == []
    assert said(interference.canary_stable, canaries((1000,) * 5, (1019,) * 5)) == []
    [(severity, about, message)] = said(interference.canary_stable, canaries((1_000_000,) * 5, (1_050_000,) * 5))
    assert (severity, about) == ("warning", "run")
    assert message.endswith("1.00 ms at its fastest and 1.05 ms at its slowest, 5.0 % apart (limit 2.0 %)")
    noisy = (1_000_000, 1_000_000, 1_050_000, 1_100_000, 1_100_000)
    assert said(interference.canary_stable, canaries((1_000_000,) * 5, noisy)) == []
