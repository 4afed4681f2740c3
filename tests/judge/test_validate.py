from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from harness import mixes
from harness.judge import disturbed, judgement, mix, records
from harness.judge.energy import rules
from harness.judge.evidence import Evidence
from harness.judge.judgement import judge
from harness.place import place
from harness.schema import (
    Absent,
    Conditions,
    Cost,
    Domain,
    Failure,
    Finding,
    LatencyLimits,
    Limits,
    Metering,
    Phase,
    Result,
    Samples,
    ServiceLimits,
    Share,
    Task,
    Trial,
)
from tests.fakes.machine import EDGE, MIX, WATTS_AT_THE_WALL, one_run
from tests.fakes.machine import result as made_up
from tests.golden.sample import GPU, closed_loop, probe, record, result, sample

Rule = Callable[[Evidence], Iterator[Finding]]
ENERGY = {"energy_known", "energy_whole", "energy_agrees", "metering_cheap"}  # tests of their own, below
HONESTY = {
    "units_counted",
    "clock_bracketed",
    "in_turn",
    "on_device",
    "slower_than_light",
    "little_between",
    "seed_drawn",
}  # tests/judge/test_honest.py
MIXED = {"mix_complete", "mix_graded", "mix_bounded"}
FORWARD = (Cost(name="forward", flops=1e10, bytes=1e8),)


def done(step_ns: int = 100, feeds: int = 64) -> Result:
    """A probe that reaches 1e10 flop in 100 ns, and a suite of the same work."""
    suite = record("b", "resnet50", "image", closed_loop([[step_ns]] * feeds), costs=FORWARD)
    return result(probe("a", 100, 400), suite, probe("c", 105, 400))


def failed(kind: str) -> Result:
    failure = Failure.model_validate({"kind": kind, "message": "so it is", "hint": "do this"})
    return result(record("b", "llm", "token", error=failure))


@pytest.mark.parametrize(
    "rule",
    [records.finished, records.batch_found, records.enough_feeds, records.ceiling_known, disturbed.speed_held],
)
def test_a_clean_result_passes(rule: Rule) -> None:
    assert said(rule, done()) == []


def said(rule: Rule, about: Result) -> list[tuple[str, str, str]]:
    """(severity, about, message) of the findings of one rule, in the judgement of the whole."""
    found = (each for each in judge(about).findings if each.rule == rule.__name__)
    return [(each.severity, each.about, each.message) for each in found]


def test_a_failed_attempt_is_invalid_and_a_refusal_is_a_note() -> None:
    assert said(records.finished, failed("crashed")) == [("invalid", "b", "crashed: so it is (do this)")]
    assert said(records.finished, failed("refused")) == [("note", "b", "refused: so it is (do this)")]


def test_an_interrupted_run_is_a_warning() -> None:
    assert said(records.finished, result(finished=False)) == [("warning", "run", "interrupted; --resume goes on")]


def test_a_small_sample_has_no_tail() -> None:
    assert said(records.enough_feeds, done(feeds=63)) == [("note", "b", "no tail percentile: p90 needs 64 feeds")]


def test_a_batch_search_that_ran_out_of_time_is_told() -> None:
    """An engine that got 99 images a second at batch 2, and 3,162 at batch 64, once said nothing."""

    def searched(best: int, ended_by: str) -> Result:
        trials = tuple(Trial(batch=batch, units=batch, elapsed_ns=1) for batch in (1, 2, 4))
        return result(
            done().records[1].model_copy(update={"trials": trials, "batch": best, "search_ended_by": ended_by})
        )

    told = "the search for the best batch ran out of time at batch 4: 8 and more were not tried, and batch"
    assert said(records.batch_found, searched(4, "time")) == [("warning", "b", f"{told} 4 was measured")]
    assert said(records.batch_found, searched(2, "time")) == [("note", "b", f"{told} 2 was measured")]
    assert said(records.batch_found, searched(4, "no gain")) == said(records.batch_found, searched(4, "memory")) == []


def test_an_unprobed_device_has_no_roofline() -> None:
    lone = result(*done().records[1:2])
    assert said(records.ceiling_known, lone) == [("note", "b", "roofline: cpu:0 was not probed in fp32")]


