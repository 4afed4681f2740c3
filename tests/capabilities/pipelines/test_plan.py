"""Definitions of pipelines, and the placement of their stages."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from mixmark.harness.capabilities.pipelines import plan as pipelines
from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineStage
from mixmark.harness.capabilities.pipelines.plan import StageSuite
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Device, Limits, Phase, Rate, Share, Task, Tier
from mixmark.harness.plan.placement import place
from tests.fakes.machine import device, solo, solo_record
from tests.golden.sample import but

ONE, MANY = StageSuite("", batches=False), StageSuite("", batches=True)
SUITES = {
    "resnet50": MANY,
    "dlrm": MANY,
    "llm": ONE,
    "diffusion": MANY,
    "llm-prefill": ONE,
    "llm-decode": StageSuite("llm-prefill", batches=False),
}
CHAIN = Pipeline(name="mine", stages=(PipelineStage(suite="a"), PipelineStage(suite="b")), deadline_ns=2 * 10**9)
UNITS = {"a": 10, "b": 20}
DEVICES = [device("gpu:0"), device("cpu:0")]
RATES = solo({("a", "gpu:0"): 100, ("a", "cpu:0"): 20, ("b", "gpu:0"): 40, ("b", "cpu:0"): 20})
"""Seconds a feed: a takes 0.1 on the GPU and 0.5 on the CPU, b takes 0.5 and 1."""


def own(folder: Path, text: str) -> str:
    (folder / "mine.toml").write_text(text)
    return str(folder / "mine.toml")


def turns(rates: list[Rate], chain: Pipeline = CHAIN, devices: list[Device] = DEVICES) -> list[tuple[object, ...]]:
    found = pipelines.turns(chain, UNITS, rates, devices, partial(place, devices=devices))
    return [(turn.work.device, turn.work.in_flight, turn.placement.mixes_per_s) for turn in found]


PUBLISHED = {"assistant": ("resnet50", "dlrm", "llm", "diffusion"), "split": ("llm-prefill", "llm-decode")}


@pytest.mark.parametrize("tier", get_args(Tier))
def test_a_published_pipeline_has_a_deadline_at_every_tier(tier: Tier) -> None:
    found = {name: pipelines.load(name, tier, SUITES) for name in pipelines.published()}
    assert {name: each.suites for name, each in found.items()} == PUBLISHED
    assert all(each.deadline_ns > 0 for each in found.values())
    split = found["split"]
    assert [stage.carried for stage in split.stages] == [False, True], "the second continues the first"
    assert (split.apart, split.whole, split.samples) == (True, "llm", {"llm-prefill": 1, "llm-decode": 1, "llm": 1})
    assert not any(stage.carried for stage in found["assistant"].stages)


def test_a_pipeline_of_ones_own(tmp_path: Path) -> None:
    text = mine('[{ suite = "resnet50", samples = 4 }, { suite = "dlrm", device = "gpu:0" }]', "{ smoke = 0.5 }")
    stages = PipelineStage(suite="resnet50", samples=4), PipelineStage(suite="dlrm", device="gpu:0")
    expected = Pipeline(name="mine", stages=stages, deadline_ns=5 * 10**8)
    assert pipelines.load(own(tmp_path, text), "smoke", SUITES) == expected


LLM, DLRM = '{ suite = "llm" }', '{ suite = "dlrm" }'
TWO = f"[{LLM}, {DLRM}]"


def mine(stages: str = TWO, deadline_s: str = "{ smoke = 1 }", more: str = "") -> str:
    return f"[mine]\nstages = {stages}\ndeadline_s = {deadline_s}\n{more}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (mine(deadline_s="{ smoke = 0 }"), "mine.deadline_s.smoke is 0"),
        (mine(deadline_s="{ edge = 1 }"), "no deadline at the tier smoke"),
        (mine(f"[{LLM}, {LLM}]"), "comes back to llm"),
        (mine(f'[{LLM}, {{ suite = "gpt" }}]'), "'gpt'"),
        (mine(f"[{LLM}]"), "stages"),
        (mine(f'[{{ suite = "llm", samples = 3 }}, {DLRM}]'), "llm takes one sample at a time, not 3"),
        (mine(f'[{LLM}, {{ suite = "llm-decode" }}]'), "llm-decode continues llm-prefill, which is not the stage bef"),
        (mine(more='whole = "gpt"'), "'gpt'"),
        (mine(more='whole = "llm"'), "llm as a stage and as whole"),
        (mine(f'[{{ suite = "llm", bits = 4 }}, {DLRM}]'), "bits"),
        (mine('"llm"'), "stages: Input should be an array$"),
        (mine('["llm", {}]'), "0: Input should be a table; stages.1.suite: F"),
        (mine("[]"), "stages: Array should have at least 2 items, not 0$"),
        (mine(f'[{{ suite = "dlrm", samples = {10**13} }}, {LLM}]'), "stages.0.samples: .* less than or equal to 10*$"),
        (mine(f'[{{ suite = "dlrm", samples = true }}, {LLM}]'), "stages.0.samples: Input should be a valid integer$"),
        (mine(more='name = "other"'), "unknown keys: name"),
        (mine(f'[{{ suite = "llm", carried = false }}, {DLRM}]'), "unknown keys: carried"),
        (mine().replace("mine", "assistant"), "reserved"),
        ("[one]\n[two]\n", "exactly one table"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pipelines.load(own(tmp_path, text), "smoke", SUITES)


def candidates(*suites: str) -> list[Phase]:
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=1, min_feeds=1)
    routes = [solo_record(rate).route for rate in solo({(suite, "npu:0"): 1.0 for suite in suites})]
    shares = [Share(key=f"solo-{route.suite}", route=route, scenario="offline", limits=limits) for route in routes]
    return [Phase(name=share.key, purpose="solo", tasks=(Task(device="npu:0", shares=(share,)),)) for share in shares]


def test_a_stage_that_nothing_runs_is_refused_before_anything_runs() -> None:
    pipelines.refuse_unrunnable(CHAIN, candidates("a", "b"))
    with pytest.raises(UsageError, match="no device here runs b, a stage of the pipeline mine"):
        pipelines.refuse_unrunnable(CHAIN, candidates("a"))
    there = but(CHAIN, stages=(PipelineStage(suite="a", device="gpu:9"), CHAIN.stages[1]))
    with pytest.raises(UsageError, match="the device 'gpu:9' does not run a"):
        pipelines.refuse_unrunnable(there, candidates("a", "b"))


def test_the_plan_is_that_of_a_mix_of_one_feed_of_each_stage() -> None:
    """On the GPU alone a pipeline takes 0.6 s. With both: `a` and x of `b` on the GPU, 0.1 + 0.5 x = 1 − x, so x = 0.6,
    and a pipeline takes 0.4 s. Half of the deadline is 1 s, which has room for 2 at 2.5 a second, and for 1 at 1.67."""
    (both, alone) = turns(RATES)
    assert both == (None, 2, pytest.approx(2.5))
    assert alone == ("gpu:0", 1, pytest.approx(1 / 0.6))


def test_a_route_that_cannot_keep_the_deadline_takes_no_part() -> None:
    late = but(CHAIN, deadline_ns=1_050_000_000)  # 0.1 + 1 s with `b` on the CPU
    assert [rate.device for rate in pipelines.fitting(late, UNITS, RATES)] == ["gpu:0", "cpu:0", "gpu:0"]
    never = but(CHAIN, deadline_ns=10**8)
    assert [rate.device for rate in pipelines.fitting(never, UNITS, RATES)] == ["gpu:0", "gpu:0"]
    assert len(pipelines.fitting(CHAIN, UNITS, RATES)) == 4


APART = but(CHAIN, apart=True, deadline_ns=10 * 10**9)


def test_stages_that_run_apart_have_a_device_each() -> None:
    """`a` on the CPU takes 0.5 s and `b` on the GPU as long; the other way round `b` takes 1 s. Without the order to
    run apart, 2.5 a second."""
    (both, _) = turns(RATES, APART)
    assert both == (None, 3, pytest.approx(2.0))
    chosen = {(rate.suite, rate.device) for rate in pipelines.roles(UNITS, RATES)}
    assert chosen == {("a", "cpu:0"), ("b", "gpu:0")}


def test_more_devices_than_stages_share_the_slowest_stage() -> None:
    """`b` needs ten times as long as `a`, so three of four equal devices run it."""
    rates = solo({(suite, f"gpu:{number}"): 100 for suite in "ab" for number in range(4)})
    chosen = pipelines.roles({"a": 10, "b": 100}, rates)
    assert sorted(rate.suite for rate in chosen) == ["a", "b", "b", "b"]
    assert len({rate.device for rate in chosen}) == 4


def test_devices_that_cannot_run_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot run every stage"):
        pipelines.roles(UNITS, [rate for rate in RATES if rate.device == "gpu:0"])
    pipelines.refuse_unrunnable(CHAIN, candidates("a", "b"))
    with pytest.raises(UsageError, match="needs a device of its own, and this run measures 1"):
        pipelines.refuse_unrunnable(APART, candidates("a", "b"))


def test_the_whole_work_has_a_turn_of_its_own() -> None:
    rates = [*RATES, *solo({("c", "gpu:0"): 10, ("c", "cpu:0"): 5})]
    chain = but(APART, whole="c")
    found = pipelines.turns(chain, {**UNITS, "c": 30}, rates, DEVICES, partial(place, devices=DEVICES))
    assert [(turn.work.suites, turn.work.units, turn.work.device) for turn in found] == [
        (("a", "b"), (10, 20), None),
        (("c",), (30,), None),
        (("a", "b"), (10, 20), "gpu:0"),
    ]
    assert found[1].placement.mixes_per_s == pytest.approx(15 / 30)
    with pytest.raises(UsageError, match="no device has a solo rate of c"):
        pipelines.turns(chain, UNITS, RATES, DEVICES, partial(place, devices=DEVICES))


def test_slices_count_as_their_device_and_have_nothing_to_gain_over() -> None:
    slices = [
        Device(id=f"cpu:0.{index}", kind="cpu", memory_pool="host", slice_of="cpu:0", cores=(index,))
        for index in range(2)
    ]
    rates = [but(rate, device=f"cpu:0.{index}") for rate in RATES if rate.device == "cpu:0" for index in range(2)]
    assert pipelines.best_single(UNITS, rates, slices) == (
        None,
        "there is no device beside cpu:0, whose 2 slices ran the stages",
    )
    whole = [rate for rate in RATES if rate.device == "cpu:0"]
    assert pipelines.best_single(UNITS, whole, DEVICES) == (None, "there is no device beside cpu:0")
    assert turns(rates, devices=slices) == [(None, 2, pytest.approx(4 / 3))]


def test_no_single_device_may_run_every_stage() -> None:
    apart = [RATES[0], RATES[3]]
    assert pipelines.best_single(UNITS, apart, DEVICES) == (None, "no single device runs every stage")
    with pytest.raises(UsageError, match="no device has a solo rate of b"):
        turns(apart[:1])


def test_every_device_has_a_pipeline_if_the_deadline_has_room_and_one_waits_if_half_of_it_has() -> None:
    """Two devices and a deadline of 10 s: λ D is 0.1, 1.9, 2.1, 5.9, 6 and 1000."""
    rates = (0.01, 0.19, 0.21, 0.59, 0.6, 100)
    assert [pipelines.in_flight(per_s, 10, 2) for per_s in rates] == [1, 1, 2, 2, 3, 3]


def test_a_window_has_time_for_twenty_pipelines_if_the_limits_allow() -> None:
    plan = place(UNITS, RATES, DEVICES)
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=10**9, max_ns=60 * 10**9, min_feeds=1)
    assert pipelines.limits_of(plan, limits).min_ns == pytest.approx(8e9, rel=1e-6)
    assert pipelines.limits_of(plan, but(limits, max_ns=2 * 10**9)).min_ns == 2 * 10**9
    assert pipelines.limits_of(plan, but(limits, min_ns=9 * 10**9)).min_ns == 9 * 10**9


def test_the_pipelines_of_the_page_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "capabilities" / "pipelines.md").read_text("utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert pipelines.load(own(tmp_path, text), "edge", SUITES).suites == ("resnet50", "llm", "diffusion")
