"""Each rule against a record that keeps it and one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import (
    AcceleratorConditions,
    Audit,
    Completions,
    Conditions,
    Cost,
    Device,
    Failure,
    Gate,
    Phase,
    Record,
    Share,
)
from mixmark.harness.contracts.seeds import schedule
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.findings import CODES
from mixmark.harness.judge.rules import integrity, registered
from mixmark.harness.plan.presets import QUICK
from tests.golden.sample import GPU, but, closed_loop, phase, probe, record, result
from tests.judge.found import Check, Said, beside, block, facts, not_none, said, says

GATE = Gate(metric="regret in standard deviations", at_most=0.1)
COSTS = (Cost(name="prefill", flops=1e10, bytes=1e9, streamed_bytes=4e8), Cost(name="decode", flops=1e9, bytes=1e9))
SECOND = 1_000_000_000


def cell(steps: Sequence[Sequence[int]] = ((70, 400),) * 4, **changed: Any) -> Record:
    """Feeds of two yields, a unit each, as fast as the probe below in what it multiplies and what it streams."""
    plain = record("b", "llm", "token", closed_loop(steps), costs=COSTS)
    return but(plain, **{"feed_units": 2, **changed})


def failed(**changed: Any) -> Record:
    return but(cell(**changed), completions=None, error=Failure(kind="hung", message="no unit"))


def told(rule: Check, changed: Record, caches: dict[str, str] | None = None) -> list[Said]:
    about = result(probe("a", 70, 400), changed)
    system = but(about.system, caches=caches or {"L2": "1024K", "L3": "32768K"})
    found = rule(gather(but(about, system=system)))
    return [facts(each) for each in found if each.about != "a"]


def codes(rule: Check, changed: Record) -> list[str]:
    return [code for code, *_ in told(rule, changed)]


def audit(*values: float, **changed: Any) -> Audit:
    return Audit(gate=GATE, finished=9, feeds=tuple(range(len(values))), values=values, **changed)


def test_every_audited_feed_counts_and_not_their_mean() -> None:
    for feeds in (1, 3):
        assert told(integrity.audited, cell(audit=audit(*[0.1] * feeds))) == [says("audited.few", audited=feeds)]
    [(code, _, values)] = told(integrity.audited, cell(audit=audit(*[0.0] * 9)))
    assert (code, values["audited"], round(values["wrong_pct"])) == ("audited.passed", 9, 28)
    wrong = {"wrong": 1, "audited": 4, "metric": GATE.metric, "worst": 0.11, "at_most": 0.1}
    assert told(integrity.audited, cell(audit=audit(0.0, 0.0, 0.1, 0.11))) == [says("audited.wrong", **wrong)]


def test_a_gate_of_the_server_tier_or_of_a_checkpoint_is_unmeasured() -> None:
    plain = cell(audit=audit(0.0, 0.1))
    route = plain.route
    for changed, more in (
        ({"tier": "edge"}, []),
        ({"tier": "server"}, ["audited.unmeasured"]),
        ({"weights": "model.safetensors sampled-sha256:00"}, ["audited.unmeasured"]),
    ):
        measured = but(plain, route=route.model_copy(update=changed))
        assert codes(integrity.audited, measured) == ["audited.few", *more]
        wrong = but(measured, audit=audit(0.2))
        assert codes(integrity.audited, wrong) == ["audited.wrong"]
    own = but(route, adapter="onnxruntime")
    for engine, more in (("onnxruntime", ["audited.same"]), ("torch", [])):
        made = audit(0.0, software={engine: "1"})
        assert codes(integrity.audited, cell(audit=made, route=own)) == ["audited.few", *more]


NO_GATE = but(cell().route, suite_options={"no gate for fp32": "rounding moves outputs"})


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        ({"audit": audit(problem="feed 3: not finite")}, "problem", {"problem": "feed 3: not finite"}),
        ({"audit": Audit(gate=GATE, finished=9, feeds=(3,))}, "missing", {"why": "the run ended before"}),
        ({"audit": None, "unaudited": "no torch"}, "missing", {"why": "no torch"}),
        ({"audit": None, "exempt": "not asked for"}, "unasked", {"why": "not asked for"}),
        ({"audit": None, "exempt": "no gate"}, "unasked", {"why": "no gate"}),
        ({"audit": None, "exempt": "no gate", "route": NO_GATE}, "unasked", {"why": "rounding moves outputs"}),
    ],
)
def test_what_was_not_compared_counts_unless_nobody_asked_for_it(
    changed: dict[str, Any], code: str, values: dict[str, Any]
) -> None:
    assert told(integrity.audited, cell(**changed)) == [says(f"audited.{code}", **values)]


def test_an_audit_that_was_drawn_and_did_not_run_is_pending_until_the_run_is_over() -> None:
    drawn = cell(audit=Audit(gate=GATE, finished=9, feeds=(3,)))
    for about in (drawn, cell(audit=None)):
        for finished, code in ((False, "audited.pending"), (True, "audited.missing")):
            found = integrity.audited(gather(result(about, finished=finished)))
            assert [(each.code, each.severity) for each in found] == [(code, CODES[code].severity)]
    failed = cell(audit=Audit(gate=GATE, finished=9, feeds=(3,)), unaudited="no torch")
    assert [each.code for each in integrity.audited(gather(result(failed, finished=False)))] == ["audited.missing"]


def test_not_asked_for_is_no_excuse_where_the_plan_asks() -> None:
    unaudited = cell(audit=None, exempt="not asked for")
    for audits, severity in ((0, "note"), (1, "invalid")):
        planned = but(result(unaudited), phases=(phase(unaudited, audits=audits),))
        assert [each.severity for each in integrity.audited(gather(planned))] == [severity]


def test_nothing_lives_on_after_a_worker() -> None:
    assert told(integrity.no_orphans, cell()) == []
    survived = says("no_orphans.survived", processes=2, names=("python3", "sh"))
    assert told(integrity.no_orphans, cell(surviving_processes=("sh", "python3"))) == [survived]
    helped = says("no_orphans.helped", processes=1, names=("acmed",))
    assert told(integrity.no_orphans, cell(helper_processes=("acmed",))) == [helped]


def test_every_feed_has_its_units_and_yields() -> None:
    assert told(integrity.units_counted, cell()) == []
    counted = says("units_counted.units", least=2, most=2, expected=1)
    assert told(integrity.units_counted, cell(feed_units=1)) == [counted]
    assert told(integrity.units_counted, cell(((470,),) * 4, feed_units=1)) == [FEWER_YIELDS]


FEWER_YIELDS = says("units_counted.yields", expected=2, least=1)


def served(count: int = 40, rate_per_s: float = 4.0, seed: int = 7, begin_ns: int = 0, each_ns: int = 1000) -> Record:
    """A server whose feeds each wait for nothing, and are due when its seed says."""
    due = schedule(rate_per_s, seeds.arrivals(seed), count) + begin_ns
    done = Completions(due, due, np.arange(1, count + 1), due + each_ns, np.ones(count, np.int64))
    plain = but(record("b", "llm", "token", done, costs=COSTS), scenario="server")
    bracket = (begin_ns - SECOND // 100, int(done.yielded_ns[-1]) + SECOND // 100)
    return but(plain, rate_per_s=rate_per_s, seed=seed, parent_window_ns=bracket)


def test_the_parents_clock_brackets_a_server_from_the_begin_of_its_window() -> None:
    """The first feed may come late, and a busy machine be slow to tell."""
    honestly = served(rate_per_s=0.5, begin_ns=5 * SECOND)
    assert told(integrity.window_bracketed, honestly) == []
    bracket = not_none(honestly.parent_window_ns)
    late = but(honestly, parent_window_ns=(bracket[0] - SECOND // 10, bracket[1] + SECOND // 10))
    assert told(integrity.window_bracketed, late) == []
    slowed = but(honestly, parent_window_ns=(bracket[0], bracket[0] + 4 * (bracket[1] - bracket[0])))
    [(code, _, values)] = told(integrity.window_bracketed, slowed)
    assert (code, round(values["covered_s"]), round(values["window_s"])) == ("window_bracketed.short", 85, 339)


def test_a_servers_feeds_are_due_when_its_seed_says() -> None:
    assert told(integrity.on_schedule, served()) == []
    for changed, code in (
        ({"seed": 8}, "on_schedule.other"),
        ({"rate_per_s": 2.0}, "on_schedule.other"),
        ({"seed": None}, "on_schedule.unknown"),
        ({"rate_per_s": 1e-12}, "on_schedule.unknown"),
    ):
        assert told(integrity.on_schedule, served().model_copy(update=changed)) == [says(code)]
    assert told(integrity.on_schedule, cell()) == []


def test_a_server_leaves_no_feed_of_its_window_out() -> None:
    def found(count: int) -> list[Said]:
        one = served(count)
        plan = phase(one, min_ns=10 * SECOND, max_ns=20 * SECOND)
        return [facts(each) for each in integrity.on_schedule(gather(but(result(one), phases=(plan,))))]

    due = int(np.searchsorted(schedule(4.0, seeds.arrivals(7), 100), 10 * SECOND))
    assert found(due) == []
    [(code, _, values)] = found(due - 1)
    assert (code, int(values["due_s"]), values["window_s"]) == ("on_schedule.left_out", 9, 10)


def test_no_timestamp_lies_outside_of_the_parents_window_and_little_of_it_is_untimed() -> None:
    ten = cell(((SECOND, SECOND),) * 5)  # from 1,000 ns to 10 s and 1,000 ns
    slack = 350_000_000  # of ten seconds
    for begin, end, case in (
        (900, 10 * SECOND + 100_000, ""),
        (1_000, 10 * SECOND + 1_000, ""),
        (1_001, 10 * SECOND + 1_000, "outside"),  # it began before the seed was sent
        (1_000, 10 * SECOND + 999, "outside"),  # it ended after the window was closed
        (1_000, 10 * SECOND + slack, ""),
        (1_000, 10 * SECOND + slack + 5_000_000, "short"),  # the timestamps leave time out
    ):
        found = codes(integrity.window_bracketed, but(ten, parent_window_ns=(begin, end)))
        assert found == ([f"window_bracketed.{case}"] if case else []), (begin, end)
    assert told(integrity.window_bracketed, cell(parent_window_ns=None)) == []
    assert told(integrity.window_bracketed, failed(parent_window_ns=(0, 1))) == []


def test_latencies_are_the_workers_word_unless_the_parent_took_the_times() -> None:
    one = cell(((SECOND,),) * 5, feed_units=1)
    assert told(integrity.latencies_bounded, one) == [says("latencies_bounded.window", "run", suites=("llm",))]
    assert told(integrity.latencies_bounded, but(one, stamped=True)) == []
    two, three = (cell(((SECOND,) * yields,) * 5, stamped=True) for yields in (2, 3))
    assert told(integrity.latencies_bounded, two) == []  # the first yield and the last
    assert told(integrity.latencies_bounded, three) == [says("latencies_bounded.inside", "run")]


def test_one_feed_with_a_unit_too_many_is_enough() -> None:
    done = not_none(cell().completions)
    units = done.units.copy()
    units[-1] += 1
    padded = type(done)(done.due_ns, done.issued_ns, done.ends, done.yielded_ns, units)
    counted = says("units_counted.units", least=2, most=3, expected=2)
    assert told(integrity.units_counted, cell(completions=padded)) == [counted]
    merged = cell(((70, 400), (470,), (70, 400)))  # one feed comes in one piece, with its two units
    assert merged.completions is not None
    whole = merged.completions
    pieces = np.where(whole.ends[:, None] == 3, 2, 1).repeat(whole.ends - whole.starts, axis=0).ravel()
    at_once = type(whole)(whole.due_ns, whole.issued_ns, whole.ends, whole.yielded_ns, pieces)
    assert told(integrity.units_counted, but(merged, completions=at_once)) == [FEWER_YIELDS]
    assert told(integrity.units_counted, cell(costs=())) == []  # no cost model: nobody knows how many yields there are
    assert told(integrity.units_counted, cell(feed_units=None)) == []


def overlapping(feeds: int, **changed: Any) -> Record:
    """Each takes 100 ns and is issued 100 / feeds behind the one before."""
    issued = 1_000 + 100 // feeds * np.arange(8)
    done = Completions(issued, issued, np.arange(1, 9), issued + 100, np.ones(8, np.int64))
    return cell(completions=done, feed_units=1, costs=(), scenario="offline", **changed)


def test_a_device_has_as_many_feeds_in_flight_as_it_takes() -> None:
    assert told(integrity.concurrency_kept, overlapping(1)) == []
    assert told(integrity.concurrency_kept, overlapping(4, concurrency=4)) == []
    many = says("concurrency_kept", most=4, device="cpu:0", concurrency=3)
    assert told(integrity.concurrency_kept, overlapping(4, concurrency=3)) == [many]
    alone = but(overlapping(2, concurrency=2), scenario="single-stream")
    assert told(integrity.concurrency_kept, alone) == [TWO_AT_ONCE]


TWO_AT_ONCE = says("concurrency_kept", most=2, device="cpu:0", concurrency=1)


def test_suites_that_share_a_device_take_turns() -> None:
    def played(key: str, phase: str = "mix1", device: str = "cpu:0", later_ns: int = 0) -> Record:
        done = closed_loop(((100,),) * 4)
        columns = done.due_ns + later_ns, done.issued_ns + later_ns, done.ends, done.yielded_ns + later_ns, done.units
        each = record(key, "llm", "token", Completions(*columns), device=device)
        return but(each, scenario="mixed", phase=phase)

    def seen(*records: Record) -> list[Said]:
        return [facts(each) for each in integrity.concurrency_kept(gather(result(*records)))]

    assert seen(played("a"), played("b", later_ns=400)) == []
    assert seen(played("a"), played("b", phase="mix2")) == []
    assert seen(played("a"), played("b", device=GPU)) == []
    assert seen(played("b"), played("a")) == [TWO_AT_ONCE]


def test_time_without_a_feed_in_flight_shows() -> None:
    """A window of 1,000 ns, by the parent's clock, with feeds of 100 ns."""

    def found(feeds: int, **changed: Any) -> list[Said]:
        done = closed_loop(((100,),) * feeds)
        return told(integrity.device_busy, cell(completions=done, parent_window_ns=(0, 1_000), **changed))

    assert found(9) == []
    assert found(8) == [says("device_busy", idle_pct=20.0)]
    assert len(found(10, scenario="offline", concurrency=2)) == 1
    assert found(2, scenario="mixed") == found(2, scenario="server") == []  # others have their turn, or no feed is due


