"""Tables of separation, and the gates in the tables of the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bench.separation import Row
from bench.separation.__main__ import ROUNDINGS, main, table
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


@pytest.mark.slow
def test_an_engine_that_a_device_lacks_leaves_the_others_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("dlrm", "smoke", "--only", "none", "--feeds", "1", "--engines", "torch:int8", "torch:fp32")
    monkeypatch.setattr(sys, "argv", ["separation", *words])
    main()
    lacking, row = capsys.readouterr().out.splitlines()
    assert lacking.startswith("torch:int8: torch ") and row.startswith("torch fp32 (the adapter itself, on cpu:0): ")


@pytest.mark.parametrize("name", registry.BUILT_IN["suites"])
def test_the_table_of_a_suite_has_the_gates_of_the_code(name: str) -> None:
    """At smoke a row for each precision that the suite has a gate for; the probe's was run at 16 bits only."""
    made = registry.find("suites")[name].load()
    pages = [DOCS / "separation.md", *DOCS.rglob("capabilities/*.md")]
    rows = [
        row
        for page in pages
        for row in re.findall(rf"^\| {name} \| (\w+) \| ([\w ]+) \| ([\d.]+) \|", page.read_text("utf-8"), re.MULTILINE)
    ]
    for tier, declared, at_most in rows:
        assert made(tier, {}).gate(ROUNDINGS[declared]).at_most == float(at_most), (tier, declared)
    gated = {declared for declared, precision in ROUNDINGS.items() if made("smoke", {}).gate(precision)}
    shown = {declared for _, declared, _ in rows}
    assert shown == ({"16 bits"} if name == "probe" else gated)
