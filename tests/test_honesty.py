"""Each rule against a record that keeps it and one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from harness import honesty
from harness.schema import Audit, Conditions, Cost, Finding, Gate, GpuConditions, Record, Result
from tests.golden.sample import GPU, closed_loop, probe, record, result

Rule = Callable[[Result], Iterator[Finding]]
GATE = Gate(metric="regret in standard deviations", at_most=0.1)
COSTS = (Cost(name="prefill", flops=1e10, bytes=1e9, streamed_bytes=4e8), Cost(name="decode", flops=1e9, bytes=1e9))
SECOND = 1_000_000_000


def cell(steps: Sequence[Sequence[int]] = ((70, 400),) * 4, **changed: Any) -> Record:
    """Feeds of two yields, a unit each, as fast as the probe below in what it multiplies and what it streams."""
    plain = record("b", "llm", "token", closed_loop(steps), costs=COSTS)
    return plain.model_copy(update={"feed_units": 2, **changed})


def told(rule: Rule, changed: Record, caches: dict[str, str] | None = None) -> list[tuple[str, str]]:
    about = result(probe("a", 70, 400), changed)
    system = about.system.model_copy(update={"caches": caches or {"L2": "1024K", "L3": "32768K"}})
    return [(each.severity, each.message) for each in rule(about.model_copy(update={"system": system}))]


def audit(*values: float, **changed: Any) -> Audit:
    return Audit(gate=GATE, finished=9, feeds=tuple(range(len(values))), values=values, **changed)


def test_every_audited_feed_counts_and_not_their_mean() -> None:
    clean = "all of 3 audited feeds pass: at 95 %, at most 63 % of all are wrong"
    assert told(honesty.audited, cell(audit=audit(0.0, 0.1, 0.02))) == [("note", clean)]
    assert "the audited feed passes" in told(honesty.audited, cell(audit=audit(0.0)))[0][1]
    [(severity, message)] = told(honesty.audited, cell(audit=audit(0.0, 0.0, 0.0, 0.11)))
    assert severity == "invalid"
    assert "1 of 4 audited feeds fail; regret in standard deviations 0.11, at most 0.1" in message


@pytest.mark.parametrize(
    ("changed", "severity", "words"),
    [
        ({"audit": audit(problem="feed 3: 7 values that are not finite")}, "invalid", "feed 3: 7 values"),
        ({"audit": Audit(gate=GATE, finished=9, feeds=(3,))}, "warning", "the run ended before"),
        ({"unaudited": "torch is not installed"}, "warning", "torch is not installed"),
    ],
)
def test_what_was_not_compared_is_said(changed: dict[str, Any], severity: str, words: str) -> None:
    [(found, message)] = told(honesty.audited, cell(**changed))
    assert (found, words in message) == (severity, True)


@pytest.mark.parametrize(("feeds", "share"), [(1, 0.95), (3, 0.632), (30, 0.0950), (3000, 0.000998)])
def test_what_clean_feeds_exclude(feeds: int, share: float) -> None:
    assert honesty.excluded(feeds) == pytest.approx(share, rel=1e-3)


def test_every_feed_has_its_units_and_yields() -> None:
    assert told(honesty.units_counted, cell()) == []
    [(severity, message)] = told(honesty.units_counted, cell(feed_units=1))
    assert (severity, message) == ("invalid", "2 to 2 units were counted for feeds of 1")
    [(severity, message)] = told(honesty.units_counted, cell(((470,),) * 4, feed_units=1))
    assert (severity, message) == ("invalid", "feeds of 2 yields came in 1 at the least")


def test_the_parents_clock_brackets_the_workers() -> None:
    ten = cell(((SECOND, SECOND),) * 5)  # ten seconds from 1,000 ns on
    assert told(honesty.clock_bracketed, ten.model_copy(update={"bracket_ns": (900, 10 * SECOND + 100_000)})) == []
    slowed = ten.model_copy(update={"bracket_ns": (900, 20 * SECOND)})
    assert told(honesty.clock_bracketed, slowed) == [
        ("invalid", "the worker's clock tells 10.00 s of a window that took 20.00 s")
    ]
    shifted = ten.model_copy(update={"bracket_ns": (5 * SECOND, 15 * SECOND)})
    assert [severity for severity, _ in told(honesty.clock_bracketed, shifted)] == ["invalid"]
    server = slowed.model_copy(update={"scenario": "server"})  # the first feed may come late
    assert told(honesty.clock_bracketed, server) == []


def test_work_between_feeds_shows() -> None:
    busy = cell()
    assert told(honesty.little_between, busy) == []
    done = busy.completions
    assert done is not None
    late = done.marks_ns + 400 * (done.marks_ns > done.issued_ns[2])
    issued = done.issued_ns + 400 * (done.issued_ns >= done.issued_ns[2])
    paused = type(done)(issued, issued, done.ends, late, done.units)
    assert told(honesty.little_between, cell(completions=paused)) == [
        ("warning", "18 % of the window lies between feeds, where nothing is timed")
    ]


def test_what_fell_back_to_the_cpu_is_invalid() -> None:
    assert told(honesty.on_device, cell(facts={"nodes of see": "cuda 9", "elsewhere": ""})) == []
    [(severity, message)] = told(honesty.on_device, cell(facts={"elsewhere": "see: 2 Conv by CPUExecutionProvider"}))
    assert (severity, message) == ("invalid", "not all of it ran on cpu:0: see: 2 Conv by CPUExecutionProvider")


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"utilization_pct": 4, "own_listed": True}, ""),
        ({"utilization_pct": None, "own_listed": None}, ""),
        ({"utilization_pct": 0}, "was idle in all 4 blocks of the window"),
        ({"utilization_pct": 90, "own_listed": False}, "lists processes, and none of them is ours"),
    ],
)
def test_a_gpu_that_is_idle_or_works_for_others_shows(gpu: dict[str, Any], words: str) -> None:
    on_gpu = cell(((SECOND, SECOND),) * 2)
    blocks = [
        Conditions(begin_ns=second * SECOND, end_ns=(second + 1) * SECOND, gpus=(GpuConditions(id=GPU, **gpu),))
        for second in range(4)
    ]
    route = on_gpu.route.model_copy(update={"device": GPU})
    found = told(honesty.on_device, on_gpu.model_copy(update={"route": route, "conditions": tuple(blocks)}))
    assert [(severity, words in message) for severity, message in found] == ([("warning", True)] if words else [])
    elsewhere = told(honesty.on_device, on_gpu.model_copy(update={"conditions": tuple(blocks)}))
    assert elsewhere == []  # the record is of the CPU
    brief = on_gpu.model_copy(update={"route": route, "conditions": tuple(blocks[:1])})
    assert not [message for _, message in told(honesty.on_device, brief) if "idle" in message]


def test_nothing_is_faster_than_light() -> None:
    """The probe reaches 1e10 FLOP in 70 ns and 4e9 bytes in 400."""
    assert told(honesty.slower_than_light, cell()) == []
    [(severity, message)] = told(honesty.slower_than_light, cell(((25, 30),) * 4))
    assert severity == "warning"
    assert "1.40 × the best FLOP/s" in message


def test_a_clever_algorithm_is_no_fraud() -> None:
    winograd = Cost(name="image", flops=4e10, least_flops=1e10, bytes=0)
    once = {"costs": (winograd,), "feed_units": 1}
    assert told(honesty.slower_than_light, cell(((70,),) * 4, **once)) == []
    assert told(honesty.slower_than_light, cell(((50,),) * 4, **once)) != []


def test_what_comes_from_a_cache_is_no_fraud() -> None:
    """Three times the bandwidth of memory, of a gigabyte a yield."""
    streaming = {"costs": (Cost(name="decode", flops=0, bytes=1e9, streamed_bytes=1e9),), "feed_units": 1}
    fast = cell(((33,),) * 4, **streaming)
    assert told(honesty.slower_than_light, fast) != []
    assert told(honesty.slower_than_light, fast, {"L3": "300M"}) == []
    popular = cell(((33,),) * 4, costs=(Cost(name="rank", flops=0, bytes=1e9),), feed_units=1)
    assert told(honesty.slower_than_light, popular) == []


def test_feeds_in_flight_together_may_share_what_is_streamed() -> None:
    streaming = {"costs": (Cost(name="decode", flops=0, bytes=1e9, streamed_bytes=1e9),), "feed_units": 1}
    fast = cell(((33,),) * 4, scenario="offline", **streaming)
    assert told(honesty.slower_than_light, fast) != []
    assert told(honesty.slower_than_light, fast.model_copy(update={"slots": 4})) == []
    alone = fast.model_copy(update={"slots": 4, "scenario": "single-stream"})
    assert told(honesty.slower_than_light, alone) != []


def test_the_last_level_is_the_largest_number() -> None:
    assert honesty.last_level_bytes({"L1d": "32K", "L2": "1024K", "L3": "33792K"}) == 33792 << 10
    assert honesty.last_level_bytes({}) is None


def test_a_stamp_of_the_mixed_phase_lies_in_its_feeds_own_time() -> None:
    part = cell(scenario="mixed", bracket_ns=(0, 100 * SECOND))  # each suite has a part of the window only
    assert told(honesty.clock_bracketed, part.model_copy(update={"skew_ns": -5})) == []
    [(severity, message)] = told(honesty.clock_bracketed, part.model_copy(update={"skew_ns": SECOND}))
    assert (severity, message) == ("invalid", "a stamp lies 1.00 s outside of the time that its feed took here")


def test_a_given_seed_is_told() -> None:
    drawn = result(cell())
    assert list(honesty.seed_drawn(drawn)) == []
    [finding] = honesty.seed_drawn(drawn.model_copy(update={"seed_given": True}))
    assert (finding.severity, finding.about) == ("warning", "run")
    assert "the seed was given" in finding.message
