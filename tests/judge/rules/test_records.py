"""The rules about each record: what keeps them and what does not."""

from __future__ import annotations

import pytest

from mixmark.harness.contracts.schema import Failure, LatencyLimits, RateTrial, Result, Trial
from mixmark.harness.judge.rules import quality
from tests.golden.sample import but, closed_loop, record, result
from tests.judge.found import done, failed, said, says


def test_a_failed_attempt_is_invalid_and_a_refusal_is_a_note() -> None:
    for kind, code in (("crashed", "finished.failed"), ("refused", "finished.refused")):
        assert said(quality.finished, failed(kind)) == [says(code, kind=kind, message="so it is", hint="do this")]


def test_an_interrupted_run_is_a_warning() -> None:
    assert said(quality.finished, result(finished=False)) == [says("finished.interrupted", "run")]


def test_a_batch_search_that_ran_out_of_time_is_told() -> None:
    """An engine that got 99 images a second at batch 2, and 3,162 at batch 64, once said nothing."""

    def searched(best: int, ended_by: str) -> Result:
        trials = tuple(Trial(batch=batch, units=batch, elapsed_ns=1) for batch in (1, 2, 4))
        return result(but(done().records[1], trials=trials, batch=best, search_ended_by=ended_by))

    assert said(quality.batch_search_finished, searched(4, "time")) == [says("batch_search_finished", largest=4)]
    assert said(quality.batch_search_finished, searched(2, "time")) == [], "a larger one was no faster"
    for reason in ("no gain", "memory"):
        assert said(quality.batch_search_finished, searched(4, reason)) == []


def test_an_adapter_that_did_not_close_is_told() -> None:
    failure = Failure(kind="hung", message="no output", hint="see b.log")
    close_failure = but(done().records[1], close_failure=failure)
    told = says("closed_cleanly", kind="hung", message="no output", hint="see b.log")
    assert said(quality.closed_cleanly, result(close_failure)) == [told]
    assert said(quality.closed_cleanly, done()) == []


def test_an_unprobed_device_has_no_roofline() -> None:
    lone = result(*done().records[1:2])
    assert said(quality.ceiling_known, lone) == [
        says("ceiling_known", why="no undisturbed probe of a built-in adapter found the ceiling of cpu:0 in fp32")
    ]


def test_a_window_that_was_not_steady_is_a_warning_and_one_too_short_to_tell_a_note() -> None:
    slowing = result(record("b", "resnet50", "image", closed_loop([[100]] * 40 + [[200]] * 10)))
    [(code, about, values)] = said(quality.steady, slowing)
    assert (code, about, values["figure"], values["rate_pct"]) == ("steady", "b", "throughput", pytest.approx(50))
    assert said(quality.steady, done(feeds=19)) == [says("steady.unknown", needed=20)]


def served(step_ns: int, feeds: int = 70, **more: object) -> Result:
    limits = LatencyLimits(percentile=0.9, total_ns=100, source="a test")
    feed = closed_loop([[step_ns]] * feeds)
    one = record("b", "resnet50", "image", feed, scenario="server")
    return result(but(one, rate_per_s=5.0, latency_limits=limits, **more))


def test_a_server_that_does_not_keep_its_limits_is_a_warning() -> None:
    assert said(quality.latency_within_limits, served(100)) == []
    assert said(quality.latency_within_limits, served(101)) == [says("latency_within_limits.broken", percentile="p90")]
    searched = (RateTrial(rate_per_s=5.0, feeds=64, kept=True),)
    assert said(quality.latency_within_limits, served(101, rate_trials=searched)) != []  # whatever the search found
    assert said(quality.latency_within_limits, served(100, feeds=9)) == [
        says("latency_within_limits.open", percentile="p90", needed=64)
    ]
