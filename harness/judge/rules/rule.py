"""What a rule is: it looks at the evidence and yields findings. The name of its function begins their codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence, Measurement

Rule = Callable[[Evidence], Iterator[Finding]]


def record_rule(check: Callable[[Measurement], Iterator[Finding]]) -> Rule:
    """Makes a rule of a check that looks at one measurement at a time."""

    @wraps(check)
    def findings(evidence: Evidence) -> Iterator[Finding]:
        return (finding for measured in evidence.measured for finding in check(measured))

    return findings
