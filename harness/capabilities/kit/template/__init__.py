"""Starter packages for vendors: a plugin that runs, with a test, a README and a workflow.

The templates lie beside this file. docs/capabilities/kit/ shows the plugins among them.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from mixmark.harness import VERSION
from mixmark.harness.contracts.errors import UsageError, explained
from mixmark.harness.plugins import registry

Kind = Literal["session", "runner", "meter", "suite", "policy"]
NEEDS: Mapping[Kind, tuple[str, ...]] = {
    "session": ("numpy", "onnx", "onnxruntime"),
    "runner": ("numpy",),
    "meter": (),
    "suite": ("torch",),
    "policy": (),
}
"""The packages that the plugin of each kind imports beside Mixmark."""
GROUPS: Mapping[str, registry.Kind] = {"meter": "meters", "suite": "suites", "policy": "policies"}
"""The kinds of plugins that are no adapters."""


def package(kind: Kind, name: str) -> str:
    """The name of a starter package. A vendor's adapter and meter have the same name, and are two packages."""
    return f"mixmark-{name}-{kind}" if kind in GROUPS else f"mixmark-{name}"


def write(kind: Kind, name: str, folder: Path) -> tuple[str, ...]:
    """Writes a starter package into a folder that is new or empty, and returns its files. Raises UsageError for a name
    that no plugin can have, and for a folder that holds something or cannot be written."""
    texts = files(kind, name)
    with explained(f"cannot write the folder {folder}", "name another one by --out"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"the folder {folder} is not empty", "name a new one by --out")
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    return tuple(texts)


def files(kind: Kind, name: str) -> Mapping[str, str]:
    """The texts of a starter package by their paths. Raises UsageError for a name that no plugin can have."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    group = GROUPS.get(kind, "adapters")
    module = package(kind, name).replace("-", "_")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    paths = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{module}.py": f"{kind}.py",
        "test_conformance.py": "test.py",
        ".github/workflows/test.yml": "ci.yml",
    }
    templates = Environment(loader=PackageLoader(__name__, "."), undefined=StrictUndefined, keep_trailing_newline=True)
    _check_name(name, class_name, group, templates.get_template(f"{kind}.py.jinja").render(name="", Name=""))
    facts = {
        "kind": kind,
        "noun": registry.singular(group),
        "name": name,
        "Name": class_name,
        "package": package(kind, name),
        "module": module,
        "group": group,
        "version": VERSION,
        "dependencies": json.dumps([f"mixmark>={VERSION}", *NEEDS[kind]]),
    }
    return {path: templates.get_template(f"{template}.jinja").render(facts) for path, template in paths.items()}


def _check_name(name: str, class_name: str, group: registry.Kind, source: str) -> None:
    """source: the plugin's file without its own names; none of them may be its class's name."""
    if not re.fullmatch("[a-z][a-z0-9_]{,39}", name):
        hint = "use at most 40 lower-case ASCII letters, digits and underscores, a letter first"
        raise UsageError(f"{name!a} cannot name a Python module", hint)
    if problem := registry.name_problem(group, name):
        raise UsageError(problem, "give it the name of your company or of your device")
    taken = {*keyword.kwlist, *re.findall(r"\w+", source.split('"""', 2)[2])}
    if name in keyword.kwlist or class_name in taken:
        raise UsageError(f"{name} is a word that Python or the plugin's own file uses", "give it another name")
