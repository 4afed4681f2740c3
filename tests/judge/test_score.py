from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.score import Score, joined
from mixmark.harness.judge.statistics.timestamps import in_time
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan.placement import Power, place
from tests.fakes.machine import (
    AT_WORK,
    EDGE,
    GEMM,
    GPU_AND_CPU,
    MIX,
    QUANTA,
    READ,
    SECOND,
    Machine,
    completions,
    device,
    probe,
    record,
    recorded,
    result,
    solo,
)
from tests.golden.sample import altered, but, later, metered_later
from tests.judge.found import Said, facts, not_none, says, scored

IDS = ("gpu:0", "cpu:0")
PLAN = place(MIX, solo(GPU_AND_CPU, AT_WORK), [device(id) for id in IDS], power=Power({"gpu:0": 60, "cpu:0": 50}, 120))
FEEDS: Mapping[Pair, tuple[int, int]] = {  # of the worked example: feeds in 600 s, and units of each
    ("llm", "gpu:0"): (1208, 20),
    ("diffusion", "gpu:0"): (120, 1),
    ("dlrm", "cpu:0"): (4840, 1000),
    ("resnet50", "gpu:0"): (1206, 100),
}


def even(feeds: int, seconds: float) -> list[tuple[int, int]]:
    """Spans of feeds one after the other."""
    edges = [round(index * seconds * SECOND / feeds) for index in range(feeds + 1)]
    return list(itertools.pairwise(edges))


def run(
    name: str = "mixed.1", seconds: float = 600, feeds: Mapping[Pair, tuple[int, int]] = FEEDS, audits: int = 40
) -> tuple[list[schema.Record], schema.Placement]:
    bracket = (0, round(seconds * SECOND))
    records = [
        but(record(name, pair, completions(even(count, seconds), units), bracket, audits), concurrency=6)
        for pair, (count, units) in feeds.items()
    ]
    return records, PLAN


def changed(records: list[schema.Record], suite: str, **fields: object) -> tuple[list[schema.Record], schema.Placement]:
    return [each.model_copy(update=fields) if each.route.suite == suite else each for each in records], PLAN


BUILT_IN = schema.Environment(origin="built in", spec="a:B", python="CPython 3.12.3", mixmark="0.1.0")


def of(
    *runs: tuple[list[schema.Record], schema.Placement],
    watts: float | None = 520,
    seconds: int = 600,
    mix: schema.Mix = EDGE,
    probes: tuple[schema.Record, ...] | None = None,
) -> schema.Result:
    return result(list(runs), mix, watts, seconds * SECOND, IDS, probes)


def problems(found: Score) -> list[Said]:
    return list(map(facts, found.problems))


def test_the_worked_example() -> None:
    found = scored(of(run()))
    [seen] = found.runs
    assert {stream.suite: round(stream.mixes, 1) for stream in seen.suites} == {
        "llm": 120.8,
        "diffusion": 120,
        "dlrm": 121,
        "resnet50": 120.6,
    }
    assert seen.mixes == 120
    assert seen.total.joules == pytest.approx(312_000, rel=1e-5)
    assert found.mixes_per_hour and found.mixes_per_kwh
    assert round(found.mixes_per_hour.estimate, 4) == 720
    assert round(found.mixes_per_kwh.estimate, 2) == 1384.61
    assert found.boundary == "wall"
    seen_through = not_none(judge(of(run())).diagnoses[seen.phase])
    assert round(seen_through.kappa.estimate, 3) == 0.842
    assert seen_through.best_kind == "gpu"
    assert seen_through.heterogeneity_gain
    assert round(seen_through.heterogeneity_gain, 2) == 1.30
    assert seen_through.unproven == ()


def test_a_simulated_machine_comes_within_1_percent_of_its_bound() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA)
    machine.run(600)
    told = result([recorded(machine)], EDGE, 600, machine.now_ns, IDS)
    found = scored(told)
    assert lacking(found) == ("indicative", "score_graded.runs")
    assert found.runs[0].steady
    seen = not_none(judge(told).diagnoses[found.runs[0].phase])
    assert seen.kappa.estimate == pytest.approx(1, abs=0.01)
    assert seen.kappa.low and seen.kappa.high
    assert seen.kappa.low < 1
    assert not seen.bound_is_estimate
    assert seen.busy == {"gpu:0": pytest.approx(1, abs=0.01), "cpu:0": pytest.approx(1, abs=0.01)}
    assert all(part.retained == pytest.approx(1, rel=1e-3) for part in seen.parts)


