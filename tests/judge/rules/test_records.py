"""The rules about each record: what keeps them and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mixmark.harness.contracts.schema import (
    Failure,
    LatencyLimits,
    Limits,
    Phase,
    RateTrial,
    Result,
    Share,
    Task,
    Trial,
)
from mixmark.harness.judge.rules import records
from tests.golden.sample import closed_loop, record, result
from tests.judge.found import done, failed, said


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

    told = "the search for the best batch ran out of time: none above 4 was tried, and batch"
    assert said(records.batch_search_finished, searched(4, "time")) == [("warning", "b", f"{told} 4 was measured")]
    assert said(records.batch_search_finished, searched(2, "time")) == [("note", "b", f"{told} 2 was measured")]
    assert (
        said(records.batch_search_finished, searched(4, "no gain"))
        == said(records.batch_search_finished, searched(4, "memory"))
        == []
    )


def test_an_adapter_that_did_not_close_is_told() -> None:
    failure = Failure(kind="hung", message="no output within 30 s while closing its suites", hint="see b.log")
    told = "hung when it was closed: no output within 30 s while closing its suites (see b.log)"
    close_failure = done().records[1].model_copy(update={"close_failure": failure})
    assert said(records.closed_cleanly, result(close_failure)) == [("note", "b", told)]
    assert said(records.closed_cleanly, done()) == []


def test_an_unprobed_device_has_no_roofline() -> None:
    lone = result(*done().records[1:2])
    assert said(records.ceiling_known, lone) == [("note", "b", "roofline: cpu:0 was not probed in fp32")]


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


def served(step_ns: int, feeds: int = 70, reported_ns: int = 0, **more: object) -> Result:
    """reported_ns: after the last timestamp of each feed."""
    limits = LatencyLimits(percentile=0.9, total_ns=100, source="a test")
    feed = closed_loop([[step_ns]] * feeds)
    feed = replace(feed, seen_ns=feed.yielded_ns + reported_ns)
    one = record("b", "resnet50", "image", feed, scenario="server")
    return result(one.model_copy(update={"rate_per_s": 5.0, "latency_limits": limits, **more}))


def test_a_server_that_does_not_keep_its_limits_is_a_warning() -> None:
    assert said(records.latency_within_limits, served(100)) == []
    assert said(records.latency_within_limits, served(101)) == [
        ("warning", "b", "the latency limits are not kept at p90")
    ]
    assert said(records.latency_within_limits, served(100, reported_ns=1)) != []  # the parent's clock counts
    searched = (RateTrial(rate_per_s=5.0, feeds=64, kept=True),)
    assert said(records.latency_within_limits, served(101, rate_trials=searched)) != []  # whatever the search found
    [(severity, _, message)] = said(records.latency_within_limits, served(100, feeds=9))
    assert (severity, message) == ("note", "whether the latency limits are kept is open: p90 needs 64 feeds")
