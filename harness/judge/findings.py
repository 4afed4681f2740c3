"""Findings and their words: a code has a severity, words and a remedy, which are declared where the finding is made.

A code is the name of a rule, or `rule.case` if the rule can say several things. Most codes are declared with their rule
(`rules.registered.Room`), the others by `declare` in the module that finds them.

The words have a field for each value of a finding. The format of a field is one of `FORMATS` or Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Any, Literal

from mixmark.harness.contracts.numbers import counted, duration, percent, significant
from mixmark.harness.contracts.schema import Finding, FindingValue, Severity

AGAIN = "run again; --wait-idle 60 waits until other programs rest"
DOCTOR = "mixmark doctor lists what can disturb"
READS = "mixmark meters shows what it reads"
Disturbs = Literal["", "explains", "cause", "effect", "widens"]


@dataclass(frozen=True)
class Says:
    """What a finding of one code says."""

    severity: Severity
    words: str
    remedy: str = ""
    """What the reader can do. Empty if no remedy is known."""
    disturbs: Disturbs = ""
    """Whether it calls a result disturbed: as what biased its figure, or as what shows that something did. What
    `explains` is a reason only of a result that is disturbed, or why a margin is wide; what `widens` a figure costs it
    only the rank."""


note = partial(Says, "note")
warning = partial(Says, "warning")
cause = partial(Says, "warning", disturbs="cause")
effect = partial(Says, "warning", disturbs="effect")
explains = partial(Says, "warning", disturbs="explains")
slows = partial(Says, "note", disturbs="explains")
widens = partial(Says, "warning", disturbs="widens")
pending = partial(Says, "pending")
invalid = partial(Says, "invalid")

CODES: dict[str, Says] = {}
"""What the findings of each declared code say."""


def declare(rule: str, says: Says | None = None, /, **cases: Says) -> None:
    """Declares codes of a rule: its name, if it says something without a case, and `rule.case` for each case.

    Raises ValueError if one of them was declared before.
    """
    codes = ({rule: says} if says else {}) | {f"{rule}.{case}": each for case, each in cases.items()}
    if twice := codes.keys() & CODES:
        raise ValueError(f"declared twice: {', '.join(sorted(twice))}")
    CODES.update(codes)


EXEMPTIONS = {"no gate": "the suite has no gate", "hosted": "a hosted service has weights of its own"}
"""The words of the codes of `schema.Exemption` that are not their own words."""
FORMATS: Mapping[str, Callable[..., str]] = {
    "percent": percent,
    "significant": significant,
    "times": lambda change: f"{significant(1 + change)} times",
    "duration": duration,
    "counted": counted,
    "hint": lambda hint: f" ({hint})" if hint else "",
    "phase": lambda phase: f"{phase}: " if phase else "",
    "exempt": lambda why: str(EXEMPTIONS.get(why, why)),
    "from": lambda seconds: f" from {seconds:.1f} s",
    "to": lambda seconds: f" to {seconds:.1f} s",
    "of": lambda seconds: f" of {seconds:.1f} s",
    "share": lambda share: " ({} of {} measurements)".format(*share) if share else "",
}
"""Formats of fields beside Python's own. A word after a name is the second argument: `counted feed`."""
MOMENTS = ("from", "to", "of")
"""Formats of moments. Of several findings they are left out: their ranges say nothing about any of them."""


UNKNOWN = "unknown"
"""The words of a value that a finding lacks."""


@dataclass(frozen=True)
class Span:
    """A value that differs between findings of one code."""

    low: float
    high: float


class _Words(Formatter):
    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), UNKNOWN)  # nothing is lost by a word that lacks

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Span) and format_spec in MOMENTS:
            return ""
        if isinstance(value, Span):
            low, high = (self.format_field(end, format_spec) for end in (value.low, value.high))
            if format_spec.startswith(("counted ", "times")):
                low = low.partition(" ")[0]  # 1 to 2 feeds
            return high if value.low == value.high else f"{low} to {high}"
        if value == UNKNOWN:
            return UNKNOWN
        name, *argument = format_spec.split(" ", 1)
        if name in FORMATS:
            return str(FORMATS[name](value, *argument))
        if isinstance(value, tuple):
            return ", ".join(words(each) if isinstance(each, Finding) else each for each in value)
        return format(value, format_spec)


def found(code: str, about: str = "", /, **values: FindingValue) -> Finding:
    """A finding of this code. about: what the finding concerns; "" (also the only host's name) means the run."""
    return Finding(code=code, severity=CODES[code].severity, about=about or "run", values=values)


def case_of(rule: str, case: str, /, **values: FindingValue) -> Finding | None:
    """The finding of a case that not every rule has. None if the rule has no such case."""
    code = f"{rule}.{case}"
    return found(code, **values) if code in CODES else None


def disturbs(finding: Finding) -> Disturbs:
    """See `Says.disturbs`."""
    return CODES[finding.code].disturbs


def is_much(finding: Finding) -> bool:
    """Whether it is a reason of the verdict alone: the case `much` of its rule."""
    return finding.code.endswith(".much")


def voided(findings: Iterable[Finding]) -> frozenset[str]:
    """The keys of the records, and other things, that count for nothing by these findings."""
    return frozenset(finding.about for finding in findings if finding.voids)


def words(finding: Finding) -> str:
    """What a finding says."""
    return _written(CODES[finding.code].words, finding.values)


def in_full(finding: Finding) -> str:
    """What a finding says, after the name of what it is about."""
    return words(finding) if finding.about == "run" else f"{finding.about}: {words(finding)}"


def remedy(finding: Finding) -> str:
    """What the reader can do about it. Empty if no remedy is known."""
    return _written(CODES[finding.code].remedy, finding.values)


def words_of_all(findings: Iterable[Finding]) -> str:
    """What findings of one code say whose values differ in numbers only: kept 1.04 to 1.65 of 2 CPUs busy."""
    first, *others = findings
    if not others:
        return words(first)
    return _written(CODES[first.code].words, {name: _over(value, name, others) for name, value in first.values.items()})


def is_like(finding: Finding) -> tuple[object, ...]:
    """Equal for findings that differ in numbers only."""
    texts = (str(value) for value in finding.values.values() if not _is_number(value))
    return finding.code, finding.severity, *texts


def _over(value: FindingValue, name: str, others: Iterable[Finding]) -> object:
    numbers = [value, *(other.values.get(name, value) for other in others)]
    return Span(min(numbers), max(numbers)) if _is_number(value) else value  # type: ignore[arg-type]  # all are numbers


def _is_number(value: FindingValue) -> bool:
    return isinstance(value, (int, float))


def _written(template: str, values: Mapping[str, object]) -> str:
    return _Words().vformat(template, (), values)