def test_what_fell_back_to_the_cpu_is_invalid() -> None:
    assert told(integrity.on_device, cell(facts={"nodes of see": "cuda 9", "elsewhere": ""})) == []
    elsewhere = says("on_device.elsewhere", device="cpu:0", elsewhere="see: 2 Conv by CPU")
    assert told(integrity.on_device, cell(facts={"elsewhere": "see: 2 Conv by CPU"})) == [elsewhere]


def on_gpu(*blocks: dict[str, Any], first: int = 0, device: str = GPU) -> Record:
    """A record of four seconds from 1 µs on, watched in blocks of a second, each with a state of the GPU."""
    conditions = tuple(
        Conditions(
            begin_ns=at * SECOND + 1_000,
            end_ns=(at + 1) * SECOND + 1_000,
            accelerators=(AcceleratorConditions(id=GPU, **state),),
        )
        for at, state in enumerate(blocks, first)
    )
    plain = cell(((SECOND, SECOND),) * 2, conditions=conditions)
    return but(plain, route__device=device)


@pytest.mark.parametrize(
    ("gpu", "shows"),
    [
        ({"utilization_pct": 4, "own_processes_listed": True}, []),
        ({"utilization_pct": None, "own_processes_listed": None}, []),
        ({"utilization_pct": 0}, [says("on_device.idle", device=GPU, blocks=4)]),
        ({"utilization_pct": 90, "own_processes_listed": False}, [says("on_device.not_ours", device=GPU)]),
    ],
)
def test_a_gpu_that_is_idle_or_works_for_others_shows(gpu: dict[str, Any], shows: list[Said]) -> None:
    assert told(integrity.on_device, on_gpu(*[gpu] * 4)) == shows
    assert told(integrity.on_device, on_gpu(*[gpu] * 4, device="cpu:0")) == []


