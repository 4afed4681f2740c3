"""The rules about disturbances: what keeps them and what does not."""

from __future__ import annotations

from types import ModuleType

import pytest

from mixmark.harness.contracts.schema import Absent, Cost, Record
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import interference, quality, registered
from tests.golden.sample import GPU, but, closed_loop, record, result
from tests.judge.found import QUIET, SECOND, Check, beside, block, canaries, done, failed, gpu_state, said, says, six


def rules_of(module: ModuleType) -> list[Check]:
    return [rule.check for rule in registered.RULES.values() if rule.check.__module__ == module.__name__]


@pytest.mark.parametrize(
    "rule", [rule for rule in (*rules_of(quality), *rules_of(interference)) if rule.__name__ != "energy_measured"]
)
def test_a_clean_result_passes(rule: Check) -> None:
    assert said(rule, done()) == []


def test_a_probe_that_slows_down_is_a_warning_unless_its_passes_scatter_as_much() -> None:
    def passes(key: str, *gemm_ns: int) -> Record:
        costs = (Cost(name="gemm", flops=1e10, bytes=1e8), Cost(name="read", flops=1e9, bytes=4e9))
        done = closed_loop([[each, 400] for each in gemm_ns])
        return record(key, "probe", "kernel", done, scenario="probe", costs=costs)

    calm = passes("a", 1000, 1000, 1000, 1000, 700), passes("c", 1000, 1000, 1000, 1000, 1000)
    assert said(interference.speed_stable, result(*calm)) == [], "one fast pass is luck"
    rough = passes("a", 1000, 1300, 1600, 1900, 2200), passes("c", 1200, 1200, 1200, 1200, 1200)
    assert said(interference.speed_stable, result(*rough)) == [], "33 % apart, and the first one's quartiles 39 %"
    slow = passes("a", 1600, 1600, 1600, 1600, 1600), passes("c", 1200, 1200, 1200, 1200, 1200)
    moved = {"adapter": "torch", "precision": "fp32", "drift": 1 / 3, "unit": "flop/s"}
    assert said(interference.speed_stable, result(*slow)) == [says("speed_stable", "cpu:0", **moved)]