def test_a_probe_that_slows_down_is_a_warning() -> None:
    drifting = result(probe("a", 100, 400), probe("c", 120, 400))
    [(severity, about, message)] = said(disturbed.speed_held, drifting)
    assert (severity, about) == ("warning", "cpu:0")
    assert "flop/s" in message
    assert "20 %" in message


def metered(watts: float = 50.0, lost: dict[str, str] | None = None, cpu_ns: int = 0, seconds: int = 60) -> Result:
    """A record of a minute on a host with two sources of joules: a counter, and power beside it."""
    at_ns = np.arange(-5, seconds + 5, 0.1) * SECOND
    begin, end = int(at_ns[0]), int(at_ns[-1])
    base: dict[str, Any] = {"meter": "m", "covers": ("cpu:0",), "boundary": "devices", "source": "a test"}
    domains = (
        Domain(id="package", quantity="energy", method="counter", **base),
        Domain(id="power", quantity="power", method="integrated", parent="package", **base),
    )
    end_of = {id: len(at_ns) // 2 if id in (lost or {}) else len(at_ns) for id in ("package", "power")}
    stamps = at_ns.astype(np.int64)
    values = {"package": 50.0 * at_ns / SECOND, "power": np.full(len(at_ns), watts)}
    samples = {id: Samples(stamps[:end], stamps[:end], values[id][:end]) for id, end in end_of.items()}
    metering = Metering(phase="a", begin_ns=begin, end_ns=end, cpu_ns=cpu_ns, samples=samples, lost=lost or {})
    whole = result(record("a", "llm", "token", closed_loop([[SECOND] * seconds])))
    changed = {"devices": whole.devices[:1], "domains": domains, "meterings": (metering,)}
    return whole.model_copy(update=changed)


def test_a_run_without_a_meter_says_where_to_look() -> None:
    assert said(rules.energy_known, metered()) == []
    [(severity, _, message)] = said(rules.energy_known, done())
    assert severity == "note" and f"nothing meters cpu:0, {GPU}; mixmark meters says" in message
    absent = (Absent(kind="meter", name="rapl", reason="sudo chmod"),)
    assert "absent meters" in said(rules.energy_known, done().model_copy(update={"absent": absent}))[0][2]


def test_energy_of_a_part_is_a_warning() -> None:
    gpu = result().devices[1]
    whole = metered()
    assert said(rules.energy_whole, whole) == []
    more = whole.model_copy(update={"devices": (*whole.devices, gpu)})
    [(severity, about, message)] = said(rules.energy_whole, more)
    assert (severity, about, gpu.id in message) == ("warning", "run", True)
    modelled = tuple(each.model_copy(update={"method": "modelled"}) for each in whole.domains)
    assert (
        "package, power is modelled" in said(rules.energy_whole, whole.model_copy(update={"domains": modelled}))[0][2]
    )
    assert said(rules.energy_whole, done()) == []


def test_energy_that_is_not_known_says_why() -> None:
    assert said(rules.energy_valid, metered()) == []
    assert said(rules.energy_valid, metered(lost={"package": "its peer closed it"})) == [
        ("warning", "a", "no energy of package: lost, its peer closed it")
    ]
    assert said(rules.energy_valid, metered(lost={"power": "gone"})) == [], "it is not added"
    [(severity, _, message)] = said(rules.energy_valid, metered(seconds=10))
    assert (severity, message.split(":")[0]) == ("note", "energy of package")
    assert said(rules.energy_valid, metered(seconds=3)) == [
        ("note", "a", "no energy of package: 40 of its updates do not fit into the window")
    ]
    unread = metered().model_copy(update={"meterings": ()})
    assert said(rules.energy_valid, unread) == [("warning", "a", "no energy: the meters were not read in its phase")]


def test_energy_of_a_mix_that_is_not_known_says_why() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(rules.energy_valid, told) == []
    metering, *others = told.meterings
    [wall] = told.domains
    samples = metering.samples[wall.id]
    half = slice(len(samples.values) // 2)
    torn = Samples(samples.before_ns[half], samples.after_ns[half], samples.values[half])
    cut = metering.model_copy(update={"samples": {wall.id: torn}, "lost": {wall.id: "line 9 is torn"}})
    broken = told.model_copy(update={"meterings": (cut, *others)})
    reason = f"{wall.id}: lost, line 9 is torn"
    assert said(rules.energy_valid, broken) == [("warning", "run", f"{metering.phase}: no energy of {reason}")]
    found = judge(broken).score
    assert found is not None and found.headline.endswith(f"EFFICIENCY NOT MEASURED: {reason}")


def test_a_counter_and_the_integral_of_power_agree_within_5_percent() -> None:
    assert said(rules.energy_agrees, metered(watts=52.0)) == []
    [(severity, _, message)] = said(rules.energy_agrees, metered(watts=53.0))
    assert (severity, "+6.0 % off the counter package" in message) == ("warning", True)


def test_a_wall_that_uses_less_than_the_package_behind_it_is_in_doubt() -> None:
    whole = metered()
    [metering] = whole.meterings
    stamps = metering.samples["package"].before_ns
    wall = whole.domains[1].model_copy(
        update={"id": "wall", "boundary": "wall", "covers": ("cpu:0", "node"), "parent": None, "method": "external"}
    )
    for watts, message in (
        (48.0, None),
        (0.05, "wall used 99.9 % less than what it holds: are its unit and its clock right?"),  # kilowatts
    ):
        samples = {**metering.samples, "wall": Samples(stamps, stamps, np.full(len(stamps), watts))}
        read = metering.model_copy(update={"samples": samples})
        told = whole.model_copy(update={"domains": (*whole.domains, wall), "meterings": (read,)})
        assert said(rules.energy_agrees, told) == ([("warning", "a", message)] if message else [])


def test_a_metered_run_with_a_phase_that_was_not_metered_is_told_and_no_crash() -> None:
    dark = metered(watts=52.0).model_copy(update={"meterings": ()})
    assert said(rules.energy_agrees, dark) == []
    assert said(rules.energy_valid, dark)[0][2] == "no energy: the meters were not read in its phase"


def test_metering_takes_half_a_percent_of_a_core_at_most() -> None:
    assert said(rules.metering_cheap, metered(cpu_ns=SECOND // 4)) == []
    [(severity, _, message)] = said(rules.metering_cheap, metered(cpu_ns=SECOND))
    assert (severity, "1.4 % of one core" in message) == ("warning", True)


SECOND = 1_000_000_000
QUIET = {
    "cpus": 2,
    "busy_ns": SECOND,
    "own_ns": SECOND - 20_000_000,  # 1 % of two CPUs is others'
    "stolen_ns": 10_000_000,  # 0.5 %
    "throttled_periods": 0,
    "throttled_ns": 0,
    "memory_stall_ns": 1_000_000,
    "major_faults": 1,
    "swapped_in_pages": 1,
    "swapped_out_pages": 1,
    "clock_mean_mhz": 4000.0,
    "thermal_throttles": 0,
    "temperature_c": 60.0,
    "clock_step_ns": 100_000_000,
}


def block(second: int, **changed: object) -> Conditions:
    """One second; what is not changed is right at every rule's limit."""
    begin = second * SECOND
    return Conditions.model_validate({"begin_ns": begin, "end_ns": begin + SECOND} | QUIET | changed)


def beside(*blocks: Conditions, device: str = "cpu:0") -> Result:
    """A record whose window is the six seconds from one microsecond on: the first block is not quite inside."""
    done = closed_loop([[6 * SECOND]])
    disturbed = record("b", "llm", "token", done, device=device)
    return result(disturbed.model_copy(update={"conditions": blocks}))


def six(**changed: object) -> Result:
    return beside(*(block(second, **changed) for second in range(6)))


def gpu_state(**changed: object) -> dict[str, object]:
    calm = {"id": GPU, "reasons": ("idle",), "clock_mhz": 1700, "temperature_c": 60, "foreign_pids": ()}
    return {"accelerators": [calm | changed]}


def canaries(*times: tuple[int, ...]) -> Result:
    blocks = [
        Conditions(begin_ns=second * SECOND, end_ns=(second + 1) * SECOND, canary_ns=each)
        for second, each in enumerate(times)
    ]
    return beside(*blocks)


DISTURBANCES = (
    disturbed.not_stolen,
    disturbed.not_throttled,
    disturbed.machine_ours,
    disturbed.memory_sufficed,
    disturbed.no_paging,
    disturbed.clocks_held,
    disturbed.cool_enough,
    disturbed.accelerators_unhindered,
    disturbed.accelerators_ours,
    disturbed.canary_held,
    disturbed.clock_kept,
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
            disturbed.not_stolen,
            {"stolen_ns": 12_000_000},
            "the hypervisor took 0.6 % of the CPUs' time (limit 0.5 %), 0.6 % in the worst block (limit 2.0 %)",
        ),
        (
            disturbed.not_throttled,
            {"throttled_periods": 2, "throttled_ns": 50_000_000},
            "the cgroup's CPU quota ran out in 10 periods, for 0.25 s in all (limit 0)",
        ),
        (
            disturbed.not_throttled,
            {"throttled_periods": 2, "throttled_ns": None},
            "the cgroup's CPU quota ran out in 10 periods (limit 0)",
        ),
        (
            disturbed.machine_ours,
            {"own_ns": SECOND // 2},
            "other processes kept 0.50 of 2 CPUs busy, 25.0 % of the machine (limit 1.0 %)",
        ),
        (
            disturbed.machine_ours,
            {"cpus": 100, "own_ns": SECOND // 2},
            "other processes kept 0.50 of 100 CPUs busy, 0.5 % of the machine (limit 0.2 %)",
        ),
        (
            disturbed.memory_sufficed,
            {"memory_stall_ns": 20_000_000},
            "tasks waited for memory during 2.0 % of the time (limit 0.1 %)",
        ),
        (disturbed.no_paging, {"major_faults": 3}, "the workers waited for 3.0 pages a second from disk (limit 1)"),
        (disturbed.no_paging, {"swapped_in_pages": 3}, "3.0 pages a second were swapped in (limit 1)"),
        (disturbed.no_paging, {"swapped_out_pages": 3}, "3.0 pages a second were swapped out (limit 1)"),
        (
            disturbed.cool_enough,
            {"thermal_throttles": 4},
            "the CPUs' thermal throttle counters rose by 20 at up to 60 °C (limit 0)",
        ),
        (
            disturbed.clock_kept,
            {"clock_step_ns": -3 * SECOND},
            "the wall clock stepped by -3.00 s (limit 0.1 s): it was set, or the machine slept",
        ),
    ],
)
def test_a_disturbance_is_a_warning_with_figure_and_limit(rule: Rule, changed: dict[str, object], message: str) -> None:
    assert said(rule, six(**changed)) == [("warning", "b", message)]


def test_one_bad_block_of_steal_is_enough() -> None:
    spread = beside(*(block(second, stolen_ns=50_000_000 if second == 3 else 0) for second in range(1, 6)))
    [(_, _, message)] = said(disturbed.not_stolen, spread)
    assert message.endswith("2.5 % in the worst block (limit 2.0 %)")


def test_what_happens_outside_the_window_does_not_count() -> None:
    calm = [block(second) for second in range(1, 6)]
    loading = block(-1, major_faults=9_999)
    reaching_in = block(0, major_faults=9_999)
    ending = block(6, major_faults=9_999)
    assert said(disturbed.no_paging, beside(loading, reaching_in, *calm, ending)) == []
    assert said(disturbed.no_paging, beside(loading, reaching_in)) != []  # all there is


def test_clocks_that_sink_are_a_warning() -> None:
    falling = beside(*(block(second, clock_mean_mhz=4000.0 - 50 * second) for second in range(6)))
    message = "the clock of the CPUs fell by 5.1 %, from 3950 to 3750 MHz (limit 3.0 %)"
    held = beside(*(block(second, clock_mean_mhz=4000.0 - 20 * second) for second in range(6)))
    assert said(disturbed.clocks_held, held) == []
    assert said(disturbed.clocks_held, beside(*falling.records[0].conditions[:2])) == []  # too few to tell
    [(severity, about, told)] = said(disturbed.clocks_held, falling)
    assert (severity, about) == ("warning", "b")
    assert told == message


def test_a_gpu_is_judged_only_where_the_record_ran_on_it() -> None:
    hot = gpu_state(reasons=("thermal protection",), foreign_pids=(41, 42))
    for rule in (disturbed.accelerators_unhindered, disturbed.accelerators_ours):
        assert said(rule, beside(block(1, **hot), device="cpu:0")) == []
    on_it = beside(block(1, **hot), block(2, **gpu_state()), device=GPU)
    message = f"{GPU} was held back by thermal protection in 1 of 2 blocks (limit 0)"
    assert said(disturbed.accelerators_unhindered, on_it) == [("warning", "b", message)]
    assert said(disturbed.accelerators_ours, on_it) == [
        ("warning", "b", f"foreign processes on {GPU}: 2 (41, 42; limit 0)")
    ]


def test_a_group_is_judged_by_its_parts() -> None:
    hot = beside(block(1, **gpu_state(foreign_pids=(41,))), device="gpu:both")
    group = hot.devices[1].model_copy(update={"id": "gpu:both", "parts": (GPU, "gpu:other")})
    [(_, about, message)] = said(disturbed.accelerators_ours, hot.model_copy(update={"devices": (group,)}))
    assert (about, message) == ("b", f"foreign processes on {GPU}: 1 (41; limit 0)")


def test_a_gpu_left_alone_passes() -> None:
    calm = beside(*(block(second, **gpu_state()) for second in range(1, 6)), device=GPU)
    for rule in (disturbed.accelerators_unhindered, disturbed.accelerators_ours, disturbed.clocks_held):
        assert said(rule, calm) == []


def test_a_watcher_that_failed_is_told_once() -> None:
    gone = Absent(kind="watcher", name="onyx", reason="the driver is gone")
    calm = beside(block(1))
    blind = calm.model_copy(
        update={"records": tuple(each.model_copy(update={"unwatched": (gone,)}) for each in calm.records * 2)}
    )
    message = (
        "watcher onyx failed, so whether its accelerators were disturbed is not known from here on: the driver is gone"
    )
    assert said(disturbed.accelerators_watched, calm) == []
    assert said(disturbed.accelerators_watched, blind) == [("warning", "b", message)]
    before = blind.model_copy(update={"absent": (gone,)})
    assert said(disturbed.accelerators_watched, before) == []  # the run's absences tell it


def test_a_power_cap_is_a_note() -> None:
    capped = beside(block(1, **gpu_state(reasons=("power cap",), power_cap_mw=350_000)), device=GPU)
    message = f"{GPU} was held back by power cap of 350 W in 1 of 1 blocks"
    assert said(disturbed.accelerators_unhindered, capped) == [("note", "b", message)]


def test_a_gpu_that_slows_down_is_a_warning() -> None:
    slowing = (block(second, **gpu_state(clock_mhz=1800 - 100 * second)) for second in range(1, 6))
    [(_, _, message)] = said(disturbed.clocks_held, beside(*slowing, device=GPU))
    assert message == f"the clock of {GPU} fell by 23.5 %, from 1700 to 1300 MHz (limit 3.0 %)"


def test_a_canary_that_slows_down_is_a_warning_unless_it_scatters_as_much() -> None:
    assert said(disturbed.canary_held, canaries((1000,) * 5)) == []
    assert said(disturbed.canary_held, canaries((1000,) * 5, (1019,) * 5)) == []
    [(severity, about, message)] = said(disturbed.canary_held, canaries((1_000_000,) * 5, (1_050_000,) * 5))
    assert (severity, about) == ("warning", "run")
    assert message.endswith("1.00 ms at its fastest and 1.05 ms at its slowest, 5.0 % apart (limit 2.0 %)")
    noisy = (1_000_000, 1_000_000, 1_050_000, 1_100_000, 1_100_000)
    assert said(disturbed.canary_held, canaries((1_000_000,) * 5, noisy)) == []


def test_a_window_that_was_not_steady_is_a_warning_and_one_too_short_to_tell_a_note() -> None:
    slowing = result(record("b", "resnet50", "image", closed_loop([[100]] * 40 + [[200]] * 10)))
    [(severity, about, message)] = said(records.steady, slowing)
    assert (severity, about, message[:10]) == ("warning", "b", "not steady")
    [(severity, _, message)] = said(records.steady, done(feeds=19))
    assert (severity, message) == ("note", "too few feeds to tell whether it was steady: 20 are needed")


def ended(by: str, spread_ns: int) -> Result:
    """200 feeds that take 1000 ns ± spread in turns of no pattern; ± 1 % was asked for."""
    steps = np.random.default_rng(1).integers(1000 - spread_ns, 1001 + spread_ns, 200)
    one = record("b", "resnet50", "image", closed_loop([[int(step)] for step in steps]))
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=1, max_ns=1, min_feeds=1, half_width=0.01)
    share = Share(key="b", route=one.route, scenario="single-stream", limits=limits)
    phase = Phase(name="b", purpose="solo", tasks=(Task(device="cpu:0", shares=(share,)),))
    whole = result(one.model_copy(update={"ended_by": by}))
    return whole.model_copy(update={"phases": (phase,)})


def test_a_half_width_that_was_not_reached_is_a_note() -> None:
    [(severity, about, message)] = said(records.precise, ended("cap", 800))
    assert (severity, about) == ("note", "b")
    assert message.startswith("the longest time was reached at ±") and message.endswith("(asked for ±1.0 %)")
    assert said(records.precise, ended("precision", 800)) == []
    assert said(records.precise, ended("cap", 5)) == []  # known well enough in the end


def served(step_ns: int, feeds: int = 70) -> Result:
    limits = LatencyLimits(percentile=0.9, total_ns=100, source="a test")
    one = record("b", "resnet50", "image", closed_loop([[step_ns]] * feeds), scenario="server")
    return result(one.model_copy(update={"rate_per_s": 5.0, "latency_limits": limits}))


def test_a_server_that_does_not_keep_its_limits_is_a_warning() -> None:
    assert said(records.latency_kept, served(100)) == []
    assert said(records.latency_kept, served(101)) == [("warning", "b", "the latency limits are not kept at p90")]
    [(severity, _, message)] = said(records.latency_kept, served(100, feeds=9))
    assert (severity, message) == ("note", "whether the latency limits are kept is open: p90 needs 64 feeds")


def everything() -> Result:
    """The sample, its records in turn beside all that can go wrong."""
    hot = gpu_state(reasons=("power supply protection",), foreign_pids=(1,))
    bad = QUIET | hot | {"stolen_ns": SECOND, "own_ns": 0, "memory_stall_ns": SECOND, "major_faults": 99}
    bad |= {"throttled_periods": 1, "thermal_throttles": 1, "clock_step_ns": SECOND}
    blocks = [block(second, **bad | {"clock_mean_mhz": 4000.0 / (second + 1)}) for second in range(8)]
    conditions = (*canaries((1,) * 5, (9,) * 5).records[0].conditions, *blocks)
    blind = (Absent(kind="watcher", name="onyx", reason="the driver is gone"),)
    records = [
        each.model_copy(update={"conditions": conditions if each.completions else (), "unwatched": blind})
        for each in sample().records
    ]
    return sample().model_copy(update={"records": tuple(records)})


def test_findings_asks_every_rule() -> None:
    asked = {finding.rule for finding in judge(everything()).findings}
    assert asked == {rule.__name__ for rule in judgement.RULES} - {
        "precise",
        "latency_kept",
        "batch_found",
        *MIXED,
        *HONESTY,
        *ENERGY,
    }


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})


def test_a_mix_that_came_whole_is_only_graded() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(mix.mix_complete, told) == []
    assert said(mix.mix_bounded, told) == []
    assert said(mix.mix_graded, told) == [("note", "run", "the score is provisional, not official: 1 of 5 runs")]


def test_a_mix_that_is_not_whole_has_no_score() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    lacking = told.model_copy(update={"records": tuple(each for each in told.records if each.route.suite != "dlrm")})
    assert said(mix.mix_complete, lacking) == [("invalid", "run", "no score: dlrm: no feed finished")]
    assert said(mix.mix_graded, lacking) == []


def test_a_mix_of_ones_own_is_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert told.mix
    own = told.model_copy(update={"mix": told.mix.model_copy(update={"name": "mine"})})
    assert said(mix.mix_graded, own)[-1][2] == "the score is not ranked: mine is a mix of one's own"
    assert said(mix.mix_complete, own) == []
    newer = told.model_copy(update={"mix": told.mix.model_copy(update={"name": "edge-10"})})
    unknown = "the score is not ranked: edge-10 is none of the mixes that this version knows"
    assert said(mix.mix_graded, newer)[-1][2] == unknown
    small = told.mix.model_copy(update={"name": "smoke-1", "tier": "smoke"})
    monkeypatch.setattr(mixes, "frozen", lambda: {"smoke-1": small})
    smoke = told.model_copy(update={"mix": small})
    assert said(mix.mix_graded, smoke)[-1][2].startswith("the score is not ranked: the smoke tier")


@pytest.mark.parametrize(
    "change",
    [
        {"units": {**MIX, "llm": 199.0}},
        {"limits": {"dlrm": ServiceLimits(total_ns=1)}},
        {"limits": {"dlrm": ServiceLimits(total_ns=3_600_000_000_000)}},
        {"units": {suite: count for suite, count in MIX.items() if suite != "llm"}},
    ],
    ids=str,
)
def test_another_mix_under_a_published_name_has_no_score(change: dict[str, object]) -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert told.mix
    forged = told.model_copy(update={"mix": told.mix.model_copy(update=change)})
    false = ("invalid", "run", "no score: this is not the mix that was published as edge-9")
    assert false in said(mix.mix_complete, forged)
    found = judge(forged).score
    assert found and (found.mixes_per_s, found.mixes_per_kj) == (None, None)


def test_a_plan_has_the_rates_of_the_solo_records() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [phase] = told.phases
    assert phase.placement
    [first, *others] = phase.placement.rates
    first = first.model_copy(update={"units_per_s": first.units_per_s * 2})
    forged = place(MIX, [first, *others], told.devices)
    flattered = told.model_copy(update={"phases": (phase.model_copy(update={"placement": forged}),)})
    [(severity, _, message)] = said(mix.mix_bounded, flattered)
    assert (severity, message) == (
        "invalid",
        "mixed.1: λ* is not proven: the plan has llm on gpu:0 at 200 units/s, and its solo record 100 units/s",
    )
    lost = told.model_copy(update={"records": tuple(each for each in told.records if each.key != "solo.llm.gpu-0")})
    [(severity, _, message)] = said(mix.mix_bounded, lost)
    assert (severity, message) == (
        "invalid",
        "mixed.1: λ* is not proven: the plan has llm on gpu:0 at 100 units/s, and no solo record that passed",
    )


def test_more_than_the_bound_means_that_the_solo_rates_are_too_low() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [phase] = told.phases
    assert phase.placement
    plan, devices = phase.placement, told.devices
    low = [rate.model_copy(update={"units_per_s": rate.units_per_s / 1.2}) for rate in plan.rates]
    played = [each for each in told.records if each.scenario == "mixed"]
    sandbagged = made_up([(played, place(MIX, low, devices))], EDGE, None, 0, ("gpu:0", "cpu:0"))
    [(severity, about, message)] = said(mix.mix_bounded, sandbagged)
    assert (severity, about) == ("warning", "run")
    assert message.startswith("mixed.1: κ is 1.19, at least 1.1")
    false = phase.model_copy(update={"placement": plan.model_copy(update={"bound_per_s": 0.3})})
    [(severity, _, message)] = said(mix.mix_bounded, told.model_copy(update={"phases": (false,)}))
    assert severity == "invalid"
    assert "is not proven" in message