def test_a_device_that_is_disturbed_retains_less() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, lambda pair, at_s: GPU_AND_CPU[pair] * (0.5 if "cpu:0" in pair else 1))
    machine.run(300)
    told = result([recorded(machine)], EDGE, 600, machine.now_ns, IDS)
    seen = not_none(judge(told).diagnoses["mixed.1"])
    assert {round(part.retained or 0, 2) for part in seen.parts if part.device == "cpu:0"} == {0.5}
    assert seen.kappa.estimate < 0.97


def test_the_surplus_is_time_that_earned_nothing() -> None:
    """A device that works for 100 s, 40 of them for 2.5 mixes of one suite, 20 for 2 of another, and 40 for 1 of the
    others: the first spent 24 s on what lies beyond, the second 10. A longer window could show 2.5 mixes at most."""
    spans = {"llm": (0, 40, 50), "diffusion": (40, 60, 2), "dlrm": (60, 80, 2000), "resnet50": (80, 100, 100)}
    units = {"llm": 20, "diffusion": 1, "dlrm": 2000, "resnet50": 100}
    mix = EDGE.model_copy(update={"name": "mine", "units": units})
    records = [
        record("mixed.1", (suite, "gpu:0"), completions([(begin * SECOND, end * SECOND)], count), (0, 100 * SECOND), 1)
        for suite, (begin, end, count) in spans.items()
    ]
    rates = {(suite, "gpu:0"): count / (end - begin) for suite, (begin, end, count) in spans.items()}
    plan = place(mix.units, solo(rates), [device("gpu:0")])
    found = scored(of((records, plan), mix=mix, seconds=100))
    [seen] = found.runs
    assert (seen.mixes, round(seen.surplus, 12)) == (1, 0.34)
    assert found.mixes_per_hour == Estimate(36, 36, 90, kind="bracket")
    assert "speed (TX) 36.0 to 90.0 mixes per hour (mix mine with 16-bit weights" in found.headline
    [surplus] = [each for each in found.missing if each.code == "score_graded.surplus"]
    assert surplus.values["surplus"] == pytest.approx(0.34)


def test_a_feed_that_was_under_way_at_the_end_is_surplus() -> None:
    """The second feed of the LLM is half done when the window ends: 10 of 70 s of work count for nothing."""
    spans = {"llm": [(0, 20), (60, 80)], "diffusion": [(20, 40)], "dlrm": [(40, 50)], "resnet50": [(50, 60)]}
    units = {"llm": 20, "diffusion": 1, "dlrm": 2000, "resnet50": 100}
    mix = EDGE.model_copy(update={"name": "mine", "units": units})
    done = {suite: completions([(a * SECOND, b * SECOND) for a, b in at], units[suite]) for suite, at in spans.items()}
    records = [record("mixed.1", (suite, "gpu:0"), each, (0, 70 * SECOND), 1) for suite, each in done.items()]
    rates = {(suite, "gpu:0"): units[suite] / (at[0][1] - at[0][0]) for suite, at in spans.items()}
    plan = place(units, solo(rates), [device("gpu:0")])
    [seen] = scored(of((records, plan), mix=mix, seconds=70)).runs
    assert seen.surplus == pytest.approx(1 / 7)
    assert seen.of_suite("llm").mixes_begun == pytest.approx(1.5)
    assert seen.most_per_hour == pytest.approx(1.5 / 70 * 3600)


def test_a_late_feed_counts_nothing_and_its_energy_counts() -> None:
    strict, lenient = (
        but(EDGE, name="mine", limits={"diffusion": schema.ServiceLimits(total_ns=seconds * SECOND)})
        for seconds in (4, 5)
    )
    late = scored(of(run(), mix=strict))
    assert problems(late) == [says("mix_complete.late", "run", phase="mixed.1", suite="diffusion", late=120)]
    assert late.runs[0].total.joules == pytest.approx(312_000, rel=1e-5)
    spans = even(120, 600)
    spans[100] = (spans[100][0], spans[100][1] + 1)
    records, _ = run()
    one = changed(records, "diffusion", completions=completions(spans, 1))
    [seen] = scored(of(one, mix=lenient)).runs
    assert (seen.mixes, [stream.late for stream in seen.suites]) == (119, [0, 1, 0, 0])


