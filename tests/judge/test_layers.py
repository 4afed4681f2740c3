"""Modules of the judge import in one direction: statistics first, the assessment last."""

from __future__ import annotations

import ast
from pathlib import Path

ROOM = Path(__file__).parents[2] / "harness" / "judge"
PREFIX = "mixmark.harness.judge."
LAYERS = (
    *("findings", "statistics", "energy", "roofline", "mixed_run", "score", "diagnosis", "evidence", "solo"),
    *("solo_rates", "rules", "verdict", "references", "assessment"),
)
"""In the order of harness/judge/__init__.py. Each may import itself and those before it."""


def imported(path: Path) -> set[str]:
    """The layers that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix(PREFIX).split(".")[0] for name in names if name.startswith(PREFIX)}


def test_every_module_imports_only_from_its_layer_and_those_before() -> None:
    modules = [path for path in ROOM.rglob("*.py") if path != ROOM / "__init__.py"]
    for path in modules:
        layer = path.relative_to(ROOM).parts[0].removesuffix(".py")
        assert imported(path) <= set(LAYERS[: LAYERS.index(layer) + 1]), path
    assert not imported(ROOM / "__init__.py"), "a worker needs only the statistics"
