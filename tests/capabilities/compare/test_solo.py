"""Verdicts on solo measurements: by whole intervals, of one run or of several, and the reasons against a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bench.capabilities.compare import slower
from mixmark.harness.capabilities.compare import solo
from mixmark.harness.capabilities.compare.solo import Comparison, Uncompared, ratio_of_runs, verdict_of
from mixmark.harness.contracts import schema
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.assessment import judge
from tests.fakes.hosts import cluster, environment_of
from tests.golden.sample import GPU, altered, but, closed_loop, record, result, server, system

FLOOR = 0.01  # a noise floor, with which one run on each side may say something


def window(step_ns: int, seed: int, feeds: int = 400, spread: float = 0.05) -> schema.Completions:
    noise = np.random.default_rng(seed).standard_normal(feeds)
    return closed_loop([[int(step_ns * (1 + spread * each))] for each in noise])


def run_of(step_ns: int, seed: int, **others: Any) -> schema.Record:
    return record("a", "resnet50", "image", window(step_ns, seed), **others)


def runs(steps_ns: Sequence[int], first_seed: int = 0) -> list[schema.Result]:
    return [result(run_of(step_ns, first_seed + index)) for index, step_ns in enumerate(steps_ns)]


def compared(
    a: Sequence[schema.Result], b: Sequence[schema.Result], noise_floor: float | None = None
) -> list[Comparison | Uncompared]:
    known = (
        None if noise_floor is None else schema.NoiseFloor(fraction=noise_floor, tier="edge", created_utc="2026-01-01")
    )
    before, after = ([judge(whole.model_copy(update={"noise_floor": known})) for whole in side] for side in (a, b))
    return solo.compare(before, after)


def comparison_of(
    a: Sequence[schema.Result], b: Sequence[schema.Result], noise_floor: float | None = None
) -> Comparison:
    """The only solo measurement of both sides, which was tested."""
    [comparison] = compared(a, b, noise_floor)
    assert isinstance(comparison, Comparison), comparison.reason
    return comparison


def refused(a: Sequence[schema.Result], b: Sequence[schema.Result]) -> str:
    """Why the only solo measurement of both sides was not tested."""
    [missed] = compared(a, b, FLOOR)
    assert isinstance(missed, Uncompared) and missed.label == "B"
    return missed.reason


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.03, 1.2, "faster"),
        (1.01, 1.2, "ambiguous"),
        (0.5, 0.97, "slower"),
        (0.985, 1.015, "same"),
        (0.97, 1.01, "ambiguous"),
        (0.5, 2.0, "ambiguous"),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, verdict: str) -> None:
    assert verdict_of(Estimate(1, low, high), delta=0.02) == verdict


def test_a_slower_run_is_called_slower_with_the_right_factor() -> None:
    found = comparison_of(runs([1_000_000]), runs([1_250_000], 1), FLOOR)
    assert (found.verdict, found.measure, found.reason, found.runs) == ("slower", "throughput", None, (1, 1))
    assert found.ratio.estimate == pytest.approx(0.8, rel=0.01)
    low, high = found.ratio.ends
    assert low < 0.8 < high


def test_one_run_on_each_side_says_nothing_without_a_noise_floor() -> None:
    found = comparison_of(runs([1_000_000]), runs([1_250_000], 1))
    assert found.verdict == "ambiguous"
    assert "mixmark run --runs 5" in str(found.reason) and "mixmark selftest --tier edge" in str(found.reason)


def test_a_wrong_output_is_not_compared() -> None:
    [a], [b] = runs([1_000_000]), runs([500_000], 1)
    audit = schema.Audit(gate=schema.Gate(metric="error", at_most=0.1), finished=1, feeds=(0,), values=(0.5,))
    wrong = altered(b, lambda _: True, audit=audit)
    assert "of B counts for nothing: wrong outputs" in refused([a], [wrong])


def test_the_noise_floor_is_in_the_error_of_what_was_measured_in_one_sitting() -> None:
    a, b = runs([1_000_000]), runs([1_050_000], 1)
    assert (comparison_of(a, b, FLOOR).delta, comparison_of(a, b, FLOOR).verdict) == (0.01, "slower")
    assert (comparison_of(a, b, 0.1).delta, comparison_of(a, b, 0.1).verdict) == (0.01, "ambiguous")
    sittings = runs([1_000_000, 1_003_000, 1_006_000]), runs([1_050_000, 1_053_000, 1_056_000], 3)
    found = comparison_of(*sittings, 0.1)
    assert (found.independent, found.noise_floor, found.verdict) == (True, None, "slower")
    low, high = ratio_of_runs([100, 101, 102], [100, 101, 102], 0.02).ends
    assert high == pytest.approx(math.exp(2.776 * math.hypot(0.00808, math.log(1.02))), rel=1e-3) and low * high == 1


@pytest.mark.parametrize(("scatter", "true", "least"), [(0.01, -0.03, 0.35), (0.03, -0.1, 0.7)])
def test_a_difference_is_seen_and_equals_are_not_called_different(scatter: float, true: float, least: float) -> None:
    """Three results a side see it without a floor. Two sittings that differ by 1 % are rarely called different."""
    random = np.random.default_rng(1)
    assert slower(3, scatter, 0.0, true, True, 150, random)[0] > least - 0.08
    assert sum(slower(3, 0.003, 0.01, 0.0, False, 150, random)) <= 0.05


def test_a_noise_floor_of_another_tier_says_nothing() -> None:
    smoke = schema.NoiseFloor(fraction=0.1, tier="smoke", created_utc="2026-01-01")
    edge = schema.NoiseFloor(fraction=0.02, tier="edge", created_utc="2026-01-01")

    def found(*floors: schema.NoiseFloor) -> schema.NoiseFloor | None:
        sides = runs([1_000_000]), runs([1_050_000], 1)
        known = (side[0].model_copy(update={"noise_floor": each}) for side, each in zip(sides, floors, strict=True))
        a, b = map(judge, known)
        [comparison] = solo.compare([a], [b])
        assert isinstance(comparison, Comparison)
        return comparison.noise_floor

    assert (found(smoke, edge), found(smoke, smoke)) == (edge, None)


def test_several_runs_are_compared_by_how_they_scatter_not_by_their_blocks() -> None:
    a = runs([1_000_000, 1_010_000, 990_000, 1_005_000, 995_000])
    b = runs([1_100_000, 1_112_000, 1_090_000, 1_104_000, 1_095_000], 9)
    found = comparison_of(a, b)
    assert (found.verdict, found.reason, found.runs) == ("slower", None, (5, 5))
    scattered = runs([1_000_000, 1_100_000, 950_000])
    assert comparison_of(scattered, runs([1_050_000, 1_150_000, 1_000_000], 9)).verdict == "ambiguous"


def several(steps_ns: Sequence[int], first_seed: int = 0, **changed: Sequence[Any]) -> list[schema.Result]:
    """One result of several runs; `changed` alters a field of the record, or of its route, in each of them."""
    made = []
    for index, step_ns in enumerate(steps_ns):
        facts = {name: values[index] for name, values in changed.items()}
        run = run_of(step_ns, first_seed + index)
        of_route = {name: facts.pop(name) for name in list(facts) if name in schema.Route.model_fields}
        facts |= {"key": f"k{index}", "phase": f"k{index}", "run": index + 1}
        made.append(run.model_copy(update={**facts, "route": run.route.model_copy(update=of_route)}))
    return [result(*made)]


def test_runs_that_chose_different_batches_are_compared_with_a_caveat() -> None:
    a, b = [1_000_000, 1_001_000, 1_002_000], [1_200_000, 1_201_000, 1_202_000]
    found = comparison_of(several(a, batch=(512, 1024, 512)), several(b, 9, batch=(1024, 1024, 1024)))
    assert found.verdict == "slower"
    assert found.reason == (
        "the runs of A chose batches of 512, 1024: each run searches for its best batch, and the interval includes how "
        "that choice scatters"
    )
    assert comparison_of(several(a, batch=(512, 512, 512)), several(b, 9, batch=(1024, 1024, 1024))).reason is None


def test_runs_of_different_things_are_not_merged() -> None:
    a, b = [1_000_000, 1_001_000], [1_200_000, 1_201_000]
    assert refused(several(a, options=({}, {"threads": "1"})), several(b, 9)) == (
        "the runs of A differ in adapter options: {} and {'threads': '1'}"
    )
    first, second = runs(b)
    newer = second.model_copy(update={"system": second.system.model_copy(update={"mixmark": "9"})})
    assert refused(runs(a), [first, newer]) == "the runs of B differ in Mixmark: 0.1.0 and 9"


def test_welch_against_figures_worked_by_hand() -> None:
    ratio = ratio_of_runs([100, 110], [120, 132, 145.2])
    error = np.sqrt(np.log(1.1) ** 2 / 2 / 2 + np.log(1.1) ** 2 / 3)
    assert ratio.estimate == pytest.approx(132 / np.sqrt(100 * 110))
    low, high = ratio.ends
    assert np.log(high / ratio.estimate) / error == pytest.approx(3.6, abs=0.6)  # t at 2.3 degrees of freedom
    assert low * high == pytest.approx(ratio.estimate**2)


def test_a_single_run_is_taken_to_scatter_like_the_several_on_the_other_side() -> None:
    several = [100.0, 102.0, 98.0, 101.0, 99.0]
    assert verdict_of(ratio_of_runs(several, [50.0]), 0.01) == "slower"
    wide, narrow = ratio_of_runs(several, [100.0]).ends, ratio_of_runs(several, several).ends
    assert wide[1] / wide[0] > narrow[1] / narrow[0]
    with pytest.raises(ValueError, match="two single runs"):
        ratio_of_runs([1], [1])


def test_equal_figures_give_a_ratio_without_width() -> None:
    assert ratio_of_runs([5, 5], [5, 5]) == Estimate(1, 1, 1)
    assert Estimate(7, 7, 7).ratio(Estimate(7, 7, 7)) == Estimate(1, 1, 1)
    still = [result(record("a", "resnet50", "image", closed_loop([[1_000]] * 50)))]
    assert comparison_of(still, still, FLOOR / 2).verdict == "same"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("precision", {"precision": "bf16"}),
        ("scenario", {"scenario": "offline"}),
        ("device model", {"device": GPU}),
        ("tier", {"tier": "server"}),
        ("suite version", {"suite_version": "2"}),
        ("weights", {"weights": "llama.safetensors 1f3a"}),
        ("suite options", {"suite_options": {"steps": "8"}}),
    ],
)
def test_unlike_measurements_are_refused_by_name(name: str, changed: dict[str, Any]) -> None:
    other = run_of(
        1_000_000, 1, device=changed.get("device", "cpu:0"), scenario=changed.get("scenario", "single-stream")
    )
    other = other.model_copy(update={"route": other.route.model_copy(update=changed)})
    assert re.match(f"not alike in (device kind: cpu and gpu; )?{name}: ", refused(runs([1_000_000]), [result(other)]))


def of_device(name: str) -> list[schema.Result]:
    [a] = runs([1_000_000])
    return [but(a, devices=(but(a.devices[0], name=name),))]


def ticks(*feeds: list[int]) -> list[schema.Result]:
    return [result(record("a", "resnet50", "image", closed_loop(feeds)))]


SERVED = [server(window(1_000_000, 1))]
FEW = [server(window(1_000_000, 1, feeds=63))]


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (runs([1_000_000, 3_000_000]), runs([1_000_000, 4_000_000], 9), "its ends are more than a factor of 2 apart"),
        (of_device(""), of_device(""), "not alike in device model: unknown and unknown"),
        (of_device(""), of_device("Acme"), "not alike in device model: unknown and Acme"),
        (ticks([0]), ticks([0]), "did not tick"),
        (ticks([5]), ticks([5]), "has no interval"),
        (ticks(*[[5]] * 19), ticks(*[[5]] * 19), "has no interval"),
        (SERVED, [server(window(1_000_000, 2), rate_per_s=6.0)], "not alike in rate: 5.0 and 6.0"),
        (SERVED, SERVED, "one run of a server gives no interval: several runs are needed"),
        (FEW, FEW, "a of A has no figure: p90 needs 64 feeds, there are 63"),
    ],
)
def test_what_has_no_interval_or_no_like_is_not_compared(
    a: list[schema.Result], b: list[schema.Result], reason: str
) -> None:
    assert reason in refused(a, b)


def test_adapters_options_and_batches_may_differ() -> None:
    a = run_of(1_000_000, 1, batch=8)
    b = a.model_copy(update={"batch": 16, "route": a.route.model_copy(update={"options": {"threads": "1"}})})
    assert comparison_of([result(a)], [result(b)], FLOOR).measure == "throughput"


def test_a_device_that_was_set_otherwise_is_another_device() -> None:
    [a] = runs([1_000_000])
    assert (
        refused([a], [but(a, system__governor="powersave")])
        == "not alike in device state: governor performance and governor powersave"
    )
    for changed, state in (
        ({"cpu_quota": 1.5}, "1.5 of 32 CPUs by quota"),
        ({"power_source": "battery"}, "on battery"),
        ({"power_profile": "low-power"}, "profile low-power"),
    ):
        limited = but(a, **{f"system__{name}": value for name, value in changed.items()})
        both = f"governor performance and governor performance, {state}"
        assert refused([a], [limited]) == f"not alike in device state: {both}"
    [tested] = compared([a], [but(a, system__power_source="mains", system__power_profile="balanced")], FLOOR)
    assert not isinstance(tested, Uncompared)
    on_gpu = result(run_of(1_000_000, 1, device=GPU))
    board = {"id": GPU, "ecc": "on"}
    full, capped = (
        but(on_gpu, system__accelerators=({**board, "power_limit_mw": each},)) for each in ("700000", "500000")
    )
    assert refused([full], [capped]) == (
        "not alike in device state: power_limit_mw 700000, ecc on, mig None and power_limit_mw 500000, ecc on, mig None"
    )


def test_runs_that_are_unlike_within_one_side_are_refused() -> None:
    changed = but(run_of(1_000_000, 1), route__tier="server")
    assert "tier: edge and server" in refused([*runs([1_000_000]), result(changed)], runs([1_000_000]))


def test_a_measurement_of_one_side_alone_is_listed() -> None:
    llm = result(record("b", "llm", "token", closed_loop([[10]])))
    reasons = {found.reason for found in compared([*runs([1_000_000]), llm], runs([1_000_000], 1), 0.1)}
    assert reasons == {None, "only in A"}
    assert [found.reason for found in compared([], [llm])] == ["only in B"]


def test_servers_are_compared_by_their_response_times_over_several_runs() -> None:
    before = [server(window(1_000_000, seed)) for seed in (1, 2, 3)]
    after = [server(window(1_200_000, seed)) for seed in (4, 5, 6)]
    found = comparison_of(before, after)
    assert (found.verdict, found.measure) == ("slower", "speed of response at p90")
    assert found.ratio.estimate == pytest.approx(1 / 1.2, rel=0.02)


def test_highest_rates_need_several_runs() -> None:
    trials = (schema.RateTrial(rate_per_s=5, feeds=70, kept=True),)

    def found(rate_per_s: float) -> schema.Result:
        return server(window(1_000_000, 1), rate_per_s=rate_per_s, rate_trials=trials)

    assert "several runs" in refused([found(5.0)], [found(6.0)])
    highest = comparison_of([found(5.0), found(5.01), found(5.02)], [found(6.0), found(6.01), found(6.02)])
    assert (highest.verdict, highest.measure) == ("faster", "highest rate")


def test_a_measurement_is_compared_by_the_settings_and_the_software_of_its_host() -> None:
    two = cluster()
    ran = {"acme": environment_of("3.12"), "host2/acme": environment_of("3.13")}
    slow = system().model_copy(update={"governor": "powersave"})
    board = system().model_copy(update={"accelerators": ({"id": "gpu:0", "ecc": "on"},)})
    groups = (schema.Hosts(names=("host1",), system=slow), schema.Hosts(names=("host2",), system=board))
    told = judge(two.model_copy(update={"hosts": groups, "environments": ran}))
    runs = {runs[0].solo.route.device: runs[0] for runs in solo.measurements([told])}
    seen = {id: (solo._state(run), solo._software(run)["Python"]) for id, run in runs.items()}
    assert seen["host1/cpu:0"] == ("governor powersave", "3.12")
    assert seen["host2/cpu:0"] == ("governor performance", "3.13")
    assert seen["host1/gpu:0"][0] == "" and "ecc on" in seen["host2/gpu:0"][0]