def test_each_limit_is_a_service_time() -> None:
    done = completions([(0, 100), (100, 300)], 4, marks=4)  # 25 and 50 ns a unit, the first one after as much
    assert in_time(done, schema.ServiceLimits()).tolist() == [True, True]
    assert in_time(done, schema.ServiceLimits(first_ns=25)).tolist() == [True, False]
    assert in_time(done, schema.ServiceLimits(per_unit_ns=25)).tolist() == [True, False]
    assert in_time(done, schema.ServiceLimits(total_ns=199)).tolist() == [True, False]


def test_what_is_stamped_behind_the_end_does_not_count() -> None:
    records, plan = run()
    short = [each.model_copy(update={"parent_window_ns": (0, 300 * SECOND)}) for each in records]
    found = scored(of((short, plan)))
    assert found.runs[0].mixes == 60
    assert found.runs[0].mixes_per_hour.estimate == pytest.approx(720)


def test_no_score_without_every_suite() -> None:
    records, plan = run()
    lacking = [each for each in records if each.route.suite != "dlrm"]
    found = scored(of((lacking, plan)))
    assert (found.mixes_per_hour, found.mixes_per_kwh) == (None, None)
    assert problems(found) == [says("mix_complete.no_feed", "run", phase="mixed.1", suite="dlrm")]
    assert found.headline == "No score: mixed.1: dlrm: no feed finished"


LLM = "mixed.1.llm.gpu-0"
REGRET = schema.Gate(metric="regret", at_most=1)
WRONG = schema.Audit(gate=REGRET, finished=1208, feeds=(0, 1), values=(0.1, 2.0))


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"unaudited": "it is big", "audit": None}, says("audited.missing", LLM, why="it is big")),
        (
            {"audit": None, "exempt": "no gate"},
            says("mix_complete.unaudited", "run", phase="mixed.1", suite="llm", why="no gate"),
        ),
        ({"surviving_processes": ("a",)}, says("no_orphans.survived", LLM, processes=1, names=("a",))),
        ({"audit": WRONG}, says("audited.wrong", LLM, wrong=1, audited=2, metric="regret", worst=2.0, at_most=1.0)),
    ],
)
def test_no_score_where_an_output_was_not_audited_or_a_record_is_not_honest(
    facts: dict[str, object], problem: Said
) -> None:
    found = scored(of(changed(run()[0], "llm", **facts)))
    assert (problems(found), found.mixes_per_hour) == ([problem], None)


def test_a_mix_whose_audits_did_not_run_is_pending_and_its_pace_tells_nothing() -> None:
    """The run was interrupted when the mix was over and its feeds were drawn."""
    told = altered(of(run()), lambda each: each.scenario == "mixed", audit__values=())
    found = judge(but(told, finished=False))
    assert found.score is not None
    assert {each.code for each in found.score.problems} == {"audited.pending"}
    assert [seen.steady for seen in found.score.runs] == [None]
    assert not [each for each in found.findings if each.rule == "steady" and each.about == "mixed.1"]
    assert found.verdict.word == "unfinished" and not [each for each in found.findings if each.severity == "invalid"]


def test_what_is_faster_than_light_has_a_score_and_no_rank() -> None:
    """The GPU's probe reaches 1 GFLOP/s, and an image is 5 s of the device's time."""
    records, plan = run()
    probes = probe("gpu:0", schema.Cost(name="gemm", flops=1e9, bytes=0), READ), probe("cpu:0", GEMM, READ)
    for gflop, unranked in ((6, []), (7, [("diffusion on gpu:0 by acme in bf16",)])):
        costs = {"costs": (schema.Cost(name="image", flops=gflop * 1e9, bytes=0),), "feed_units": 1}
        told = of((changed(records, "diffusion", **costs)[0], plan), probes=probes)
        found = scored(told.model_copy(update={"environments": {"acme": BUILT_IN}}))
        assert found.mixes_per_kwh
        assert [each.values["parts"] for each in found.unranked if each.code == "below_ceiling.unranked"] == unranked
        assert list(map(facts, scored(told).unranked)) == [], "acme is not built in: the device has its own ceiling"


