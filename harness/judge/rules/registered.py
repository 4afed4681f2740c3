"""The registry of rules: a rule registers where it stands, with the codes, words and remedies of its findings.

    room = Room(650)

    @room.rule(warning("{host} is too warm: {degrees_c:.0f} °C", "open a window"), noticed=warning("it was warm"))
    def room_is_cool(evidence: Evidence) -> Iterator[Finding]:
        ...
        yield found("room_is_cool", host, host=host, degrees_c=31.0)

Any module may register a rule. It applies from the time the module is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Literal, TypeVar

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence, Measurement
from mixmark.harness.judge.findings import Says, declare, disturbs
from mixmark.harness.plugins.manifest import BUILT_IN

Sees = Literal["folder", "facts", "score", "grade"]
"""What a rule is given. `folder`: a result that was read from a folder, and what the suites say of it; the others are
given the evidence. `facts`: there is no score yet, and what is invalid by the rule counts in no score. `score`: the
score without its grade. `grade`: the whole score."""
Check = TypeVar("Check", bound=Callable[..., Iterator[Finding]])


@dataclass(frozen=True)
class Rule:
    """A registered rule."""

    name: str
    """The name of its function, which begins the codes of its findings."""
    weight: int
    """Findings and reasons of a verdict are listed by it, the heaviest first; of equals the first that was registered.
    900: the run and its score. 800: what a cheat breaks. 700: the state of the machine. 600: steadiness. 500: other
    load. 400: notes on records. 300: energy."""
    sees: Sees
    check: Callable[..., Iterator[Finding]]


RULES: dict[str, Rule] = {}
"""Every rule by its name."""


@dataclass(frozen=True)
class Room:
    """Rules that see the same, and are listed in the order of their definition."""

    weight: int
    sees: Sees = "score"

    def rule(
        self, says: Says | None = None, /, *, weight: int | None = None, **cases: Says
    ) -> Callable[[Check], Check]:
        """Registers a function as the rule of its name. The function itself is not changed.

        says: of the code without a case. weight: if it is not the room's. cases: see `findings.declare`. With the case
        `noticed` the rule's warnings are a reason of the verdict: a warning keeps a result from being solid, a note
        explains its margin. With the case `unranked` its findings cost a score its rank. What it finds in the
        case `much` is a reason of the verdict alone.
        """

        def register(check: Check) -> Check:
            declare(check.__name__, says, **cases)
            RULES[check.__name__] = Rule(check.__name__, weight or self.weight, self.sees, check)
            return check

        return register

    def record_rule(
        self, says: Says | None = None, /, *, weight: int | None = None, **cases: Says
    ) -> Callable[[Callable[[Measurement], Iterator[Finding]]], Callable[[Evidence], Iterator[Finding]]]:
        """Makes a rule of a function that looks at one measurement at a time. It becomes one of the evidence."""

        def register(check: Callable[[Measurement], Iterator[Finding]]) -> Callable[[Evidence], Iterator[Finding]]:
            @wraps(check)
            def of_each(evidence: Evidence) -> Iterator[Finding]:
                return (finding for measured in evidence.measured for finding in check(measured))

            return self.rule(says, weight=weight, **cases)(of_each)

        return register


def in_order() -> list[Rule]:
    """All rules in the order of their findings, also those of capabilities, which the manifest lists."""
    for spec in BUILT_IN["rules"].values():
        importlib.import_module(spec.partition(":")[0])
    return sorted(RULES.values(), key=lambda rule: -rule.weight)


def findings(sees: Sees, *given: object) -> tuple[Finding, ...]:
    """The findings of all rules that see this much."""
    return tuple(finding for rule in in_order() if rule.sees == sees for finding in rule.check(*given))


def disturbances(measured: Sequence[Measurement], found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Why these measurements are disturbed, with what explains it, by what was found. Empty if they are not.

    A rule has one finding about records: about the record that lost most, with how many of them it was found in.
    """
    counted = {each.key for each in measured}
    told = [finding for finding in found if disturbs(finding) not in ("", "widens")]
    reasons = [finding for finding in told if finding.about == "run"]
    for code in dict.fromkeys(finding.code for finding in told):
        if hits := [finding for finding in told if finding.code == code and finding.about in counted]:
            worst = max(hits, key=lambda finding: next(iter(finding.values.values()), 0))
            values = {**worst.values, "share": share(len(hits), len(counted))}
            reasons.append(worst.model_copy(update={"about": "run", "values": values}))
    reasons = sorted(ordered(reasons), key=lambda finding: ("explains", "cause", "effect").index(disturbs(finding)))
    return tuple(reasons) if any(disturbs(finding) != "explains" for finding in reasons) else ()


def share(hits: int, measurements: int) -> tuple[int, int] | tuple[()]:
    """How many of how many measurements a finding is about. Empty if it is about none, or the only one."""
    return (hits, measurements) if hits and measurements > 1 else ()


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings in the order of their rules."""
    places = {rule.name: place for place, rule in enumerate(in_order())}
    return tuple(sorted(findings, key=lambda finding: places[finding.rule]))
