"""The rules that a result is judged by: evidence -> findings. docs/rules.md lists them all.

The name of a rule's function begins the codes of its findings.

integrity      what a cheat would break: a record that is invalid by it counts in no score
interference   what disturbed a measurement
records        whether each record finished, is steady and precise, and kept its limits; the paths
mix            whether the score is complete, bounded and graded
energy         what is metered, and whether the sources agree
consistency    facts that contradict each other; the store refuses a folder that has such
"""

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