def test_a_gpu_that_is_idle_for_three_whole_blocks_shows_and_what_lies_outside_does_not_count() -> None:
    def seen(*busy_pct: int, first: int = 0) -> list[Said]:
        return told(integrity.on_device, on_gpu(*({"utilization_pct": pct} for pct in busy_pct), first=first))

    assert seen(0, 0) == []
    assert seen(0, 0, 0) == [says("on_device.idle", device=GPU, blocks=3)]
    assert seen(0, 0, 0, 1) == []
    assert seen(1, 0, 0, 0) == []
    assert seen(9, 9, 0, 0, 0, 0, 9, 9, first=-2) == [says("on_device.idle", device=GPU, blocks=4)]


def test_a_group_of_gpus_is_idle_where_one_of_its_parts_is() -> None:
    window = cell(((SECOND, SECOND),) * 2)
    window = but(window, route__device="gpu:both")
    states = tuple(AcceleratorConditions(id=id, utilization_pct=pct) for id, pct in (("gpu:0", 50), ("gpu:1", 0)))
    blocks = tuple(Conditions(begin_ns=at * SECOND, end_ns=(at + 1) * SECOND, accelerators=states) for at in range(4))
    both = Device(id="gpu:both", kind="gpu", memory_pool="gpu:both", parts=("gpu:0", "gpu:1"))
    about = but(result(but(window, conditions=blocks)), devices=(both,))
    [found] = integrity.on_device(gather(about))
    assert facts(found) == says("on_device.idle", device="gpu:1", blocks=4)


