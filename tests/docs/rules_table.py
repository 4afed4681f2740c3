"""The table of rules in docs/rules.md: the first sentence of the docstring of each of the judge's own rules, and
what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from mixmark.harness import judge
from mixmark.harness.contracts.schema import Severity
from mixmark.harness.judge.findings import CODES
from mixmark.harness.judge.rules.registered import in_order
from tests.docs import parts

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def rows() -> Iterator[tuple[str, str, str]]:
    """(name, what the rule asks, its severities and whether it costs the rank), in the order of the findings."""
    for rule in in_order():
        if rule.check.__module__.startswith(judge.__name__):
            says = {code.partition(".")[2]: each for code, each in CODES.items() if code.partition(".")[0] == rule.name}
            found = {each.severity for case, each in says.items() if case not in ("noticed", "unranked")}
            kinds = [kind for kind in reversed(get_args(Severity)) if kind in found]
            kinds += ["no rank"] if "unranked" in says else []
            asks, _, _ = " ".join((rule.check.__doc__ or "").split()).partition(". ")
            yield rule.name, asks.rstrip("."), ", ".join(kinds)


def pages() -> dict[Path, str]:
    lines = [
        "| rule | what it asks | findings |",
        "|---|---|---|",
        *("| {} | {} | {} |".format(*row) for row in rows()),
    ]
    return {PAGE: parts.renewed(PAGE.read_text("utf-8"), rules="\n".join(lines) + "\n")}
