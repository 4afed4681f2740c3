"""The phases of a pipeline: each stage alone, then the turns of the whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mixmark.harness.capabilities.pipelines.facts import NAME, Pipeline, asked
from mixmark.harness.capabilities.pipelines.plan import limits_of, turns
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Mix, Phase, Rate, Result, ServiceLimits
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.measure.run_state import RunState, Steps, absent
from mixmark.harness.plan.bound import fastest_routes
from mixmark.harness.plan.phases import key_of, of_share, share_of


def turns_expected(header: Result) -> int:
    """The turns of a round, if all of them can be planned."""
    devices = {device.whole.id for device in header.devices}
    return 1 + (asked(header).whole is not None) + (len(devices) > 1)


def stages_alone(state: RunState) -> list[Phase]:
    """The solo measurements that the pipeline lacks: the feed of each stage alone, on each device by the fastest route
    there."""
    pipeline = asked(state.result)
    samples = pipeline.samples
    planned = {
        share.route.key
        for share in (phase.shares[0] for phase in state.of("solo"))
        if share.scenario == "single-stream" and share.batch == samples.get(share.route.suite)
    }
    bundle = Mix(name=pipeline.name, tier=state.result.tier, units=dict.fromkeys(samples, 1.0))
    fastest = fastest_routes(solo_rates.solo(state.evidence, bundle, state.invalid))
    lacking = [rate for rate in fastest if rate.key not in planned]
    return [_alone(state.result, rate, samples[rate.suite]) for rate in lacking]


def _alone(result: Result, rate: Rate, samples: int) -> Phase:
    """The solo measurement of a stage: one feed of so many samples at a time, by the route of the rate."""
    share = share_of(result, rate)
    name = key_of("stage", rate.suite, rate.adapter, rate.device, rate.precision)
    limits = share.limits.model_copy(update={"search_ns": 0})
    update = {"key": name, "scenario": "single-stream", "batch": samples, "rate_per_s": None, "limits": limits}
    return of_share(share.model_copy(update=update), "solo")


def stage_rates(
    evidence: Evidence, pipeline: Pipeline, invalid: Collection[str]
) -> tuple[Mapping[str, int], Sequence[Rate]]:
    """The units in the feed of each stage, and its best rate on each device that may run it: of one feed at a time with
    the samples of the stage; likewise of the suite that does the work of all stages. A stage that was not measured so
    is left out. invalid: as in `solo_rates.solo`."""
    samples, only = pipeline.samples, {stage.suite: stage.device for stage in pipeline.stages}
    units: dict[str, int] = {}
    rates: list[Rate] = []
    for each in evidence.measured:
        record, suite = each.record, each.record.route.suite
        if record.scenario != "single-stream" or record.screening or record.batch != samples.get(suite):
            continue
        allowed = only.get(suite) in (None, record.route.device)
        if not (allowed and record.feed_units and solo_rates.counts(each, invalid)):
            continue
        if rate := solo_rates.observed(each, ServiceLimits()):
            units[suite] = record.feed_units
            rates.append(rate)
    return units, fastest_routes(rates)


def turn(state: RunState) -> Steps:
    """The next turn. On all devices, then the work in one stage on all devices, then the pipeline on the best single
    device, so that all have the same minutes; each as often as the mix."""
    pipeline, ran = asked(state.result), state.of(NAME)
    if state.is_absent(absence := f"pipeline {pipeline.name}", "experiment"):
        return ()
    devices = state.result.devices
    units, rates = stage_rates(state.evidence, pipeline, state.invalid)
    try:
        planner = state.planner(devices, state.power)
        possible = turns(pipeline, units, rates, devices, planner)
    except MixmarkError as error:
        return (absent(absence, error, "experiment"),)
    run, at = divmod(len(ran), len(possible))
    if run >= state.preset.runs:
        return ()
    chosen = possible[at]
    name = key_of(f"pipeline{run + 1}-{chosen.name}".removesuffix("-"))
    limits = limits_of(chosen.placement, state.preset.mix)
    return (state.experiment(NAME, chosen.work, state.phase(name, run + 1, chosen.placement, limits)),)
