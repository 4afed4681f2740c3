"""What a rule is: it looks at the evidence and yields findings. The name of its function stands in every finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Literal

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence, Measurement

Severity = Literal["note", "warning", "pending", "invalid"]
Rule = Callable[[Evidence], Iterator[Finding]]


def rule(check: Callable[[Evidence], Iterator[tuple[Severity, str, str]]]) -> Rule:
    """Makes a rule of a check that yields (severity, about, message).

    about: the key of a record, the name of a phase, the id of a device, or `run`.
    """

    @wraps(check)
    def findings(evidence: Evidence) -> Iterator[Finding]:
        for severity, about, message in check(evidence):
            yield Finding(rule=check.__name__, severity=severity, about=about, message=message)

    return findings


def record_rule(severity: Severity) -> Callable[[Callable[[Measurement], Iterator[str]]], Rule]:
    """Makes a rule of a check that looks at one measurement at a time and yields messages. All have this severity."""

    def made(check: Callable[[Measurement], Iterator[str]]) -> Rule:
        @wraps(check)
        def findings(evidence: Evidence) -> Iterator[Finding]:
            for measured in evidence.measured:
                for message in check(measured):
                    yield Finding(rule=check.__name__, severity=severity, about=measured.key, message=message)

        return findings

    return made