def test_a_score_without_a_probe_of_each_device_has_no_rank() -> None:
    both = probe("gpu:0", GEMM, READ), probe("cpu:0", GEMM, READ)
    unknown = says("probed.unranked", "run", device="cpu:0", precision="bf16")
    for probes, unranked in (
        (both, []),
        (both[:1], [unknown]),
        ((both[0], probe("cpu:0", GEMM, READ, precision="fp32")), [unknown]),
        ((both[0], probe("cpu:0", GEMM)), [unknown]),
        ((both[0], probe("cpu:0", GEMM, READ, audits=0)), [unknown]),
        ((both[0], but(both[1], audit__values=(0.1, 9.0))), [unknown]),
    ):
        found = scored(of(run(), probes=probes))
        assert found.mixes_per_kwh
        assert list(map(facts, found.unranked)) == unranked


def test_no_score_where_a_run_is_missing() -> None:
    told = of(run(), run("mixed.2"))
    told = told.model_copy(update={"records": tuple(each for each in told.records if each.phase == "mixed.1")})
    assert problems(scored(told)) == [says("mix_complete.unfinished", "run", phase="mixed.2")]


def test_the_problems_of_joined_results_have_the_number_of_their_result() -> None:
    lost = changed(run()[0], "resnet50", cut_short=schema.Failure(kind="crashed", message="signal 9", hint=""))
    blind = changed(run()[0], "llm", audit=None, unaudited="the reference needs 40 GB")
    results = of(run()), of(lost), of(blind), of(run())
    found = joined([scored(each) for each in results])
    part = {"phase": "2/mixed.1", "suite": "resnet50", "device": "gpu:0"}
    assert problems(found) == [
        says("mix_complete.failed", "run", **part, kind="crashed", message="signal 9", hint=""),
        says("audited.missing", "3/mixed.1.llm.gpu-0", why="the reference needs 40 GB"),
    ]
    assert [each.phase for each in found.runs] == [f"{number}/mixed.1" for number in (1, 2, 3, 4)]
    assert (found.mixes_per_hour, found.mixes_per_kwh) == (None, None)


def test_without_joules_the_headline_says_so() -> None:
    found = scored(of(run(), watts=None))
    assert found.mixes_per_kwh is None
    assert found.boundary is None
    assert found.headline.startswith("Speed (TX) 720 ")
    assert found.unmeasured == "no meter was read"
    assert "kWh" not in found.headline


def test_no_mix_no_score() -> None:
    assert judge(of(run()).model_copy(update={"mix": None})).score is None
    assert judge(of(run()).model_copy(update={"phases": ()})).score is None


def five(seconds: int = 600, feeds: Mapping[Pair, tuple[int, int]] = FEEDS, audits: int = 40) -> schema.Result:
    return of(*(run(f"mixed.{index}", seconds, feeds, audits) for index in range(5)), seconds=seconds)


def test_five_long_runs_are_official() -> None:
    found = scored(five())
    assert (found.grade, found.missing) == ("official", ())
    assert found.mixes_per_kwh
    assert found.mixes_per_kwh.half_width is not None
    assert found.unranked == ()


def lacking(found: Score) -> tuple[str, str]:
    [missing] = found.missing
    return found.grade, missing.code


def test_what_a_rank_needs() -> None:
    three = [run(f"mixed.{index}") for index in range(3)]
    assert lacking(scored(of(*three))) == ("ranked", "score_graded.runs")
    assert lacking(scored(of(*three[:2]))) == ("indicative", "score_graded.runs")
    short = scored(five(seconds=119))
    assert lacking(short) == ("indicative", "score_graded.window")
    one = scored(of(*(run(f"mixed.{index}", 119 if index == 2 else 600) for index in range(5))))
    assert one.missing[0].values == {"window_s": 119, "needed_s": 120}, "the shortest one counts"
    seeded = scored(five().model_copy(update={"seed": 7}))
    assert lacking(seeded) == ("indicative", "seed_random.unranked")


def test_what_an_official_score_needs_beside_its_runs() -> None:
    lacks = [(each.code, each.values) for each in scored(five(audits=29)).missing]
    assert lacks == [("score_graded.audits", {"suite": suite, "audits": 29, "needed": 30}) for suite in MIX]
    assert scored(of(*(run(f"mixed.{index}") for index in range(5)), watts=None)).grade == "official", "TX has no meter"
    few = {pair: (10, round(MIX[pair[0]])) for pair in FEEDS}  # all of them were audited
    assert scored(five(feeds=few, audits=10)).grade == "official"


