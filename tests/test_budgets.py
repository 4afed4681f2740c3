"""A budget of code lines for each room. Raising one is a line of the commit's message; what shrinks lowers its budget.

Lines without code, comments and docstrings do not count.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from tests.test_imports import ROOMS, files

BUDGETS = {
    "contracts": 1240,
    "resources": 355,
    "plugins": 550,
    "plan": 930,
    "judge": 4360,
    "adapters": 2010,
    "meters": 255,
    "record": 475,
    "worker": 2305,
    "machine": 1535,
    "measure": 2585,
    "cli": 1045,
    "reporters": 1680,
    "suites": 2605,
}
"""The rooms of the harness, and what else a score needs. Together 21,867 lines."""
QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(path: Path) -> int:
    text = path.read_text("utf-8")
    documented = {
        line
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for each in tokens if each.type not in QUIET for line in range(each.start[0], each.end[0] + 1)}
    return len(lines - documented)


def test_each_room_has_a_budget() -> None:
    assert BUDGETS.keys() == {*ROOMS, "reporters", "suites"}


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room: str) -> None:
    found = sum(map(code_lines, files(f"harness/{room}" if room in ROOMS else room)))
    assert found <= BUDGETS[room]
    assert found > BUDGETS[room] - 300, "lower its budget: what was saved is not to be spent again"


def test_what_does_not_run_is_no_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""A docstring\nof two lines."""\n\n# a comment\nX = (\n    1,\n)\n"""Told."""\n')
    assert code_lines(tmp_path / "a.py") == 3
