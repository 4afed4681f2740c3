from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import validate
from harness.schema import Cost, Failure, Finding, Result
from tests.golden.sample import closed_loop, probe, record, result, sample

Rule = Callable[[Result], Iterator[Finding]]
FORWARD = (Cost(name="forward", flops=1e10, bytes=1e8),)


def done(step_ns: int = 100, feeds: int = 64) -> Result:
    """A probe that reaches 1e10 flop in 100 ns, and a suite of the same work."""
    suite = record("b", "resnet50", "image", closed_loop([[step_ns]] * feeds), costs=FORWARD)
    return result(probe("a", 100, 400), suite, probe("c", 105, 400))


def failed(kind: str) -> Result:
    failure = Failure.model_validate({"kind": kind, "message": "so it is", "hint": "do this"})
    return result(record("b", "llm", "token", error=failure))


@pytest.mark.parametrize(
    "rule",
    [validate.finished, validate.enough_feeds, validate.ceiling_known, validate.below_ceiling, validate.speed_held],
)
def test_a_clean_result_passes(rule: Rule) -> None:
    assert list(rule(done())) == []


def said(rule: Rule, about: Result) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.about, finding.message) for finding in rule(about)]


def test_a_failed_attempt_is_invalid_and_a_refusal_is_a_note() -> None:
    assert said(validate.finished, failed("crashed")) == [("invalid", "b", "crashed: so it is (do this)")]
    assert said(validate.finished, failed("refused")) == [("note", "b", "refused: so it is (do this)")]


def test_an_interrupted_run_is_a_warning() -> None:
    assert said(validate.finished, result(finished=False)) == [("warning", "run", "interrupted; --resume goes on")]


def test_a_small_sample_has_no_tail() -> None:
    assert said(validate.enough_feeds, done(feeds=63)) == [("note", "b", "no tail percentile: p90 needs 64 feeds")]


def test_an_unprobed_device_has_no_roofline() -> None:
    lone = result(*done().records[1:2])
    assert said(validate.ceiling_known, lone) == [("note", "b", "roofline: cpu:0 was not probed in fp32")]


def test_nothing_is_faster_than_the_roofline() -> None:
    [(severity, about, message)] = said(validate.below_ceiling, done(step_ns=80))
    assert (severity, about, message[:5]) == ("warning", "b", "125 %")


def test_a_probe_that_slows_down_is_a_warning() -> None:
    drifting = result(probe("a", 100, 400), probe("c", 120, 400))
    [(severity, about, message)] = said(validate.speed_held, drifting)
    assert (severity, about) == ("warning", "cpu:0")
    assert "flop/s" in message
    assert "20 %" in message


def test_energy_and_quality_are_always_called_unknown_in_this_version() -> None:
    for rule in (validate.energy_known, validate.quality_audited):
        assert [finding.severity for finding in rule(done())] == ["note"]


def test_findings_asks_every_rule() -> None:
    asked = {finding.rule for finding in validate.findings(sample())}
    assert asked == {rule.__name__ for rule in validate.RULES} - {"below_ceiling"}
