"""The phases of a pipeline, the refusals, and the expected time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineStage, PipelineWork
from mixmark.harness.capabilities.pipelines.phases import stage_rates
from mixmark.harness.cli.eta import Eta
from mixmark.harness.contracts.schema import Mix, Phase, Result
from mixmark.harness.judge.evidence import gather
from tests.cli.shell import ACME, Shell
from tests.cli.test_progress import header
from tests.golden.sample import but, closed_loop
from tests.measure.test_stages import DEVICES, MIX, SECOND, later, record, solo

CHAIN = Pipeline(
    name="chain", stages=(PipelineStage(suite="llm"), PipelineStage(suite="dlrm", samples=500)), deadline_ns=60 * SECOND
)


def chained(mix: Mix | None = None) -> Result:
    """Solo records of both suites on both devices: the LLM as the stage needs it, the other in batches of 1,000."""
    before = solo(*DEVICES)
    records = tuple(but(each, feed_units=100 if each.route.suite == "llm" else 1000) for each in before.records)
    return but(before, mix=mix, experiments=facts(CHAIN), records=records)


def facts(chain: Pipeline) -> dict[str, Any]:
    return {"pipeline": chain.model_dump(mode="json")}


def work(step: Phase) -> PipelineWork:
    return step.told(PipelineWork)


def with_stages(before: Result, **more: Any) -> Result:
    """With the solo measurements that the pipeline lacks: a feed of 500 samples takes 1 s."""
    steps = later(before)
    assert [(step.name, step.purpose, step.shares[0].scenario, step.shares[0].batch) for step in steps] == [
        (f"stage.dlrm.torch.{device}.fp32", "solo", "single-stream", 500) for device in ("cpu-0", "gpu-0")
    ]
    header = but(before, phases=(*before.phases, *steps))
    done = {"batch": 500, "feed_units": 500, "completions": closed_loop([[SECOND]] * 4, 500), **more}
    own = tuple(record(header, step.name, **done) for step in steps)
    return but(header, records=(*before.records, *own))


def test_a_pipeline_runs_on_all_devices_and_on_the_best_single_one_in_turns() -> None:
    """Each stage takes 1 s on either device: λ* is 1 a second on both and a half on one of them."""
    header, seen = with_stages(chained()), []
    while steps := later(header, runs=2):
        (step,) = steps
        assert step.placement is not None
        seen.append((step.name, work(step).device, step.placement.mixes_per_s, work(step).units))
        header = but(header, phases=(*header.phases, step))
        assert {share.batch for share in step.shares} == {1, 500}
    single = seen[1][1]
    assert single in ("cpu:0", "gpu:0")
    assert seen == [
        (f"pipeline{run}{end}", device, pytest.approx(per_s), (100, 500))
        for run in (1, 2)
        for end, device, per_s in (("", None, 1.0), ("-alone", single, 0.5))
    ]


def test_a_pipeline_follows_the_mix_and_also_a_mix_that_cannot_be_planned() -> None:
    (mixed,) = later(with_stages(chained(MIX)))
    assert mixed.purpose == "mixed"
    after = with_stages(chained(MIX))
    (chain,) = later(but(after, phases=(*after.phases, mixed)))
    assert chain.experiment == "pipeline"
    unplanned = but(MIX, units={"llm": 1, "dlrm": 1, "gone": 1})
    absent, chain = later(but(after, mix=unplanned))
    assert (absent.kind, chain.experiment) == ("mix", "pipeline")


def test_a_pipeline_whose_stage_has_no_rate_is_absent_with_the_reason() -> None:
    unaudited = with_stages(chained(), audit=None)
    (absent,) = later(unaudited)
    assert absent.label == "pipeline chain"
    assert "no device has a solo rate of dlrm" in absent.reason
    assert later(but(unaudited, absent=(absent,))) == []


def test_only_a_feed_of_the_stages_samples_is_its_time_alone() -> None:
    """The LLM was measured one feed of one sample at a time, and the stage has two."""
    twice = but(CHAIN, stages=(PipelineStage(suite="llm", samples=2), CHAIN.stages[1]))
    before = but(chained(), experiments=facts(twice))
    lacking = {(step.shares[0].route.suite, step.shares[0].batch) for step in later(before)}
    assert lacking == {("llm", 2), ("dlrm", 500)}
    assert stage_rates(gather(before), twice, ()) == ({}, [])
    units, found = stage_rates(gather(before), CHAIN, ())
    assert (units, {(rate.suite, rate.batch) for rate in found}) == ({"llm": 100}, {("llm", 1)})
    there = (PipelineStage(suite="llm", device="gpu:0"), CHAIN.stages[1])
    _, found = stage_rates(gather(before), but(CHAIN, stages=there), ())
    assert [rate.device for rate in found] == ["gpu:0"]


@pytest.mark.parametrize(("whole", "devices", "turns"), [(None, 1, 1), ("llm", 1, 2), ("llm", 2, 3)])
def test_the_turns_of_a_pipeline_are_expected_also_without_a_mix(whole: str | None, devices: int, turns: int) -> None:
    """Each as long as a mix of all routes."""
    stages = tuple(PipelineStage(suite=suite) for suite in ("dlrm", "resnet50"))
    chain = Pipeline(name="mine", stages=stages, deadline_ns=SECOND, whole=whole)
    both = header()
    parts = tuple(but(both.devices[0], id=f"cpu:{number}") for number in range(devices))
    bare = but(both, mix=None, devices=parts)
    asked = but(bare, experiments=facts(chain))
    mixed, alone, with_turns = (Eta(each, False).total_s for each in (both, bare, asked))
    assert with_turns - alone == pytest.approx(turns * (mixed - alone))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pipeline", "asistant"], "did you mean assistant?"),
        (["--pipeline", "assistant"], "needs diffusion, dlrm, llm, resnet50, which this run does not measure"),
        (["--pipeline", "probe.toml"], "there is no suite for pipeline mine: 'probe'"),
        (["--pipeline", "assistant", "--address", "a"], "--pipeline runs on this machine alone"),
    ],
)
@pytest.mark.usefixtures("in_process")
def test_a_pipeline_that_cannot_run_is_refused_before_anything_runs(
    tmp_path: Path, words: list[str], message: str
) -> None:
    shell = Shell(tmp_path)
    chain = '[mine]\nstages = [{ suite = "null" }, { suite = "probe" }]\ndeadline_s = { smoke = 2 }\n'
    (shell.folder / "probe.toml").write_text(chain)
    done = shell("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", *words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (shell.folder / "results").exists()
