"""Results with one thing wrong, and what a rule says about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from mixmark.harness.contracts.schema import Conditions, Cost, Failure, Finding, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.score import Score
from tests.golden.sample import GPU, closed_loop, probe, record, result

T = TypeVar("T")
FORWARD = (Cost(name="forward", flops=1e10, bytes=1e8),)


def done(step_ns: int = 100, feeds: int = 64) -> Result:
    """A probe that reaches 1e10 flop in 100 ns, and a suite of the same work."""
    suite = record("b", "resnet50", "image", closed_loop([[step_ns]] * feeds), costs=FORWARD)
    return result(probe("a", 100, 400), suite, probe("c", 105, 400))


def failed(kind: str) -> Result:
    failure = Failure.model_validate({"kind": kind, "message": "so it is", "hint": "do this"})
    return result(record("b", "llm", "token", error=failure))


def not_none(value: T | None) -> T:
    assert value is not None
    return value


def scored(about: Result) -> Score:
    return not_none(judge(about).score)


Check = Callable[[Evidence], Iterator[Finding]]
Said = tuple[str, str, Any]
"""A finding's code, what it is about, and its values."""


def facts(finding: Finding) -> Said:
    """It is written too: its rule gave a value for each field of its words."""
    assert words(finding)
    return finding.code, finding.about, dict(finding.values)


def said(rule: Check, about: Result) -> list[Said]:
    """The findings of one rule, in the assessment of the whole."""
    return [facts(each) for each in judge(about).findings if each.rule == rule.__name__]


def says(code: str, about: str = "b", /, **values: object) -> Said:
    """The same of the finding that is expected. Numbers may differ by rounding."""
    return (
        code,
        about,
        {name: pytest.approx(value) if isinstance(value, float) else value for name, value in values.items()},
    )


SECOND = 1_000_000_000


QUIET = {
    "cpus": 2,
    "busy_ns": SECOND,
    "own_ns": SECOND - 20_000_000,  # 1 % of two CPUs is others'
    "stolen_ns": 10_000_000,  # 0.5 %
    "throttled_periods": 0,
    "throttled_ns": 0,
    "memory_stall_ns": 1_000_000,
    "major_faults": 1,
    "swapped_in_pages": 1,
    "swapped_out_pages": 1,
    "clock_mean_mhz": 4000.0,
    "thermal_throttles": 0,
    "temperature_c": 60.0,
    "power_source": "mains",
    "clock_step_ns": 100_000_000,
}


def block(second: int, **changed: object) -> Conditions:
    """One second; what is not changed is right at every rule's limit."""
    begin = second * SECOND
    return Conditions.model_validate({"begin_ns": begin, "end_ns": begin + SECOND} | QUIET | changed)


def beside(*blocks: Conditions, device: str = "cpu:0") -> Result:
    """A record whose window is the six seconds from one microsecond on: the first block is not quite inside."""
    done = closed_loop([[6 * SECOND]])
    disturbed = record("b", "llm", "token", done, device=device)
    return result(disturbed.model_copy(update={"conditions": blocks}))


def six(**changed: object) -> Result:
    return beside(*(block(second, **changed) for second in range(6)))


def gpu_state(**changed: object) -> dict[str, object]:
    calm = {"id": GPU, "reasons": ("idle",), "clock_mhz": 1700, "temperature_c": 60, "foreign_pids": ()}
    return {"accelerators": [calm | changed]}


def canaries(*times: tuple[int, ...]) -> Result:
    blocks = [
        Conditions(begin_ns=second * SECOND, end_ns=(second + 1) * SECOND, canary_ns=each)
        for second, each in enumerate(times)
    ]
    return beside(*blocks)