def test_each_run_needs_its_audits() -> None:
    feeds = [{pair: (count, round(MIX[pair[0]])) for pair in FEEDS} for count in (29, 30)]
    first = run("mixed.0", feeds=feeds[0], audits=29)  # all of them were audited
    others = [run(f"mixed.{index}", feeds=feeds[1], audits=29) for index in range(1, 5)]
    lacks = [each for each in scored(of(first, *others)).missing if each.code == "score_graded.audits"]
    assert [each.values for each in lacks] == [{"suite": suite, "audits": 29, "needed": 30} for suite in MIX]


def of_runs(step: int) -> Score:
    """Five runs; each finishes `step` % more feeds than the one before."""
    paces = [1 + step * index / 100 for index in range(5)]
    made = [{pair: (round(count * pace), units) for pair, (count, units) in FEEDS.items()} for pace in paces]
    return scored(of(*[run(f"mixed.{index}", feeds=feeds) for index, feeds in enumerate(made)]))


def test_runs_that_differ_have_no_rank() -> None:
    for step, grade, reached_pct, wanted_pct in ((1, "ranked", 2.5, 2), (3, "indicative", 6.1, 5)):
        found = of_runs(step)
        code, _, values = facts(found.missing[-1])
        assert (found.grade, code, round(values["reached_pct"], 1)) == (grade, "score_graded.half_width", reached_pct)
        assert values["wanted_pct"] == wanted_pct


def loaded(told: schema.Result, *phases: str) -> schema.Result:
    """Others kept a tenth of the machine busy in these phases, and none in the others."""
    calm = schema.Conditions(begin_ns=SECOND, end_ns=2 * SECOND, cpus=10, busy_ns=10 * SECOND, own_ns=10 * SECOND)
    told = altered(told, lambda _: True, conditions=(calm,))
    return altered(told, lambda each: each.phase in phases, conditions=(but(calm, own_ns=9 * SECOND),))


@pytest.mark.parametrize("feeds", [110, 240])  # a run that is slower by less than a tenth, and a faster one
def test_a_disturbed_run_counts_for_nothing_if_its_load_explains_its_figure(feeds: int) -> None:
    others = {**FEEDS, ("diffusion", "gpu:0"): (feeds, 1)}
    told = of(run("mixed.0"), run("mixed.1", feeds=others), run("mixed.2"))
    found = scored(loaded(told, "mixed.1"))
    without = scored(loaded(of(run("mixed.0"), run("mixed.2"))))
    assert (found.mixes_per_hour, found.mixes_per_kwh) == (without.mixes_per_hour, without.mixes_per_kwh)
    assert (found.missing, found.unranked, found.watts) == (without.missing, without.unranked, without.watts)
    assert [each.phase for each in found.runs] == ["mixed.0", "mixed.1", "mixed.2"], "all are shown"
    assert found.left_out == ("mixed.1",)
    assert scored(loaded(told)).left_out == ()
    slow = run("mixed.1", feeds={**FEEDS, ("diffusion", "gpu:0"): (100, 1)})
    assert scored(loaded(of(run("mixed.0"), slow, run("mixed.2")), "mixed.1")).left_out == ()


def test_what_is_left_out_is_said_and_disturbs_nothing() -> None:
    found = judge(loaded(five(), "mixed.3"))
    left_out, missing = (facts(each) for each in found.findings if each.rule == "score_graded")
    assert (left_out[0], left_out[2]["phase"]) == ("score_graded.left_out", "mixed.3")
    assert [each.rule for each in left_out[2]["why"]] == ["no_foreign_load"]
    assert found.verdict.word == "solid" and says("score_graded.runs", "run", runs=4, needed=5) in [
        facts(each) for each in missing[2]["missing"]
    ]
    assert "no_foreign_load" not in [each.rule for each in found.verdict.reasons], "no figure is of that run"


def test_where_all_runs_are_disturbed_all_count_and_have_no_rank() -> None:
    found = judge(loaded(five(), *(f"mixed.{index}" for index in range(5))))
    assert found.score is not None
    assert (found.score.counted(), found.score.left_out) == (found.score.runs, ())
    assert found.verdict.word == "disturbed"
    [why] = found.score.missing
    assert (found.score.grade, found.score.unranked) == ("indicative", (why,))
    assert why.code == "no_foreign_load.much" and why.values["used_pct"] == pytest.approx(10)


