"""How the rate grows with the hosts, and that no figure of a part of them is taken for one of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mixmark.harness.capabilities.scaling.experiment import sizes
from mixmark.harness.capabilities.scaling.steps import ScalingStep
from mixmark.harness.cli import commands
from mixmark.harness.contracts.schema import Failure, Result
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.evidence import gather
from mixmark.harness.measure.stages import Outlook, RunState, next_steps, to_come
from mixmark.harness.plan import presets
from mixmark.harness.plan.placement import Power
from mixmark.harness.plan.presets import SMOKE_MIX
from tests.fakes.hosts import cluster
from tests.fakes.machine import EDGE, GPU_AND_CPU, altered
from tests.golden.sample import phase
from tests.judge.found import facts, says

pytestmark = pytest.mark.slow
ASKED = {"scaling": {"scaling": True}}
SMOKE = presets.of("quick", "smoke")
THREE = ("host1", "host2", "host3")


@pytest.fixture(scope="module")
def three() -> Result:
    return cluster(THREE, parts={1: 1.0, 2: 0.8})


def scaling_of(judged: Assessment) -> tuple[ScalingStep, ...]:
    found = judged.experiments.get("scaling", ())
    assert isinstance(found, tuple)
    return found


def steps(about: Result) -> dict[int, ScalingStep]:
    return {len(each.hosts): each for each in scaling_of(judge(about))}


def test_the_efficiency_of_equal_hosts_is_their_rate_against_so_many_times_that_of_one(three: Result) -> None:
    found = steps(three)
    per_s = {hosts: step.mixes_per_hour.estimate for hosts, step in found.items() if step.mixes_per_hour}
    assert list(per_s) == [1, 2, 3]
    for hosts, of_one in ((1, 1.0), (2, 0.8), (3, 1.0)):
        efficiency = found[hosts].efficiency
        assert efficiency == pytest.approx(per_s[hosts] / hosts / per_s[1], rel=1e-6)
        assert efficiency == pytest.approx(of_one, rel=0.02)
    assert found[2].hosts == ("host1", "host2")
    per_kj = [step.mixes_per_kwh.estimate for step in found.values() if step.mixes_per_kwh]
    assert per_kj[0] == pytest.approx(per_kj[2], rel=0.02), "only the hosts of a step count in its joules"
    assert per_kj[1] == pytest.approx(0.8 * per_kj[0], rel=0.02)


def test_of_unequal_hosts_the_bound_says_what_each_would_add() -> None:
    """The second host is half as fast: two of them reach 1.5 times the rate of the first."""
    speeds = {
        (suite, f"{host}/{id}"): rate / (2 if host == "host2" else 1)
        for host in ("host1", "host2")
        for (suite, id), rate in GPU_AND_CPU.items()
    }
    found = steps(cluster(speeds=speeds, parts={1: 1.0}))
    assert found[2].bound_per_hour == pytest.approx(1.5 * found[1].bound_per_hour, rel=1e-6)
    assert found[2].efficiency == pytest.approx(1, rel=0.02)


def test_the_score_is_that_of_all_hosts(three: Result) -> None:
    plain = judge(cluster(THREE)).score
    found = judge(three).score
    assert plain and found and [run.phase for run in found.runs] == ["mixed.1"]
    assert (found.headline, found.mixes_per_hour) == (plain.headline, plain.mixes_per_hour)
    alone = {each.record.phase for each in gather(three).measured if each.is_solo}
    assert alone and not {phase for phase in alone if phase.startswith("scaling")}
    known = solo_rates.solo(gather(three), EDGE, ())
    assert sorted(rate.units_per_s for rate in known) == sorted(
        rate.units_per_s for rate in solo_rates.solo(gather(cluster(THREE)), EDGE, ())
    )


def test_a_part_that_failed_has_no_rate_and_says_why(three: Result) -> None:
    gone = Failure(kind="crashed", message="the agent is gone")

    lost = altered(three, lambda each: each.phase == "scaling2", cut_short=gone)
    found = steps(lost)
    assert (found[2].mixes_per_hour, found[2].efficiency) == (None, None)
    assert {each.code for each in found[2].problems} == {"mix_complete.host_failed"}
    assert found[3].efficiency == pytest.approx(1, rel=0.02)
    without = three.model_copy(update={"records": tuple(e for e in three.records if e.phase != "scaling1")})
    found = steps(without)
    assert [facts(each) for each in found[1].problems] == [says("mix_complete.unfinished", "run", phase="scaling1")]
    assert [step.efficiency for step in found.values()] == [None, None, None], "nothing to compare with"
    assert judge(lost).score == judge(three).score


def test_a_bound_that_its_prices_do_not_prove_makes_no_efficiency(three: Result) -> None:
    """A lower bound of one part would make much of its rate."""
    phases = tuple(
        phase.model_copy(update={"placement": phase.placement.model_copy(update={"bound_per_s": 0.01})})
        if phase.name == "scaling2" and phase.placement
        else phase
        for phase in three.phases
    )
    found = steps(three.model_copy(update={"phases": phases}))
    assert found[2].efficiency is None
    assert [each.code for each in found[2].problems] == ["mix_complete.unproven"]


def test_the_energy_of_a_part_is_not_known_where_one_meter_holds_several_hosts(three: Result) -> None:
    first, second, third = three.domains
    both = second.model_copy(update={"covers": (*first.covers, *second.covers)})
    found = steps(three.model_copy(update={"domains": (both, third)}))
    assert (found[1].mixes_per_kwh, found[1].unmeasured) == (None, "no meter reads these hosts without others")
    assert found[2].mixes_per_kwh and found[1].mixes_per_hour


def later(before: Result) -> list[Any]:
    return [*next_steps(RunState(before, SMOKE, {}))]


def test_the_parts_are_planned_behind_the_mix_one_by_one(three: Result) -> None:
    """1, 2, 4 … of the first hosts, and no more than there are."""
    bare = cluster(THREE)
    assert not later(bare)
    asked = bare.model_copy(update={"experiments": ASKED})
    assert sizes(asked) == (1, 2)
    [first] = later(planned_alone(asked))
    assert (first.name, first.purpose) == ("scaling1", "experiment")
    assert {task.device for task in first.tasks} == {"host1/gpu:0", "host1/cpu:0"}
    more = planned_alone(asked)
    [second] = later(more.model_copy(update={"phases": (*more.phases, first)}))
    assert second.name == "scaling2" and {task.device.split("/")[0] for task in second.tasks} == {"host1", "host2"}
    both = more.model_copy(update={"phases": (*more.phases, first, second)})
    assert not later(both)
    assert second.shares[0].limits == SMOKE_MIX


def planned_alone(about: Result) -> Result:
    """The same with the plans of its solo records, which the simulation leaves out."""

    solos = [phase(each) for each in about.records if each.scenario == "offline"]
    return about.model_copy(update={"phases": (*solos, *about.phases)})


def test_hosts_that_cannot_do_every_suite_have_no_part() -> None:
    speeds = {
        (suite, f"{host}/{id}"): rate
        for host in ("host1", "host2")
        for (suite, id), rate in GPU_AND_CPU.items()
        if host == "host2" or suite != "llm"
    }
    asked = planned_alone(cluster(speeds=speeds)).model_copy(update={"experiments": ASKED})
    assert sizes(asked) == (1,)
    assert not later(asked)


def test_scaling_without_hosts_or_without_a_mix_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is discovered, so that nothing but the sentence is there."""
    monkeypatch.undo()  # with the mixes that are published
    done = CliRunner().invoke(commands.main, ["run", "--scaling", "--out", str(tmp_path / "out")])
    assert (done.exit_code, "--scaling runs a mix on a part of several hosts" in done.output) == (2, True)
    assert not (tmp_path / "out").exists()


def test_the_eta_counts_each_part_that_is_not_planned_yet(three: Result) -> None:
    planned = planned_alone(cluster(THREE)).model_copy(update={"experiments": ASKED, "records": ()})
    solo = tuple(phase for phase in planned.phases if phase.purpose == "solo")
    alone = planned.model_copy(update={"phases": solo})
    left = [len([*to_come(Outlook(each, SMOKE))]) for each in (alone, planned)]
    assert left == [3, 2], "the mix on one, two and three hosts"


def test_the_power_of_a_part_has_the_rest_of_its_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planned_alone(cluster(THREE)).model_copy(update={"experiments": ASKED})
    idle = {device.id: 10.0 for device in asked.devices}
    monkeypatch.setattr(solo_rates, "power", lambda result: Power(idle, 300.0))
    [first] = later(asked)
    assert first.placement and first.placement.rest_watts == 100
    assert first.placement.idle_watts == {"host1/gpu:0": 10, "host1/cpu:0": 10}