def test_a_record_that_failed_is_no_ones_fraud() -> None:
    lost = failed(facts={"elsewhere": "see"}, audit=audit(9.0))
    assert [
        finding for rule in registered.RULES.values() if rule.sees == "facts" for finding in told(rule.check, lost)
    ] == []


def test_nothing_is_faster_than_light() -> None:
    """The probe reaches 1e10 FLOP in 70 ns and 4e9 bytes in 400."""
    assert told(integrity.below_ceiling, cell()) == []
    [(code, _, values), *_] = told(integrity.below_ceiling, cell(((25, 30),) * 4))
    assert (code, values["unit"], round(values["times"], 2)) == ("below_ceiling", "FLOP/s", 1.4)


def by(adapter: str, gemm_ns: int, read_ns: int, **changed: Any) -> Record:
    """An adapter's probe, whose read is proved."""
    plain = probe(adapter, gemm_ns, read_ns)
    costs = tuple(but(cost, streamed_bytes=cost.bytes) for cost in plain.costs)
    route = but(plain.route, adapter=adapter)
    return but(plain, route=route, costs=costs, **changed)


def test_a_fake_probe_hides_nothing() -> None:
    """Weights of four bits under a declared 16 read four times as fast as the memory. A probe that leaves its work out
    would set a ceiling under which that passes."""
    fast = cell(((10, 20),) * 4)
    fake, honest_one = by("acme", 1, 1), by("torch", 70, 400)

    def found(*probes: Record, torch: str = "built in") -> list[Said]:
        told = result(*probes, fast)
        system = but(told.system, caches={"L3": "32768K"})
        known = told.environments["torch"]
        ran = {"torch": but(known, origin=torch), "onnxruntime": known}
        told = but(told, system=system, environments=ran)
        return [facts(each) for each in integrity.below_ceiling(gather(told))]

    assert [about for _, about, _ in found(honest_one)] == ["b", "b"]
    assert found(honest_one, fake) == found(honest_one)  # the built-in adapter's probe counts, not the best one
    assert found(honest_one, torch="acme-torch 1.0") == [], "an adapter is no witness by its name"
    assert found(honest_one, by("onnxruntime", 10, 100)) == [], "it proved four times the bytes and seven the FLOPs"
    assert found(by("slow", 70, 400)) == found(fake) == [], "no built-in adapter probed it: it has its own ceiling"
    assert unprobed(fake, fast) == []
    bent = by("torch", 1, 1)
    assert found(bent) == found(bent, by("onnxruntime", 70, 400)) == []
    assert found(bent, by("onnxruntime", 70, 400), torch="Mixmark of another interpreter") == found(honest_one)
    wrong = but(fake, audit=audit(0.0, 1.0))
    assert found(wrong) == []
    assert [each.code for each in integrity.audited(gather(result(wrong)))] == ["audited.wrong"]
    assert unprobed(wrong, fast) == [says("probed", device="cpu:0", precision="fp32")]