@pytest.mark.parametrize("rule", rules_of(interference))
def test_what_is_at_its_limit_or_unknown_passes(rule: Check) -> None:
    assert said(rule, six()) == []
    assert said(rule, six(**dict.fromkeys(QUIET))) == []
    assert said(rule, result(record("b", "llm", "token", closed_loop([[1]])))) == []
    assert said(rule, failed("crashed")) == []


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        (
            {"stolen_ns": 12_000_000},
            "no_steal_time",
            {"stolen": 0.006, "worst": 0.006, "limit": 0.005, "worst_limit": 0.02},
        ),
        ({"throttled_periods": 2, "throttled_ns": 50_000_000}, "no_quota_throttling", {"periods": 10}),
        ({"power_source": "battery"}, "on_mains.battery", {"hit": 5, "blocks": 5}),
        ({"power_source": "charging"}, "on_mains.charging", {"hit": 5, "blocks": 5}),
        ({"own_ns": SECOND // 2}, "no_foreign_load", {"cores": 0.5, "cpus": 2, "fraction": 0.25, "limit": 0.01}),
        (
            {"cpus": 100, "own_ns": SECOND // 2},
            "no_foreign_load",
            {"cores": 0.5, "cpus": 100, "fraction": 0.005, "limit": 0.0025},
        ),
        ({"memory_stall_ns": 20_000_000}, "no_memory_pressure", {"stalled": 0.02, "limit": 0.001}),
        ({"major_faults": 3}, "no_paging.major_faults", {"pages_per_s": 3, "limit": 1}),
        ({"swapped_in_pages": 3}, "no_paging.swapped_in_pages", {"pages_per_s": 3, "limit": 1}),
        ({"swapped_out_pages": 3}, "no_paging.swapped_out_pages", {"pages_per_s": 3, "limit": 1}),
        ({"thermal_throttles": 4}, "no_thermal_throttling", {"events": 20}),
        ({"clock_step_ns": -3 * SECOND}, "wall_clock_steady", {"step_s": -3, "limit_s": 0.1}),
    ],
)
def test_a_disturbance_is_found_with_figure_and_limit(
    changed: dict[str, object], code: str, values: dict[str, object]
) -> None:
    rule = getattr(interference, code.partition(".")[0])
    assert said(rule, six(**changed)) == [says(code, **values)]


def test_what_the_kernel_does_is_no_foreign_load() -> None:
    """A tenth of the CPUs' time is not the run's, and the kernel's threads had all of it but 1 %."""
    others = {"own_ns": SECOND - 200_000_000}
    assert said(interference.no_foreign_load, six(**others))
    assert not said(interference.no_foreign_load, six(**others, kernel_ns=180_000_000))
    assert judge(six(**others)).verdict.word == "disturbed"
    assert judge(six(**others, kernel_ns=180_000_000)).verdict.word == "rough"


def test_one_bad_block_of_steal_is_enough() -> None:
    spread = beside(*(block(second, stolen_ns=50_000_000 if second == 3 else 0) for second in range(1, 6)))
    [(_, _, values)] = said(interference.no_steal_time, spread)
    assert (values["worst"], values["worst_limit"]) == (0.025, 0.02)


def test_what_happens_outside_the_window_does_not_count() -> None:
    calm = [block(second) for second in range(1, 6)]
    loading = block(-1, major_faults=9_999)
    reaching_in = block(0, major_faults=9_999)
    ending = block(6, major_faults=9_999)
    assert said(interference.no_paging, beside(loading, reaching_in, *calm, ending)) == []
    assert said(interference.no_paging, beside(loading, reaching_in)) != []  # all there is


def test_clocks_that_sink_are_a_warning() -> None:
    falling = beside(*(block(second, clock_mean_mhz=4000.0 - 50 * second) for second in range(6)))
    clocks = {"first_mhz": 3950, "last_mhz": 3750, "fell": 200 / 3950, "limit": 0.03}
    held = beside(*(block(second, clock_mean_mhz=4000.0 - 20 * second) for second in range(6)))
    assert said(interference.frequency_stable, held) == []
    assert said(interference.frequency_stable, beside(*falling.records[0].conditions[:2])) == []  # too few to tell
    assert said(interference.frequency_stable, falling) == [says("frequency_stable", what="the CPUs", **clocks)]


def test_a_gpu_is_judged_only_where_the_record_ran_on_it() -> None:
    hot = gpu_state(reasons=("thermal protection",), foreign_pids=(41, 42))
    for rule in (interference.no_accelerator_throttling, interference.accelerators_exclusive):
        assert said(rule, beside(block(1, **hot), device="cpu:0")) == []
    on_it = beside(block(1, **hot), block(2, **gpu_state()), device=GPU)
    held = {"device": GPU, "reason": "thermal protection", "hit": 1, "blocks": 2}
    others = {"device": GPU, "processes": 2, "pids": ("41", "42")}
    assert said(interference.no_accelerator_throttling, on_it) == [says("no_accelerator_throttling", **held)]
    assert said(interference.accelerators_exclusive, on_it) == [says("accelerators_exclusive", **others)]


def test_a_group_is_judged_by_its_parts() -> None:
    hot = beside(block(1, **gpu_state(foreign_pids=(41,))), device="gpu:both")
    group = but(hot.devices[1], id="gpu:both", parts=(GPU, "gpu:other"))
    others = says("accelerators_exclusive", device=GPU, processes=1, pids=("41",))
    assert said(interference.accelerators_exclusive, but(hot, devices=(group,))) == [others]


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
    blind = but(calm, records=tuple(but(each, failed_watchers=(gone,)) for each in calm.records * 2))
    assert said(interference.accelerators_watched, calm) == []
    assert said(interference.accelerators_watched, blind) == [
        says("accelerators_watched", watcher="watcher onyx", why="the driver is gone")
    ]
    before = but(blind, absent=(gone,))
    assert said(interference.accelerators_watched, before) == []  # the run's absences tell it


def test_a_power_cap_is_a_note() -> None:
    capped = beside(block(1, **gpu_state(reasons=("power cap",), power_cap_mw=350_000)), device=GPU)
    assert said(interference.no_accelerator_throttling, capped) == [
        says("no_accelerator_throttling.capped", device=GPU, hit=1, blocks=1)
    ]


def test_a_canary_that_slows_down_is_a_warning_unless_it_scatters_as_much() -> None:
    assert said(interference.canary_stable, canaries((1000,) * 5)) == []
    assert said(interference.canary_stable, canaries((1000,) * 5, (1019,) * 5)) == []
    apart = {"fastest_ms": 1, "slowest_ms": 1.05, "drift": 0.05, "limit": 0.02}
    slower = canaries((1_000_000,) * 5, (1_050_000,) * 5)
    assert said(interference.canary_stable, slower) == [says("canary_stable", "run", **apart)]
    noisy = (1_000_000, 1_000_000, 1_050_000, 1_100_000, 1_100_000)
    assert said(interference.canary_stable, canaries((1_000_000,) * 5, noisy)) == []


@pytest.mark.parametrize(("profile", "saves"), [("low-power", True), ("balance_power", True), ("balanced", False)])
def test_a_profile_that_saves_power_is_found_of_its_host(profile: str, saves: bool) -> None:
    slow = but(six().system, power_profile=profile)
    expected = [says("full_power_profile", "run", profile=profile)] if saves else []
    assert said(interference.full_power_profile, but(six(), system=slow)) == expected
