"""The files by which others join say what the code says."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from mixmark.harness import VERSION
from tests.test_budgets import BUDGETS, code_lines
from tests.test_imports import files

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINNED = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
WORKFLOW = (ROOT / ".github/workflows/check.yml").read_text("utf-8")


def test_a_citation_names_this_version_and_licence() -> None:
    fields = dict(re.findall(r"^([\w-]+): (\S.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE))
    assert (fields["version"], fields["license"]) == (VERSION, PROJECT["license"])


def test_the_workflow_runs_each_version_of_python_that_the_project_names() -> None:
    [matrix] = {tuple(re.findall(r"\d\.\d+", line)) for line in re.findall(r"python: \[(.*)\]", WORKFLOW)}
    assert PROJECT["requires-python"] == f">={matrix[0]}"
    python = "Programming Language :: Python :: "
    named = {each.removeprefix(python) for each in PROJECT["classifiers"] if each.startswith(python)}
    assert named <= {*matrix, "3 :: Only"}


def test_the_workflow_installs_pinned_versions_and_runs_what_exists() -> None:
    for line in re.findall(r"pip install (.*)", WORKFLOW):
        assert line.startswith("--constraint constraints.txt --editable . ")
        assert set(line.split()[4:]) <= set(PINNED)
    for path in re.findall(r"(?:scripts|tests|\.ci)/[\w./-]+", WORKFLOW):
        assert (ROOT / path).exists(), path


def test_a_hook_runs_a_script_or_what_is_pinned() -> None:
    hooks = re.findall(r"entry: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert hooks
    for program in map(Path, hooks):
        assert program.name in PINNED if program.parent == Path(".venv/bin") else (ROOT / program).is_file(), program


def test_the_first_change_works_and_fits_into_the_budget_of_its_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugin, test = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    module = ModuleType("mixmark.reporters.line")
    exec(plugin, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(f"{test}\ntest_a_result_is_one_line()", {})
    (file := tmp_path / "line.py").write_text(plugin, "utf-8")
    assert sum(map(code_lines, [*files("reporters"), file])) <= BUDGETS["reporters"], "CONTRIBUTING.md would fail"