@pytest.mark.parametrize(("foreign", "accused"), [(0.05, True), (0.85, False)])
def test_a_probe_beside_other_programs_sets_no_ceiling(foreign: float, accused: bool) -> None:
    """It had a fraction of its speed, and an honest suite would exceed it."""
    own_ns = round((1 - 2 * foreign) * SECOND)
    load = block(0, cpus=2, busy_ns=2 * SECOND, own_ns=own_ns + SECOND, stolen_ns=0)
    probed, fast = by("torch", 70, 400, conditions=(load,)), cell(((25, 30),) * 4)
    assert any(integrity.below_ceiling(gather(result(probed, fast)))) is accused
    assert unprobed(probed, fast) == ([] if accused else [says("probed", device="cpu:0", precision="fp32")])
    calm = but(by("torch", 70, 400), key="calm")
    assert any(integrity.below_ceiling(gather(result(probed, calm, fast)))), "one before or after it was not disturbed"


def unprobed(*records: Record) -> list[Said]:
    return [facts(each) for each in integrity.probed(gather(result(*records)))]


def test_the_ceiling_of_another_precision_is_none_of_flops() -> None:
    narrow = but(by("torch", 10, 400), key="narrow")
    narrow = but(narrow, route__precision="int8")
    fast = cell(((17, 400),) * 4)
    fast = but(fast, route__precision="int8")
    assert list(integrity.below_ceiling(gather(result(by("torch", 70, 400), narrow, fast)))) == []
    assert unprobed(by("torch", 70, 400), narrow, fast) == []
    assert unprobed(by("torch", 70, 400), fast) != []