@pytest.mark.parametrize("runs", [1, 3])
def test_what_the_edges_may_hide_is_in_the_interval_of_mx(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = of(*(run(f"mixed.{index}") for index in range(runs)))
    before, tx = not_none(scored(told).mixes_per_kwh), not_none(scored(told).mixes_per_hour)
    monkeypatch.setattr(MachineEnergy, "of_edges", property(lambda _: (1 / 1.01, 1 / 0.98)))
    after = not_none(scored(told).mixes_per_kwh)
    assert after.ends == pytest.approx((before.ends[0] / 1.01, before.ends[1] / 0.98), rel=1e-4)
    assert after.estimate == before.estimate and not_none(scored(told).mixes_per_hour).ends == tx.ends


def test_a_slow_meter_is_not_official() -> None:
    told = five(seconds=120)
    slow = told.domains[0].model_copy(update={"averaging_ns": SECOND})
    grade, missing = lacking(scored(told.model_copy(update={"domains": (slow,)})))
    assert (grade, missing) == ("ranked", "score_graded.edges")


def test_the_fewest_bits_name_the_weight_class() -> None:
    (first, second, *others), plan = run()
    assert scored(of(([first, but(second, route__precision="int8"), *others], plan))).weight_class == 8
    assert scored(of(run())).weight_class == 16


def moved(told: schema.Result, by_ns: int) -> schema.Result:
    """The same on a machine that has been up for so long."""
    records = tuple(later(each, by_ns) for each in told.records)
    meterings = tuple(metered_later(each, by_ns) for each in told.meterings)
    return told.model_copy(update={"records": records, "meterings": meterings})


def test_how_long_the_machine_was_up_does_not_matter() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA)
    machine.run(600)
    told = result([recorded(machine)], EDGE, 600, machine.now_ns, IDS)
    before, after = scored(told), scored(moved(told, 30_000 * SECOND))
    for now, then in ((after.mixes_per_hour, before.mixes_per_hour), (after.mixes_per_kwh, before.mixes_per_kwh)):
        assert now and then and now.estimate == pytest.approx(then.estimate)
        assert now.ends == pytest.approx(then.ends, rel=1e-4)
    assert after.missing == before.missing


def test_a_warm_up_is_not_cut_off_but_said() -> None:
    """The GPU does half as much in the first 100 s of 600."""
    spans = [*even(10, 100), *((begin + 100 * SECOND, end + 100 * SECOND) for begin, end in even(100, 500))]
    records, _ = run(feeds={pair: (count, units) for pair, (count, units) in FEEDS.items() if pair[0] != "diffusion"})
    slow = record("mixed.1", ("diffusion", "gpu:0"), completions(spans, 1), (0, 600 * SECOND))
    found = scored(of(([*records, slow.model_copy(update={"concurrency": 6})], PLAN)))
    [seen] = found.runs
    assert (seen.begin_ns, seen.end_ns, seen.steady) == (0, 600 * SECOND, False)
    assert found.mixes_per_hour and found.mixes_per_hour.estimate == pytest.approx(110 * 6, rel=0.01)


def test_a_run_without_joules_is_not_left_out_of_the_mean() -> None:
    told = of(run(), run("mixed.2"))
    half = told.model_copy(update={"meterings": tuple(each for each in told.meterings if each.phase != "mixed.2")})
    found = scored(half)
    assert found.mixes_per_hour and found.mixes_per_kwh is None
    assert found.headline.endswith(", energy not measured")


def test_a_route_that_failed_counts_against_the_run_and_one_that_was_refused_does_not() -> None:
    records, plan = run()
    lost = records[0].model_copy(update={"key": "lost", "completions": None, "audit": None})
    crashed = lost.model_copy(update={"error": schema.Failure(kind="crashed", message="exit code 139")})
    [(code, _, values)] = problems(scored(of(([*records, crashed], plan))))
    assert (code, values["suite"], values["message"]) == ("mix_complete.failed", "llm", "exit code 139")
    refused = lost.model_copy(update={"error": schema.Failure(kind="unsupported", message="no int4 here")})
    assert scored(of(([*records, refused], plan))).problems == ()
