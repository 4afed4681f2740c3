"""Tables of separation, and the gates that the pages of docs/separation name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from bench.separation import Row
from bench.separation.__main__ import ROUNDINGS, table
from mixmark.harness.contracts import schema
from mixmark.harness.plugins import registry

DOCS = Path(__file__).parents[2] / "docs"
RIGHT = Row("fp32", "16 bits", (0.0, 0.01))
SKIPPED = Row("a layer skipped", "", (0.3, 0.4))


def test_a_table_has_each_gate_between_the_worst_honest_way_and_the_mildest_cheat() -> None:
    suite = registry.build_suite("resnet50", registry.BUILT_IN["suites"]["resnet50"], "smoke", {}, 8)
    ways = [Row(f"int{bits}", "int8", (0.01, 0.02 / bits)) for bits in range(1, 7)]
    told = table([*ways[:4], RIGHT, *ways[4:], Row("zeros", "", (2.0,), "none computed"), SKIPPED], suite)
    assert told.splitlines()[2:] == [
        "| 16 bits | 0.0025 | fp32 | 0.01 | 0.25 | a layer skipped | 0.3 | 1.2e+02 |",
        "| int8 | 0.12 | int1 | 0.02 | 6 | a layer skipped | 0.3 | 2.5 |",
        "",
        "- Honest ways: int1 0.01–0.02; int2 0.01; int3 0.0067–0.01; 4 more up to 0.01",
        "- Cheats: a layer skipped 0.3–0.4; zeros (none computed) 2",
    ]


def missing(page: str, bounds: dict[str, float]) -> dict[str, float]:
    """The gates whose bound the page does not name."""
    named = {float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?", page)}
    return {gate: at_most for gate, at_most in bounds.items() if at_most not in named}


@pytest.mark.parametrize("name", registry.BUILT_IN["suites"])
def test_the_page_of_a_suite_names_every_gate_with_its_bound(name: str) -> None:
    made, bounds = registry.find("suites")[name].load(), {}
    for tier in get_args(schema.Tier):
        for precision in ("fp32", *ROUNDINGS.values()):
            if gate := made(tier, {}).gate(precision):
                bounds[f"{tier} {precision}"] = gate.at_most
    if name != "probe":  # it takes no checkpoint
        bounds["checkpoint"] = made("edge", {"weights": "x"}).gate("bf16").at_most
    folder = DOCS / ("capabilities" if ".capabilities." in made.__module__ else "separation")
    (file,) = folder.rglob(f"{name}.md")
    page = file.read_text("utf-8")
    assert missing(page, bounds) == {}
    assert missing(page, {"made up": 0.1234567}) == {"made up": 0.1234567}
    by_gate = 0
    for tier, rows in re.findall(
        rf"bench\.separation(?:\.states)? {name} (\w+)[^\n]*\n(.*?)(?=bench\.|$)", page, re.DOTALL
    ):
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
        for declared, gate, *_ in (row for row in cells if len(row) == 8 and row[0] in ROUNDINGS):
            assert float(gate) == bounds[f"{tier} {ROUNDINGS[declared]}"], (tier, declared)
            by_gate += 1
    assert by_gate >= sum(f"smoke {precision}" in bounds for precision in ROUNDINGS.values()) or name == "probe"