def test_a_clever_algorithm_is_no_fraud() -> None:
    winograd = Cost(name="image", flops=4e10, min_flops=1e10, bytes=0)
    once = {"costs": (winograd,), "feed_units": 1}
    assert told(integrity.below_ceiling, cell(((70,),) * 4, **once)) == []
    assert told(integrity.below_ceiling, cell(((50,),) * 4, **once)) != []


STREAMING: dict[str, Any] = {"costs": (Cost(name="decode", flops=0, bytes=1e9, streamed_bytes=1e9),), "feed_units": 1}


def test_what_comes_from_a_cache_is_no_fraud() -> None:
    """Three times the bandwidth of memory, of a gigabyte a yield."""
    fast = cell(((33,),) * 4, **STREAMING)
    assert told(integrity.below_ceiling, fast) != []
    assert told(integrity.below_ceiling, fast, {"L1d": "32K", "L3": "300M", "L2": "2048K"}) == []
    assert told(integrity.below_ceiling, fast, {"L3": "200M"}) != []  # four times this is less than a yield streams
    popular = cell(((33,),) * 4, costs=(Cost(name="rank", flops=0, bytes=1e9),), feed_units=1)
    assert told(integrity.below_ceiling, popular) == []


def test_feeds_in_flight_together_may_share_what_is_streamed() -> None:
    alone = cell(((33,),) * 4, scenario="offline", concurrency=4, **STREAMING)
    assert told(integrity.below_ceiling, alone) != []  # a runner that takes four feeds had one in flight
    together = overlapping(4, concurrency=4).completions
    assert told(integrity.below_ceiling, cell(completions=together, scenario="offline", **STREAMING)) == []


def test_a_route_that_cannot_be_the_fastest_would_be_too_fast_if_it_were() -> None:
    """Random ceilings and rates: whatever is left out would break `below_ceiling` at the other route's rate."""
    draw = np.random.default_rng(5)
    left_out = 0
    for _ in range(300):
        gemm_ns, read_ns, took_ns = (int(each) for each in draw.integers(20, 400, 3))
        work = Cost(name="decode", flops=float(draw.integers(1, 20)) * 1e9, bytes=4e9, streamed_bytes=4e9)
        wide = cell(((took_ns,),) * 4, costs=(work,), feed_units=1, batch=1)
        narrow = but(wide, route__precision="bf16", costs=(but(work, bytes=2e9, streamed_bytes=2e9),))
        share = Share(key="other", route=wide.route, scenario=wide.scenario, batch=1, limits=QUICK)
        probed = by("torch", gemm_ns, read_ns)
        (first,) = (each for each in gather(result(probed, narrow)).solo)
        same = gather(result(probed, wide))
        out = integrity.most_per_s(first, share, same.peaks) < (first.throughput_per_s or 0)
        left_out += out
        assert out == bool([*integrity.below_ceiling(same)])
    assert 50 < left_out < 250


def test_threads_of_a_slice_stay_there() -> None:
    assert said(integrity.threads_pinned, beside(block(1, strayed_threads=0))) == []
    strayed = beside(block(1, strayed_threads=1), block(2, strayed_threads=2))
    assert said(integrity.threads_pinned, strayed) == [says("threads_pinned", threads=2)]


def test_a_window_is_begun_once_and_a_run_is_not_resumed_after_its_first_solo_window() -> None:
    """A quick check is a window, too: its factor is shown, and says which routes are measured."""
    one = record("b", "llm", "token", closed_loop([[100]]))

    def told(begun: int, resumed: tuple[int, ...] = (), screening: bool = False) -> list[Any]:
        phase = Phase.model_construct(name=one.phase, purpose="screening" if screening else "solo", tasks=())
        update = {"phases": (phase,), "begun": (one.phase,) * begun, "resumed": resumed}
        evidence = gather(result(but(one, screening=screening)).model_copy(update=update))
        return [each.values for rule in (integrity.begun_once, integrity.run_at_once) for each in rule(evidence)]

    assert told(1) == told(1, (0, 0)) == told(1, (1,), screening=True) == []
    assert told(2) == told(2, screening=True) == [{"phase": one.phase, "times": 2}]
    assert told(1, (0, 1)) == [{"times": 1}]
