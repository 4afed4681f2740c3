"""Each state of a measurement and of a result in the words of each form."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mixmark.harness.contracts.schema import Absent, Audit, Failure, Gate, Record, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.reporters import report
from tests.fakes.machine import EDGE
from tests.golden.sample import MS, closed_loop, record, result
from tests.judge.found import six

FORMS: dict[str, Callable[[Assessment], str]] = {"console": report.console, "full": report.full}
WRONG = Audit(gate=Gate(metric="error", at_most=0.1), feeds=(0,), values=(0.5,), finished=64)


def measured(**changed: object) -> Record:
    return record("a", "llm", "token", closed_loop([[100 * MS]] * 64)).model_copy(update=changed)


def three() -> list[Record]:
    done = closed_loop([[100 * MS]] * 64)
    return [record(name, name, "unit", done) for name in ("llm", "dlrm", "resnet50")]


def failed(kind: str) -> Record:
    failure = Failure.model_validate({"kind": kind, "message": "so it is", "hint": "do this"})
    return record("a", "llm", "token", error=failure)


def disturbed() -> Result:
    return six(busy_ns=1_900 * MS, own_ns=1_000 * MS)


def without_mix(found: Result) -> Result:
    why = "no device can run diffusion; the solo records say why"
    return found.model_copy(
        update={"mix": EDGE, "absent": (Absent(kind="mix", name=EDGE.name, reason=why),), "finished": True}
    )


STATES = {
    "interrupted": (result(measured(audit=None), finished=False), 130, "unfinished", "not audited yet", "--resume"),
    "partial": (without_mix(result(*three())), 0, "partial", "3 of 4 suites", "no device can run diffusion"),
    "disturbed": (disturbed(), 0, "disturbed", "disturbed", "other programs used up to 45 % of the machine"),
    "invalid": (result(measured(audit=WRONG)), 1, "invalid", "invalid", "wrong outputs"),
    "never audited": (result(measured(audit=None)), 1, "invalid", "invalid", "not audited"),
    "without a gate": (result(measured(audit=None, exempt="no gate")), 0, "fair", "unaudited", "the suite has no gate"),
    "failed": (result(failed("raised")), 1, "invalid", "failed", "so it is"),
    "not measured": (result(failed("unsupported")), 1, "invalid", "unsupported", "so it is"),
}
"""A result, its exit code, its verdict, the words for its state, and their reason."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", FORMS)
def test_a_state_has_the_same_words_in_every_form(state: str, form: str) -> None:
    found, exit_code, verdict, words, reason = STATES[state]
    assessment = judge(found)
    assert (assessment.exit_code, assessment.verdict.word) == (exit_code, verdict)
    text = " ".join(FORMS[form](assessment).split())
    for each in (verdict, words, reason):
        assert each in text, each
    assert verdict == "invalid" or "invalid" not in text


def test_what_is_not_audited_yet_counts_for_nothing() -> None:
    assessment = judge(STATES["interrupted"][0])
    [row] = assessment.solos
    assert row.status == "not audited yet" and row.speed == pytest.approx(10.0)
    assert [(each.severity, each.voids) for each in assessment.findings if each.rule == "audited"] == [
        ("pending", True)
    ]
